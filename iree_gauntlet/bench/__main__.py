"""`python -m iree_gauntlet.bench`: the command line of PyBuda's `benchmark.py`, word for word."""

from __future__ import annotations

import sys

from invoke.exceptions import Exit

from iree_gauntlet.tasks.task_options import ended
from iree_gauntlet.torch_models.bench_options import parse


def main() -> None:
    """Reads the command line, and exits as `bench` does."""
    try:
        with ended() as end:
            options = parse(sys.argv[1:])
            from iree_gauntlet.tasks.bench import bench  # noqa: PLC0415 - `--help` must not wait for it

            end.code = bench(options)
    except Exit as exit_:
        sys.exit(exit_.code)


if __name__ == "__main__":
    main()
