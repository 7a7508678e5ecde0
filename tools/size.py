"""Counts the package: files, code lines by folder, and functions with many parameters.

    python tools/size.py [FOLDER]

A code line is one that holds a token other than a comment or a docstring. Parameters are those of a definition,
`self` and `cls` left out.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_MANY = 7
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """Lines of a file that hold code."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
    docstrings = {line for node in first for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(code - docstrings)


def parameters(function: _Function) -> int:
    """How many a function takes, without `self` and `cls`."""
    arguments = function.args
    names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def main(folder: Path) -> None:
    """Prints the table."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    many: list[tuple[int, str]] = []
    longest = (0, "")
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        room = path.relative_to(folder).parts[0] if path.parent != folder else "."
        files[room] += 1
        lines[room] += code_lines(text)
        longest = max(longest, (len(text.splitlines()), str(path)))
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _Function)]
        many += [(parameters(node), f"{path}:{node.lineno} {node.name}") for node in functions]
    for room in sorted(lines, key=lambda name: -lines[name]):
        sys.stdout.write(f"{room:<16}{files[room]:>5} files {lines[room]:>7,} code lines\n")
    sys.stdout.write(f"{'together':<16}{sum(files.values()):>5} files {sum(lines.values()):>7,} code lines\n")
    sys.stdout.write(f"longest file: {longest[1]}, {longest[0]} lines\nfunctions with more than {_MANY} parameters:\n")
    for number, where in sorted(many, reverse=True):
        if number > _MANY:
            sys.stdout.write(f"  {number} {where}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "iree_gauntlet"))
