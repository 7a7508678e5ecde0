"""An exception that came out of a file of a models folder, as a problem with that file, its line and a hint."""

from __future__ import annotations

import traceback
from pathlib import Path

from iree_gauntlet.bench.registry import FROM_PYBUDA, shown
from iree_gauntlet.errors import Problem

__all__ = ["INSTALL_HINT", "failure_problem"]

INSTALL_HINT = 'install what models need, pip install "iree-gauntlet[models]", or name a Python that has it'
_EXTRA = frozenset({"torch", "transformers", "onnxscript", "onnx"})


def failure_problem(error: BaseException, folder: Path, file: Path, line: int, name: str, hint: str = "") -> Problem:
    """Say where in a models folder an exception came up, and what it says; nothing of how we got there.

    Args:
        error: as it was caught.
        folder: the models folder, absolute.
        file: blamed where no frame lies in the folder.
        line: of `file`, 0 where unknown.
        name: of the model; empty where it is the file that failed.
        hint: where the exception suggests none of its own.
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
    return Problem(str(shown(file)), line, name, message, _hint(error, folder) or hint)


def _hint(error: BaseException, folder: Path) -> str:
    if isinstance(error, ImportError) and "beyond top-level package" in str(error):
        return f"a models folder is the top: from .name import …; {FROM_PYBUDA}"
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
