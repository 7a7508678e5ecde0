"""Make tokens one after the other with two programs of one model, in the Python of the toolchain that is measured.

    python measure_generative.py PLAN.json

`prefill` takes the inputs and returns the logits of the next token and the state; `decode` takes the token, its
position and the state, and returns the next logits and new values of the state's first tensors. The next token is the
most likely one, found on the host; the state stays on the device, from one call to the next. The plan:

    {"device": "local-task",
     "prefill": {"modules": ["/…/prefill.vmfb"],   in the order of loading; the last one has the function
                 "parameters": [["model", "/…/model.irpa"]],   scope and file; a file of both programs is opened once
                 "function": "main_graph",
                 "inputs": [{"file": "/…/prompt.npy", "type": "i64"}]},
     "decode": {"modules", "parameters", "function"},
     "position": 4,            of the token that decode is given first
     "tokens": 32,             for each sample and generation, the one that prefill gives included
     "state": 16,              tensors that prefill returns after the logits
     "carried": 8,             of them, those that decode returns again, the first ones
     "generations": 5,         measured, one after the other
     "warm_up": 1,             before them
     "outputs": "/…/folder"}   where the first generation's logits go; empty for nowhere

The answer is one JSON object on standard output:

    {"load_ms", "first_token_ms", "total_s", "generations", "tokens", "samples", "prefill_ms": […],
     "decode_ms": [[…], …], "tokens_per_s", "chosen": [[…], …], "logits": [{"file", "type", "shape"}, …],
     "overhead_us", "peak_rss_bytes", "device_memory": {…}}

`first_token_ms` is the first prefill of all, its inputs pushed and its token found; `total_s` is that of the measured
generations, and `tokens_per_s` counts the tokens of all samples in it. Times of calls include the push of what they
are given, the fetch of their logits, and the choice of the token. `chosen` has the tokens of the first generation
(that of the warm-up, where there is one) by sample, `logits` the prefill's and each decode's of it. `overhead_us` is
what the loop itself takes for a token, measured with functions that do nothing. Exit codes are those of `plan_file`.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    # The package is the one that has this script; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import LoadedProgram, OpenDevice, device_memory
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_arrays, read_plan, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iree_gauntlet.workers.iree_side.device_context import View
    from iree_gauntlet.workers.iree_side.plan_file import Array, TypedArray

    Tokens = NDArray[np.int64]


_OVERHEAD_TOKENS = 2000
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_NS_PER_US = 1e3
_FLOATS = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Generation:
    """What one generation gave, by step, the first one prefill's; tokens are int64 [batch, 1]."""

    tokens: tuple[Tokens, ...]
    logits: tuple[Array, ...]
    call_ns: tuple[int, ...]


