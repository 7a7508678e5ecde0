"""Stages are the steps of a case, in order. A stage's row in `STAGES` has all its properties, but not its work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a case's check."""

    COMPILE = "compile"
    QUALITY = "quality"
    COMPSTAT = "compstat"
    BENCHMARK = "benchmark"


class FailureKind(StrEnum):
    """The kinds of failure of a tested program; faults of a spec, the machine or the toolkit are none of these."""

    DOES_NOT_COMPILE = "does not compile"
    CRASHES = "crashes"
    DOES_NOT_RUN = "does not run"
    WRONG_NUMBERS = "wrong numbers"
    MISSES_A_GOLDEN = "misses a golden"
    TUNES_NOTHING = "tunes nothing"


class Stage(StrEnum):
    """The kind of a step, in the order of a chain."""

    FETCH = "fetch"
    EXPORT = "export"
    IMPORT = "import"
    PARAMETERS = "parameters"
    COMPILE = "compile"
    REFERENCE = "reference"
    THRESHOLD = "threshold"
    COMPSTAT = "compstat"
    COUNT = "count"
    MEMORY = "memory"
    BENCHMARK = "benchmark"

    @property
    def row(self) -> StageRow:
        """The row of the stage in `STAGES`."""
        return STAGES[self]


@dataclass(frozen=True, slots=True)
class StageRow:
    """The properties of a stage, except its work.

    Attributes:
        after: its direct predecessors.
        kinds: kinds of cases that it is planned for, by default all.
        failures: possible failures of IREE; if empty, a failure of the step is not the tested program's fault.
        checks: the kind of case whose verdict the stage gives; None for preparations and additional measurements.
        accompanies: the stage that this stage accompanies on request; skipping that stage skips both.
        kinds_only_compiled: kinds of cases that are compiled if the stage is selected, although not planned for them.
        timeout: default limit of a step in seconds.
        operator_timeout: shorter limit for one of thousands of small cases, so that a hang does not delay the others.
        limits: beginning of the help of the `--timeout-…` option; empty if the stage has no such option.
        is_named: True if specs and options name the stage.
        stays_local: True if the output is large and quickly made on the machine that uses it; never selected alone.
        fetches: True if the stage waits for the network and verifies files that exist already.
        maker: the program that makes the files, in messages; empty if `ModuleMaker` makes no files for the stage.
        prefix: prefix of error lines of our own programs; empty for other tools.
        uncached: reason for never using the cache; empty if the stage uses the cache.
        cores: 0 if a step only waits.
        is_alone: True if no other step of any run may run on the machine at the same time.
        waits_for_benchmarks: True if the step and steps that are alone on the machine wait for each other.
        is_explained: True if `explain` covers failures of the stage.
        in_series: True if the step's flags distinguish series of the history.
        shade: number of the stage's colour on pages, 1 to 6; 0 for none.
    """

    after: tuple[Stage, ...] = ()
    kinds: tuple[Kind, ...] = tuple(Kind)
    failures: tuple[FailureKind, ...] = ()
    checks: Kind | None = None
    accompanies: Stage | None = None
    kinds_only_compiled: tuple[Kind, ...] = ()
    timeout: float = 1800.0
    operator_timeout: float | None = None
    limits: str = ""
    is_named: bool = True
    stays_local: bool = False
    fetches: bool = False
    maker: str = ""
    prefix: str = ""
    uncached: str = ""
    cores: int = 1
    is_alone: bool = False
    waits_for_benchmarks: bool = True
    is_explained: bool = False
    in_series: bool = False
    shade: int = 0

    @property
    def upstream(self) -> frozenset[Stage]:
        """All direct and indirect predecessors of the stage."""
        return frozenset(self.after).union(*(stage.row.upstream for stage in self.after))

    @property
    def makes_modules(self) -> bool:
        """True if the stage makes a program or a module, which every kind of case needs."""
        return FailureKind.DOES_NOT_COMPILE in self.failures

    @property
    def runs_modules(self) -> bool:
        """True if a tool runs modules on the device of the case."""
        return FailureKind.DOES_NOT_RUN in self.failures

    @property
    def checks_numbers(self) -> bool:
        """True if the stage compares outputs with expected outputs."""
        return FailureKind.WRONG_NUMBERS in self.failures


