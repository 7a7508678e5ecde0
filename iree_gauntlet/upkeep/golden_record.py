"""The tasks about expected outputs: `golden.record`, and `golden.sensitivity`, which says what they can tell."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Case, Kind
from iree_gauntlet.dialects.torch_schema import QualityTest
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.recording import Recorded, output_folder, record_outputs, weight_effects, why_not
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.progress import Progress
from iree_gauntlet.settings import require_ones_own, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.requests import RunRequest, SelectionRequest


_RECORDER = str(Path(iree_side.__file__).with_name("record_golden.py"))
_MOST_SHOWN = 10


def record(request: RunRequest) -> ExitCode:
    """Records expected outputs of the selected ONNX models; says which of the selected cases are of none.

    Raises:
        UsageError: no model was named.
        GauntletError: what keeps an output from being recorded.
    """
    _require_named(request.selection, "golden.record rewrites expected outputs")
    with _chosen(request) as (store, cases, supervisor, logs):
        for _, spec in cases:
            require_ones_own(spec.path)
        for case, spec in cases:
            sys.stdout.write(f"{case.origin.file}: running onnxruntime\n")
            sys.stdout.flush()
            written = record_outputs(case, spec, store, supervisor, sys.executable, _RECORDER, logs)
            for item in written:
                sys.stdout.write(f"  wrote {shown(item.path)} ({item.path.stat().st_size} bytes)\n")
            sys.stdout.write(_to_paste(spec, written))
    return ExitCode.OK


def sensitivity(request: RunRequest, *, write: bool) -> ExitCode:
    """Says which weights of the selected ONNX models the tolerance could see if they were 1 % wrong.

    Args:
        request: what is selected, and how it is fetched.
        write: the share goes into the provenance of the outputs.

    Raises:
        UsageError: no model was named, or there is no provenance to write into.
        GauntletError: what keeps a model from being run.
    """
    _require_named(request.selection, "golden.sensitivity runs a model once for each of its weights")
    with _chosen(request) as (store, cases, supervisor, logs):
        for _, spec in cases if write else ():
            require_ones_own(spec.path)
        for case, spec in cases:
            sys.stdout.write(f"{case.origin.file}: scaling one weight after the other\n")
            sys.stdout.flush()
            effects = weight_effects(case, store, supervisor, sys.executable, logs)
            seen = [item for item in effects if item.effect > 1]
            idle = [item for item in effects if item.effect == 0]
            share = f"{len(seen)} of {len(effects)} weights would be seen if they were 1 % wrong"
            sys.stdout.write(
                f"  {share}; {len(idle)} {'has' if len(idle) == 1 else 'have'} no effect on these inputs\n"
            )
            lost = sorted((item for item in effects if 0 < item.effect <= 1), key=lambda item: item.effect)
            for item in lost[:_MOST_SHOWN]:
                size = counted(item.elements, "value")
                sys.stdout.write(f"  not seen: {item.name} ({size}): {item.effect:.2g} of the tolerance\n")
            if len(lost) > _MOST_SHOWN:
                sys.stdout.write(f"  and {len(lost) - _MOST_SHOWN} more\n")
            if write:
                path = output_folder(case, spec) / "provenance.json"
                _note(
                    path, {"scaled_by": 1.01, "weights": len(effects), "seen": len(seen), "without_effect": len(idle)}
                )
                sys.stdout.write(f"  wrote {shown(path)}\n")
    return ExitCode.OK


def _require_named(asked: SelectionRequest, what: str) -> None:
    if not (asked.model or asked.filename or asked.suite):
        raise UsageError(f"{what}: name the models", "Give --model NAME or --suite NAME.")


@contextmanager
def _chosen(request: RunRequest) -> Iterator[tuple[ArtifactStore, list[tuple[Case, Spec]], Supervisor, Path]]:
    """The store, the quality cases that onnxruntime can run with their specs, and where to run it."""
    selection = select(request.selection, request.defaults)
    selection.require_sound()
    cases = [case for case in selection.cases.cases if case.kind is Kind.QUALITY]
    if not cases:
        raise NothingSelectedError("the selection has no threshold test to record for", "`list` shows what has one.")
    chosen = [case for case in cases if not why_not(case)]
    for case in cases if chosen else ():
        if case not in chosen:
            sys.stdout.write(f"{case.origin.file}: passed over: {why_not(case)}\n")
    specs = {spec.name: spec for spec in selection.specs}
    if not chosen and cases[0].origin.file not in specs:
        # Of operators and of suites of ONNX models, whose outputs are no specs' own.
        raise UsageError(f"{cases[0].origin.file}: {why_not(cases[0])}", "Name models of sharktank or torch specs.")
    store = open_workbench(request.toolchain, Progress(), request.network, need_toolchain=False).store
    with Supervisor() as supervisor, tempfile.TemporaryDirectory(prefix="gauntlet-record-") as logs:
        yield store, [(case, specs[case.origin.file]) for case in chosen or cases], supervisor, Path(logs)


def _note(path: Path, found: dict[str, float]) -> None:
    """Writes what was found into a provenance."""
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        what = f"{shown(path)} cannot be read: {error.strerror}"
        raise UsageError(what, "Record the outputs first: `golden.record`.") from error
    text = json.dumps({**provenance, "sensitivity": found}, indent=2, ensure_ascii=False) + "\n"
    write_atomic(path, text)


def _to_paste(spec: Spec, written: list[Recorded]) -> str:
    """The line by which the spec names what was written; empty where it does."""
    field, file = ("expected_outputs", "url") if isinstance(spec.document, QualityTest) else ("outputs", "source")
    outputs = [{file: item.source} | ({"value": item.value} if item.value else {}) for item in written]
    named = getattr(spec.document, field)
    if [item.model_dump(exclude_none=True) for item in named] == outputs:
        return ""
    place = "write into" if field in getattr(spec.document, "model_fields_set", ()) else "add to"
    return f"  {place} {spec.name}:\n    {json.dumps(field)}: {json.dumps(outputs)}\n"
