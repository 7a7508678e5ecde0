"""The `micro` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.requests import Option
from iree_gauntlet.tasks.options import TOOLCHAIN, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["MICRO_OPTIONS", "micro_task"]

MICRO_OPTIONS = (
    Option("config", "", "The YAML file: recipes, model types, shapes (torchao's dialect; docs/micro.md)."),
    Option("output", "", "File for the results as records of the PyTorch OSS benchmark database."),
    Option("list", False, "List the recipes, model types and shape sets that a configuration can name."),
    Option("plugin", [], "Python file with further recipes, architectures, activations or shape sets (repeatable)."),
    Option("device", "", "Where to run, in place of the configuration's: cpu, cuda, or IREE's own, such as hip://0."),
    Option("target", "", "Chip to compile for, such as gfx942 or sm_80."),
    Option("dtype", "", "Element type in place of the configuration's: float32, float16, bfloat16."),
    Option(
        "against",
        "torch",
        "What runs beside IREE, on a CPU: torch (eager and torch.compile), torch-eager, or none.",
    ),
    Option(
        "disturbed",
        "replace",
        "What becomes of rounds that other work on the machine disturbed: replace, or count (for machines that are "
        "never quiet).",
    ),
    Option("targets", "", "JSON file of what metrics should come to, for the target_value of the records."),
    Option("torch_python", "", "Python that has torch and makes the models (default: this one)."),
    Option("resume", False, "Continue the newest run of `micro` (or --run-dir) where it was killed."),
    Option("run_dir", "", "With --resume: folder of the run to continue."),
    *TOOLCHAIN,
)


@gauntlet_task("micro", MICRO_OPTIONS)
def micro_task(options: dict[str, Any]) -> ExitCode:
    """Measure recipes (quantisation, sparsity, compiler options) on small models over many shapes (torchao's dialect).

    Each recipe is made by torch, compiled by IREE, held against torch eager, shown to change what it says it changes,
    and measured beside the baseline in interleaved rounds. Exit codes: 0 measured, 1 wrong or does not compile,
    2 usage, 3 an error, 4 too disturbed.

    Examples: micro --list
              micro --config specs/recipes/quick.yml
              micro --config specs/recipes/dashboard.yml --output benchmark_results.json
              micro --resume
    """
    from iree_gauntlet.tasks.micro import micro  # noqa: PLC0415

    return micro(options)
