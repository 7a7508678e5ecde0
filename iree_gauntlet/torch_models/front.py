"""The drop-in argparse front: PyBuda's `benchmark.py` command line, word for word, read into `BenchOptions`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.bench_options import (
    OPTIONS,
    BenchOption,
    BenchOptions,
    nearest_option,
    read_options,
    spelled_out,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


_PROGRAM = "python -m iree_gauntlet.bench"


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are the toolkit's own errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"See {self.prog} --help.")


def build_parser(prog: str = _PROGRAM) -> argparse.ArgumentParser:
    """The parser; values stay text, since `read_options` checks them for every front."""
    parser = _Parser(prog=prog, description="Benchmark a model on IREE", allow_abbrev=False)
    for option in OPTIONS:
        names = [f"-{option.short}"] * bool(option.short) + [f"--{option.name}"]
        if isinstance(option.default, bool):
            parser.add_argument(*names, dest=option.name, action="store_true", help=option.help)
        else:
            repeatable = isinstance(option.default, list)
            parser.add_argument(
                *names,
                dest=option.name,
                action="append" if repeatable else "store",
                metavar=_metavar(option),
                help=option.help.replace("%", "%%"),
            )
    return parser


def parse(arguments: Sequence[str], prog: str = _PROGRAM) -> BenchOptions:
    """Reads a command line.

    Args:
        arguments: without the program's name. Names may have dashes for underscores.
        prog: the program's name for messages.

    Raises:
        UsageError: an unknown option, or a value that is not allowed.
        SystemExit: with code 0, after printing what `--help` asks for.
    """
    found, unknown = build_parser(prog).parse_known_args(spelled_out(arguments, dashes=False))
    if unknown:
        near = nearest_option(unknown[0])
        raise UsageError(
            f"{unknown[0]}: no such option{f'; did you mean {near}?' if near else ''}", f"See {prog} --help."
        )
    return read_options(vars(found))


def _metavar(option: BenchOption) -> str:
    return f"{{{','.join(option.choices)}}}" if option.choices else option.name.upper()
