"""`explain --slower`: from what a comparison found slower to a bundle of the dispatch that is.

<comparison>/explain/explain.jsonl     the record (`records/explain_outcome.py` describes it), with all rounds
<comparison>/explain/<case>/a, b       what was compiled and traced for a case, by side
<comparison>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it

Its `repro.sh` compiles `program.mlir` with both, runs their benchmarks in turn, and holds the ratio of their times
against half of what was lost.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.explain import CaseNotes, explain_each, make_tools, open_iree
from iree_gauntlet.experiments.explaining.bundle import (
    PROGRAM,
    STILL_THERE,
    Bundle,
    BundleFiles,
    list_packages,
    pack,
    render,
    run_bundle,
)
from iree_gauntlet.experiments.explaining.slower import find_slow_dispatch, slower_of
from iree_gauntlet.figures import format_cpus, format_dispatch_change, milliseconds
from iree_gauntlet.records.compare_record import comparison_named, read_comparison
from iree_gauntlet.records.run_folder import LATEST

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.slower import SlowDispatch, Slower
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import CacheRequest, ExplainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


def explain_slower(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what a comparison found slower.

    Raises:
        UsageError: options that exclude each other.
        GauntletError: what keeps it from starting.
    """
    if asked.no_weights:
        hint = "A slower dispatch is measured on the inputs that it had: leave one of the two out."
        raise UsageError("--slower and --no-weights exclude each other", hint)
    name, *patterns = asked.failures or (LATEST,)
    compared = comparison_named(name).resolve()
    record = read_comparison(compared)
    models = slower_of(record, compared, patterns)
    cases = [{"case": item.case, "kind": "slower", "reason": item.reason} for item in models]
    with presenter.progress() as progress:
        base, new = (open_iree(compared / side.name.lower(), side.toolchain, cache, progress) for side in record.sides)

        def look(slower: Slower, notes: CaseNotes) -> bool:
            return _explain_slower(slower, notes, (base, new))

        said = {"cases": cases, "toolchain": record.sides[1].toolchain, "base": record.sides[0].toolchain}
        return explain_each(compared, said, models, look, asked, presenter, progress)


def _explain_slower(slower: Slower, notes: CaseNotes, machines: tuple[Workbench, Workbench]) -> bool:
    """Whether a bundle shows a dispatch that B is slower with."""
    session, folder = notes.session, notes.session.folder / slower.sides[1].folder
    shutil.rmtree(folder, ignore_errors=True)
    a, b = (
        make_tools(machine, session, folder / name, side)
        for name, machine, side in zip("ab", machines, slower.sides, strict=True)
    )
    notes.say("slower")
    base, new = (machine.iree for machine in machines)
    try:
        found = find_slow_dispatch(slower, (a, b), session, notes.say)
        notes.add("slower", found.as_dict())
        if found.slow is None:
            return False
        bundle = _write_bundle(slower, found.slow, (base, new), folder / "bundle")
        notes.say("running its bundle")
        with session.quiet(found.slow.gpu):
            code = run_bundle(bundle.folder, new, session.supervisor, folder, base)
    except WaitCancelledError as error:
        raise KeyboardInterrupt from error
    except GauntletError as error:
        # Of this one alone; the others go on.
        notes.add("nothing", {"why": error.on_one_line})
        return False
    notes.add_bundle(bundle, "a program for any release", code)
    return code == STILL_THERE


def _write_bundle(slower: Slower, slow: SlowDispatch, irees: tuple[Toolchain, Toolchain], folder: Path) -> Bundle:
    """Write the bundle of a dispatch that B is slower with."""
    files, suspect, cpus = BundleFiles(), slow.suspect, slower.rounds.cpus
    inputs = [f"--input={text}" for text in files.add_tensors(slow.inputs, "input")]
    packages = list(map(list_packages, irees))
    flags = [files.add_flags(side.flags, side.compile_cwd) for side in slower.sides]
    arguments = [[*words, *inputs] for words in slow.arguments]
    base, new = irees
    pinned = ",".join(map(str, cpus))
    change = f"{100 * (slow.comparison.ratio - 1):+.1f} %"
    versions = f"with {new.compiler.version} than with {base.compiler.version}"
    title = f"{suspect.name} is slower ({change}) {versions} ({slower.sides[1].device})"
    said = {"irees": irees, "packages": packages, "flags": flags, "arguments": arguments, "comparison": slow.comparison}
    script = render("repro_slower.sh", **said, pin=f"taskset -c {pinned}" if pinned else "")
    readme = render(
        "readme_slower.md",
        **said,
        title=title,
        slower=slower,
        slow=slow,
        went=format_dispatch_change(suspect.a_ns, suspect.b_ns, suspect.unit),
        times=slow.times["time_ms"],
        milliseconds=milliseconds,
        where=f"CPU {format_cpus(cpus)}" if cpus else "all CPUs",
    )
    facts = {
        "title": title,
        "iree": new.as_dict(),
        "base": base.as_dict(),
        "packages": [*packages[1], *(f"{package} (base)" for package in packages[0])],
        "flags": flags[1],
        "base_flags": flags[0],
        "arguments": arguments[1],
        "base_arguments": arguments[0],
        "times": slow.times,
    }
    return pack(files.held | {PROGRAM: slow.function.encode()}, readme, script, facts, folder)
