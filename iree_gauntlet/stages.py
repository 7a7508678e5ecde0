"""The stages of a chain."""

from __future__ import annotations

from enum import StrEnum


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
