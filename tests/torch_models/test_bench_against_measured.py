"""IREE against onnxruntime in real rounds, with as many blocks as `bench --against` measures."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.torch_models import peers
from iree_gauntlet.torch_models.peers import BLOCKS, describe_peer
from tests.support.bench_project import make_first_benchmarks
from tests.support.peer_bench import CHAIN, PeerBench

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.measure


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerBench:
    monkeypatch.setattr(peers, "_ROUND_MS", 5.0)
    return PeerBench(tmp_path)


@pytest.mark.iree
def test_onnxruntime_is_measured_beside_iree(bench: PeerBench, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pipeline = make_first_benchmarks().copy_build("line", tmp_path / "build")
    (peer,) = bench.measure(["onnxruntime"], pipeline)
    assert (peer.name, peer.version, peer.blocks, peer.replaced) == ("onnxruntime", onnxruntime.__version__, BLOCKS, 0)
    assert peer.ratio is not None
    assert peer.low is not None
    assert peer.high is not None
    assert peer.low <= peer.ratio <= peer.high
    assert peer.call_ms is not None
    assert peer.iree_ms is not None
    assert peer.word in {"faster", "slower", "same", "inconclusive"}
    assert bench.progress.messages == [describe_peer(peer)]
    blocks = bench.blocks()
    assert [event["step"] for event in blocks] == [f"{CHAIN} against onnxruntime"] * BLOCKS
    for event in blocks:
        assert "".join(item["side"] for item in event["rounds"]) == event["order"]
        assert [len(item["times_ms"]) for item in event["rounds"]] == [1, 1, 1, 1], "the median call alone"
    ours, its = bench.plan("onnxruntime", "iree"), bench.plan("onnxruntime", "peer")
    (model,) = its["models"]
    assert ours["calls"] == model["calls"] == peer.calls >= 3
    assert ours["warm_up_calls"] == its["warm_up_calls"] >= 1
    assert not (bench.folder / "step" / "against" / "onnxruntime" / "outputs").exists()
    assert json.loads(json.dumps(asdict(peer)))["ratio"] == peer.ratio


@pytest.mark.iree
def test_generations_are_held_against_generations(bench: PeerBench, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = make_first_benchmarks().copy_build("counter", tmp_path / "build")
    (peer,) = bench.measure(["onnxruntime"], folder, "measure_generative")
    assert (peer.blocks, peer.ratio is not None) == (BLOCKS, True), peer.reason
    assert bench.plan("onnxruntime", "iree")["generations"] == peer.calls