def generate(
    prefill: Callable[[], Array],
    decode: Callable[[Tokens, int], Array],
    choose: Callable[[Array], Tokens],
    position: int,
    tokens: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Generation:
    """Make so many tokens, each chosen from the logits of the step before, which prefill gives at first.

    Decode is given a token and its position, the first time `position`; the clock is in ns.
    """
    chosen: list[Tokens] = []
    found: list[Array] = []
    times: list[int] = []
    for step in range(tokens):
        begin = clock()
        logits = decode(chosen[-1], position + step - 1) if step else prefill()
        chosen.append(choose(logits))
        times.append(clock() - begin)
        found.append(logits)
    return Generation(tuple(chosen), tuple(found), tuple(times))


def choose_most_likely(logits: Array, type_name: str) -> Tokens:
    """The tokens of the largest logits, the first of equal ones; NaN counts as the largest, as in torch."""
    values = (logits.astype("<u4") << 16).view("<f4") if type_name == "bf16" else logits
    found: Tokens = np.argmax(values, axis=-1, keepdims=True).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """What a plan says; see the module."""

    prefill: dict[str, Any]
    device: str
    decode: dict[str, Any]
    position: int
    tokens: int
    state: int
    carried: int
    generations: int
    warm_up: int
    outputs: str


class Generator:
    """Both programs on one device, and the state between their calls; a PlanError where the plan contradicts itself."""

    def __init__(self, device: OpenDevice, inputs: list[TypedArray], plan: GenerationPlan) -> None:
        self._device = device
        self._inputs = inputs
        self._prefill, self._decode = (
            LoadedProgram(device, program["modules"], program["parameters"], program["function"])
            for program in (plan.prefill, plan.decode)
        )
        self._plan = plan
        if plan.tokens < 1 or not 0 <= plan.carried <= plan.state:
            raise PlanError(
                f"{plan.tokens} tokens, {plan.carried} of {plan.state} tensors of the state carried: "
                "expected 1 token or more, and no more carried than there are"
            )
        self._state: list[View] = []
        self.type_name = ""

    def generate(self) -> Generation:
        """One generation, from the inputs on; a PlanError where a program does not return what the plan says."""

        def choose(logits: Array) -> Tokens:
            return choose_most_likely(logits, self.type_name)

        return generate(self.prefill, self.decode, choose, self._plan.position, self._plan.tokens)

    def prefill(self) -> Array:
        """The first logits, as bits; the state is a new one."""
        self._state = []
        views = self._prefill.invoke([self._device.push(*given) for given in self._inputs])
        self._check("prefill", views, self._plan.state)
        self.type_name = self._device.type_name(views[0])
        self._state = views[1:]
        return self._device.fetch(views[0])

    def decode(self, tokens: Tokens, position: int) -> Array:
        """The next logits, as bits."""
        device = self._device
        given = [device.push(tokens, "i64"), device.push(np.array([position], np.int64), "i64")]
        views = self._decode.invoke([*given, *self._state])
        self._check("decode", views, self._plan.carried)
        self._state[: self._plan.carried] = views[1:]
        return device.fetch(views[0])

    def _check(self, name: str, views: list[View], state: int) -> None:
        if len(views) != 1 + state:
            raise PlanError(f"{name} returned {len(views)} tensors: expected the logits and {state} of the state")
        type_name = self._device.type_name(views[0])
        if type_name not in _FLOATS:
            raise PlanError(f"{name} returned {type_name} first: expected logits, of {', '.join(_FLOATS)}")


def overhead_us(clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """What the loop itself takes, a token."""
    token, logits = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)
    begin = clock()
    generate(lambda: logits, lambda _token, _position: logits, lambda _logits: token, 0, _OVERHEAD_TOKENS, clock)
    return (clock() - begin) / _OVERHEAD_TOKENS / _NS_PER_US


def measure(said: dict[str, Any]) -> dict[str, Any]:
    """Measure as a plan says; the answer, or what `answer_plan` takes."""
    plan = read_plan(GenerationPlan, said)
    generations, warm_up = plan.generations, plan.warm_up
    if generations < 1 or warm_up < 0:
        raise PlanError(f"{generations} generations after {warm_up} for warming up: expected 1 or more after 0 or more")
    inputs = read_arrays(plan.prefill["inputs"])
    begin = time.perf_counter_ns()
    device = OpenDevice(plan.device)
    generator = Generator(device, inputs, plan)
    loaded = time.perf_counter_ns()
    kept = [generator.generate() for _ in range(warm_up)][:1]
    times = []
    begin_loop = time.perf_counter_ns()
    for _ in range(generations):
        found = generator.generate()
        kept = kept or [found]
        times.append(found.call_ns)
    total = time.perf_counter_ns() - begin_loop
    first = kept[0]
    samples, tokens = len(first.tokens[0]), plan.tokens
    logits: list[tuple[str, Array | None]] = [(generator.type_name, array) for array in first.logits]
    return {
        "load_ms": (loaded - begin) / _NS_PER_MS,
        "first_token_ms": first.call_ns[0] / _NS_PER_MS,
        "total_s": total / _NS_PER_S,
        "generations": generations,
        "tokens": tokens,
        "samples": samples,
        "prefill_ms": [values[0] / _NS_PER_MS for values in times],
        "decode_ms": [[value / _NS_PER_MS for value in values[1:]] for values in times],
        "tokens_per_s": generations * tokens * samples * _NS_PER_S / total,
        "chosen": np.concatenate(first.tokens, axis=1).tolist(),
        "logits": write_arrays(plan.outputs, "logits", logits),
        "overhead_us": overhead_us(),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory": device_memory([device]),
    }


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, measure))
