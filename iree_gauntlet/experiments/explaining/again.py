"""Does it fail again? And what does it show when it does?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.experiments.explaining.symptom import Symptom, symptom_of

if TYPE_CHECKING:
    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.tools import Tools


# What did not end in the time of the spec is given no more than this.
_HANG_SECONDS = 60.0
_TIMES = (1, 2)


@dataclass(frozen=True, slots=True)
class Again:
    """Whether it fails again.

    Attributes:
        failed: of two times, how often.
        same: it failed in the same way, and complained of the same values.
        symptom: what it showed; None where it passed.
    """

    failed: int
    same: bool
    symptom: Symptom | None

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {"failed": self.failed, "same": self.same, "symptom": self.symptom and self.symptom.as_dict()}


def fails_again(failure: Failure, tools: Tools) -> Again:
    """Do it twice more, as it was."""
    compiles = failure.stage is Stage.COMPILE
    timeout = failure.compile_timeout if compiles else failure.timeout
    if failure.result.timed_out:
        timeout = min(timeout, _HANG_SECONDS)
    if compiles:
        runs = [
            tools.try_compile(
                f"again_{i}.vmfb", failure.program, failure.flags, timeout=timeout, cwd=failure.compile_cwd
            )
            for i in _TIMES
        ]
    else:
        runs = [tools.run_module(f"again_{i}", failure.argv[1:], timeout=timeout, cwd=failure.cwd) for i in _TIMES]
    symptoms = [symptom_of(ran, timeout) for ran in runs]
    shown = [symptom for symptom in symptoms if symptom is not None]
    same = symptoms[0] == symptoms[1] and runs[0].complaints == runs[1].complaints
    return Again(len(shown), same, shown[0] if shown else None)
