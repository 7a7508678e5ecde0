"""The tasks about goldens: `golden.record`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import worker
from iree_gauntlet.artifacts.progress import Silent
from iree_gauntlet.cases import Kind
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.running.recording import record_outputs
from iree_gauntlet.running.supervisor import Supervisor
from iree_gauntlet.tasks.surroundings import make_machine
from iree_gauntlet.tasks.workspace import Defaults, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.running.recording import Recorded

__all__ = ["record"]


def record(options: Mapping[str, Any]) -> ExitCode:
    """Records expected outputs of the selected ONNX models.

    Raises:
        UsageError: no model was named.
        GauntletError: what keeps an output from being recorded.
    """
    if not (options["model"] or options["filename"] or options["suite"]):
        raise UsageError(
            "golden.record rewrites expected outputs: name the models", "Give --model NAME or --suite FILE."
        )
    selection = select(options, Defaults())
    selection.require_sound()
    cases = [case for case in selection.cases.cases if case.kind is Kind.QUALITY]
    if not cases:
        raise NothingSelectedError("the selection has no threshold test to record for", "`list` shows what has one.")
    machine = make_machine(options, Silent(), need_toolchain=False)
    script = str(Path(worker.__file__).with_name("record_golden.py"))
    with Supervisor() as supervisor, tempfile.TemporaryDirectory(prefix="gauntlet-record-") as logs:
        for case in cases:
            sys.stdout.write(f"{case.origin.file}: running onnxruntime\n")
            sys.stdout.flush()
            written = record_outputs(case, machine.store, supervisor, sys.executable, script, Path(logs))
            for item in written:
                sys.stdout.write(f"  wrote {item.path} ({item.path.stat().st_size} bytes)\n")
            named = [argument.url for argument in case.expected_outputs]
            if named != [item.path.resolve().as_uri() for item in written]:
                sys.stdout.write(_to_paste(Path(case.origin.file), written))
    return ExitCode.OK


def _to_paste(spec: Path, written: list[Recorded]) -> str:
    """The lines by which the spec names what was written."""
    folder = spec.resolve().parent
    outputs = [
        {"source": str(item.path.resolve().relative_to(folder))} | ({"value": item.value} if item.value else {})
        for item in written
    ]
    return f'  add to {spec}:\n    "outputs": {json.dumps(outputs)}\n'
