"""`python -m iree_gauntlet.bench`: the command line of PyBuda's `benchmark.py`, word for word."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iree_gauntlet.tasks.task_options import ended
from iree_gauntlet.torch_models.bench_options import parse

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


def main() -> None:
    """Reads the command line, and exits as `bench` does."""
    sys.exit(ended(_bench))


def _bench() -> ExitCode:
    options = parse(sys.argv[1:])
    from iree_gauntlet.tasks.bench import bench  # noqa: PLC0415 - `--help` must not wait for it

    return bench(options)


if __name__ == "__main__":
    main()
