"""The test files of the ONNX models' suite, read without running them: which models, from where, with which marks.

Read are module constants, `pytest.mark.parametrize` over one name, marks, and the `model_url` that a test hands to
`compare_between_iree_and_onnxruntime`; `conftest.py` says where relative URLs begin.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


FIXTURE = "compare_between_iree_and_onnxruntime"
_BASES = {
    "GitHubLFSRepositoryCacheScope": "https://github.com/{}/raw/main/",
    "HuggingFaceCacheScope": "https://huggingface.co/{}/resolve/main/",
}
# That of the newest suite.
DEFAULT_BASE = _BASES["HuggingFaceCacheScope"].format("onnxmodelzoo/legacy_models")
_RAISED = {
    "IreeImportOnnxException": Stage.IMPORT,
    "IreeCompileException": Stage.COMPILE,
    "IreeRunException": Stage.THRESHOLD,
}
_HINT = "What is read is described in docs/reference/onnx-models.md."


@dataclass(frozen=True, slots=True)
class ModelTest:
    """A test of one model.

    Attributes:
        name: pytest's: `tests/…_test.py::test_models[mnist/model/mnist-12.onnx]`.
        url: of its model, as the suite has it: a URL, or a path from the suite's base.
        markers: its marks without a meaning of their own.
        skip: why it is skipped; empty where it runs.
        fails: the stage at which it is expected to fail; None where it is expected to pass.
        reason: why.
    """

    name: str
    url: str
    markers: frozenset[str] = frozenset()
    skip: str = ""
    fails: Stage | None = None
    reason: str = ""


class _UnreadableError(Exception):
    """What of a test cannot be read, and where."""

    def __init__(self, node: ast.expr | ast.FunctionDef, what: str) -> None:
        super().__init__(what)
        self.line = node.lineno


def read_test_file(path: Path, name: str, inside: str) -> tuple[list[ModelTest], list[Problem]]:
    """The tests of a file.

    Args:
        path: the file.
        name: how the user names it, for messages.
        inside: its path from the suite's root, as pytest names it.

    Returns:
        The tests that compare a model, and what is wrong with the file.
    """
    try:
        return _read_tests(ast.parse(path.read_bytes()), name, inside)
    except OSError as error:
        return [], [Problem(name, 0, "", f"cannot be read: {error.strerror}", "Check its rights.")]
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0) or 0
        return [], [Problem(name, line, "", f"is not Python: {error}", "Is the file cut off?")]


def _read_tests(tree: ast.Module, name: str, inside: str) -> tuple[list[ModelTest], list[Problem]]:
    constants = dict(_constants(tree))
    tests: list[ModelTest] = []
    problems: list[Problem] = []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    for node in functions:
        try:
            tests += _tests_of(node, constants, inside)
        except _UnreadableError as error:
            problems.append(Problem(name, error.line, node.name, str(error), _HINT))
    known = {call for node in functions for call in _comparisons(node)}
    lost = [call for call in _comparisons(tree) if call not in known]
    problems += [Problem(name, call.lineno, "", "compares a model outside of a test function", _HINT) for call in lost]
    return tests, problems


def _comparisons(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _dotted(node.func) == FIXTURE]


def base_of(conftest: Path) -> str:
    """The URL that the suite's relative URLs begin at, as its `conftest.py` names the repository."""
    try:
        tree = ast.parse(conftest.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Relative URLs came with the newest suite; what is wrong with a checkout is seen in its tests.
        return DEFAULT_BASE
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _dotted(node.func) in _BASES:
            repository = _text(_keyword(node, "repository_name"), {})
            if repository:
                return _BASES[_dotted(node.func)].format(repository)
    return DEFAULT_BASE


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _text(node.value, {})
            if value is not None:
                yield node.targets[0].id, value


def _tests_of(function: ast.FunctionDef, constants: Mapping[str, str], inside: str) -> Iterator[ModelTest]:
    calls = _comparisons(function)
    if not calls:
        return
    if len(calls) > 1:
        raise _UnreadableError(calls[1], f"compares {len(calls)} models: expected one")
    url = _keyword(calls[0], "model_url") or (calls[0].args[0] if calls[0].args else None)
    marks = [node for node in function.decorator_list if _mark(node) != "parametrize"]
    over = [node for node in function.decorator_list if _mark(node) == "parametrize"]
    if len(over) > 1:
        raise _UnreadableError(over[1], "is parametrized twice: expected one list of models")
    for test, names, own in _parameters(over[0]) if over else [("", {}, [])]:
        found = _text(url, {**constants, **names})
        if found is None:
            raise _UnreadableError(calls[0], "its model_url is not text that can be read without running it")
        name = f"{inside}::{function.name}" + (f"[{test}]" if over else "")
        # In the order in which pytest keeps them.
        yield _marked(ModelTest(name, found), [*reversed(marks), *own])


def _parameters(decorator: ast.expr) -> Iterator[tuple[str, dict[str, str], list[ast.expr]]]:
    """(id, value by name, marks) of each parameter."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    name, values = (_text(arguments[0], {}), arguments[1]) if len(arguments) > 1 else (None, None)
    if name is None or not name.isidentifier() or not isinstance(values, ast.List | ast.Tuple):
        raise _UnreadableError(decorator, 'expected pytest.mark.parametrize("model", [pytest.param("….onnx"), …])')
    for item in values.elts:
        called = isinstance(item, ast.Call) and _dotted(item.func) == "pytest.param"
        given = item.args[0] if isinstance(item, ast.Call) and called and item.args else item
        value = _text(given, {})
        if value is None:
            raise _UnreadableError(item, "a parameter is not text: expected a model's path")
        marks = _keyword(item, "marks") if isinstance(item, ast.Call) else None
        own = list(marks.elts) if isinstance(marks, ast.List | ast.Tuple) else [marks] if marks else []
        named = _text(_keyword(item, "id"), {}) if isinstance(item, ast.Call) else None
        yield named or value, {name: value}, own


def _marked(test: ModelTest, marks: Sequence[ast.expr]) -> ModelTest:
    """A test with what its marks mean; of several that expect a failure the first one counts, as for pytest."""
    markers: set[str] = set()
    skip, fails, why = test.skip, test.fails, ""
    for node in marks:
        word = _mark(node)
        call = node if isinstance(node, ast.Call) else None
        reason = (_text(_keyword(call, "reason") or (call.args[0] if call.args else None), {}) if call else "") or ""
        if word == "skip":
            skip = skip or f"skipped by the suite: {reason or 'no reason given'}"
        elif word == "xfail":
            raised = _dotted(_keyword(call, "raises")) if call else ""
            if not raised:
                raise _UnreadableError(node, "xfail does not say what is raised, and so at which stage it fails")
            if raised not in _RAISED:
                # The suite's own want, which comes before IREE is asked anything.
                skip = skip or f"the suite expects {raised}: it cannot test this model"
            elif fails is None:
                fails, why = _RAISED[raised], reason or f"xfail: {raised}"
        elif word in ("skipif", ""):
            raise _UnreadableError(node, "a mark whose meaning cannot be read without running it")
        else:
            markers.add(word)
    return ModelTest(test.name, test.url, frozenset(markers), skip, fails, why)


def _mark(node: ast.expr) -> str:
    """The name of a mark; empty where it is none."""
    prefix, _, word = _dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")
    return word if prefix == "pytest.mark" else ""


def _dotted(node: ast.expr | None) -> str:
    """`pytest.mark.skip` of an expression of names and dots; empty for another."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _keyword(call: ast.Call | None, name: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == name), None) if call else None


def _text(node: ast.expr | None, names: Mapping[str, str]) -> str | None:
    """The text that an expression means: literals, names, and sums of them; None for another."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _text(left, names), _text(right, names)
            return None if first is None or second is None else first + second
        case _:
            return None
