"""A record of each kind with plausible figures, and its page: for a look at all pages, and for tests in a browser."""

from __future__ import annotations

import json
import math
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from iree_gauntlet.history.judge import MinEffects, judge
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.records.history_record import HistoryOutcome, Point, Series, SeriesKey
from iree_gauntlet.reports.experiment_reports import make_reports, write_reports
from iree_gauntlet.reports.history_page import make_history_page
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.torch_models.reports.sweep_reports import make_sweep_document
from iree_gauntlet.torch_models.reports.sweep_rows import SweepHeader, read_rows
from tests.support.journal_builder import (
    JournalBuilder,
    add_passed_results,
    make_comparison,
    make_every_verdict,
    plan_chain,
)
from tests.support.matrix_builder import make_chain, make_failed_chain, make_release_run, write_qualification
from tests.support.matrix_builder import write_record as write_matrix_record
from tests.support.micro_records import HEADER, squares
from tests.support.whole_records import write_explanation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["PAGE_SAMPLES", "write_page_samples", "write_slower_comparison"]

_RUN, _DIFFERS = "20261127-121100", "34 of 384 values differ"
_TIME, _END_TIME = "2026-11-27T12:11:00.000Z", "2026-11-27T12:13:46.000Z"
_MACHINE = {"host": "bench-1", "cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25_300_000_000, "os": "Linux 6.18"}
_VERSIONS = {"A": ("3.12.0", "3.12.0rc20260917", "1" * 40), "B": ("3.13.0", "3.13.0rc20261016", "2" * 40)}
_MODELS = ("ocr/classifier@cpu", "ocr/cls@cpu", "ocr/det@cpu", "ocr/rec@cpu")
_RELEASES = [f"3.{number}.0" for number in range(1, 21)]
_MATRIX_RELEASES = ("3.5.0", "3.8.0", "3.9.0", "3.10.0", "3.11.0", "3.12.0", "3.13.0")


def _split(model: str) -> tuple[str, str]:
    name, _, submodel = model.removesuffix("@cpu").partition("/")
    return name, submodel


def _write_journal(folder: Path, events: list[tuple[str, dict[str, Any]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"event": event, "time": _TIME, **fields}) + "\n" for event, fields in events]
    (folder / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def _write_green_run(folder: Path) -> Path:
    """A run in which all is as expected, one day after one with fewer dispatches."""
    for day, name in enumerate((f"{folder.name}-before", folder.name)):
        builder = JournalBuilder(run=name)
        builder.now += timedelta(days=day)
        chains = [plan_chain(builder, *_split(model)) for model in _MODELS]
        builder.begin(name=name)
        for steps in chains:
            add_passed_results(builder, steps)
        for line in builder.lines if not day else ():
            for check in line["checks"][1:2] if line.get("step") == chains[0][3] and "checks" in line else ():
                check["measured"] = 71
        builder.end(0)
        write_reports(builder.write(folder.with_name(name)))
    return folder


def _write_operators(folder: Path, failures: int) -> Path:
    """A run of 996 operators, of which the first fail: every third does not compile, the others have wrong numbers."""
    builder = JournalBuilder(run=folder.name)
    names = [f"test_{('add', 'conv', 'gru', 'pad')[number % 4]}_{number:03}" for number in range(996)]
    steps = [(builder.step("ops", name, "compile"), builder.step("ops", name, "threshold")) for name in names]
    builder.begin(name=folder.name)
    for number, (compiled, judged) in enumerate(steps):
        if number < failures and number % 3 == 2:
            reason = "iree-compile failed with exit code 1: failed to legalize operation 'torch.onnx.GRU'"
            builder.result(compiled, "failed", reason, exit_code=1, tail=[f"model.mlir:9:10: error: {reason}"])
            builder.result(judged, "skipped", f"{compiled} came out failed")
            continue
        builder.result(compiled, seconds=0.05, statistics={"dispatch_count": 1, "binary_size_bytes": 9_000})
        if number < failures:
            outputs = [make_comparison(passed=False, mismatches=34, message=_DIFFERS)]
            builder.result(
                *(judged, "failed", f"output 0: {_DIFFERS}"), failure="wrong numbers", outputs=outputs, seconds=0.01
            )
        else:
            builder.result(judged, outputs=[make_comparison()], seconds=0.01)
    builder.end(1)
    return builder.write(folder)


def _write_sides(folder: Path) -> dict[str, dict[str, Any]]:
    """The runs of a comparison's sides; B has more dispatches in one model, and a larger module."""
    sides = {}
    for side, (release, version, commit) in _VERSIONS.items():
        toolchain = {"compiler": version, "compiler_commit": commit, "runtime": version, "identity": release}
        sides[side] = {"asked": release, "folder": side.lower(), "toolchain": toolchain}
        builder = JournalBuilder(run=side.lower())
        steps = [builder.step(*_split(model), "compile") for model in _MODELS]
        builder.begin(toolchain=toolchain)
        for number, step in enumerate(steps):
            size, count = 833_586 + 4096 * number, 76 + 2 * number
            more = side == "B" and number == 0
            figures = {"binary_size_bytes": size + 40_000 * more, "dispatch_count": count + 4 * more}
            builder.result(step, statistics={**figures, "tool_seconds": 4.0})
        builder.end(0)
        builder.write(folder / side.lower())
    return sides


def _make_profile(unit: str, scale: float) -> dict[str, Any]:
    rows = []
    for name, a, b, a_count, b_count in (
        ("main$async_dispatch_14_conv_14x14x256x5x5_f32", 2_520_000, 3_970_000, 5, 9),
        ("main$async_dispatch_2_conv_112x112x16x3x3_f32", 1_470_000, 1_100_000, 1, 1),
    ):
        row = {"name": name, "kind": "conv", "match": "name", "a_ns": round(a * scale), "b_ns": round(b * scale)}
        row |= {"a_count": a_count, "b_count": b_count, "share": (b - a) / 1_040_000, "place": "Conv_14"}
        rows.append(row)
    others = {"a_count": 34, "b_count": 34, "a_ns": round(14_210_000 * scale), "b_ns": round(14_170_000 * scale)}
    profile: dict[str, Any] = {"commands": {}, "seconds": 2.0, "unit": unit, "rows": rows, "notes": []}
    profile |= {"a_ns": round(18_200_000 * scale), "b_ns": round(19_240_000 * scale)}
    return {**profile, "others": {**others, "outside": True}}


def _make_opening(sides: dict[str, Any], command: str, **options: Any) -> dict[str, Any]:
    rules = {"alpha": 0.01, "looks": [10, 14, 20, 28], "least": 0.01, "band": 0.03, "allow": 0.1}
    rules |= {"budget_seconds": 24.0, "seed": 1, "least_work": 0.0001, "outside": [0.0001, 100]}
    return {
        "kind": "compare",
        "version": "0.1.0",
        "command": command,
        "cwd": "/home/me",
        "resumed": False,
        "sides": sides,
        "kept": {"options": options},
        "rules": rules,
        "machine": _MACHINE,
        "rounds": {"repetitions": 5, "min_time": 0.05, "cpus": [], "choose": True},
    }


def write_slower_comparison(folder: Path) -> Path:
    """A comparison by times: two models are slower, and two the same."""
    sides = _write_sides(folder)
    events: list[tuple[str, dict[str, Any]]] = [
        ("opening", _make_opening(sides, "gauntlet compare 3.12.0 3.13.0 --suite cpu --model ocr", metric="time")),
        ("prepared", {"sides": sides, "models": _MODELS}),
    ]
    for model, verdict, ratio, half, a_ms in zip(
        *(_MODELS, ("slower", "slower", "same", "same"), (1.056, 1.092, 0.985, 1.002)),
        *((0.015, 0.013, 0.01, 0.007), (18.27, 3.20, 30.75, 16.54)),
        strict=True,
    ):
        low, high = ratio - half, ratio + half
        interval = {"ratio": ratio, "low": low, "high": high, "confidence": 0.99, "p_value": 0.001, "looked_at": 14}
        place = "beyond ±1 %" if verdict == "slower" else "within ±3 %"
        times = {
            "verdict": verdict,
            "blocks": 14,
            "control_blocks": 14,
            "replaced_blocks": 1,
            "marked_blocks": 0,
            "reason": f"the interval, {100 * low - 100:+.1f} % to {100 * high - 100:+.1f} %, lies {place}",
            "peak_rss_bytes": {"A": 91_000_000, "B": 91_200_000},
            "cpus": [1],
            **interval,
            "time_ms": {"A": {"median": a_ms, "spread": 0.02}, "B": {"median": a_ms * ratio, "spread": 0.03}},
            "control": {"verdict": "same", **interval, "ratio": 1.001, "low": 0.994, "high": 1.011},
        }
        events.append(("result", {"step": model, "times": times}))
    mean: dict[str, Any] = {"ratio": 1.032, "low": 0.955, "high": 1.115, "confidence": 0.95, "models": 4}
    compiles: list[dict[str, Any]] = [
        {"name": "module size", "a": 833_586, "b": 873_586, "unit": "bytes", "ratio": 1.048}
    ]
    where = {"step": _MODELS[0], "dispatches": _make_profile("ms", 1.0), "compile": compiles}
    events += [("summary", {"verdicts": {"slower": 2, "same": 2}, "geometric_mean": mean}), ("where", where)]
    events.append(("end", {"exit_code": 1, "problem": "", "seconds": 166.0, "interrupted": False, "time": _END_TIME}))
    return _write_journal(folder, events)


def _write_counts(folder: Path) -> Path:
    """A comparison by instructions: one model does more work, and three the same."""
    sides = _write_sides(folder)
    command = "gauntlet compare 3.12.0 3.13.0 --metric instructions --suite cpu --model ocr"
    events: list[tuple[str, dict[str, Any]]] = [
        ("opening", _make_opening(sides, command, metric="instructions")),
        ("prepared", {"sides": sides, "models": _MODELS}),
    ]
    for number, model in enumerate(_MODELS):
        a = 243_997_883 - 48_000_000 * number
        more = 14_639_872 if number == 0 else 0
        verdict = "more work" if more else "same work"
        dispatches = {"part": "dispatches", "a": a - 60_000, "b": a - 60_000 + more, "verdict": verdict}
        dispatches |= {"more": ["conv_14x14x256x5x5_f32"]} if more else {}
        outside = {"part": "outside", "a": 60_000, "b": 60_038, "verdict": "same work"}
        work: dict[str, Any] = {"verdict": verdict, "reason": "", "instructions": {"A": a, "B": a + more + 38}}
        work |= {"ratio": (a + more + 38) / a, "counter": "valgrind 3.19", "cpu": "x86-64-v3", "outside": 38}
        events.append(("result", {"step": model, "work": {**work, "parts": [dispatches, outside]}}))
    where = {"step": _MODELS[0], "dispatches": _make_profile("instructions", 14.0), "compile": []}
    events += [("summary", {"verdicts": {"more work": 1, "same work": 3}}), ("where", where)]
    events.append(("end", {"exit_code": 1, "problem": "", "seconds": 61.0, "interrupted": False, "time": _END_TIME}))
    return _write_journal(folder, events)


def _write_matrix(folder: Path) -> Path:
    """A matrix of seven releases, of which some are slow, some do not compile a model, and one gives wrong numbers."""
    bases = {"captcha": 24.9, "classifier": 18.4, "detector": 25.0, "recognizer": 13.9, "speech": 13.9}
    factors = (1.0, 2.4, 2.3, 2.5, 2.2, 1.2, 1.05)
    runs: dict[str, JournalBuilder | str | None] = {}
    for number, (release, factor) in enumerate(zip(_MATRIX_RELEASES, factors, strict=True)):
        chains = {}
        for place, (name, ms) in enumerate(bases.items()):
            time_ms = ms * (factor if place % 2 == 0 else 1.0 - 0.04 * number)
            chains[name] = make_chain(ms=time_ms, dispatches=97 - 3 * min(number, place), seconds=3.0 + place + factor)
        if number == 1:
            chains["recognizer"] = make_failed_chain("compile", "error: large vector sizes in a softmax")
        if number == 6:
            chains["detector"] = make_failed_chain("threshold", "output 0: 12 of 384 elements differ")
        runs[release] = make_release_run(release, **chains)
    return write_matrix_record(folder, runs, results={label: int(index in (1, 6)) for index, label in enumerate(runs)})


def _write_failing_matrix(folder: Path) -> Path:
    """A matrix of two releases; with the second one, 300 models do not compile."""
    names = [f"op_{number:03}" for number in range(300)]
    good = make_release_run("3.12.0", **{name: make_chain() for name in names})
    failure = make_failed_chain("compile", "iree-compile failed with exit code 1: failed to legalize operation")
    bad = make_release_run("3.13.0", **dict.fromkeys(names, failure))
    return write_matrix_record(folder, {"3.12.0": good, "3.13.0": bad}, results={"3.12.0": 0, "3.13.0": 1})


def _write_bisection(folder: Path) -> Path:
    """A bisection by time over eight releases, of which four were tried."""
    labels = [f"3.{number}.0" for number in range(6, 14)]
    row = [{"label": label, "iree": label} for label in labels]
    tried = {"3.6.0": (1.0, False), "3.13.0": (1.31, True), "3.9.0": (1.01, False), "3.11.0": (1.3, True)}
    tried["3.10.0"] = (1.29, True)
    results: list[tuple[str, dict[str, Any]]] = []
    for number, (label, (value, bad)) in enumerate(tried.items()):
        fields: dict[str, Any] = {"step": label, "bad": bad, "value": value, "text": f"×{value:.2f}", "folder": label}
        fields |= {"low": value - 0.01, "high": value + 0.01, "confidence": 0.99, "seconds": 21.0 + number}
        fields["toolchain"] = {"compiler": label, "compiler_commit": f"{number + 1:x}" * 40}
        results.append(("result", fields))
    search: dict[str, Any] = {"last_old": "3.9.0", "first_new": "3.10.0", "between": [], "over": True}
    change: dict[str, Any] = {"commit": "5" * 40, "date": "2026-06-12", "author": "A. Compiler", "pull": 21345}
    opening: dict[str, Any] = {
        "kind": "bisect",
        "version": "0.1.0",
        "name": folder.name,
        "resumed": False,
        "cwd": "/home/me",
        "command": "gauntlet bisect --good 3.6.0 --bad 3.13.0 --metric time --model ocr --submodel det --target cpu",
        "confidence": 0.99,
        "metric": "time",
        "chain": "ocr/det@cpu",
        "good": "3.6.0",
        "bad": "3.13.0",
        "row": row,
        "good_is_older": True,
        "commit": "compiler_commit",
        "machine": _MACHINE,
        "kept": {"options": {"good": "3.6.0", "bad": "3.13.0", "metric": "time", "source": "iree"}},
    }
    end: dict[str, Any] = {"exit_code": 0, "problem": "", "seconds": 166.0, "interrupted": False, "time": _END_TIME}
    subject = {"subject": "[Codegen] Tile convolutions by the vector size (#21345)"}
    events = [("opening", opening), *results, ("search", search), ("change", change | subject), ("end", end)]
    return _write_journal(folder, events)


def _write_code_diff(folder: Path) -> Path:
    """A comparison of the code of two modules: one dispatch differs, with its assembly, and one module failed."""
    figures = {"vgprs": 96, "vgpr_spills": 0, "code_bytes": 1000}
    a: dict[str, Any] = {"name": "main_dispatch_2_matmul", "target": "gfx942", "figures": figures, "code_hash": "1"}
    b = a | {"figures": {"vgprs": 256, "vgpr_spills": 109, "code_bytes": 4000}, "code_hash": "2"}
    lines: list[dict[str, Any]] = [{"left_out": 20}, {"a": "\ts_waitcnt 0", "b": "\ts_waitcnt 0"}]
    lines += [{"a": f"\tv_fma_f32 v{number}, v1, v2, v3"} for number in range(3)]
    lines += [{"b": f"\tscratch_store_dword off, v{number}, off offset:{4 * number}"} for number in range(5)]
    lines += [{"a": "\ts_endpgm", "b": "\ts_endpgm"}]
    change = {"a": a, "b": b, "rows": lines, "files": ["texts/ocr/main.a.asm", "texts/ocr/main.b.asm"], "note": ""}
    results = {
        "ocr/det@rocm-gfx942:compile": {"same_count": 12, "changes": [change], "problem": ""},
        "ocr/rec@rocm-gfx942:compile": {"same_count": 0, "changes": [], "problem": "B (3.13.0): iree-compile failed"},
    }
    opening: dict[str, Any] = {
        "kind": "code",
        "version": "0.1.0",
        "name": folder.name,
        "resumed": False,
        "cwd": "/home/me",
        "command": "gauntlet code.diff 3.12.0 3.13.0 --suite codegen --model ocr --target gfx942",
        "sides": ["3.12.0", "3.13.0"],
        "level": "asm",
        "machine": _MACHINE,
    }
    end: dict[str, Any] = {"exit_code": 3, "problem": "", "seconds": 12.0, "interrupted": False, "time": _END_TIME}
    for file in ("texts/ocr/main.a.asm", "texts/ocr/main.b.asm"):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s_endpgm\n")
    events = [("result", {"step": step, **result}) for step, result in results.items()]
    return _write_journal(folder, [("opening", opening), *events, ("end", end)])


def _write_compat(folder: Path) -> Path:
    """A compatibility matrix of three releases: one pair crashes with one of two models, others are refused."""
    releases = _MATRIX_RELEASES[-3:]
    refusal = {"verdict": "failed", "failure": "does not run", "reason": "bytecode version mismatch"}
    crash = {"verdict": "error", "failure": "crashes", "signal": "SIGSEGV", "reason": "iree-run-module crashed"}
    events: list[tuple[str, dict[str, Any]]] = []
    for compiler in releases:
        for runtime in sorted(releases, key=lambda release: release != compiler):
            threshold = refusal if "3.11.0" in (compiler, runtime) and compiler != runtime else {}
            label, other = f"{compiler} on {runtime}", crash if (compiler, runtime) == releases[1:] else threshold
            run = make_release_run(label, det={"threshold": threshold}, rec={"threshold": other})
            run.write(folder / label.replace(" ", "-"))
            events += [("start", {"step": label}), ("result", {"step": label, "exit_code": 0, "error": "", "hint": ""})]
        needs = {"iree": compiler, "chain": "m/det@cpu", "bytecode": "17.0", "features": "YIELD UNWIND"}
        events.append(("module", {**needs, "dependencies": ["hal >= 7"], "imports": [f"hal.{compiler} 0r_v"]}))
    opening: dict[str, Any] = {
        "kind": "compat",
        "version": "0.1.0",
        "name": folder.name,
        "resumed": False,
        "cwd": "/home/me",
        "command": f"gauntlet compat {' '.join(releases)} --suite releases",
        "suite": "releases",
        "irees": [{"label": release, "iree": release, "folder": release} for release in releases],
        "promised": 0,
    }
    end: dict[str, Any] = {"exit_code": 1, "problem": "", "seconds": 12.0, "interrupted": False, "time": _END_TIME}
    return _write_journal(folder, [("opening", opening), *events, ("end", end)])


def _make_history() -> str:
    """The page of a history of twenty releases, with two runs of each; some models got slower, larger or better."""
    rng = random.Random(7)
    series = []
    for number, model in enumerate(_MODELS):
        for figure, unit_value, steps in (
            ("time_ms", 10.0 * (number + 1), {8: 0.7, 15: 1.12 if number < 2 else 1.0}),
            ("instructions", 58_000_000.0 * (number + 1), {8: 0.8, 15: 1.05 if number == 0 else 1.0}),
            ("dispatches", 97.0, {8: 0.8}),
            ("size_bytes", 726_392.0 * (number + 1), {11: 1.06 if number == 1 else 1.0}),
        ):
            points, value = [], unit_value
            for index, release in enumerate(_RELEASES):
                value *= steps.get(index, 1.0)
                for repeat in range(2):
                    noisy = value * math.exp(rng.gauss(0, 0.004)) if figure == "time_ms" else float(round(value))
                    day = f"2026-{index // 2 + 1:02}-{14 * (index % 2) + repeat + 1:02}"
                    points.append(
                        Point(
                            f"{day}.json", f"{day.replace('-', '')}-cpu", f"{day}T10:00:00+00:00", release,
                            f"{index + 1:040x}", noisy, rng.random() < 0.1, iree_arg=release,
                        )
                    )  # fmt: skip
            key = SeriesKey(*_split(model), "cpu", figure, "", "f" * 12, "AMD EPYC, 2 cores, Linux 6.18")
            series.append(Series(key, tuple(points)))
    outcome = HistoryOutcome("history", 40, tuple(series), judge(series, MinEffects()))
    return render_html(make_history_page(outcome, "2026-11-27T12:14Z"))


def _make_sweep() -> str:
    header = SweepHeader.from_dict({**HEADER, "command": "gauntlet micro specs/recipes/dashboard.yml"})
    end = EndEvent.from_dict({"exit_code": 0, "seconds": 1185.0, "interrupted": False, "time": _END_TIME})
    return render_html(make_sweep_document(read_rows(squares()), header, end))


def _write_explained_run(folder: Path) -> Path:
    """A run, with an explanation, in which all failures of a comparison's kinds occur."""
    write_explanation(folder)
    return folder


_RECORDS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "run, as expected": ("summary", _write_green_run),
    "run, failures": ("summary", lambda folder: make_every_verdict().write(folder)),
    "996 cases": ("summary", lambda folder: _write_operators(folder, 3)),
    "996 cases, 300 failures": ("summary", lambda folder: _write_operators(folder, 300)),
    "comparison, times": ("comparison", write_slower_comparison),
    "comparison, instructions": ("comparison", _write_counts),
    "matrix": ("matrix", _write_matrix),
    "matrix, 300 failures": ("matrix", _write_failing_matrix),
    "bisection": ("bisect", _write_bisection),
    "explanation": ("explain/explain", _write_explained_run),
    "code": ("code", _write_code_diff),
    "compatibility": ("compat", _write_compat),
    "qualification": ("qualify", write_qualification),
}
PAGE_SAMPLES = (*_RECORDS, "history", "index", "sweep")


def write_page_samples(folder: Path) -> dict[str, Path]:
    """Write all records and their pages; return the pages by the names of `PAGE_SAMPLES`."""
    pages, reports = {}, {}
    for number, (name, (page, write)) in enumerate(_RECORDS.items()):
        record = write(folder / f"{_RUN}-{number:02}")
        # A matrix and a comparison have runs inside, and a qualification has these.
        for journal in (*record.glob("*/*/journal.jsonl"), *record.glob("*/journal.jsonl")):
            write_reports(journal.parent)
        reports[record.name] = write_reports(record)
        pages[name] = record / f"{page}.html"
    for name, text in (("history", _make_history()), ("sweep", _make_sweep())):
        pages[name] = folder / f"{name}.html"
        pages[name].write_text(text, encoding="utf-8")
    pages["index"], _ = write_index(folder, make_reports, all_of_them=True, existing=reports)
    return {name: pages[name] for name in PAGE_SAMPLES}
