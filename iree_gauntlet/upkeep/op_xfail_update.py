"""`xfail.update` for runs of operator suites: a diff of each config, of what comes out the same every time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.op_config_edit import with_changes
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.goldens.goldens import release_of
from iree_gauntlet.records.earlier_runs import asked_for
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.requests import Defaults, FolderRequest
from iree_gauntlet.settings import shown
from iree_gauntlet.upkeep.op_xfail import changes_of, found_in, listed_cases
from iree_gauntlet.upkeep.proposed_changes import FileChange

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.dialects.op_config_edit import Addition, Removal
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.upkeep.op_xfail import Found, Listed

__all__ = ["config_changes"]

# Folder of a run that holds the runs which were made to see whether it comes out the same again.
_AGAIN = "again"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A case whose lists may change."""

    listed: Listed
    found: Found
    changes: Sequence[Removal | Addition]
    words: str

    @property
    def compiles(self) -> bool:
        """Whether the outcome of its compile is in question."""
        return any("_compile_" in change.list for change in self.changes)


def config_changes(
    run: Path, record: JournalRecord, suite: Path | None, count: int, request: RunRequest
) -> list[FileChange]:
    """What the configs of a run's operator suites are to become, by the run and by running again what differs.

    Args:
        run: its folder.
        record: of the run.
        suite: file of its suite; None where it was none's.
        count: how often it is run again; 0 trusts the run.
        request: how it is run again.

    Raises:
        UsageError: what the run was about is not there any more, or another IREE is.
        GauntletError: a config cannot be edited, or cannot be read.
    """
    asked = asked_for(run)
    release = release_of(str(record.runs[-1].get("toolchain", {}).get("compiler", "")))
    candidates = _candidates(found_in(record), listed_cases(asked, suite), release)
    if count < 0:
        raise UsageError(f"--rerun {count}: expected how often to run again", "0 trusts the run.")
    if candidates and count:
        # Each by itself, as it is judged.
        kept = {**asked.selection, "batch": 0, "shard": "", "shard_costs": ""}
        request = replace(request, defaults=Defaults.of(asked.defaults), stages=asked.stages or ()).with_kept(kept)
        candidates = _steady(run, record, candidates, count, request)
    by_config: dict[Path, list[Removal | Addition]] = {}
    for candidate in candidates.values():
        sys.stderr.write(f"{candidate.words}  [{shown(candidate.listed.config).name}]\n")
        by_config.setdefault(candidate.listed.config, []).extend(candidate.changes)
    return [_file_change(path, changes) for path, changes in by_config.items()]


def _candidates(found: Mapping[str, Found], listed: Mapping[str, Listed], release: str) -> dict[str, _Candidate]:
    candidates = {}
    for chain, outcome in found.items():
        if not outcome.unexpected:
            continue
        case = listed.get(chain)
        if case is None:
            sys.stderr.write(f"left out  {chain}: its case or config is not there any more\n")
        elif outcome.unjudged:
            sys.stderr.write(f"not added {case.entry}: {outcome.unjudged}\n")
        else:
            changes, words = changes_of(case, outcome, release)
            if changes:
                candidates[chain] = _Candidate(case, outcome, changes, words)
    return candidates


def _steady(
    run: Path, record: JournalRecord, candidates: Mapping[str, _Candidate], count: int, request: RunRequest
) -> dict[str, _Candidate]:
    """Those that come out the same every time; the others are told."""
    words = f"{len(candidates)} case{'s' if len(candidates) > 1 else ''}, {count} time{'s' if count > 1 else ''}"
    sys.stderr.write(f"running again what came out otherwise than expected: {words} (--rerun 0 trusts the run)\n")
    # A module from the cache says nothing about a compile, and one that was in question is not needed for the others.
    parts = {
        True: [chain for chain, candidate in candidates.items() if candidate.compiles],
        False: [chain for chain, candidate in candidates.items() if not candidate.compiles],
    }
    outcomes = {chain: [candidate.found] for chain, candidate in candidates.items()}
    for _ in range(count):
        for compiles, chains in parts.items():
            if chains:
                again = _run_again(run, record, chains, request, forced=compiles)
                for chain in chains:
                    if chain in again:
                        outcomes[chain].append(again[chain])
    steady = {}
    for chain, seen in outcomes.items():
        if len(seen) <= count:
            # Of another machine's part of a merged run, or for a target that is not there.
            where = candidates[chain].listed.config.name
            sys.stderr.write(f"left out {chain}: it cannot be run again here; --rerun 0 trusts the run  [{where}]\n")
        elif len({found.words for found in seen}) == 1:
            steady[chain] = candidates[chain]
        else:
            verdicts = ", ".join(found.words for found in seen)
            listed = candidates[chain].listed
            sys.stderr.write(f"flaky    {listed.entry}: {verdicts}: left as it is  [{listed.config.name}]\n")
    return steady


def _run_again(
    run: Path, record: JournalRecord, chains: Collection[str], request: RunRequest, *, forced: bool
) -> dict[str, Found]:
    """What some chains of a run come to in another one, which is kept in the run's folder `again`."""
    # What runs brings the engine; a diff without reruns need not wait for it.
    from iree_gauntlet.experiments import run as execute  # noqa: PLC0415
    from iree_gauntlet.reports.presenting import ConsolePresenter  # noqa: PLC0415

    # Inside of the run, so that it stays the newest one.
    folder = free_folder(run.resolve() / _AGAIN / "1")
    request = replace(
        request,
        folder=FolderRequest(run_dir=str(folder)),
        conduct=replace(request.conduct, force_recompile=forced),
        chains=frozenset(chains),
    )
    # The diff alone goes to standard output.
    code = execute.run(execute.choose(request), ConsolePresenter(sys.stderr), brief=True).exit_code
    again = read_journal(folder / JOURNAL)
    if code is ExitCode.INTERRUPTED or again.end is None or again.end.get("interrupted"):
        raise KeyboardInterrupt
    identities = [one.runs[-1].get("toolchain", {}).get("identity", "") for one in (record, again)]
    if identities[0] != identities[1]:
        raise UsageError(
            f"{shown(run)} was run with another IREE than the one that is here now",
            "Give that IREE with --iree, or --rerun 0 to trust the run.",
        )
    return found_in(again)


def _file_change(path: Path, changes: Sequence[Removal | Addition]) -> FileChange:
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise GauntletError(f"{path}: cannot be read: {error}", "`lint` shows what is wrong with it.") from error
    try:
        return FileChange(path, text, with_changes(text, changes))
    except GauntletError as error:
        raise GauntletError(f"{path}: {error.what}", error.hint) from error
