"""`python -m iree_gauntlet.bench`: exactly the command line of PyBuda's `benchmark.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iree_gauntlet.tasks.task_options import run_to_exit_code
from iree_gauntlet.torch_models.bench_options import parse

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


def main() -> None:
    """Read the command line, and exit with the code of `bench`."""

    def run() -> ExitCode:
        options = parse(sys.argv[1:])
        from iree_gauntlet.torch_models.torch_commands import bench  # noqa: PLC0415 - `--help` must not wait for it

        return bench(options)

    sys.exit(run_to_exit_code(run))


if __name__ == "__main__":
    main()
