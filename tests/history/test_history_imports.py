"""Histories of other tools: their original files are imported, with all of their content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.history.imports import ImportFacts, import_figures

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.records.history_record import HistoryRun

# As `--benchmark_format=json` prints it, with two repetitions and an aggregate.
GOOGLE = {
    "context": {"date": "2026-03-02T10:00:00+00:00", "host_name": "ci", "num_cpus": 8, "library_build_type": "release"},
    "benchmarks": [
        {"name": "BM_main/real_time", "run_name": "BM_main/real_time", "run_type": "iteration", "real_time": 2.5,
         "time_unit": "ms"},
        {"name": "BM_main/real_time", "run_name": "BM_main/real_time", "run_type": "iteration", "real_time": 2.25,
         "time_unit": "ms"},
        {"name": "BM_main/real_time_mean", "run_name": "BM_main/real_time", "run_type": "aggregate", "real_time": 2.375,
         "time_unit": "ms"},
        {"name": "BM_other", "real_time": 5e6},
    ],
}  # fmt: skip
# As github-action-benchmark pushes it to gh-pages.
DATA_JS = {
    "lastUpdate": 1767225600000,
    "repoUrl": "https://github.com/o/r",
    "entries": {
        "Benchmark": [
            {"commit": {"id": "a" * 40, "message": "m", "timestamp": "2026-01-01T00:00:00Z"}, "date": 1767225600000,
             "tool": "googlecpp", "benches": [{"name": "BM_a", "value": 1500, "unit": "ns/iter", "extra": "i: 5"}]},
            {"commit": {"id": "b" * 40}, "date": 1767312000000, "tool": "customBiggerIsBetter",
             "benches": [{"name": "rate", "value": 99.5, "unit": "img/s", "range": "± 2"}]},
        ]
    },
}  # fmt: skip
ASV = {
    "commit_hash": "c" * 40, "env_name": "virtualenv-py3.11", "date": 1767225600000, "version": 2,
    "params": {"machine": "m", "cpu": "Ryzen", "num_cpu": "16", "ram": "64"},
    "result_columns": ["result", "params", "version", "started_at"],
    "results": {
        "suite.Suite.time_run": [[0.5, None, 0.25, 0.125], [["1", "2"], ["x", "y"]], "v1", 1767225600000],
        "suite.peakmem_load": [[1e9], [], "v1", 1767225600000],
        "suite.track_count": [[7], [], "v1", 1767225600000],
    },
}  # fmt: skip
# As iree-test-suites writes it, and this toolkit too.
JOB_SUMMARY = {
    "quality": {"headers": ["Name", "Status"], "rows": [["llama/decode", "PASSED"], ["sdxl/vae", "FAILED"]]},
    "benchmark": {
        "headers": ["Name", "Current Time (ms)", "Golden Time (ms)", "Tolerance Factor", "Threshold (ms)", "Status"],
        "rows": [["llama/decode", 7.16, 7.48, 1.1, 8.228, "PASSED"], ["sdxl/vae", "N/A", 1.0, 1.1, 1.1, "N/A"]],
    },
    "compstat": {
        "headers": ["Name", "Golden Dispatch Count", "Current Dispatch Count", "Golden Binary Size (bytes)",
                    "Current Binary Size (bytes)", "Status"],
        "rows": [["llama/decode", 120, 118, 5000, 4990, "PASSED"]],
    },
}  # fmt: skip


def read(folder: Path, content: Any, name: str = "results.json", **given: str) -> tuple[HistoryRun, ...]:
    file = folder / name
    text = json.dumps(content)
    file.write_text(f"window.BENCHMARK_DATA = {text};\n" if name.endswith(".js") else text)
    return import_figures(file, ImportFacts(**given))


def figures(run: HistoryRun) -> dict[str, float]:
    return {f"{case.model}/{case.submodel} {item.name}": item.value for case in run.cases for item in case.figures}


def test_google_benchmark(tmp_path: Path) -> None:
    (run,) = read(tmp_path, GOOGLE, commit="d" * 40, machine="EPYC")
    assert figures(run) == {"results/BM_main/real_time time_ms": 2.25, "results/BM_other time_ms": 5.0}
    assert run.cases[0].figures[0].rounds == (2.5, 2.25)
    assert (run.time, run.machine.cores, run.iree.compiler_commit) == ("2026-03-02T10:00:00+00:00", 8, "d" * 40)
    assert run.more["library_build_type"] == "release"


def test_github_action_benchmark(tmp_path: Path) -> None:
    first, second = read(tmp_path, DATA_JS, "data.js", sku="rtx4090")
    assert figures(first) == {"Benchmark/BM_a time_ms": 0.0015}
    assert (first.iree.compiler_commit, first.time[:10]) == ("a" * 40, "2026-01-01")
    assert figures(second) == {"Benchmark/rate img/s": 99.5}
    assert second.cases[0].figures[0].more_is_better
    assert (second.cases[0].sku, first.more["commit"]["message"]) == ("rtx4090", "m")


def test_asv(tmp_path: Path) -> None:
    (run,) = read(tmp_path, ASV)
    assert figures(run) == {
        "asv/suite.Suite.time_run(1, x) time_ms": 500.0,
        "asv/suite.Suite.time_run(2, x) time_ms": 250.0,
        "asv/suite.Suite.time_run(2, y) time_ms": 125.0,
        "asv/suite.peakmem_load peak_bytes": 1e9,
        "asv/suite.track_count value": 7.0,
    }
    assert (run.machine.cpu, run.machine.cores, run.more["env_name"]) == ("Ryzen", 16, "virtualenv-py3.11")


def test_what_lies_beside_asvs_results_is_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, {"arch": "x86_64", "cpu": "Ryzen", "machine": "ci", "version": 1}, "machine.json") == ()


@pytest.mark.parametrize("content", [ASV, DATA_JS])
def test_a_date_is_given_where_a_file_has_none(content: Any, tmp_path: Path) -> None:
    without = json.loads(json.dumps(content), object_hook=lambda item: {k: v for k, v in item.items() if k != "date"})
    assert without != content
    runs = read(tmp_path, without, date="2026-04-24")
    assert {run.time[:10] for run in runs} == {"2026-04-24"}
    with pytest.raises(UsageError, match="has no date"):
        read(tmp_path, without)


def test_the_date_in_a_file_counts_before_any_other(tmp_path: Path) -> None:
    benchmark = {"context": {"date": "2026-03-02T10:00:00+01:00"}, "benchmarks": []}
    junit = tmp_path / "junit.xml"
    junit.write_text('<testsuite timestamp="2026-03-02T09:00:00"/>')
    others = ImportFacts(date="2026-11-25")
    for run in (*read(tmp_path, benchmark, date=others.date), *import_figures(junit, others)):
        assert run.time == "2026-03-02T09:00:00+00:00"
    # Google Benchmark had this form once.
    benchmark["context"] = {"date": "2026/03/02-10:00:00"}
    (run,) = read(tmp_path, benchmark, date=others.date)
    assert run.time[:10] == others.date


def test_a_unit_that_nobody_knows_is_named(tmp_path: Path) -> None:
    rows = [{"name": "BM_a", "real_time": 1.0, "time_unit": "parsec"}]
    with pytest.raises(GauntletError, match="BM_a: time_unit is 'parsec': expected one of s, ms"):
        read(tmp_path, {"context": {"date": "2026-03-02"}, "benchmarks": rows})


def test_the_job_summary_of_iree_test_suites(tmp_path: Path) -> None:
    (run,) = read(tmp_path, JOB_SUMMARY, date="2026-04-24", commit="b48a595557", sku="mi325")
    assert figures(run) == {
        "llama/decode time_ms": 7.16,
        "llama/decode dispatches": 118.0,
        "llama/decode size_bytes": 4990.0,
    }
    assert {(case.target, case.submodel): case.verdict for case in run.cases}["quality", "vae"] == "failed"
    (time,) = (item for case in run.cases for item in case.figures if item.name == "time_ms")
    assert (time.golden, time.limit) == (7.48, 8.228)
    with pytest.raises(UsageError, match="has no date"):
        read(tmp_path, JOB_SUMMARY)
    with pytest.raises(UsageError, match="not a date"):
        read(tmp_path, JOB_SUMMARY, date="yesterday")


def test_junit(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(
        '<?xml version="1.0"?><testsuites><testsuite name="suite" timestamp="2026-03-02T10:00:00">'
        '<testcase classname="m" name="ok" time="1.5"/><testcase name="bad" time="2"><failure message="x"/></testcase>'
        '<testcase classname="m" name="left out"><skipped/></testcase></testsuite></testsuites>'
    )
    (run,) = import_figures(file, ImportFacts(commit="d" * 40))
    assert figures(run) == {"m/ok test_s": 1.5}, "what failed has no time"
    assert [(case.model, case.verdict) for case in run.cases] == [
        ("m", "passed"),
        ("suite", "failed"),
        ("m", "skipped"),
    ]
    assert (run.time, run.iree.compiler_commit) == ("2026-03-02T10:00:00+00:00", "d" * 40)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><testsuite name="&b;"/>', "document type 't'"),
        ("<testsuite>", "no element found"),
        ("<html/>", "its root is 'html'"),
    ],
)
def test_xml_that_is_no_plain_junit_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(text)
    with pytest.raises(GauntletError, match=reason):
        import_figures(file, ImportFacts(date="2026-03-02"))


@pytest.mark.parametrize(
    "content",
    [{}, [], {"a": 1}, {"entries": 3}, {"benchmarks": [{}], "context": {}}, {"quality": {"rows": [[1]]}}, "text"],
)
def test_what_is_none_of_these_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="cannot be imported"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK\x03\x04\xff", "it is a zip archive"),
        (b"\xff\xfe{", "it is not text in UTF-8"),
        (b"time 3 ms", "it is not valid JSON: Expecting value"),
        (b'{"context": {}, "benchmarks": [3]}', "a value in it has another type than its format says"),
        (
            b'{"context": {}, "benchmarks": [{"name": "a", "real_time": "x"}]}',
            "real_time of a is 'x': expected a number",
        ),
        (b'{"context": {"num_cpus": "x"}, "benchmarks": []}', "num_cpus is 'x': expected a number"),
        (b'{"commit_hash": "c", "results": {}, "params": {"num_cpu": "x"}}', "num_cpu is 'x': expected a number"),
        (
            b'{"entries": {"s": [{"benches": [{"name": "a", "unit": "ms", "value": "x"}]}]}}',
            "the value of a is 'x': expected a number",
        ),
        (b'{"quality": {"headers": ["Name"], "rows": [[1, 2]]}}', "quality has 1 column, but a row has 2"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_plain_words(content: bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(GauntletError) as caught:
        import_figures(file, ImportFacts(date="2026-03-02"))
    assert caught.value.message.startswith(f"{file} cannot be imported: {reason}")


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="No such file"):
        import_figures(tmp_path / "none.json", ImportFacts())
