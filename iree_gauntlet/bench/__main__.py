"""`python -m iree_gauntlet.bench`: the command line of PyBuda's `benchmark.py`, word for word."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from iree_gauntlet.bench.front import parse
from iree_gauntlet.tasks.options import finish

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["main"]


def main() -> None:
    """Reads the command line, and exits as `bench` does."""

    def work() -> ExitCode:
        options = parse(sys.argv[1:])
        from iree_gauntlet.tasks.bench import bench  # noqa: PLC0415 - `--help` must not wait for it

        return bench(options)

    try:
        finish(work)
    except Exit as end:
        sys.exit(end.code)


if __name__ == "__main__":
    main()