_CASES_WITH_CALLS = (Kind.QUALITY, Kind.BENCHMARK)
_NO_MODULE = (FailureKind.DOES_NOT_COMPILE, FailureKind.CRASHES)
_NO_RUN = (FailureKind.CRASHES, FailureKind.DOES_NOT_RUN)
_NO_GOLDEN = (FailureKind.MISSES_A_GOLDEN,)
_EVERY_TIME = "runs every time"
STAGES = {
    # Stalled downloads are ended by another, shorter time limit.
    Stage.FETCH: StageRow(timeout=24 * 3600.0, fetches=True, cores=0, shade=6),
    # A separate command uses this stage to export a model that is a Python function.
    Stage.EXPORT: StageRow(kinds=(), timeout=3600.0, is_named=False),
    Stage.IMPORT: StageRow(
        (Stage.FETCH,),
        failures=_NO_MODULE,
        timeout=600.0,
        limits="Seconds for an import",
        maker="the import",
        prefix="import: ",
        shade=1,
    ),
    Stage.PARAMETERS: StageRow(
        (Stage.IMPORT,),
        _CASES_WITH_CALLS,
        timeout=3600.0,
        limits="Seconds for synthetic weights",
        stays_local=True,
        maker="making synthetic weights",
    ),
    Stage.COMPILE: StageRow(
        (Stage.IMPORT,),
        failures=_NO_MODULE,
        checks=Kind.COMPILE,
        operator_timeout=300.0,
        limits="Seconds for a compile",
        maker="iree-compile",
        is_explained=True,
        in_series=True,
        shade=2,
    ),
    # The reference follows the compile, since only the threshold step of a compiled program needs it.
    Stage.REFERENCE: StageRow((Stage.COMPILE,), (Kind.QUALITY,), is_named=False, stays_local=True, maker="onnxruntime"),
    # A compile-only case belongs to the threshold tests, as in the programs that run such specs today.
    Stage.THRESHOLD: StageRow(
        (Stage.PARAMETERS, Stage.COMPILE, Stage.REFERENCE),
        (Kind.QUALITY,),
        (*_NO_RUN, FailureKind.WRONG_NUMBERS),
        checks=Kind.QUALITY,
        kinds_only_compiled=(Kind.COMPILE,),
        timeout=600.0,
        operator_timeout=60.0,
        limits="Seconds for a threshold run",
        uncached=_EVERY_TIME,
        is_explained=True,
        shade=3,
    ),
    # A module with a tuning spec that matches nothing is sound, so the steps that run it do not wait for this one.
    Stage.COMPSTAT: StageRow(
        (Stage.COMPILE,),
        (Kind.COMPSTAT,),
        (*_NO_GOLDEN, FailureKind.TUNES_NOTHING),
        checks=Kind.COMPSTAT,
        timeout=60.0,
        maker="counting tuned dispatches",
        prefix="tuned_dispatches: ",
        uncached="read from the module",
        cores=0,
        shade=5,
    ),
    # Counts compile modules of their own. They need no quiet machine, because other work does not change a count.
    Stage.COUNT: StageRow(
        (Stage.PARAMETERS,),
        (Kind.BENCHMARK,),
        _NO_GOLDEN,
        accompanies=Stage.BENCHMARK,
        limits="Seconds to count instructions",
        maker="counting instructions",
        prefix="count_call: ",
        waits_for_benchmarks=False,
        shade=5,
    ),
    Stage.MEMORY: StageRow(
        (Stage.PARAMETERS, Stage.COMPILE),
        (Kind.BENCHMARK,),
        (*_NO_RUN, *_NO_GOLDEN),
        accompanies=Stage.BENCHMARK,
        timeout=900.0,
        limits="Seconds to measure memory",
        uncached=_EVERY_TIME,
        shade=5,
    ),
    Stage.BENCHMARK: StageRow(
        (Stage.PARAMETERS, Stage.COMPILE),
        (Kind.BENCHMARK,),
        (*_NO_RUN, *_NO_GOLDEN),
        checks=Kind.BENCHMARK,
        timeout=900.0,
        limits="Seconds for a benchmark",
        uncached=_EVERY_TIME,
        is_alone=True,
        in_series=True,
        shade=4,
    ),
}
# Stages that specs and options name; the check of each kind of case; the default selection: all checks.
SPEC_STAGES = tuple(stage for stage in Stage if stage.row.is_named)
CHECK_STAGES = {stage.row.checks: stage for stage in Stage if stage.row.checks}
DEFAULT_STAGES = tuple(CHECK_STAGES.values())
