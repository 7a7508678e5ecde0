"""The worker that generates tokens with two real programs and a shared state; once in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

from iree_gauntlet.workers import iree_side
from iree_gauntlet.workers.iree_side.device_context import OpenDevice
from iree_gauntlet.workers.iree_side.measure_generative import (
    GenerationPlan,
    Generator,
    choose_most_likely,
    generate,
    measure,
    overhead_us,
)
from iree_gauntlet.workers.iree_side.plan_file import read_plan
from tests.support.clocks import Clock
from tests.support.command_line import CommandResult
from tests.support.worker_here import compile_for_cpu, run_plan_here, run_script

_Run: TypeAlias = Callable[[dict[str, Any]], CommandResult]

_SCRIPT = Path(iree_side.__file__).with_name("measure_generative.py")
# Two samples, a prompt of three tokens, three more in the cache; the logits are a row of the table, which one depends
# on all tokens so far, on their number, and on the first token, which prefill hands on in the state.
_PROGRAM = """
util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<16x8xbf16>
func.func private @row(%cache: tensor<2x6xi64>, %first: tensor<2x1xi64>, %end: i64) -> tensor<2x8xbf16> {
  %table = util.global.load @table : tensor<16x8xbf16>
  %rows = arith.constant 16 : i64
  %zeros = arith.constant dense<0> : tensor<2xi64>
  %empty = tensor.empty() : tensor<2x8xbf16>
  %sums = linalg.reduce ins(%cache : tensor<2x6xi64>) outs(%zeros : tensor<2xi64>) dimensions = [1]
    (%a: i64, %b: i64) {
      %0 = arith.addi %a, %b : i64
      linalg.yield %0 : i64
    }
  %logits = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, 0)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%sums, %first : tensor<2xi64>, tensor<2x1xi64>) outs(%empty : tensor<2x8xbf16>) {
    ^bb0(%sum: i64, %token: i64, %unused: bf16):
      %0 = arith.addi %sum, %token : i64
      %1 = arith.addi %0, %end : i64
      %2 = arith.remsi %1, %rows : i64
      %row = arith.index_cast %2 : i64 to index
      %column = linalg.index 1 : index
      %value = tensor.extract %table[%row, %column] : tensor<16x8xbf16>
      linalg.yield %value : bf16
  } -> tensor<2x8xbf16>
  return %logits : tensor<2x8xbf16>
}
func.func @prefill(%prompt: tensor<2x3xi64>) -> (tensor<2x8xbf16>, tensor<2x6xi64>, tensor<2x1xi64>) {
  %zeros = arith.constant dense<0> : tensor<2x6xi64>
  %end = arith.constant 3 : i64
  %cache = tensor.insert_slice %prompt into %zeros[0, 0] [2, 3] [1, 1] : tensor<2x3xi64> into tensor<2x6xi64>
  %first = tensor.extract_slice %prompt[0, 0] [2, 1] [1, 1] : tensor<2x3xi64> to tensor<2x1xi64>
  %logits = call @row(%cache, %first, %end) : (tensor<2x6xi64>, tensor<2x1xi64>, i64) -> tensor<2x8xbf16>
  return %logits, %cache, %first : tensor<2x8xbf16>, tensor<2x6xi64>, tensor<2x1xi64>
}
func.func @decode(%token: tensor<2x1xi64>, %position: tensor<1xi64>, %cache: tensor<2x6xi64>, %first: tensor<2x1xi64>)
    -> (tensor<2x8xbf16>, tensor<2x6xi64>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : i64
  %at = tensor.extract %position[%zero] : tensor<1xi64>
  %column = arith.index_cast %at : i64 to index
  %next = tensor.insert_slice %token into %cache[0, %column] [2, 1] [1, 1] : tensor<2x1xi64> into tensor<2x6xi64>
  %end = arith.addi %at, %one : i64
  %logits = call @row(%next, %first, %end) : (tensor<2x6xi64>, tensor<2x1xi64>, i64) -> tensor<2x8xbf16>
  return %logits, %next : tensor<2x8xbf16>, tensor<2x6xi64>
}
func.func @ids(%a: tensor<2x3xi64>) -> tensor<2x3xi64> {
  %0 = arith.addi %a, %a : tensor<2x3xi64>
  return %0 : tensor<2x3xi64>
}
"""
_PROMPT = np.array([[5, 1, 2], [7, 0, 3]])
_TABLE = np.random.default_rng(3).standard_normal((16, 8)).astype(ml_dtypes.bfloat16)


def _expected(tokens: int) -> tuple[list[list[int]], list[Any]]:
    """The same in NumPy: chosen tokens by sample, logits by step."""
    cache, logits = _PROMPT.tolist(), []
    for _ in range(tokens):
        rows = [(sum(sample) + sample[0] + len(sample)) % 16 for sample in cache]
        logits.append(_TABLE[rows])
        cache = [[*sample, int(row)] for sample, row in zip(cache, logits[-1].argmax(axis=1), strict=True)]
    return [sample[3:] for sample in cache], logits


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from iree import runtime  # noqa: PLC0415 - only where the runtime is

    folder = tmp_path_factory.mktemp("generative")
    compile_for_cpu(_PROGRAM, folder / "both.vmfb")
    index = runtime.ParameterIndex()
    index.add_buffer("table", _TABLE.tobytes())
    index.create_archive_file(str(folder / "both.irpa"))
    np.save(folder / "prompt.npy", _PROMPT)
    return folder


def _plan(built: Path, **changes: Any) -> dict[str, Any]:
    program = {"modules": [str(built / "both.vmfb")], "parameters": [["model", str(built / "both.irpa")]]}
    inputs = [{"file": str(built / "prompt.npy"), "type": "i64"}]
    plan: dict[str, Any] = {
        "device": "local-task",
        "prefill": {**program, "function": "prefill", "inputs": inputs},
        "decode": {**program, "function": "decode"},
        "position": 3,
        "tokens": 4,
        "state": 2,
        "carried": 1,
        "generations": 3,
        "warm_up": 1,
        "outputs": "",
    }
    return plan | changes


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> _Run:
    """What the worker does with a plan."""
    return lambda plan: run_plan_here(measure, plan, tmp_path, capfd)


@pytest.mark.iree
def test_the_script_answers_in_a_process_of_its_own(built: Path, tmp_path: Path) -> None:
    done = run_script(_SCRIPT, _plan(built), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["chosen"] == _expected(4)[0]


@pytest.mark.iree
@pytest.mark.parametrize("warm_up", [0, 1])
def test_tokens_follow_from_each_other_and_every_generation_starts_anew(
    built: Path, run: _Run, tmp_path: Path, warm_up: int
) -> None:
    done = run(_plan(built, outputs=str(tmp_path), warm_up=warm_up))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    chosen, logits = _expected(4)
    assert result["chosen"] == chosen
    assert len({tuple(sample) for sample in chosen}) == 2, "the samples differ"
    assert [(item["type"], item["shape"]) for item in result["logits"]] == [("bf16", [2, 8])] * 4
    for item, expected in zip(result["logits"], logits, strict=True):
        assert np.load(item["file"]).view(ml_dtypes.bfloat16).tolist() == expected.tolist()
    assert (result["generations"], result["tokens"], result["samples"]) == (3, 4, 2)
    assert len(result["prefill_ms"]) == 3
    assert [len(times) for times in result["decode_ms"]] == [3, 3, 3]
    in_calls = (sum(result["prefill_ms"]) + sum(map(sum, result["decode_ms"]))) / 1e3
    assert 0 < in_calls <= result["total_s"]
    assert result["tokens_per_s"] == pytest.approx(3 * 4 * 2 / result["total_s"])
    assert result["first_token_ms"] > 0
    assert result["load_ms"] > 0
    assert result["overhead_us"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["device_memory"]["device_bytes_peak"] > 0


@pytest.mark.iree
def test_one_token_needs_no_decode(built: Path, run: _Run) -> None:
    done = run(_plan(built, tokens=1))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["chosen"] == _expected(1)[0]
    assert result["decode_ms"] == [[], [], []]
    assert result["logits"] == [{"file": "", "type": "bf16", "shape": [2, 8]}]


@pytest.mark.iree
def test_an_archive_of_both_programs_is_opened_once(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = OpenDevice("local-sync")
    opened = []

    class Counting:
        def __init__(self) -> None:
            self._index = device_index()

        def load(self, file: str) -> None:
            opened.append(file)
            self._index.load(file)

        def create_provider(self, scope: str) -> Any:
            return self._index.create_provider(scope=scope)

    device_index = device.runtime.ParameterIndex
    monkeypatch.setattr(device.runtime, "ParameterIndex", Counting)
    generator = Generator(device, [(_PROMPT, "i64")], read_plan(GenerationPlan, _plan(built)))
    assert opened == [str(built / "both.irpa")]
    made = generator.generate()
    assert np.concatenate(made.tokens, axis=1).tolist() == _expected(4)[0]


@pytest.mark.iree
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": 3, "carried": 1}, "prefill returned 3 tensors: expected the logits and 3 of the state"),
        ({"carried": 2}, "decode returned 2 tensors: expected the logits and 2 of the state"),
        ({"carried": 3}, "4 tokens, 3 of 2 tensors of the state carried: expected"),
        ({"tokens": 0}, "0 tokens, 1 of 2 tensors of the state carried: expected 1 token or more"),
        ({"generations": 0}, "0 generations after 1 for warming up: expected"),
        ({"device": "nothing://0"}, ""),
    ],
)
def test_plans_that_do_not_fit(built: Path, run: _Run, changes: dict[str, Any], says: str) -> None:
    done = run(_plan(built, **changes))
    assert (done.code, done.err.startswith(says)) == (2, True), done.err
    assert done.err.count("\n") == 1, done.err
    assert done.out == ""


@pytest.mark.iree
def test_a_function_that_gives_no_logits(built: Path, run: _Run) -> None:
    plan = _plan(built, state=0, carried=0)
    plan["prefill"] |= {"function": "ids"}
    done = run(plan)
    assert (done.code, done.err) == (2, "prefill returned i64 first: expected logits, of f64, f32, f16, bf16\n")


def test_the_plan_lacks_something(run: _Run) -> None:
    done = run({"generations": 1, "warm_up": 0})
    assert (done.code, done.err) == (2, "the plan lacks 'prefill'\n")


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16"])
def test_the_largest_logit_wins_the_first_of_equal_ones_and_nan_over_all(name: str) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(f"f{int(name[1:]) // 8}")
    logits = np.array([[-3, -1, -1, -2], [1, np.inf, np.nan, 3], [-np.inf] * 4, [0.0, 256, 255, 1]]).astype(dtype)
    bits = logits.view(np.uint16) if name == "bf16" else logits
    assert choose_most_likely(bits, name).tolist() == [[1], [2], [0], [1]]
    assert choose_most_likely(bits, name).dtype == np.int64


def test_each_decode_is_given_the_token_before_it_and_its_position() -> None:
    given: list[tuple[int, int]] = []

    def decode(token: Any, position: int) -> Any:
        given.append((int(token[0, 0]), position))
        return np.array([[float(len(given) + 10)]])

    made = generate(lambda: np.array([[10.0]]), decode, lambda logits: logits.astype(np.int64), 4, 4)
    assert given == [(10, 4), (11, 5), (12, 6)]
    assert [int(token[0, 0]) for token in made.tokens] == [10, 11, 12, 13]
    assert len(made.call_ns) == 4


def test_each_step_is_timed_with_the_choice_of_its_token() -> None:
    clock = Clock(0)
    lengths = iter([8, 1, 2, 1, 4, 1])

    def takes(*_: object) -> Any:
        clock.advance(next(lengths))
        return np.zeros((1, 1))

    made = generate(takes, takes, takes, 4, 3, lambda: int(clock()))
    assert made.call_ns == (9, 3, 5)


def test_the_loop_itself_is_timed_by_steps_of_nothing() -> None:
    clock = Clock(0)

    def ticking() -> int:
        clock.advance(100)
        return int(clock())

    # Two looks a token, and one at the end.
    assert overhead_us(ticking) == pytest.approx(0.2, rel=1e-3)
