"""The tasks `golden.record` for expected outputs, and `golden.sensitivity` for the errors that these can detect."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.document import ColouredCell, Document, Table
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.engine.workspace import refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import Column, ColumnKind
from iree_gauntlet.progress import Progress
from iree_gauntlet.recorded import read_json
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.settings import format_path, require_users_own_file
from iree_gauntlet.stages import Kind
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.recording import (
    find_output_folder,
    find_recording_obstacle,
    measure_weight_effects,
    record_outputs,
)
from iree_gauntlet.upkeep.references import ReferenceSources, ReferenceWorkers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.document import Cell
    from iree_gauntlet.requests import NetworkRequest, RunRequest, SelectionRequest, ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.upkeep.references import ReferenceResult
    from iree_gauntlet.upkeep.upkeep_requests import ReferenceRequest


_HIDDEN_WEIGHT_COLUMNS = (
    *(Column("not seen", ColumnKind.NAME), Column("values", ColumnKind.NUMBER)),
    Column("effect of a 1 % error (share of tolerance)", ColumnKind.SHARE),
)
_MAX_SHOWN_WEIGHTS = 10
_COLUMNS = (Column("MODEL"), Column("RECORDED"), Column("BY", drop_order=1), Column("OUTPUTS", drop_order=2))


def record(request: RunRequest, references: ReferenceRequest, known_result: ReferenceResult | None = None) -> ExitCode:
    """Record expected outputs of the selected models; print for which selected cases there is no reference.

    A failed case does not stop the others.
    """
    _require_named(request.selection, "golden.record rewrites expected outputs")
    rows: list[tuple[Cell, ...]] = []
    codes = [ExitCode.OK]
    with _choose_cases(request) as (cases, store, workers):
        sources = make_sources(workers, references, request.toolchain, request.network)
        for _, spec in cases:
            require_users_own_file(spec.path)
        for case, spec in cases:
            if known_result is None and not messages.is_quiet():
                sys.stdout.write(f"{case.origin.file}: running a reference\n")
            sys.stdout.flush()
            try:
                recording = record_outputs(case, spec, store, sources, known_result)
            except GauntletError as error:
                sys.stderr.write(f"error: {error.message}\n{f'  {error.hint}' if error.hint else ''}\n")
                codes.append(error.exit_code)
                status = "refused" if isinstance(error, UsageError) else "error"
                rows.append((case.chain, ColouredCell(status, "failed"), "", None))
                continue
            if not messages.is_quiet():
                for output in recording.outputs:
                    sys.stdout.write(f"  wrote {format_path(output.path)} ({output.path.stat().st_size} bytes)\n")
                if recording.tolerance:
                    sys.stdout.write(f"  chose {' '.join(recording.tolerance)}\n")
                sys.stdout.write(f"  as {recording.reference} computes them\n")
                sys.stdout.writelines(f"  note: {note}\n" for note in recording.notes)
            rows.append((case.chain, ColouredCell("recorded", "passed"), recording.reference, len(recording.outputs)))
    if len(rows) > 1:
        print_document(Document("", "", (), (Table(_COLUMNS, tuple(rows)),)), sys.stdout, environ=os.environ)
    return ExitCode.worst(codes)


def measure_sensitivity(request: RunRequest, *, write: bool) -> ExitCode:
    """Print which weights of the selected ONNX models the tolerance could detect if they were 1 % wrong."""
    _require_named(request.selection, "golden.sensitivity runs a model once for each of its weights")
    with _choose_cases(request) as (cases, store, workers):
        for _, spec in cases if write else ():
            require_users_own_file(spec.path)
        for case, spec in cases:
            sys.stdout.write(f"{case.origin.file}: scaling one weight after the other\n")
            sys.stdout.flush()
            effects = measure_weight_effects(case, store, workers)
            visible_effects = [effect for effect in effects if effect.effect > 1]
            zero_effects = [effect for effect in effects if effect.effect == 0]
            summary = (
                f"{len(visible_effects)} of {len(effects)} weights would be detected if they were 1 % wrong; "
                f"{len(zero_effects)} {'has' if len(zero_effects) == 1 else 'have'} no effect on these inputs"
            )
            hidden_effects = sorted(
                (effect for effect in effects if 0 < effect.effect <= 1), key=lambda effect: effect.effect
            )
            rows = tuple((effect.name, effect.elements, effect.effect) for effect in hidden_effects)
            blocks = (Table(_HIDDEN_WEIGHT_COLUMNS, rows, _MAX_SHOWN_WEIGHTS),) if rows else ()
            print_document(Document("", summary, (), blocks), sys.stdout, environ=os.environ)
            if write:
                path = find_output_folder(case, spec) / "provenance.json"
                try:
                    provenance = read_json(path.read_bytes())
                except (OSError, ValueError) as error:
                    message = f"{format_path(path)} cannot be read: {error}"
                    raise UsageError(message, "Record the outputs first: `golden.record`.") from error
                shares = {"weights": len(effects), "seen": len(visible_effects), "without_effect": len(zero_effects)}
                provenance |= {"sensitivity": {"scaled_by": 1.01, **shares}}
                write_atomic(path, json.dumps(provenance, indent=2, ensure_ascii=False) + "\n")
                sys.stdout.write(f"  wrote {format_path(path)}\n")
    return ExitCode.OK


def _require_named(selection: SelectionRequest, problem: str) -> None:
    if not (selection.model or selection.filename or selection.suite):
        raise UsageError(f"{problem}: name the models", "Give --model NAME or --suite NAME.")


@contextmanager
def _choose_cases(request: RunRequest) -> Iterator[tuple[list[tuple[Case, Spec]], ArtifactStore, ReferenceWorkers]]:
    """Return the selected quality cases that a reference can run, with their specs, the store and the workers."""
    refuse_untrusted(request.selection)
    selection = select(request.selection, request.defaults)
    selection.require_no_problems()
    cases = [case for case in selection.cases.cases if case.kind is Kind.QUALITY]
    if not cases:
        raise NothingSelectedError(
            "the selection has no threshold test to record for", "`list` shows the cases that have one."
        )
    specs = {spec.name: spec for spec in selection.specs}
    # Cases of operator suites and suites of ONNX models have no specs with outputs.
    obstacles = {
        case: find_recording_obstacle(case) or ("" if case.origin.file in specs else "it has no spec of its own")
        for case in cases
    }
    recordable_cases = [case for case in cases if not obstacles[case]]
    for case in cases if recordable_cases else ():
        if obstacles[case]:
            sys.stdout.write(f"{case.origin.file}: skipped: {obstacles[case]}\n")
    refused = next((case for case in cases if len(case.calls) > 1 or case.origin.file not in specs), None)
    if not recordable_cases and refused is not None:
        hint = "Name models of sharktank or torch specs that make one call."
        raise UsageError(f"{refused.origin.file}: {obstacles[refused]}", hint)
    store = open_workbench(request.toolchain, Progress(), request.network, need_toolchain=False).store
    cases_with_specs = [(case, specs[case.origin.file]) for case in recordable_cases or cases]
    with open_reference_workers() as workers:
        yield cases_with_specs, store, workers


def make_sources(
    workers: ReferenceWorkers, references: ReferenceRequest, toolchain: ToolchainRequest, network: NetworkRequest
) -> ReferenceSources:
    """Return the sources of references; an IREE is looked for when it is needed."""

    def find_toolchain(iree: str) -> Toolchain:
        request = replace(toolchain, iree=iree, iree_compiler="", iree_runtime="") if iree else toolchain
        try:
            return open_workbench(request, Progress(), network, need_toolchain=True, read_only=True).iree
        except UsageError as error:
            # It names the option by which an IREE is chosen elsewhere.
            message = error.message.removeprefix(f"--iree {iree}: ")
            raise UsageError(f"--reference-iree {iree}: {message}", error.hint) if iree else error from None

    return ReferenceSources(workers, references.reference_python, find_toolchain, references.reference_iree)


@contextmanager
def open_reference_workers() -> Iterator[ReferenceWorkers]:
    """Start the programs that run references, in this Python."""
    with Supervisor() as supervisor, tempfile.TemporaryDirectory(prefix="gauntlet-record-") as folder:
        yield ReferenceWorkers(supervisor, sys.executable, Path(folder))
