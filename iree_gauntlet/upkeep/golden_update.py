"""The task `golden.update`: new goldens from what runs have measured, as a diff of the spec files."""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.json5_text import without_comments
from iree_gauntlet.dialects.json_places import path_of, with_number, with_string
from iree_gauntlet.dialects.spec_file import load_json
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.goldens.golden_evidence import Proposal, collect_evidence, propose
from iree_gauntlet.records.earlier_runs import newest_run, run_named, runs_of_specs
from iree_gauntlet.settings import runs_folder
from iree_gauntlet.upkeep.proposed_changes import FileChange, hand_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.upkeep.upkeep_requests import GoldenUpdateRequest


_COMPILER_FIELD = "golden_compiler"


def update(asked: GoldenUpdateRequest) -> ExitCode:
    """Shows, and with `write` makes, the goldens that runs speak for.

    Raises:
        UsageError: there is no such run, or an option is out of range.
        NothingSelectedError: the runs hold nothing against goldens.
        GauntletError: a journal or a spec cannot be read, or a spec has changed since.
    """
    headroom = _headroom(asked.size_headroom)
    records = [read_journal(run / JOURNAL) for run in _runs(asked)]
    evidence = collect_evidence([record for record in records if record.runs])
    names = ", ".join(record.path.parent.name for record in records)
    wanted = {
        golden: items
        for golden, items in evidence.items()
        if not asked.match or fnmatch.fnmatch(items[0].chain, asked.match)
    }
    if not wanted:
        raise NothingSelectedError(
            f"no golden was measured in {names}{f' that fits --match {asked.match}' if asked.match else ''}",
            "A golden must stand in the spec to be updated (docs/how-to/goldens.md); times only with their --sku.",
        )
    proposals: list[Proposal] = []
    for golden in sorted(wanted, key=lambda golden: (golden.origin.file, golden.origin.field)):
        outcome = propose(golden, wanted[golden], size_headroom=headroom, to_release=asked.to_release)
        where = f"{golden.origin.file}: {golden.origin.field}"
        if isinstance(outcome, str):
            sys.stderr.write(f"stays    {where} {_number(golden.value)}: {outcome}\n")
            continue
        verb = "tighten" if outcome.value < golden.value else "relax" if outcome.value > golden.value else "move"
        change = f" ({100 * (outcome.change - 1):+.1f} %)" if math.isfinite(outcome.change) else ""
        values = f"{_number(golden.value)} → {_number(outcome.value)}{change}"
        sys.stderr.write(f"{verb:<8} {where} {values}: {outcome.basis}\n")
        proposals.append(outcome)
    changes = [
        _changed(file, [item for item in proposals if item.golden.origin.file == file])
        for file in dict.fromkeys(item.golden.origin.file for item in proposals)
    ]
    hand_out(changes, asked.output, write=asked.write)
    return ExitCode.OK


def _runs(asked: GoldenUpdateRequest) -> list[Path]:
    """Folders of the runs that are asked, the oldest first."""
    if asked.run and asked.last != 1:
        raise UsageError("--run together with --last: which runs?", "Give one of the two.")
    if asked.run:
        return [run_named(text, "--run") for text in asked.run]
    newest_run(runs_folder())
    return [*itertools.islice(runs_of_specs(runs_folder()), asked.last)][::-1]


def _headroom(text: float) -> float | None:
    if text == 0:
        return None
    if not math.isfinite(text) or text < 1:
        raise UsageError(f"--size-headroom {text:g}: expected a factor of 1 or more", "1.25 leaves a quarter.")
    return text


def _changed(file: str, proposals: Sequence[Proposal]) -> FileChange:
    path = Path(file)
    document, _, problems = load_json(path, file, without_comments)
    if document is None:
        raise GauntletError(f"{file}: {problems[0].message}", problems[0].hint or "The runs have named this spec.")
    after = text = path.read_bytes().decode("utf-8-sig")
    for proposal in proposals:
        golden, field = proposal.golden, proposal.golden.origin.field
        try:
            where = path_of(document, field)
            present: Any = document
            for part in where:
                present = present[part]
        except KeyError:
            present = None
        if present != golden.value:
            what = f"{file}: {field} is {present}, and was {_number(golden.value)} when it was measured"
            raise GauntletError(what, "Run again with the spec as it is now.")
        after = with_number(after, where, proposal.value)
    moved = {proposal.release for proposal in proposals if proposal.release}
    if moved and document.get(_COMPILER_FIELD) not in moved:
        _require_all_measured(file, document, proposals)
        after = with_string(after, (_COMPILER_FIELD,), moved.pop())
    return FileChange(path, text, after)


def _require_all_measured(file: str, document: Mapping[str, Any], proposals: Sequence[Proposal]) -> None:
    """A release is said once for all counts and sizes of a file: they move together or not at all."""
    there = set()
    for name, value in document.items():
        if name.startswith(("golden_dispatch", "golden_size", "golden_binary")):
            there |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    left = sorted(there - {proposal.golden.origin.field for proposal in proposals})
    if left:
        what = f"{file}: {', '.join(left)} would come to belong to a release that has not measured it"
        raise GauntletError(what, "Measure it too and give both runs (--run A --run B), or remove it.")


def _number(value: float) -> str:
    return json.dumps(int(value) if value == int(value) else value)
