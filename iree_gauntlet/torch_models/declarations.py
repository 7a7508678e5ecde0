"""Declarations in users' files: decorated functions with their locations, to which errors are attributed.

Listing also imports these files, in a Python that may lack torch, so this module imports only the standard library.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import traceback
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from iree_gauntlet.errors import GauntletError, Problem, SpecError, UsageError
from iree_gauntlet.settings import format_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


INSTALL_HINT = 'install what models need, pip install "iree-gauntlet[models]", or name a Python that has it'
# The hint for features that only PyBuda's own model files have.
PYBUDA_HINT = "docs/how-to/bench-models.md describes how to port a model file of PyBuda"
_MODEL_PACKAGES = frozenset({"torch", "transformers", "onnxscript", "onnx"})
# Hints for relative imports that fail, by a part of Python's message.
_RELATIVE_IMPORT_HINTS = {
    "beyond top-level package": f"a models folder is the top: from .name import …; {PYBUDA_HINT}",
    "no known parent package": "a plugin is one file: it imports other modules by their full names",
}

Function = TypeVar("Function", bound="Callable[..., Any]")
Kind = TypeVar("Kind", bound="Declaration")


class DeclarationError(SpecError):
    """An error for users' files that cannot be used as written; it holds every problem with its file and line."""

    files_noun: ClassVar[str] = "files"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems, kind=self.files_noun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Base class of all declarations."""

    name: str
    about: str = ""
    file: Path
    line: int

    noun: ClassVar[str]
    docs_reference: ClassVar[str]
    error: ClassVar[type[DeclarationError]]

    @property
    def location(self) -> str:
        """The declaration's file and line: `specs/models/bert.py:12`."""
        return f"{format_path(self.file)}:{self.line}"

    @classmethod
    def hint(cls, function: Callable[..., Any]) -> str:  # noqa: ARG003 - some kinds use it
        """Return a reference to the documentation of such declarations."""
        return cls.docs_reference

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Append to `messages` each rule that the name breaks."""

    def make_combined_error(self, messages: Iterable[str], hint: str | None = None) -> DeclarationError:
        """Return one error with a problem for each message; the default hint is the documentation."""
        note = self.docs_reference if hint is None else hint
        return self.error(
            [Problem(str(format_path(self.file)), self.line, self.name, message, note) for message in messages]
        )

    def make_error(self, message: str, hint: str | None = None) -> DeclarationError:
        """Return the error for a single message."""
        return self.make_combined_error([message], hint)

    @contextmanager
    def locate_errors(self, hint: str = "") -> Iterator[None]:
        """Attribute exceptions raised by the declared function, or by its results, to this declaration."""
        try:
            yield
        except GauntletError:
            raise
        except Exception as error:  # a user's function may raise anything, and the error has its name
            problem = make_failure_problem(error, self.file.parent, self.file, self.line, self.name, hint)
            raise self.error([problem]) from error


_DECLARATIONS: ContextVar[list[Declaration] | None] = ContextVar("_DECLARED", default=None)


@contextmanager
def collect_declarations() -> Iterator[list[Declaration]]:
    """Collect declarations in order while the context is open; no bytecode is written."""
    declarations: list[Declaration] = []
    token, dont_write_bytecode = _DECLARATIONS.set(declarations), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield declarations
    finally:
        sys.dont_write_bytecode = dont_write_bytecode
        _DECLARATIONS.reset(token)


def collect(declaration: Declaration) -> None:
    """Add a declaration to the active collection, if there is one."""
    declarations = _DECLARATIONS.get()
    if declarations is not None:
        declarations.append(declaration)


def make_decorator(
    kind: type[Declaration],
    read_fields: Callable[[Callable[..., Any], list[str]], dict[str, Any]],
    name: str | None = None,
    about: str = "",
) -> Callable[[Function], Function]:
    """Return a decorator that declares a function and returns it unchanged.

    Args:
        kind: class of the declaration.
        read_fields: takes the function, and a list to which it appends error messages; returns the fields that only
            this kind has, without `function`.
        name: None for the function's name.
        about: one line for lists; the docstring's first line if empty.
    """

    def declare(function: Function) -> Function:
        if not inspect.isfunction(function):
            label = kind.noun if name is None else repr(name)
            raise TypeError(f"the decorator of {label} is for a function, not for {function!r}")
        declaration_name = function.__name__ if name is None else name
        code = function.__code__
        location: dict[str, Any] = {"file": Path(code.co_filename).absolute(), "line": code.co_firstlineno}
        messages: list[str] = []
        kind.check_name(declaration_name, messages)
        fields = read_fields(function, messages)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        raise_problems(messages, kind, declaration_name, kind.hint(function), **location)
        collect(kind(name=declaration_name, about=about or summary, **location, **{"function": function, **fields}))
        return function

    return declare


def find_named_parameters(
    function: Callable[..., Any],
    names: Collection[str],
    hint: str,
    messages: list[str],
    positional: Collection[str] = (),
) -> dict[str, bool]:
    """Return which of the keyword parameters `names` a function takes: True if the parameter is required."""
    required_by_name: dict[str, bool] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        is_required = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            messages.append(f"{format_starred(parameter)}: arguments are passed only to named parameters")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            messages.append(f"{name} is positional-only (before /), but arguments are passed by name")
        elif name in names:
            required_by_name[name] = is_required
        elif is_required and name not in positional:
            messages.append(f"no argument is passed to the parameter {name}; {hint}")
    return required_by_name


def format_starred(parameter: inspect.Parameter) -> str:
    """Return a parameter with its stars, as it is declared."""
    return str(parameter.replace(annotation=parameter.empty, default=parameter.empty))


def raise_problems(
    messages: Iterable[str], kind: type[Declaration], name: object, hint: str, *, file: Path, line: int
) -> None:
    """Raise the kind's error if there are messages."""
    problems = [Problem(str(format_path(file)), line, str(name), message, hint) for message in messages]
    if problems:
        raise kind.error(problems)


