"""What users' files declare: functions under decorators, each with its place, and whose fault it is where one fails.

A file is imported for lists too, in a Python that may lack torch: nothing here imports more than the standard library.
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
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


INSTALL_HINT = 'install what models need, pip install "iree-gauntlet[models]", or name a Python that has it'
# Of what only PyBuda's own model files have.
FROM_PYBUDA = "docs/how-to/bench-models.md says what becomes of a model file of PyBuda"
_EXTRA = frozenset({"torch", "transformers", "onnxscript", "onnx"})
# Of relative imports that fail, by what Python says of them.
_RELATIVE = {
    "beyond top-level package": f"a models folder is the top: from .name import …; {FROM_PYBUDA}",
    "no known parent package": "a plugin is one file: it imports other modules by their full names",
}

Function = TypeVar("Function", bound="Callable[..., Any]")
Kind = TypeVar("Kind", bound="Declaration")


class DeclarationError(SpecError):
    """Users' files that cannot be used as they are written; holds every problem with its file and line."""

    files: ClassVar[str] = "files"

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems, kind=self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What every declaration has."""

    name: str
    about: str = ""
    file: Path
    line: int

    what: ClassVar[str]
    documented: ClassVar[str]
    error: ClassVar[type[DeclarationError]]

    @property
    def place(self) -> str:
        """Where it is declared: `specs/models/bert.py:12`."""
        return f"{shown(self.file)}:{self.line}"

    @classmethod
    def hint(cls, function: Callable[..., Any]) -> str:  # noqa: ARG003 - some kinds look at it
        """Where to read how such a function is declared."""
        return cls.documented

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Add what is wrong with a name."""

    def problems(self, messages: Iterable[str], hint: str | None = None) -> DeclarationError:
        """The error for what is wrong with it."""
        said = self.documented if hint is None else hint
        return self.error([Problem(str(shown(self.file)), self.line, self.name, message, said) for message in messages])

    def problem(self, message: str, hint: str | None = None) -> DeclarationError:
        """The error for one thing that is wrong with it."""
        return self.problems([message], hint)

    @contextmanager
    def blamed(self, hint: str = "") -> Iterator[None]:
        """Blame it for what its function, or what that made, raises."""
        try:
            yield
        except GauntletError:
            raise
        except Exception as error:  # a function of a user may raise anything, and is named for it
            problem = make_failure_problem(error, self.file.parent, self.file, self.line, self.name, hint)
            raise self.error([problem]) from error


_DECLARED: ContextVar[list[Declaration] | None] = ContextVar("_DECLARED", default=None)


@contextmanager
def collect_declarations() -> Iterator[list[Declaration]]:
    """Collect what is declared while the context lasts, in the order in which it is; no bytecode is written."""
    declared: list[Declaration] = []
    token, before = _DECLARED.set(declared), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield declared
    finally:
        sys.dont_write_bytecode = before
        _DECLARED.reset(token)


def collect(made: Declaration) -> None:
    """Add a declaration to what is collected, if anybody does."""
    declared = _DECLARED.get()
    if declared is not None:
        declared.append(made)


def make_decorator(
    kind: type[Declaration],
    fields: Callable[[Callable[..., Any], list[str]], dict[str, Any]],
    name: str | None = None,
    about: str = "",
) -> Callable[[Function], Function]:
    """A decorator that declares a function, which stays as it is.

    Args:
        kind: what it is declared as.
        fields: takes the function and a list that it adds to what is wrong; gives the fields that the kind has besides
            those of every declaration and `function`.
        name: None for the function's own.
        about: one line for lists; the first of the function's docstring where it is empty.
    """

    def declare(function: Function) -> Function:
        if not inspect.isfunction(function):
            whose = kind.what if name is None else repr(name)
            raise TypeError(f"the decorator of {whose} is for a function, not for {function!r}")
        called = function.__name__ if name is None else name
        code = function.__code__
        where: dict[str, Any] = {"file": Path(code.co_filename).absolute(), "line": code.co_firstlineno}
        messages: list[str] = []
        kind.check_name(called, messages)
        found = fields(function, messages)
        documented = (inspect.getdoc(function) or "").partition("\n")[0]
        refuse(messages, kind, called, kind.hint(function), **where)
        collect(kind(name=called, about=about or documented, **where, **{"function": function, **found}))
        return function

    return declare


def find_given_by_name(
    function: Callable[..., Any], names: Collection[str], given: str, messages: list[str], before: Collection[str] = ()
) -> dict[str, bool]:
    """Which of the parameters that are given by name a function takes, and whether it needs them."""
    found: dict[str, bool] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        needed = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            messages.append(f"{format_starred(parameter)}: nothing is given to parameters that are not spelled out")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            messages.append(f"{name} is positional-only (it stands before /), and is given by name")
        elif name in names:
            found[name] = needed
        elif needed and name not in before:
            messages.append(f"nothing gives the parameter {name}; {given}")
    return found


def format_starred(parameter: inspect.Parameter) -> str:
    """A parameter with its stars, as it is declared."""
    return str(parameter.replace(annotation=parameter.empty, default=parameter.empty))


def refuse(messages: Iterable[str], kind: type[Declaration], name: object, hint: str, *, file: Path, line: int) -> None:
    """Raise the error of a kind of declaration where there are messages."""
    problems = [Problem(str(shown(file)), line, str(name), message, hint) for message in messages]
    if problems:
        raise kind.error(problems)


def sort_by_name(declared: Iterable[Declaration], kind: type[Kind], problems: list[Problem]) -> dict[str, Kind]:
    """Those of a kind, sorted; a second one of a name is a problem."""
    found: dict[str, Kind] = {}
    for item in declared:
        if isinstance(item, kind):
            first = found.setdefault(item.name, item)
            if first is not item:
                message = f"{kind.what} of this name is declared at {first.place} already"
                problems += item.problem(message, "rename one of them").problems
    return dict(sorted(found.items()))


def make_unknown_name(what: str, text: str, names: Iterable[str], shown_as: Sequence[str] | None = None) -> UsageError:
    """The error for a text that names nothing, with the nearest of what there is."""
    known = list(names)
    near = difflib.get_close_matches(text, known, n=1) or [name for name in known if text and name.startswith(text)]
    meant = f"Did you mean {near[0]}? " if near else ""
    return UsageError(what, f"{meant}There are {', '.join(known if shown_as is None else shown_as) or 'none'}.")


def make_failure_problem(
    error: BaseException, folder: Path, file: Path, line: int, name: str, hint: str = ""
) -> Problem:
    """Say where in a user's folder (or only file) an exception came up, and what it says; nothing of how we got there.

    File and line are blamed where no frame is in the folder; `hint` is given where the exception suggests none.
    """
    if isinstance(error, SyntaxError) and error.filename:
        file, line = Path(error.filename), error.lineno or 0
        said = error.msg
    else:
        # The deepest frame of the folder: what lies below it are libraries.
        for frame, number in traceback.walk_tb(error.__traceback__):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(folder):
                file, line = path, number
        said = next(iter(str(error).strip().splitlines()), "")
    message = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return Problem(str(shown(file)), line, name, message, _import_hint(error, folder) or hint)


def _import_hint(error: BaseException, folder: Path) -> str:
    for said, hint in _RELATIVE.items():
        if isinstance(error, ImportError) and said in str(error):
            return hint
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    root = error.name.partition(".")[0]
    if root == "pybuda":
        return FROM_PYBUDA
    if root in _EXTRA:
        return INSTALL_HINT
    if (folder / f"{root}.py").is_file() or (folder / root).is_dir():
        return f"import a file of the models folder relatively: from .{root} import …"
    return ""
