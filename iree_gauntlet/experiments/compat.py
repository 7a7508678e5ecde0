"""`compat`: the modules of each IREE with the runtime of each, and what becomes of them.

<folder>/journal.jsonl                        the record (`records/compat_outcome.py` describes it)
<folder>/<compiler>-on-<runtime>/             one run for each pair, up to its numbers, with its own reports
<folder>/compat.md, .html, .json, junit.xml

Each compiler's first run is with its own runtime and compiles; the others take the modules from the cache, because a
module's key does not depend on the runtime.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.matrix import IreeRuns, keep_run_options, name_irees, resume_irees
from iree_gauntlet.experiments.run import make_setup
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.code.module_dump import dump_module
from iree_gauntlet.records.compat_outcome import COMPAT, CompatOpening, ModuleNeeds, read_compat_outcome
from iree_gauntlet.records.matrix_outcome import MatrixResult
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.toolchain import COMPILE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.matrix_outcome import IreeRequest
    from iree_gauntlet.requests import CompatRequest, RunRequest


def check_compatibility(options: CompatRequest, request: RunRequest, presenter: Reporter) -> ExitCode:
    """Run the modules of each IREE with the runtime of each.

    Raises:
        UsageError: there are fewer than two IREEs, or a name is wrong.
        NothingSelectedError: no selected model has expected outputs.
        ToolchainError: an IREE is not available.
    """
    experiment = Experiment.find(COMPAT, request.folder)
    record, typed = experiment.record, options.require_compatible
    if typed and not typed.isdecimal():
        raise UsageError(f"--require-compatible {typed}: expected a number, 0 or more", "Leave it out for none.")
    promised = int(typed or 0)
    if record:
        irees, request = resume_irees(experiment, options.iree, request)
        promised = promised if typed else record.opening.promised
    else:
        irees = _order_irees(options.iree)
    setup = make_setup(request)
    if not any(case.kind is Kind.QUALITY for case in setup.selection.cases.cases):
        hint = "Select models with expected outputs; `gauntlet list` shows them."
        raise NothingSelectedError("compat runs models, and none of the selected ones has expected outputs", hint)
    workbenches = {iree.iree: setup.open_workbench_for(iree.iree) for iree in irees}
    kept = keep_run_options(setup.request)
    opening = CompatOpening(suite=setup.selection.name, irees=irees, promised=promised, kept=kept)
    folder, pairs = experiment.folder, opening.pairs
    previous_results = record.collect_results(MatrixResult) if record else {}
    with interruptible(lambda: None):
        with experiment.open(presenter, opening) as log:
            for iree in irees:
                presenter.line(f"{iree.label}: IREE {workbenches[iree.iree].iree.compiler.version}")
            runs = IreeRuns(folder, pairs, setup, previous_results, log, presenter, hold=Stage.BENCHMARK)
            code, experiment.stopped = runs.run_each({pair.label: _join(pair, workbenches) for pair in pairs})
            if code is ExitCode.INTERRUPTED:
                experiment.code = code
            else:
                for iree in irees:
                    for needs in _describe_modules(iree, folder / opening.make_pair(iree, iree).folder, workbenches):
                        log.write("module", needs)
                experiment.code = read_compat_outcome(folder).worst_code
        return experiment.reported


def _order_irees(names: Sequence[str]) -> tuple[IreeRequest, ...]:
    """Name the IREEs; releases and nightlies are put in order, the oldest first."""
    if len(names) < 2:
        raise UsageError(
            f"compat takes two IREEs or more, not {len(names)}",
            "Such as: gauntlet compat 3.11.0 3.12.0 3.13.0 --model dtln",
        )
    choices = {name: parse_choice(name) for name in names}
    versions = {name: choice.version for name, choice in choices.items() if choice.version}
    is_sortable = len(versions) == len(names)
    return name_irees(sorted(names, key=versions.__getitem__) if is_sortable else names)


def _join(pair: IreeRequest, workbenches: dict[str, Workbench]) -> Workbench:
    """Return the workbench of a compiler with the runtime of another; it lives no longer than those."""
    compiling, running = workbenches[pair.iree], workbenches[pair.runtime]
    return replace(
        compiling,
        toolchain=Toolchain(compiling.iree.compiler, running.iree.runtime),
        known_flags={**running.known_flags, COMPILE: compiling.known_flags[COMPILE]},
    )


def _describe_modules(iree: IreeRequest, folder: Path, workbenches: dict[str, Workbench]) -> Iterator[ModuleNeeds]:
    """Describe the modules that a run has run, as the tool of their own release does."""
    path, run_module = folder / JOURNAL, workbenches[iree.iree].iree.runtime.run_module
    for step in read_journal(path).planned if path.is_file() else ():
        modules = [file for file in step.inputs if file.role.startswith("module")]
        for module in modules if step.stage is Stage.THRESHOLD else ():
            name = module.role if len(modules) > 1 else ""
            if Path(module.path).is_file():
                yield _describe_module(iree.label, step.chain, name, run_module, Path(module.path))


def _describe_module(iree: str, chain: str, name: str, run_module: str, module: Path) -> ModuleNeeds:
    try:
        content = dump_module(run_module, module)
    except GauntletError as error:
        return ModuleNeeds(iree=iree, chain=chain, name=name, problem=error.message)
    version, dependencies = content.get("bytecode_version", 0), content.get("dependencies", ())
    return ModuleNeeds(
        iree=iree,
        chain=chain,
        name=name,
        bytecode=f"{version >> 16}.{version & 0xFFFF}",
        features=str(content.get("requirements") or ""),
        dependencies=tuple(f"{entry['name']} >= {entry.get('minimum_version', 0)}" for entry in dependencies),
        imports=tuple(
            f"{entry['full_name']} {entry['signature']['calling_convention']}"
            for entry in content.get("imported_functions", ())
        ),
    )
