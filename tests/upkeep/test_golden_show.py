"""The table of goldens: each is shown with the newest figure that may be compared with it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Golden, Origin
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.measuring.goldens.golden_evidence import GoldenStatus, GoldenVerdict, judge_goldens
from iree_gauntlet.records.run_folder import find_named_run
from iree_gauntlet.requests import SelectionRequest, parse_request
from iree_gauntlet.upkeep.spec_goldens import show
from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest
from tests.support.command_line import run_in_process
from tests.support.journal_builder import JournalBuilder, make_check, make_samples, write_measured_run
from tests.support.places import CORPUS
from tests.support.synthetic_times import write_benchmark_tool
from tests.support.torch_project import TorchProject
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence

CHAIN = "toy/net@cpu"
FILE = "specs/benchmarks/toy/net_cpu.json"


def _golden(metric: Figure, value: float, *, field: str = "g", **changes: Any) -> Golden:
    fields = {"factor": 1.0, "statistic": Statistic.MEAN, "sku": "", "release": "", **changes}
    return Golden(metric=metric, value=value, origin=Origin(FILE, field), **fields)


def _judge_one(golden: Golden, *runs: Path, rivals: Sequence[Golden] = ()) -> GoldenStatus:
    """How a golden stands; the newest run comes last."""
    records = [read_journal(run / "journal.jsonl") for run in reversed(runs)]
    return judge_goldens([(CHAIN, item) for item in (golden, *rivals)], records, runs[0].parent)[0]


@pytest.mark.parametrize(
    ("golden", "measured", "verdict"),
    [
        (_golden(Figure.TIME, 3.1, sku="desk"), 3.1, "kept"),
        (_golden(Figure.TIME, 3.0, sku="desk"), 3.1, "broken"),
        (_golden(Figure.TIME, 3.0, sku="desk", factor=1.1), 3.1, "kept"),
        (_golden(Figure.TIME, 3.0, sku="desk", statistic=Statistic.MIN), 3.0, "kept"),
        (_golden(Figure.TIME, 6.0, sku="desk", statistic=Statistic.MIN), 3.0, "kept"),
        (_golden(Figure.TIME, 6.3, sku="desk"), 3.1, "loose"),
        (_golden(Figure.TIME, 3.0), 3.1, "broken"),
        (_golden(Figure.DISPATCHES, 19, release="3.13.0"), 19, "kept"),
        (_golden(Figure.DISPATCHES, 18, sku="cpu", release="3.13"), 19, "broken"),
        (_golden(Figure.DISPATCHES, 18, sku="desk"), 19, "broken"),
        (_golden(Figure.SIZE, 2000), 900, "loose"),
        (_golden(Figure.SIZE, 900), 900, "kept"),
    ],
)
def test_a_golden_against_its_figure(golden: Golden, measured: float, verdict: str, tmp_path: Path) -> None:
    status = _judge_one(golden, write_measured_run(tmp_path, "run-1", sku="desk"))
    assert status.measured == pytest.approx(measured)
    assert (status.verdict.value, status.run) == (verdict, "run-1")
    assert status.ratio == pytest.approx(measured / golden.value)


@pytest.mark.parametrize(
    ("golden", "run", "note"),
    [
        (_golden(Figure.TIME, 3.0, sku="desk"), {}, "run-1 measured 3.1 ms without a SKU"),
        (_golden(Figure.TIME, 3.0, sku="desk"), {"sku": "rack"}, "run-1 measured 3.1 ms with the SKU rack"),
        (_golden(Figure.TIME, 3.0), {"threshold": "failed"}, "run-1 measured 3.1 ms but its threshold failed"),
        (_golden(Figure.TIME, 3.0), {"ended": False}, "run-1 measured 3.1 ms but its run did not finish"),
        (_golden(Figure.DISPATCHES, 9, release="3.12.0"), {}, "run-1 measured 19 with release 3.13.0"),
        (_golden(Figure.DISPATCHES, 9, sku="mi300"), {"sku": "mi308"}, "run-1 measured 19 with the SKU mi308"),
        (_golden(Figure.SIZE, 9), {"size": 1_234_567, "ended": False}, "run-1 measured 1,234,567 but"),
    ],
)
def test_a_figure_that_is_not_the_goldens(golden: Golden, run: dict[str, Any], note: str, tmp_path: Path) -> None:
    status = _judge_one(golden, write_measured_run(tmp_path, "run-1", **run))
    assert (status.verdict, status.measured, status.ratio, status.run) == ("not measured", None, None, "")
    assert status.note.startswith(note)


def test_the_newest_figure_that_counts_is_taken(tmp_path: Path) -> None:
    golden = _golden(Figure.DISPATCHES, 19, release="3.13.0")
    runs = [
        write_measured_run(tmp_path, "run-1", dispatches=20),
        write_measured_run(tmp_path, "run-2", dispatches=19),
        write_measured_run(tmp_path, "run-3", dispatches=25, release="3.14.0"),
        write_measured_run(tmp_path, "run-4", dispatches=26, ended=False),
    ]
    status = _judge_one(golden, *runs)
    assert (status.run, status.verdict, status.note) == ("run-2", "kept", "")
    assert judge_goldens([(CHAIN, golden)], [], tmp_path)[0].verdict is GoldenVerdict.NOT_MEASURED


def test_a_sku_with_a_golden_of_its_own_leaves_that_of_the_family_alone(tmp_path: Path) -> None:
    family = _golden(Figure.DISPATCHES, 30, sku="cpu", field="golden_dispatch.cpu")
    own = _golden(Figure.DISPATCHES, 19, sku="desk", field="golden_dispatch.desk")
    run = write_measured_run(tmp_path, "run-1", sku="desk")
    assert _judge_one(own, run, rivals=[family]).verdict is GoldenVerdict.KEPT
    status = _judge_one(family, run, rivals=[own])
    assert status.note == "run-1 measured 19 with the SKU desk, which has a golden of its own"
    assert _judge_one(family, write_measured_run(tmp_path, "run-2"), rivals=[own]).verdict is GoldenVerdict.KEPT


def test_a_disturbed_time_is_judged_and_told(tmp_path: Path) -> None:
    golden = _golden(Figure.TIME, 3.1)
    status = _judge_one(
        golden, write_measured_run(tmp_path, "run-1", disturbed=["other work keeps the CPUs 40 % busy"])
    )
    assert (status.verdict, status.note) == ("kept", "disturbed: other work keeps the CPUs 40 % busy")


def test_what_the_run_has_found_out_itself_counts(tmp_path: Path) -> None:
    golden = _golden(Figure.TIME, 3.0, field="golden_time_ms.desk", sku="desk")
    own = make_check("time_ms", 3.1, 3.0, passed=True, note=f"{FILE}: golden_time_ms.desk")
    confirmed = write_measured_run(tmp_path, "run-1", sku="desk", checks=[own])
    assert _judge_one(golden, confirmed).verdict is GoldenVerdict.KEPT
    older = {**own, "golden": 2.9}
    assert (
        _judge_one(golden, write_measured_run(tmp_path, "run-2", sku="desk", checks=[older])).verdict
        is GoldenVerdict.BROKEN
    )
    undecided = write_measured_run(
        tmp_path, "run-3", sku="desk", benchmark="inconclusive", checks=[{**own, "passed": None}]
    )
    status = _judge_one(golden, undecided)
    assert (status.verdict, status.note) == ("inconclusive", "no verdict")


def test_of_aggregates_nobody_knows_the_fastest(tmp_path: Path) -> None:
    golden = _golden(Figure.TIME, 3.0, statistic=Statistic.MIN)
    run = write_measured_run(tmp_path, "run-1")
    path = run / "journal.jsonl"
    path.write_text(path.read_text().replace('"name": "BM_main"', '"name": "BM_main", "aggregated": true'))
    assert _judge_one(golden, run).verdict is GoldenVerdict.NOT_MEASURED
    assert _judge_one(_golden(Figure.TIME, 3.2), run).verdict is GoldenVerdict.KEPT


@given(value=st.integers(0, 1000), factor=st.sampled_from([1.0, 1.1, 2.0]), dispatches=st.integers(0, 1000))
def test_the_verdict_is_the_plain_rule(value: int, factor: float, dispatches: int, tmp_path_factory: Any) -> None:
    run = write_measured_run(tmp_path_factory.mktemp("runs"), "run-1", dispatches=dispatches)
    status = _judge_one(_golden(Figure.DISPATCHES, value, factor=factor), run)
    assert (status.verdict is GoldenVerdict.BROKEN) == (dispatches > value * factor)
    assert (status.verdict is GoldenVerdict.LOOSE) == (dispatches < value / 2)
    assert (status.ratio is None) == (value == 0)


# The task.


def _show(**asked: Any) -> ExitCode:
    return show(parse_request(SelectionRequest, asked), parse_request(GoldenShowRequest, asked))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    made.benchmark(
        golden_compiler="3.13.0",
        golden_dispatch={"cpu": 1, "desk": 2},
        golden_size={"cpu": 100_000_000},
        golden_time_ms={"desk": 0.5, "rack": 0.4},
        golden_time_tolerance_multiplier={"rack": 1.5},
    )
    monkeypatch.chdir(tmp_path)
    return made


def _json(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[dict[str, Any]]:
    assert _show(format="json", **changes) is ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    return list(document["goldens"])


def test_goldens_of_all_skus_without_anymeasured_run(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    goldens = _json(capsys)
    assert [(item["field"], item["sku"], item["release"], item["limit"]) for item in goldens] == [
        ("golden_time_ms.desk", "desk", "", 0.5),
        ("golden_time_ms.rack", "rack", "", pytest.approx(0.6)),
        ("golden_dispatch.cpu", "cpu", "3.13.0", 1),
        ("golden_dispatch.desk", "desk", "3.13.0", 2),
        ("golden_size.cpu", "cpu", "3.13.0", 100_000_000),
    ]
    assert {item["verdict"] for item in goldens} == {"not measured"}
    assert [item["field"] for item in _json(capsys, sku="desk")] == [
        "golden_time_ms.desk",
        "golden_dispatch.desk",
        "golden_size.cpu",
    ]


@pytest.mark.iree
def test_goldens_with_what_a_real_run_has_measured(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    times = write_benchmark_tool(project.folder / "times", [0.3, 0.4, 0.35])
    done = project.gauntlet("run", "--model", "toy", "--sku", "rack", benchmark_module=times)
    assert done.code == 0, done.text
    counts = project.result("toy/abs@cpu:compstat")["statistics"]
    found = {item["field"]: item for item in _json(capsys)}
    dispatches = found["golden_dispatch.cpu"]
    assert dispatches["measured"] == counts["dispatch_count"]
    assert dispatches["verdict"] == ("kept" if counts["dispatch_count"] <= 1 else "broken")
    assert found["golden_size.cpu"]["measured"] == counts["binary_size_bytes"]
    assert found["golden_size.cpu"]["verdict"] == "loose"
    assert found["golden_time_ms.rack"]["measured"] == pytest.approx(0.35)
    assert found["golden_time_ms.rack"]["verdict"] == "kept"
    assert found["golden_time_ms.desk"]["verdict"] == "not measured"
    assert "with the SKU rack" in found["golden_time_ms.desk"]["note"]
    assert {item["run"] for item in found.values()} == {project.newest.name, ""}


@pytest.mark.iree
def test_goldens_of_torch_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, torch = Project(tmp_path / "toy", cache="flags"), TorchProject(tmp_path)
    (tmp_path / "files").mkdir()
    torch.module()
    torch.compstat(golden_dispatch_count=100, golden_binary_size=1)
    torch.benchmark(golden_time_ms=0.5, tolerance_factor=2.0)
    times = write_benchmark_tool(tmp_path / "times", [3.0, 2.0, 2.5])
    folders = ("--spec-dir=suite", "--module-directory=suite", "--external-file-directory=files")
    words = ("run", *folders, "--target=cpu", "--verdict=strict")
    assert run_in_process(words, tmp_path, toy.environment(), {"benchmark_module": times}).code == 1
    monkeypatch.chdir(tmp_path)
    selection = {"spec_dir": ["suite"], "module_directory": "suite", "external_file_directory": "files"}
    time, dispatches, size = _json(capsys, **selection)
    (journal,) = (tmp_path / "runs").glob("*/journal.jsonl")
    results = read_journal(journal).results
    timed = results["toy/add_benchmark_cpu@cpu:benchmark"].samples
    assert timed is not None
    assert timed.real_time_ms == (3.0, 2.0, 2.5)
    assert (time["statistic"], time["measured"], time["limit"], time["verdict"]) == ("min", 2.0, 1.0, "broken")
    counts = results["toy/add_compstat_cpu@cpu:compstat"].statistics
    assert (dispatches["measured"], dispatches["verdict"]) == (counts["dispatch_count"], "loose")
    assert (size["measured"], size["verdict"]) == (counts["binary_size_bytes"], "broken")
    assert {item["run"] for item in (time, dispatches, size)} == {journal.parent.name}


def test_the_table(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    runs = project.folder / "runs"
    builder = JournalBuilder(run="run-1")
    step = builder.step("toy", "abs", "compstat")
    builder.begin(toolchain={"compiler": "3.13.0"})
    builder.result(step, statistics={"dispatch_count": 3, "binary_size_bytes": 1000})
    builder.end()
    # In a folder of its own, as a session over several releases keeps them.
    builder.write(runs / "20261121-matrix" / "3.13.0")
    (runs / "broken").mkdir()
    (runs / "broken/journal.jsonl").write_text('rubbish\n{"event": "end"}\n')
    assert _show() is ExitCode.OK
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == [
        "CASE", "METRIC", "FOR", "GOLDEN", "FACTOR", "LIMIT", "MEASURED", "RATIO", "VERDICT", "RUN", "PLACE",
    ]  # fmt: skip
    (dispatches,) = [line for line in lines if line.endswith("golden_dispatch.cpu")]
    assert " ".join(dispatches.split()).startswith(
        "toy/abs@cpu dispatches cpu 3.13.0 1 1 1 3 3.00 ✗ broken 20261121-matrix/3.13.0 "
    )
    assert lines[-1] == "5 goldens: 1 loose, 1 broken, 3 not measured"
    # By the name that it is shown under, `golden.update` finds it.
    assert (find_named_run("20261121-matrix/3.13.0", "--run") / "journal.jsonl").is_file()
    assert "passed over" in captured.err
    # Of the two newest journals, only the newest is looked at.
    os.utime(runs / "broken/journal.jsonl", (2e9, 2e9))
    assert {item["verdict"] for item in _json(capsys, last=1)} == {"not measured"}


def test_what_is_to_be_known_of_figures_is_told_below_the_table(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = JournalBuilder(run="run-1")
    step = builder.step("toy", "abs", "benchmark", sku="desk")
    builder.begin()
    builder.result(step, "inconclusive", "4 of 4 more rounds were disturbed", samples=make_samples(9.0))
    builder.end()
    builder.write(project.folder / "runs" / "run-1")
    assert _show() is ExitCode.OK
    assert "\nnote: 1 of them: 4 of 4 more rounds were disturbed\n" in capsys.readouterr().out


def test_colours_on_a_terminal_alone(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _show() is ExitCode.OK
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"COLUMNS": "200", "TERM": "xterm", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert _show() is ExitCode.OK
    out = capsys.readouterr().out
    assert "\x1b[2m· not measured\x1b[0m" in out
    assert "golden_time_ms.desk" in out


def test_mistakes_of_the_command_line(project: Project) -> None:
    for changes in ({"last": 0}, {"format": "xml"}, {"target": ["nowhere"]}):
        with pytest.raises(UsageError):
            _show(**changes)
    with pytest.raises(NothingSelectedError):
        _show(model="nope")
    project.benchmark()
    with pytest.raises(NothingSelectedError, match="no golden"):
        _show()


def test_a_spec_that_cannot_be_read_is_told_and_the_others_are_shown(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.add("neg", "arith.negf %a : tensor<4xf32>")
    project.benchmark("neg", golden_size={"cpu": "large"})
    assert _show() is ExitCode.USAGE
    captured = capsys.readouterr()
    assert "golden_size" in captured.err
    assert "golden_dispatch.cpu" in captured.out


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus")
@pytest.mark.parametrize("tree", ["sharktank_models", "torch_models"])
def test_every_golden_of_the_corpus_is_shown(
    tree: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written: dict[tuple[str, str], float] = {}
    for path in (CORPUS / tree).rglob("*.json"):
        document = json.loads(path.read_text())
        for field, value in document.items() if isinstance(document, dict) else ():
            if field.startswith("golden_") and "tolerance" not in field:
                keys = value if isinstance(value, dict) else {"": value}
                written |= {(path.name, f"{field}.{key}".rstrip(".")): figure for key, figure in keys.items()}
    assert len(written) > 10
    shown = _json(capsys, spec_dir=[str(CORPUS / tree)])
    assert {(Path(item["file"]).name, item["field"]): item["golden"] for item in shown} == written