def sort_by_name(declarations: Iterable[Declaration], kind: type[Kind], problems: list[Problem]) -> dict[str, Kind]:
    """Return the declarations of a kind, sorted by name; a duplicate name is added to `problems`."""
    by_name: dict[str, Kind] = {}
    for entry in declarations:
        if isinstance(entry, kind):
            first = by_name.setdefault(entry.name, entry)
            if first is not entry:
                message = f"{kind.noun} of this name is already declared at {first.location}"
                problems += entry.make_error(message, "rename one of them").problems
    return dict(sorted(by_name.items()))


def make_unknown_name_error(
    message: str, text: str, names: Iterable[str], usages: Sequence[str] | None = None
) -> UsageError:
    """Return the error for an unknown name, with the closest candidate."""
    choices = list(names)
    close_names = difflib.get_close_matches(text, choices, n=1) or [
        name for name in choices if text and name.startswith(text)
    ]
    suggestion = f"Did you mean {close_names[0]}? " if close_names else ""
    return UsageError(message, f"{suggestion}Available: {', '.join(choices if usages is None else usages) or 'none'}.")


def make_failure_problem(
    error: BaseException, folder: Path, file: Path, line: int, name: str, hint: str = ""
) -> Problem:
    """Return the problem with an exception's message and its location in a user's folder (or single file).

    `file` and `line` are the location if no frame is in the folder; `hint` is used if the exception implies none.
    """
    if isinstance(error, SyntaxError) and error.filename:
        file, line = Path(error.filename), error.lineno or 0
        text = error.msg
    else:
        # Take the deepest frame in the folder, which is the user's; deeper frames are in libraries.
        for frame, number in traceback.walk_tb(error.__traceback__):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(folder):
                file, line = path, number
        text = next(iter(str(error).strip().splitlines()), "")
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Problem(str(format_path(file)), line, name, message, _find_import_hint(error, folder) or hint)


def _find_import_hint(error: BaseException, folder: Path) -> str:
    for pattern, hint in _RELATIVE_IMPORT_HINTS.items():
        if isinstance(error, ImportError) and pattern in str(error):
            return hint
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    root = error.name.partition(".")[0]
    if root == "pybuda":
        return PYBUDA_HINT
    if root in _MODEL_PACKAGES:
        return INSTALL_HINT
    if (folder / f"{root}.py").is_file() or (folder / root).is_dir():
        return f"import a file of the models folder relatively: from .{root} import …"
    return ""
