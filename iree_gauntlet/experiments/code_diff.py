"""`code.diff`: compile a selection with two sides, and compare the code of their dispatches, down to the instructions.

<folder>/journal.jsonl             the record (`records/code_outcome.py` describes it)
<folder>/a, b                      the run of each side, which compiles
<folder>/texts/<chain>/            the text of each dispatch that is shown, of each side
<folder>/code.md, .html, .json
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import COUNTED, Verdict
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explain import make_tools
from iree_gauntlet.experiments.explaining.failures import describe_failure
from iree_gauntlet.experiments.run import make_setup
from iree_gauntlet.experiments.sides import complete_sides, prepare_side
from iree_gauntlet.measuring.code.code_changes import compare_code
from iree_gauntlet.measuring.code.code_text import CodeLevel, DispatchText, make_dump_flags, read_dispatch_text
from iree_gauntlet.measuring.code.module_code import list_missing_packages, load_module_code
from iree_gauntlet.records.code_outcome import CODE_DIFF, CodeDiffOpening, DiffRow, DispatchDiff, ModuleCodeDiff
from iree_gauntlet.records.compare_record import SIDE_NAMES
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.sides import ComparisonSide
    from iree_gauntlet.measuring.code.code_changes import CodeChange
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import CodeDiffRequest, RunRequest
    from iree_gauntlet.steps import Step


# Without --dispatch, so many dispatches of each module are shown in full, those that got worse first.
_MOST_SHOWN = 1
_UNSAFE = re.compile(r"[^\w.+-]+")


def diff_code(options: CodeDiffRequest, request: RunRequest, presenter: Reporter) -> ExitCode:
    """Compare the code of two sides over a selection.

    Raises:
        GauntletError: a side cannot be run; it is a UsageError if packages are missing.
    """
    names = complete_sides("code.diff", options.sides)
    if missing := list_missing_packages():
        raise UsageError(
            f"code.diff reads code with {', '.join(missing)}, which this Python does not have",
            "Install the extra: pip install 'iree-gauntlet[code]', in a clone pip install -e '.[code]'.",
        )
    setup = make_setup(replace(request, stages=(Stage.COMPILE,)))
    workbenches = [setup.open_workbench_for(name) for name in names]
    experiment = Experiment.find(CODE_DIFF, request.folder)
    folder, level = experiment.folder, CodeLevel(options.level)
    with experiment.open(presenter, CodeDiffOpening(sides=names, level=level)) as log:
        sides: list[ComparisonSide] = []
        for name, iree, workbench in zip(SIDE_NAMES, names, workbenches, strict=True):
            sides.append(prepare_side(name, workbench, iree, setup, folder / name.lower(), presenter))
            if sides[-1].interrupted:
                experiment.code = ExitCode.INTERRUPTED
                return experiment.code
        problems, matches = 0, False
        with presenter.progress() as progress, experiment.open_session(log, progress) as session:
            for steps in _pair_steps(sides):
                progress.status(f"{steps[0].chain}: comparing the code")
                module, has_match = _compare_module(steps, sides, options.dispatch, level, session)
                log.write("result", module, step=steps[0].id)
                problems += bool(module.problem)
                matches |= has_match
        experiment.code = ExitCode.ERROR if problems else ExitCode.OK
        if options.dispatch and not matches and not problems:
            hint = "Without --dispatch, the report lists those whose code differs."
            raise NothingSelectedError(f"no dispatch matches {options.dispatch!r}", hint)
    return experiment.code


def _pair_steps(sides: Sequence[ComparisonSide]) -> Iterator[tuple[Step, Step]]:
    """Yield the compile steps of both sides, in the order of the plan, without those that fail as expected."""
    a, b = (
        {step.id: step for step in side.planned if step.stage is Stage.COMPILE and not step.role.endswith(COUNTED)}
        for side in sides
    )
    for name in a:
        results = [side.record.results.get(name) for side in sides]
        if name in b and not all(result and result.verdict is Verdict.XFAILED for result in results):
            yield a[name], b[name]


def _compare_module(
    steps: tuple[Step, Step],
    sides: Sequence[ComparisonSide],
    pattern: str,
    level: CodeLevel,
    session: Session[EventLog],
) -> tuple[ModuleCodeDiff, bool]:
    """Compare the code of one module, and the texts of the shown dispatches; return also if a dispatch matches."""
    codes = []
    for side, step in zip(sides, steps, strict=True):
        result = side.record.results.get(step.id)
        if result is None or result.verdict is not Verdict.PASSED:
            reason = result.full_reason if result else "it did not finish"
            log = format_path(side.folder / "summary.md")
            return ModuleCodeDiff(problem=f"{side.name} ({side.iree}): {reason}; {log} has its output"), False
        code = load_module_code(Path(step.find_output("module")), Path(step.find_output("code")))
        if code.code_problems or not code.code:
            reason = "; ".join(code.code_problems) or "its module has no machine code"
            return ModuleCodeDiff(problem=f"{side.name} ({side.iree}): {reason}"), False
        codes.append(code.code)
    changes = compare_code(*codes)
    # Two texts say more than one.
    shown = sorted(changes, key=lambda change: change.a is None or change.b is None)[:_MOST_SHOWN]
    if pattern:
        shown = [change for change in changes if any(code and fnmatchcase(code.name, pattern) for code in change.sides)]
    texts: list[dict[str, DispatchText | str]] = []
    for side, step in zip(sides, steps, strict=True) if shown else ():
        names = {code.name for change in shown if (code := getattr(change, side.name.lower()))}
        texts.append(_read_texts(side, step, names, level, session))
    folder = session.folder / "texts" / _UNSAFE.sub("-", steps[0].chain) / steps[0].role
    if shown:
        folder.mkdir(parents=True)
    diffs = tuple(
        _diff_dispatch(change, texts, level, folder, session.folder)
        if change in shown
        else DispatchDiff(a=change.a, b=change.b)
        for change in changes
    )
    same_count = len(codes[1]) - sum(change.b is not None for change in changes)
    has_match = any(fnmatchcase(code.name, pattern) for side_codes in codes for code in side_codes)
    return ModuleCodeDiff(same_count=same_count, changes=diffs), has_match


def _read_texts(
    side: ComparisonSide, step: Step, names: set[str], level: CodeLevel, session: Session[EventLog]
) -> dict[str, DispatchText | str]:
    """Compile a module again, with its code dumped; return the text of each dispatch, or the reason for having none."""
    result = side.record.results[step.id]
    folder = session.folder / f"dump-{side.name.lower()}"
    tools = make_tools(
        side.workbench, session, folder, describe_failure(step, None, Stage.COMPILE, result, step.timeout)
    )
    try:
        dumps = folder / "dumps"
        dumps.mkdir()
        tools.compile("module.vmfb", tools.failure.program, (*tools.failure.flags, *make_dump_flags(level, dumps)))
        reason = f"{side.name}: the compiler dumps no {level} of it"
        return {name: read_dispatch_text(dumps, level, name) or reason for name in names}
    except GauntletError as error:
        return dict.fromkeys(names, f"{side.name}: {error.on_one_line}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _diff_dispatch(
    change: CodeChange, side_texts: Sequence[dict[str, DispatchText | str]], level: CodeLevel, folder: Path, base: Path
) -> DispatchDiff:
    """Compare the texts of a dispatch, and write them to files in a folder, which are named relative to `base`."""
    texts: list[DispatchText | str] = []
    files: list[str] = []
    rows: tuple[DiffRow, ...] = ()
    for side, code, texts_by_name in zip(SIDE_NAMES, change.sides, side_texts, strict=True):
        text = texts_by_name[code.name] if code else DispatchText((), ())
        texts.append(text)
        if code and not isinstance(text, str):
            path = folder / f"{_UNSAFE.sub('-', change.name)}.{side.lower()}.{level}"
            path.write_text("\n".join(text.lines) + "\n", encoding="utf-8")
            files.append(str(path.relative_to(base)))
    a, b = texts
    if isinstance(a, str) or isinstance(b, str):
        note = "; ".join(text for text in texts if isinstance(text, str))
    else:
        rows = tuple(DiffRow(*row) for row in a.compare(b))
        note = "" if rows else f"its {level} is the same, but for names that are numbered: the difference is elsewhere"
    return DispatchDiff(a=change.a, b=change.b, rows=rows, files=tuple(files), note=note)
