"""Generate tokens one after the other with two programs of one model, in the Python of the measured toolchain.

    python measure_generative.py PLAN.json

`prefill` takes the inputs and returns the logits of the next token and the state; `decode` takes the token, its
position and the state, and returns the next logits and new values of the state's first tensors. The next token is the
most likely token, found on the host. The state stays on the device between calls. The plan:

    {"device": "local-task",
     "prefill": {"modules": ["/…/prefill.vmfb"],   in the order of loading; the last one has the function
                 "parameters": [["model", "/…/model.irpa"]],   scope and file; both programs share an opened file
                 "function": "main_graph",
                 "inputs": [{"file": "/…/prompt.npy", "type": "i64"}]},
     "decode": {"modules", "parameters", "function"},
     "position": 4,            position of the first token that decode gets
     "tokens": 32,             for each sample and generation, including the token of prefill
     "state": 16,              number of tensors that prefill returns after the logits
     "carried": 8,             number of the first of these tensors, of which decode returns new values
     "generations": 5,         number of measured generations, one after the other
     "warm_up": 1,             number of generations before the measured ones
     "outputs": "/…/folder"}   folder for the logits of the first generation; empty for none

The answer is one JSON object on standard output:

    {"load_ms", "first_token_ms", "total_s", "generations", "tokens", "samples", "prefill_ms": […],
     "decode_ms": [[…], …], "tokens_per_s", "chosen": [[…], …], "logits": [{"file", "type", "shape"}, …],
     "overhead_us", "peak_rss_bytes", "device_memory": {…}}

`first_token_ms` is the time of the very first prefill. `total_s` is the time of the measured generations, and
`tokens_per_s` counts the tokens of all samples in that time. Times of calls include pushing their arguments, fetching
their logits, and choosing the token. `chosen` has the tokens of the very first generation (which may be a warm-up) by
sample, and `logits` the logits of its prefill and of each decode. `overhead_us` is the loop's own overhead per token,
measured with functions that do nothing. Exit codes are those of `plan_file`.
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
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import DeviceProgram, OpenDevice, read_device_memory
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_arrays, read_plan, run_worker_main, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """The results of one generation by step; the first step is prefill. Tokens are int64 [batch, 1]."""

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
    """Generate `tokens` tokens; each is chosen from the logits of the previous step, and the first one from prefill's.

    Decode takes a token and its position, which begins with `position`; the clock is in ns.
    """
    chosen_tokens: list[Tokens] = []
    step_logits: list[Array] = []
    times: list[int] = []
    for step in range(tokens):
        start_ns = clock()
        logits = decode(chosen_tokens[-1], position + step - 1) if step else prefill()
        chosen_tokens.append(choose(logits))
        times.append(clock() - start_ns)
        step_logits.append(logits)
    return Generation(tuple(chosen_tokens), tuple(step_logits), tuple(times))


def choose_most_likely(logits: Array, type_name: str) -> Tokens:
    """Return the tokens of the largest logits; the first of equal logits wins, and NaN is the largest, as in torch."""
    values = (logits.astype("<u4") << 16).view("<f4") if type_name == "bf16" else logits
    tokens: Tokens = np.argmax(values, axis=-1, keepdims=True).astype(np.int64)
    return tokens


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The fields of a plan; see the module's docstring."""

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
    """Both programs on one device, and their state between calls; raises a PlanError for an inconsistent plan."""

    def __init__(self, device: OpenDevice, inputs: list[TypedArray], plan: GenerationPlan) -> None:
        self._device = device
        self._inputs = inputs
        self._prefill, self._decode = (
            DeviceProgram(device, program["modules"], program["parameters"], program["function"])
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
        """Make one generation from the inputs; raise a PlanError if a program returns unplanned tensors."""

        def choose(logits: Array) -> Tokens:
            return choose_most_likely(logits, self.type_name)

        return generate(self.prefill, self.decode, choose, self._plan.position, self._plan.tokens)

    def prefill(self) -> Array:
        """Start a new state; return the first logits as bits."""
        self._state = []
        views = self._prefill.invoke([self._device.push(*array) for array in self._inputs])
        self._check("prefill", views, self._plan.state)
        self.type_name = self._device.type_name(views[0])
        self._state = views[1:]
        return self._device.fetch(views[0])

    def decode(self, tokens: Tokens, position: int) -> Array:
        """Return the next logits, as bits."""
        device = self._device
        arguments = [device.push(tokens, "i64"), device.push(np.array([position], np.int64), "i64")]
        views = self._decode.invoke([*arguments, *self._state])
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
    """Return the loop's own overhead per token in µs."""
    token, logits = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)
    start_ns = clock()
    generate(lambda: logits, lambda _token, _position: logits, lambda _logits: token, 0, _OVERHEAD_TOKENS, clock)
    return (clock() - start_ns) / _OVERHEAD_TOKENS / _NS_PER_US


def measure(document: Mapping[str, object]) -> dict[str, object]:
    """Measure as a plan requests; return the answer for `run_worker_main`."""
    plan = read_plan(GenerationPlan, document)
    generations, warm_up = plan.generations, plan.warm_up
    if generations < 1 or warm_up < 0:
        raise PlanError(f"{generations} generations after {warm_up} for warming up: expected 1 or more after 0 or more")
    inputs = read_arrays(plan.prefill["inputs"])
    start_ns = time.perf_counter_ns()
    device = OpenDevice(plan.device)
    generator = Generator(device, inputs, plan)
    load_end_ns = time.perf_counter_ns()
    first_generations = [generator.generate() for _ in range(warm_up)][:1]
    times = []
    loop_start_ns = time.perf_counter_ns()
    for _ in range(generations):
        generation = generator.generate()
        first_generations = first_generations or [generation]
        times.append(generation.call_ns)
    total = time.perf_counter_ns() - loop_start_ns
    first = first_generations[0]
    samples, tokens = len(first.tokens[0]), plan.tokens
    logits: list[tuple[str, Array | None]] = [(generator.type_name, array) for array in first.logits]
    return {
        "load_ms": (load_end_ns - start_ns) / _NS_PER_MS,
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
        "device_memory": read_device_memory([device]),
    }


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, measure))
