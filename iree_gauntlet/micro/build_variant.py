"""Build a variant of a model in a Python that has torch: `python build_variant.py PLAN.json`.

The plan is that of `variant_plan.py`; the folder that it names is filled with tensors and the exported program,
`build.json` last, which `bench/build_folder.py` reads. It has three keys more: `flops`, floating-point operations of
the unchanged model in one call, `changed_layers`, how many linear layers the recipes changed, and `changed_bytes`,
what the weights of those had before. The toolkit need not be installed in that Python.

Exit codes: 0 built, 1 the model cannot be exported, 2 the plan, the model or a recipe cannot be used. What is wrong is
said on standard error, one line that begins with `error: ` for each problem; progress and the log of torch go there
too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_NEEDED = ("torch", "onnx", "onnxscript")
_EXIT_USAGE = 2


def main(words: Sequence[str]) -> int:
    """Build as a plan says; the exit code."""
    # The path to these is set by the script.
    from iree_gauntlet.errors import ExitCode, GauntletError, SpecError  # noqa: PLC0415

    if len(words) != 1:
        sys.stderr.write("usage: build_variant.py PLAN.json\n")
        return _EXIT_USAGE
    try:
        _build(Path(words[0]))
    except SpecError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return _EXIT_USAGE
    except GauntletError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.exit_code) if error.exit_code is ExitCode.FAILED else _EXIT_USAGE
    return 0


def _build(path: Path) -> None:
    from iree_gauntlet.bench.failures import INSTALL_HINT  # noqa: PLC0415
    from iree_gauntlet.errors import UsageError  # noqa: PLC0415
    from iree_gauntlet.micro.variant_plan import read_variant_plan  # noqa: PLC0415

    plan = read_variant_plan(path)
    if not plan.output:
        raise UsageError(f"{path}: the plan names no folder for its output")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        lacks = f"{plan.model_type} cannot be built: {sys.executable} lacks {', '.join(missing)}"
        raise UsageError(lacks, INSTALL_HINT)
    from iree_gauntlet.micro.building_variant import build  # noqa: PLC0415 - it imports torch

    build(plan)


def _run_as_script() -> int:
    # The package is the one that this script lies in; all else is found as this Python finds it, and not beside the
    # script, where names such as `plots` lie.
    own = Path(__file__).resolve().parent
    sys.modules["iree_gauntlet"] = ModuleType("iree_gauntlet")
    sys.modules["iree_gauntlet"].__path__ = [str(own.parent)]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    # Whatever writes to standard output, in Python or below it, writes to standard error.
    os.dup2(2, 1)
    # Of libraries about each other; models raise errors.
    warnings.filterwarnings("ignore")
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_run_as_script())
