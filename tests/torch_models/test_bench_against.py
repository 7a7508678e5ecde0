"""IREE against onnxruntime and torch: the order of rounds, their results, and real programs of onnxruntime.

Six blocks of real rounds are in `test_bench_against_measured.py`, torch is in `test_bench_against_torch.py`.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iree_gauntlet.engine.rounds.blocks import PairSamples
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round
from iree_gauntlet.torch_models import peers
from iree_gauntlet.torch_models.peers import BLOCKS, Peer, describe_peer, judge_peer
from tests.support.bench_project import make_first_benchmarks
from tests.support.peer_bench import CHAIN, PeerBench, measure_peer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Answers as IREE's measuring program and as torch's scripts do, by the folders of their plans.
_PROGRAMS = """#!/bin/sh
for plan in "$@"; do :; done
case $plan in
*/iree*.json) echo '{{"call_ms": [[2.0, 2.0, 9.0]]}}' && exit ;;
*/torch-eager/*) call=3.0 first=30.0 compile=null ;;
*/torch.compile/*) call=0.5 first=4000.0 compile=4.0 ;;
esac
echo "a model says something"
echo '{{"version": "2.13.0", "models": [{{"outputs": [{{"file": "{output}", "type": "f32", "shape": []}}],' \\
  "\\"first_call_ms\\": $first, \\"compile_s\\": $compile, \\"call_ms\\": [9.0, $call, $call]}}]}}"
"""


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_first_benchmarks().copy_build("line", tmp_path_factory.mktemp("line") / "build")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerBench:
    """Real programs, in one block."""
    monkeypatch.setattr(peers, "_ROUND_MS", 5.0)
    monkeypatch.setattr(peers, "BLOCKS", 1)
    return PeerBench(tmp_path)


@pytest.mark.iree
def test_peers_are_measured_beside_iree(tmp_path: Path, pipeline: Path) -> None:
    programs = tmp_path / "programs"
    programs.write_text(_PROGRAMS.format(output=pipeline / "main.output_0.npy"))
    programs.chmod(0o755)
    bench = PeerBench(tmp_path, str(programs))
    eager, compiled = bench.measure(["torch"], pipeline, torch_python=str(programs))
    for peer, name, ratio, word in ((eager, "torch eager", 1.5, "faster"), (compiled, "torch.compile", 0.25, "slower")):
        assert (peer.name, peer.version, peer.word) == (name, "2.13.0", word)
        assert (peer.blocks, peer.replaced) == (BLOCKS, 0)
        assert [peer.low, peer.ratio, peer.high] == pytest.approx([ratio] * 3)
        assert (peer.call_ms, peer.iree_ms) == (2.0 * ratio, 2.0)
        # Of 500 ms in IREE.
        assert peer.calls == 250
        home = name.replace(" ", "-")
        ours, its = bench.plan(home, "iree"), bench.plan(home, "peer")
        assert ours["calls"] == its["models"][0]["calls"] == peer.calls
        assert ours["warm_up_calls"] == its["warm_up_calls"] == 1
        assert (ours["outputs"], its["outputs"]) == ("", "")
        assert not (bench.folder / "step" / "against" / home / "outputs").exists()
        assert json.loads(json.dumps(asdict(peer)))["ratio"] == peer.ratio
    assert (eager.compile_s, eager.first_call_ms) == (None, 30.0)
    assert (compiled.compile_s, compiled.first_call_ms) == (4.0, 4000.0)
    assert bench.progress.messages == [describe_peer(eager), describe_peer(compiled)]
    blocks = bench.blocks()
    assert [event["step"] for event in blocks] == [
        *[f"{CHAIN} against torch eager"] * BLOCKS,
        *[f"{CHAIN} against torch.compile"] * BLOCKS,
    ]
    for event in blocks:
        assert "".join(item["side"] for item in event["rounds"]) == event["order"]
        assert [len(item["times_ms"]) for item in event["rounds"]] == [1, 1, 1, 1], "the median call alone"


@pytest.mark.iree
def test_generations_are_held_against_generations(bench: PeerBench, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = make_first_benchmarks().copy_build("counter", tmp_path / "build")
    (peer,) = bench.measure(["onnxruntime"], folder, "measure_generative")
    assert (peer.blocks, peer.ratio is not None) == (1, True), peer.reason
    assert bench.plan("onnxruntime", "iree")["generations"] == peer.calls
    answer = measure_peer(folder, "measure_onnx")
    assert answer["chosen"] == json.loads((folder / "build.json").read_text())["generation"]["chosen"]
    assert len(answer["call_ms"]) == 2


@pytest.mark.iree
def test_what_computes_something_else_is_no_peer(bench: PeerBench, pipeline: Path) -> None:
    expected = pipeline / "main.output_0.npy"
    right = np.load(expected)
    try:
        np.save(expected, right * 1.01)
        (peer,) = bench.measure(["onnxruntime"], pipeline)
    finally:
        np.save(expected, right)
    assert peer.reason.startswith("its outputs are not those of torch eager: output 0: "), peer.reason
    assert (peer.ratio, peer.word, peer.blocks) == (None, "", 0)
    assert peer.version, "it was tried"
    assert bench.blocks() == []


@pytest.mark.iree
def test_a_program_that_a_peer_cannot_load_is_a_reason(bench: PeerBench, pipeline: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnx  # noqa: PLC0415 - only where it is
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = tmp_path / "build"
    shutil.copytree(pipeline, folder)
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [4, 4]) for name in "xwy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "main_graph", [x, w], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "main.onnx"
    )
    np.save(folder / "ones.npy", np.full((4, 4), 0x3F80, np.uint16))
    ones = {"file": "ones.npy", "type": "bf16", "shape": [4, 4]}
    record = json.loads((folder / "build.json").read_text())
    record["programs"][0] |= {"inputs": [ones, ones], "outputs": [ones]}
    (folder / "build.json").write_text(json.dumps(record))
    (peer,) = bench.measure(["onnxruntime"], folder, builder={"dataformat": "Fp16_b"})
    assert "onnxruntime failed with exit code 1: NotImplemented" in peer.reason
    assert "MatMul" in peer.reason
    assert describe_peer(peer) == f"onnxruntime: no ratio: {peer.reason}"


@pytest.mark.iree
def test_onnxruntime_that_is_nowhere_is_said_with_what_to_do(bench: PeerBench, pipeline: Path) -> None:
    stub = bench.folder / "packages"
    stub.mkdir()
    (stub / "onnxruntime.py").write_text("raise ModuleNotFoundError(\"No module named 'onnxruntime'\")\n")
    (peer,) = bench.measure(["onnxruntime"], pipeline, env=(("PYTHONPATH", str(stub)),))
    assert peer.reason.endswith(f"No module named 'onnxruntime' in {sys.executable}: pip install onnxruntime")


@pytest.mark.iree
def test_iree_that_fails_is_an_error_of_the_whole(bench: PeerBench, pipeline: Path) -> None:
    plan = json.loads((pipeline / "measure_module.json").read_text())
    build = bench.folder / "build"
    build.mkdir()
    for path in pipeline.iterdir():
        (build / path.name).symlink_to(path)
    (build / "measure_module.json").unlink()
    (build / "measure_module.json").write_text(json.dumps(plan | {"function": "no_such"}))
    with pytest.raises(GauntletError, match="has no function 'no_such'"):
        bench.measure(["onnxruntime"], build)


@pytest.mark.iree
def test_what_is_cancelled_is_left_out(bench: PeerBench, pipeline: Path) -> None:
    bench.cancelled.set()
    assert bench.measure(["onnxruntime"], pipeline) == []


@pytest.mark.iree
def test_calls_come_in_whole_groups(bench: PeerBench, pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = json.loads((pipeline / "measure_module.json").read_text())
    monkeypatch.setattr(peers, "_ROUND_MS", 0.0)
    monkeypatch.setattr(peers, "BLOCKS", 1)
    build = bench.folder / "build"
    build.mkdir()
    for path in pipeline.iterdir():
        (build / path.name).symlink_to(path)
    (build / "measure_module.json").unlink()
    (build / "measure_module.json").write_text(json.dumps(plan | {"in_flight": 4, "devices": ["local-task"] * 2}))
    (peer,) = bench.measure(["onnxruntime"], build)
    assert peer.calls == bench.plan("onnxruntime", "peer")["models"][0]["calls"] == 4
    assert bench.plan("onnxruntime", "iree")["devices"] == ["local-task"]
    assert (peer.blocks, peer.low, peer.word) == (1, None, "inconclusive")


# --- what blocks say ------------------------------------------------------------------------------------------------


def _evidence(ratios: Sequence[float]) -> PairSamples:
    blocks = []
    for number, ratio in enumerate(ratios):
        ours, its = Round((2.0 + number / 100,)), Round(((2.0 + number / 100) * ratio,))
        blocks.append(Block.of_rounds(BlockOrder.ABBA, [ours, its, its, ours]))
    return PairSamples(Counter(ab=len(blocks)), len(blocks), blocks=blocks)


@pytest.mark.parametrize(
    ("ratios", "word", "line"),
    [
        ((1.8, 1.81, 1.82, 1.83, 1.84, 1.85), "faster", "IREE is 1.82 × as fast (1.80 to 1.85)"),
        ((0.5, 0.5, 0.5, 0.5, 0.5, 0.4), "slower", "IREE takes 2.00 × as long (2.00 to 2.50)"),
        ((1.0, 1.01, 0.99, 1.0, 1.02, 0.98), "same", "IREE is as fast, 1.00 × (0.98 to 1.02)"),
        ((0.7, 1.3, 0.8, 1.2, 1.0, 1.1), "inconclusive", "no verdict, 1.00 × IREE's time (0.70 to 1.30)"),
    ],
)
def test_words_are_those_of_the_interval(ratios: Sequence[float], word: str, line: str) -> None:
    peer = judge_peer(Peer("torch eager", version="2.13.0"), _evidence(ratios))
    assert peer.word == word
    assert [peer.low, peer.high] == pytest.approx([min(ratios), max(ratios)])
    assert peer.iree_ms == pytest.approx(2.025)
    assert [describe_peer(peer)] == [f"torch 2.13.0 eager {peer.call_ms:.3g} ms a call (median), IREE 2.02 ms: {line}"]


def test_fewer_blocks_have_a_ratio_and_no_interval() -> None:
    evidence = _evidence((2.0, 2.0))
    evidence.attempts["ab"] += 9
    evidence.disturbances["other work kept the CPUs 30 % busy"] += 9
    peer = judge_peer(Peer("torch.compile", version="2.13.0"), evidence)
    assert peer.ratio == pytest.approx(2.0)
    assert (peer.low, peer.high, peer.word) == (None, None, "inconclusive")
    assert (peer.blocks, peer.replaced) == (2, 9)
    assert peer.reason == "2 of 6 blocks; the others were disturbed, for example: other work kept the CPUs 30 % busy"
    times = f"{peer.call_ms:.3g} ms a call (median), IREE {peer.iree_ms:.3g} ms"
    assert [describe_peer(peer)] == [f"torch 2.13.0 compile {times}: no verdict, 2.00 × IREE's time ({peer.reason})"]


def test_without_blocks_there_is_a_reason() -> None:
    evidence = PairSamples()
    evidence.attempts["ab"] = 6
    evidence.disturbances["the machine ran on battery"] += 6
    assert judge_peer(Peer("torch eager"), evidence).reason == (
        "every block was disturbed; for example: the machine ran on battery"
    )
    failed = judge_peer(Peer("torch eager"), replace(evidence, failure="B: torch eager failed with exit code 1"))
    assert (failed.reason, failed.ratio) == ("B: torch eager failed with exit code 1", None)


def test_long_calls_are_shown_in_seconds() -> None:
    peer = judge_peer(Peer("onnxruntime", version="1.31.1"), _evidence([1000.0] * BLOCKS))
    assert [describe_peer(peer)] == [
        "onnxruntime 1.31.1 2.02 s a call (median), IREE 2.02 ms: IREE is 1000.00 × as fast (1000.00 to 1000.00)"
    ]
    assert math.isclose(peer.ratio or 0, 1000)
