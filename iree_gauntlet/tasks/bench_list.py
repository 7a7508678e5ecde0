"""`bench --list`: models, configurations, parameter counts, read from their declarations; nothing is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.reporting.figures import whole
from iree_gauntlet.reporting.printing import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.bench.registry import BenchmarkModel

__all__ = ["print_models"]

_HEADER = ("model", "config", "parameters", "takes", "declared")
_UNKNOWN = "not declared"
_OPTIONS = {"force_num_layers": "layers", "microbatch": "microbatch"}
_GAP = "  "
_RIGHT = 2


def print_models(models: Mapping[str, BenchmarkModel], folders: Sequence[Path], stream: TextIO) -> None:
    """A row for each model and configuration."""
    rows = [_HEADER]
    for model in models.values():
        takes = ", ".join(option for name, option in _OPTIONS.items() if name in model.accepts) or "–"
        for config in model.configs or ("",):
            count = model.parameter_count(config)
            number = _UNKNOWN if count is None else whole(count)
            rows.append((model.name, config or "–", number, takes, model.place))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        cells = (
            text.rjust(width) if column == _RIGHT else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        write_text(stream, f"{_GAP.join(cells).rstrip()}\n")
    where = ", ".join(str(folder) for folder in folders)
    counts = ((len(models), "model"), (len(rows) - 1, "configuration"))
    said = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    write_text(stream, f"\n{said} in {where}\n")
