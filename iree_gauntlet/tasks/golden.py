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
from iree_gauntlet.dialects.torch_schema import QualityTest
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.running.recording import record_outputs, why_not
from iree_gauntlet.running.supervisor import Supervisor
from iree_gauntlet.tasks.surroundings import make_machine
from iree_gauntlet.tasks.workspace import Defaults, select, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.running.recording import Recorded

__all__ = ["record"]


def record(options: Mapping[str, Any]) -> ExitCode:
    """Records expected outputs of the selected ONNX models; says which of the selected cases are of none.

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
    passed_over = [case for case in cases if why_not(case)]
    specs = {spec.name: spec for spec in selection.specs}
    machine = make_machine(options, Silent(), need_toolchain=False)
    script = str(Path(worker.__file__).with_name("record_golden.py"))
    with Supervisor() as supervisor, tempfile.TemporaryDirectory(prefix="gauntlet-record-") as logs:
        for case in cases:
            if case in passed_over and (len(passed_over) < len(cases) or case.origin.file not in specs):
                sys.stdout.write(f"{case.origin.file}: passed over: {why_not(case)}\n")
                continue
            sys.stdout.write(f"{case.origin.file}: running onnxruntime\n")
            sys.stdout.flush()
            spec = specs[case.origin.file]
            written = record_outputs(case, spec, machine.store, supervisor, sys.executable, script, Path(logs))
            for item in written:
                sys.stdout.write(f"  wrote {shown(item.path)} ({item.path.stat().st_size} bytes)\n")
            sys.stdout.write(_to_paste(spec, written))
    return ExitCode.OK


def _to_paste(spec: Spec, written: list[Recorded]) -> str:
    """The line by which the spec names what was written; empty where it does."""
    field, file = ("expected_outputs", "url") if isinstance(spec.document, QualityTest) else ("outputs", "source")
    outputs = [{file: item.source} | ({"value": item.value} if item.value else {}) for item in written]
    named = getattr(spec.document, field)
    if [item.model_dump(exclude_none=True) for item in named] == outputs:
        return ""
    place = "write into" if field in getattr(spec.document, "model_fields_set", ()) else "add to"
    return f"  {place} {spec.name}:\n    {json.dumps(field)}: {json.dumps(outputs)}\n"
