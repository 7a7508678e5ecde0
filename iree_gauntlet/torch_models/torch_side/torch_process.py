"""Run a module of this package in the Python that has torch: `python torch_process.py MODULE PLAN.json`.

Neither the toolkit nor what it needs has to be installed there. What the module's `run` returns is written as one JSON
object, with the process's `peak_rss_bytes`; all else on standard output goes to standard error.

Exit codes: 0 done, 1 it failed or a program cannot be exported, 2 the plan or the model cannot be used. Of each problem
standard error has a line that begins with `error: `; a traceback follows where it was no error of the toolkit's own.
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


def main(words: Sequence[str]) -> int:
    """Run a module by its plan; the exit code."""
    # The path to these is set by the script.
    from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError  # noqa: PLC0415
    from iree_gauntlet.torch_models.declarations import INSTALL_HINT  # noqa: PLC0415

    if len(words) != 2:
        sys.stderr.write("error: two arguments are expected, MODULE PLAN.json\n")
        return _EXIT_USAGE
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            try:
                module = importlib.import_module(words[0])
            except ModuleNotFoundError as error:
                lacks = f"{sys.executable} lacks {error.name}, which models are built with"
                raise UsageError(lacks, INSTALL_HINT) from error
            found = module.run(Path(words[1]))
        except SpecError as error:
            sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
            return _EXIT_USAGE
        except GauntletError as error:
            sys.stderr.write(f"error: {error}\n")
            return _EXIT_FAILED if error.exit_code is ExitCode.FAILED else _EXIT_USAGE
        except Exception as error:  # noqa: BLE001 - a model and what compiles it may raise anything, and it is said
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            sys.stderr.write(f"error: {type(error).__name__}: {said}\n")
            traceback.print_exc()
            return _EXIT_FAILED
        if found is not None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            answer.write(json.dumps({**found, "peak_rss_bytes": peak}) + "\n")
    return 0


def _run_as_script() -> int:
    # The package is the one that has this script; all else is found as this Python finds it, and not next to the
    # script, where names such as `layers` lie.
    own = Path(__file__).resolve().parent
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(own.parents[1])]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    # Of libraries about each other; models raise errors.
    warnings.filterwarnings("ignore")
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_run_as_script())
