"""Run a program by another way through IREE: another backend, no optimisation, or another release.

    python run_iree.py PLAN.json

`expected_outputs.py` describes plan and answer. The options are

    {"compile": "/…/iree-compile", "run_module": "/…/iree-run-module",
     "flags": ["--iree-hal-target-device=local", …],          of iree-compile
     "dtypes": ["float32", "int64"],                          the declared types of outputs
     "version": "3.13.0", "seconds": 600}                     the time limit of each process

What IREE computes another way is evidence, but not that of a reference: a fault of the common parts is not seen.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets
from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError, read_input
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.workers.iree_side.plan_file import Array


_ERROR_LINE = re.compile(r"\berror: (.+)|\.c(?:pp)?:\d+: (\w+; .+)")
_RESULT_LINE = re.compile(r"^((?:\d+x)*)(\w+)=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Tools:
    compile: str
    run_module: str
    flags: list[str]
    dtypes: list[str]
    version: str
    seconds: float


def _run_process(argv: Sequence[str], cwd: str, seconds: float) -> str:
    """Run a tool; return its output, or raise an InferenceFailedError with its first error."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InferenceFailedError(f"{name} ran longer than {seconds:g} s") from error
    if done.returncode == 0:
        return done.stdout
    match = _ERROR_LINE.search(done.stderr)
    text = (match[1] or match[2])[:200] if match else ""
    end = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    raise InferenceFailedError(f"{name} ended with {end}{f': {text}' if text else ''}")


def _run(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(EnginePlan, document)
    tools = read_plan(_Tools, plan.options or {})
    module = Path(plan.folder) / f"{plan.engine}.vmfb"
    try:
        _run_process([tools.compile, plan.model, "-o", str(module), *tools.flags], plan.folder, tools.seconds)
    except InferenceFailedError as error:
        # It is the same with all inputs.
        raise PlanError(str(error)) from error
    argv = [tools.run_module, "--device=local-task", f"--module={module}", f"--function={plan.function}"]

    def run(texts: list[str], _: list[Array]) -> list[Array]:
        flags = [f"--input={text}" for text in texts]
        # The first run writes the types of the results, the second their values.
        found = _RESULT_LINE.findall(
            _run_process([*argv, *flags, "--output_max_element_count=1"], plan.cwd, tools.seconds)
        )
        if len(found) != len(tools.dtypes):
            raise InferenceFailedError(f"it has {len(found)} results that are tensors, not {len(tools.dtypes)}")
        files = [Path(plan.folder) / f"{plan.engine}_raw_{index}.bin" for index in range(len(found))]
        _run_process([*argv, *flags, *(f"--output=@{file}" for file in files)], plan.cwd, tools.seconds)
        return [
            read_input(f"{sizes}{element}=@{file}", plan.cwd, dtype)
            for (sizes, element), file, dtype in zip(found, files, tools.dtypes, strict=True)
        ]

    return run_sets(plan, tools.version, run)


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _run))
