"""Makes an archive of synthetic weights: `python -m iree_gauntlet.artifacts.parameters --help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from iree_gauntlet.artifacts.parameters.collect import collect_parameters
from iree_gauntlet.artifacts.parameters.irpa import RandomContent, write_archive
from iree_gauntlet.artifacts.parameters.parameter import select_scope
from iree_gauntlet.errors import GauntletError


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m iree_gauntlet.artifacts.parameters",
        description="Write an IREE parameter archive (.irpa) for the named parameters of an MLIR program.",
    )
    parser.add_argument("program", type=Path, help=".mlir text or .mlirbc bytecode, of any size")
    parser.add_argument("--scope", default="", help="whose parameters (default: the anonymous scope)")
    values = parser.add_mutually_exclusive_group(required=True)
    values.add_argument("--random", type=int, metavar="SEED", help="floats normal(0, 0.01), integers of all values")
    values.add_argument("--splat", type=float, metavar="VALUE", help="this value everywhere")
    parser.add_argument("--ir-tool", default="iree-opt", help="iree-opt, for bytecode that only the compiler reads")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the archive")
    return parser


def main() -> int:
    """Collects the parameters of a scope that a program names, and writes an archive of values for them.

    Returns:
        The exit code: 0, or 1 after a message.
    """
    options = build_parser().parse_args()
    try:
        content = options.splat if options.random is None else RandomContent(options.random)
        parameters = select_scope(collect_parameters(options.program, options.ir_tool), options.scope)
        write_archive(options.output, parameters, content)
    except GauntletError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    size = sum(parameter.byte_size for parameter in parameters)
    sys.stdout.write(f"{options.output}: {len(parameters)} parameters, {size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
