"""Run a module of this package in the Python that has torch: `python torch_process.py MODULE PLAN.json`.

That Python needs neither the toolkit nor its dependencies. Standard output gets only the result of the module's `run`,
one JSON object, with the process's `peak_rss_bytes`; other output goes to standard error.

Exit codes: 0 success, 1 a failure or a program that cannot be exported, 2 an unusable plan or model. Each problem is a
line on standard error that begins with `error: `. A traceback follows if the exception is not a toolkit's error.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


_EXIT_FAILED = 1
_EXIT_USAGE = 2


def main(arguments: Sequence[str]) -> int:
    """Run a module with its plan, and return the exit code."""
    # Imported here, because `_run_as_script` must first make the package importable.
    from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError  # noqa: PLC0415
    from iree_gauntlet.torch_models.declarations import INSTALL_HINT  # noqa: PLC0415

    if len(arguments) != 2:
        sys.stderr.write("error: expected two arguments, MODULE PLAN.json\n")
        return _EXIT_USAGE
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        try:
            try:
                module = importlib.import_module(arguments[0])
            except ModuleNotFoundError as error:
                message = f"{sys.executable} lacks {error.name}, needed to build models"
                raise UsageError(message, INSTALL_HINT) from error
            result = module.run(Path(arguments[1]))
        except SpecError as error:
            sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
            return _EXIT_USAGE
        except GauntletError as error:
            sys.stderr.write(f"error: {error}\n")
            return _EXIT_FAILED if error.exit_code is ExitCode.FAILED else _EXIT_USAGE
        except Exception as error:  # noqa: BLE001 - a model and its compiler may raise anything
            text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            sys.stderr.write(f"error: {type(error).__name__}: {text}\n")
            traceback.print_exc()
            return _EXIT_FAILED
        if result is not None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            output.write(json.dumps({**result, "peak_rss_bytes": peak}) + "\n")
    return 0


def _run_as_script() -> int:
    # Import `iree_gauntlet` from the folder that contains this script, and other modules from this Python's path. The
    # script's own folder leaves the path, because its modules have general names such as `layers`.
    folder = Path(__file__).resolve().parent
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(folder.parents[1])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    # Hide warnings: libraries warn about each other, while models raise errors.
    warnings.filterwarnings("ignore")
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_run_as_script())
