"""How the record of an experiment begins and ends, whatever it is about; `experiments/experiment.py` writes both."""

from __future__ import annotations

from dataclasses import dataclass, field

from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOpening(Recorded):
    """Who began it, when, and how; what is asked for is left to each kind of experiment.

    Attributes:
        time: ISO 8601, as every event of a record has it.
        command: as it was typed, in the folder `cwd`.
    """

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    version: str = field(default="", metadata=UNLESS_DEFAULT)
    command: str = field(default="", metadata=UNLESS_DEFAULT)
    cwd: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEnd(Recorded):
    """How it ended.

    Attributes:
        problem: why it has no result; empty where it has one.
    """

    time: str = field(default="", metadata=UNLESS_DEFAULT)
    exit_code: int
    problem: str = ""
    seconds: float = 0.0
    interrupted: bool = False
