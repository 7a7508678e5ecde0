"""The bundle of a wrong operator: its model, what it is imported as, and what onnxruntime makes of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.bundle import Contents, file_values, flag_files
from iree_gauntlet.experiments.explaining.locate import TOLERANCES
from iree_gauntlet.experiments.explaining.operators import OPERATOR
from iree_gauntlet.measuring.machine.machine_state import machine_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.operators import WrongOperator
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Above it, the .onnx is left out: the program has the same weights.
_SMALL_BYTES = 1_000_000


def thresholds(kinds: Sequence[str], largest: Sequence[float]) -> tuple[str, ...]:
    """Flags of iree-run-module for outputs: within what another order of operations may change.

    Args:
        kinds: their types, as IREE writes them.
        largest: |value| of each.
    """
    by_type: dict[str, float] = {}
    for kind, most in zip(kinds, largest, strict=True):
        name = kind.rpartition("x")[2]
        by_type[name] = max(by_type.get(name, 0.0), most)
    known = {name: TOLERANCES[name] * most for name, most in by_type.items() if name in TOLERANCES}
    return tuple(f"--expected_{name}_threshold={allowed:.3g}" for name, allowed in known.items())


def operator_contents(failure: Failure, operator: WrongOperator, iree: Toolchain) -> Contents:
    """What goes into the bundle of a wrong operator."""
    inputs, held = file_values([(value.kind, value.file) for value in operator.inputs], "input")
    expected, kept = file_values([(value.kind, value.file) for value in operator.outputs], "expected")
    flags, named = flag_files(failure.flags)
    model = operator.onnx.read_bytes()
    models = (("model.onnx", model),) if len(model) <= _SMALL_BYTES else ()
    off = f"{operator.error:.3g} of its largest value" if math.isfinite(operator.error) else "infinite"
    found = (
        f"{operator.title} is the first operator whose inputs agree with those of onnxruntime {operator.onnxruntime} "
        f"and whose output does not. As a model of its own, on the inputs that onnxruntime has there, it is off by "
        f"{off}. `program.mlir` is what that model is imported as{', `model.onnx` the model' if models else ''}, and "
        "what is expected is what onnxruntime gives."
    )
    repeated = (
        "Its large tensors hold their first values over and over, in place of the model's own, so that this is small.",
    )
    facts = machine_facts()
    return Contents(
        title=f"Wrong numbers in {', '.join(dict.fromkeys(node.op for node in operator.nodes))} of ONNX "
        f"({failure.device})",
        what=(f"{failure.case}: {failure.result.reason}", found, *(repeated if operator.repeated else ())),
        program=operator.program.read_text(encoding="utf-8"),
        flags=flags,
        device=failure.device,
        arguments=(
            f"--function={OPERATOR}",
            *(f"--input={text}" for text in inputs),
            *(f"--expected_output={text}" for text in expected),
            *thresholds([v.kind for v in operator.outputs], [v.largest for v in operator.outputs]),
        ),
        files=(*held, *kept, *models, *named),
        iree=iree,
        machine=f"{facts.cpu}, {facts.os}",
    )
