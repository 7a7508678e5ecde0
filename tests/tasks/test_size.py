"""What `tools/size.py` counts."""

from __future__ import annotations

import ast

import size

TEXT = '''"""A docstring
of two lines."""

# a comment
VALUE = """two
lines"""


class Some:
    """One of a class."""

    def method(self, a, *, b=1):
        """One of a method."""
        return [
            a,  # a comment at the end

            b,
        ]
'''


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring() -> None:
    assert size.code_lines(TEXT) == 8


def test_parameters_leave_out_the_object() -> None:
    functions = [node for node in ast.walk(ast.parse(TEXT)) if isinstance(node, ast.FunctionDef)]
    assert [size.parameters(function) for function in functions] == [2]
