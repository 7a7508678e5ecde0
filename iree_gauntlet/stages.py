"""Stages: what is done with a case, in order. All that is said of one, but its work, is its row in `STAGES`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a case checks."""

    COMPILE = "compile"
    QUALITY = "quality"
    COMPSTAT = "compstat"
    BENCHMARK = "benchmark"


class FailureKind(StrEnum):
    """How what is tested fails. What is the fault of a spec, of the machine or of the toolkit is none of these."""

    DOES_NOT_COMPILE = "does not compile"
    CRASHES = "crashes"
    DOES_NOT_RUN = "does not run"
    WRONG_NUMBERS = "wrong numbers"
    MISSES_A_GOLDEN = "misses a golden"


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
    BENCHMARK = "benchmark"

    @property
    def row(self) -> StageRow:
        """Its row in `STAGES`."""
        return STAGES[self]


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage, but for the work that it does.

    Attributes:
        after: stages that come before it, but for those that these come after.
        kinds: of cases that it is planned for: each, unless given.
        failures: how IREE can fail there; where it cannot, what fails is not what is tested.
        checks: the kind of case whose verdict it gives; None for one that comes before such a stage, or beside it.
        beside: the stage beside which it measures modules of its own; what keeps that one from running keeps it too.
        compiles_for: kinds of cases that are compiled where it is asked for, though it is not planned for them.
        timeout: seconds after which a step is ended, where neither a spec nor an option says.
        operator_timeout: of one of thousands of small cases, where it is less: one that hangs must not hold the others.
        limits: what `--timeout-…` gives, as its help begins; empty where there is no such option.
        is_named: whether specs and options name it.
        is_local: whether what it makes is large, and quickly made where it is used: nobody asks for it by itself.
        fetches: whether it waits for the network, and looks after files that are there already.
        maker: what makes its files, as messages call it; empty where `ModuleMaker` makes none.
        prefix: how the line begins in which a program of ours says what is wrong; empty for a tool of others.
        uncached: why no step of it comes from the cache; empty where the cache is asked.
        cores: 0 where a step waits on something else.
        is_alone: whether nothing else of any run may run on the machine at the same time.
        waits: whether a step waits for what is alone on the machine, and keeps it waiting.
        is_explained: whether `explain` is about its failures.
        in_series: whether its flags tell one series of the history from another.
        shade: the number of its colour on pages, 1 to 6; 0 for none.
    """

    after: tuple[Stage, ...] = ()
    kinds: tuple[Kind, ...] = tuple(Kind)
    failures: tuple[FailureKind, ...] = ()
    checks: Kind | None = None
    beside: Stage | None = None
    compiles_for: tuple[Kind, ...] = ()
    timeout: float = 1800.0
    operator_timeout: float | None = None
    limits: str = ""
    is_named: bool = True
    is_local: bool = False
    fetches: bool = False
    maker: str = ""
    prefix: str = ""
    uncached: str = ""
    cores: int = 1
    is_alone: bool = False
    waits: bool = True
    is_explained: bool = False
    in_series: bool = False
    shade: int = 0

    @property
    def upstream(self) -> frozenset[Stage]:
        """All stages that come before it."""
        return frozenset(self.after).union(*(stage.row.upstream for stage in self.after))

    @property
    def makes_modules(self) -> bool:
        """Whether it makes a program or a module, which each kind of case needs."""
        return FailureKind.DOES_NOT_COMPILE in self.failures

    @property
    def runs_modules(self) -> bool:
        """Whether a tool runs modules, on the device of the case."""
        return FailureKind.DOES_NOT_RUN in self.failures

    @property
    def checks_numbers(self) -> bool:
        """Whether outputs are compared with those that are expected."""
        return FailureKind.WRONG_NUMBERS in self.failures


_CALLED = (Kind.QUALITY, Kind.BENCHMARK)
_NO_MODULE = (FailureKind.DOES_NOT_COMPILE, FailureKind.CRASHES)
_NO_RUN = (FailureKind.CRASHES, FailureKind.DOES_NOT_RUN)
_NO_GOLDEN = (FailureKind.MISSES_A_GOLDEN,)
_EVERY_TIME = "runs every time"
STAGES = {
    # It is bounded by its stall timeout, not by its size.
    Stage.FETCH: StageRow(timeout=24 * 3600.0, fetches=True, cores=0, shade=6),
    # A model that is a Python function is exported by a command of its own.
    Stage.EXPORT: StageRow(kinds=(), timeout=3600.0, is_named=False),
    Stage.IMPORT: StageRow(
        (Stage.FETCH,),
        failures=_NO_MODULE,
        timeout=600.0,
        limits="Seconds for an import",
        maker="the ONNX import",
        prefix="import_onnx: ",
        shade=1,
    ),
    Stage.PARAMETERS: StageRow(
        (Stage.IMPORT,),
        _CALLED,
        timeout=3600.0,
        limits="Seconds for synthetic weights",
        is_local=True,
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
    # Made where a threshold step needs it, of a program that compiles.
    Stage.REFERENCE: StageRow((Stage.COMPILE,), (Kind.QUALITY,), is_named=False, is_local=True, maker="onnxruntime"),
    # A case that is only compiled belongs to the threshold tests, as in the programs that run it today.
    Stage.THRESHOLD: StageRow(
        (Stage.PARAMETERS, Stage.COMPILE, Stage.REFERENCE),
        (Kind.QUALITY,),
        (*_NO_RUN, FailureKind.WRONG_NUMBERS),
        checks=Kind.QUALITY,
        compiles_for=(Kind.COMPILE,),
        timeout=600.0,
        operator_timeout=60.0,
        limits="Seconds for a threshold run",
        uncached=_EVERY_TIME,
        is_explained=True,
        shade=3,
    ),
    Stage.COMPSTAT: StageRow(
        (Stage.COMPILE,),
        (Kind.COMPSTAT,),
        _NO_GOLDEN,
        checks=Kind.COMPSTAT,
        timeout=60.0,
        uncached="read from the module",
        cores=0,
        shade=5,
    ),
    # It compiles for itself: its modules are others. A count is the same whatever else there is.
    Stage.COUNT: StageRow(
        (Stage.PARAMETERS,),
        (Kind.BENCHMARK,),
        _NO_GOLDEN,
        beside=Stage.BENCHMARK,
        limits="Seconds to count instructions",
        maker="counting instructions",
        prefix="count_call: ",
        waits=False,
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
# Those that specs and options name; the check of each kind of case; and what is done where nobody says: the checks.
SPEC_STAGES = tuple(stage for stage in Stage if stage.row.is_named)
CHECKS = {stage.row.checks: stage for stage in Stage if stage.row.checks}
DEFAULT_STAGES = tuple(CHECKS.values())
