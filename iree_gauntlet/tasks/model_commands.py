"""The commands about models that torch makes: `bench` and `micro`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.option import Option, options_of, read
from iree_gauntlet.requests import MicroRequest, ToolchainRequest
from iree_gauntlet.tasks.task_options import TOOLCHAIN, gauntlet_task
from iree_gauntlet.torch_models.bench_options import OPTIONS, BenchOption, read_options

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


def _option(option: BenchOption) -> Option:
    """As Invoke has it: it knows one letter as a short name; longer ones (-df) are spelled out before it sees them."""
    one_letter = len(option.short) == 1
    said = option.help.rstrip(".")
    said += f": {', '.join(option.choices)}" if option.choices else ""
    said += f" (default {option.value})" if option.value else ""
    said += f"; -{option.short} with `gauntlet`" if option.short and not one_letter else ""
    return Option(option.name, option.default, f"{said}.", option.short if one_letter else "")


BENCH_OPTIONS = tuple(_option(option) for option in OPTIONS)


@gauntlet_task("bench", BENCH_OPTIONS)
def bench_task(options: dict[str, Any]) -> ExitCode:
    """Benchmark a model that is a Python function (PyBuda's benchmark.py): built by torch, compiled by IREE, checked.

    The outputs are compared with torch eager once, then the same inputs are pushed again and again; no speed is
    reported for wrong numbers. Exit codes: 0 measured, 1 wrong or does not compile, 2 usage, 3 an error.

    Examples: bench --list
              bench -m bert -c tiny -o perf.json
              bench -m bert -c tiny -df Fp16 -mf HiFi4 -opt 3 --loop-count 50 -o perf.json
              bench -m vit -c tiny --against torch --trace light
    """
    asked = read_options(options)
    from iree_gauntlet.tasks.bench import bench  # noqa: PLC0415

    return bench(asked)


@gauntlet_task(
    "micro",
    (
        *options_of(MicroRequest),
        *TOOLCHAIN,
    ),
)
def micro_task(options: dict[str, Any]) -> ExitCode:
    """Measure recipes (quantisation, sparsity, compiler options) on small models over many shapes (torchao's dialect).

    Each recipe is made by torch, compiled by IREE, compared with torch eager, shown to change what it says it changes,
    and measured with the baseline in interleaved rounds. Exit codes: 0 measured, 1 wrong or does not compile,
    2 usage, 3 an error, 4 too disturbed.

    Examples: micro --list
              micro --config specs/recipes/quick.yml
              micro --config specs/recipes/dashboard.yml --output benchmark_results.json
              micro --resume
    """
    from iree_gauntlet.tasks.micro import micro  # noqa: PLC0415

    return micro(read(MicroRequest, options), read(ToolchainRequest, options))
