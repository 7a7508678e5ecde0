"""`python -m iree_gauntlet.micro --config … --output …`: in place of torchao's `ci_microbenchmark_runner.py`."""

from __future__ import annotations

import sys

from iree_gauntlet.tasks import program


def main() -> None:
    """Run `gauntlet micro` with the same options."""
    sys.argv[:] = ["gauntlet", "micro", *sys.argv[1:]]
    program.main()


if __name__ == "__main__":
    main()
