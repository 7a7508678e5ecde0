"""The tasks about expected outputs: `golden.record`, and `golden.sensitivity`, which says what they can tell."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.document import ColouredCell, Column, ColumnKind, Document, Table
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.engine.workspace import refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.progress import Progress
from iree_gauntlet.recorded import read_json
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.settings import require_ones_own, shown
from iree_gauntlet.stages import Kind
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.recording import (
    ReferenceWorkers,
    measure_weight_effects,
    output_folder,
    record_outputs,
    why_not,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.document import Cell
    from iree_gauntlet.requests import RunRequest, SelectionRequest
    from iree_gauntlet.upkeep.recording import ReferenceAnswer


_LOST_COLUMNS = (
    *(Column("not seen", ColumnKind.NAME), Column("values", ColumnKind.NUMBER)),
    Column("effect of 1 %, of the tolerance", ColumnKind.SHARE),
)
_MOST_SHOWN = 10
_COLUMNS = (Column("MODEL"), Column("RECORDED"), Column("BY", rank=1), Column("OUTPUTS", rank=2))


def record(request: RunRequest, known: ReferenceAnswer | None = None) -> ExitCode:
    """Records expected outputs of the selected ONNX models; says which of the selected cases are of none.

    Each is tried, whatever becomes of the others.
    """
    _require_named(request.selection, "golden.record rewrites expected outputs")
    rows: list[tuple[Cell, ...]] = []
    codes = [ExitCode.OK]
    with _choose_cases(request) as (cases, store, workers):
        for _, spec in cases:
            require_ones_own(spec.path)
        for case, spec in cases:
            if known is None and not messages.is_quiet():
                sys.stdout.write(f"{case.origin.file}: running a reference\n")
            sys.stdout.flush()
            try:
                recording = record_outputs(case, spec, store, workers, known)
            except GauntletError as error:
                sys.stderr.write(f"error: {error.what}\n{f'  {error.hint}' if error.hint else ''}\n")
                codes.append(error.exit_code)
                what = "refused" if isinstance(error, UsageError) else "error"
                rows.append((case.chain, ColouredCell(what, "failed"), "", None))
                continue
            if not messages.is_quiet():
                for item in recording.outputs:
                    sys.stdout.write(f"  wrote {shown(item.path)} ({item.path.stat().st_size} bytes)\n")
                if recording.tolerance:
                    sys.stdout.write(f"  chose {' '.join(recording.tolerance)}\n")
                sys.stdout.write(f"  as {recording.reference} computes them\n")
                sys.stdout.writelines(f"  note: {note}\n" for note in recording.notes)
            rows.append((case.chain, ColouredCell("recorded", "passed"), recording.reference, len(recording.outputs)))
    if len(rows) > 1:
        print_document(Document("", "", (), (Table(_COLUMNS, tuple(rows)),)), sys.stdout, environ=os.environ)
    return ExitCode.worst(codes)


def sensitivity(request: RunRequest, *, write: bool) -> ExitCode:
    """Says which weights of the selected ONNX models the tolerance could see if they were 1 % wrong."""
    _require_named(request.selection, "golden.sensitivity runs a model once for each of its weights")
    with _choose_cases(request) as (cases, store, workers):
        for _, spec in cases if write else ():
            require_ones_own(spec.path)
        for case, spec in cases:
            sys.stdout.write(f"{case.origin.file}: scaling one weight after the other\n")
            sys.stdout.flush()
            effects = measure_weight_effects(case, store, workers)
            seen = [item for item in effects if item.effect > 1]
            idle = [item for item in effects if item.effect == 0]
            said = (
                f"{len(seen)} of {len(effects)} weights would be seen if they were 1 % wrong; "
                f"{len(idle)} {'has' if len(idle) == 1 else 'have'} no effect on these inputs"
            )
            lost = sorted((item for item in effects if 0 < item.effect <= 1), key=lambda item: item.effect)
            rows = tuple((item.name, item.elements, item.effect) for item in lost)
            blocks = (Table(_LOST_COLUMNS, rows, _MOST_SHOWN),) if rows else ()
            print_document(Document("", said, (), blocks), sys.stdout, environ=os.environ)
            if write:
                path = output_folder(case, spec) / "provenance.json"
                try:
                    provenance = read_json(path.read_bytes())
                except (OSError, ValueError) as error:
                    what = f"{shown(path)} cannot be read: {error}"
                    raise UsageError(what, "Record the outputs first: `golden.record`.") from error
                shares = {"weights": len(effects), "seen": len(seen), "without_effect": len(idle)}
                provenance |= {"sensitivity": {"scaled_by": 1.01, **shares}}
                write_atomic(path, json.dumps(provenance, indent=2, ensure_ascii=False) + "\n")
                sys.stdout.write(f"  wrote {shown(path)}\n")
    return ExitCode.OK


def _require_named(asked: SelectionRequest, what: str) -> None:
    if not (asked.model or asked.filename or asked.suite):
        raise UsageError(f"{what}: name the models", "Give --model NAME or --suite NAME.")


@contextmanager
def _choose_cases(request: RunRequest) -> Iterator[tuple[list[tuple[Case, Spec]], ArtifactStore, ReferenceWorkers]]:
    """The selected quality cases that a reference can run, with their specs; what fetches and what runs them."""
    refuse_untrusted(request.selection)
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
    found = [(case, specs[case.origin.file]) for case in chosen or cases]
    with reference_workers() as workers:
        yield found, store, workers


@contextmanager
def reference_workers() -> Iterator[ReferenceWorkers]:
    """The programs that run references, in this Python."""
    with Supervisor() as supervisor, tempfile.TemporaryDirectory(prefix="gauntlet-record-") as folder:
        yield ReferenceWorkers(supervisor, sys.executable, Path(folder))
