"""Records of experiments with every event and every field, for tests that damage them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.journal_builder import JournalBuilder
from tests.support.matrix_builder import write_four_releases

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_bisect", "write_comparison", "write_explanation", "write_matrix"]

_TIME = "2026-11-23T04:34:22.566Z"
_TOOLCHAIN = {"compiler": "3.12.0", "compiler_commit": "89ece87b89852100", "runtime": "3.12.0", "identity": "c0ffee"}
_MACHINE = {"host": "h", "cpu": "Xeon", "cores": 2, "memory_bytes": 8_000_000_000, "os": "Linux", "python": "3.11"}
_START_FIELDS = {"version": "0.1.0", "command": "gauntlet compare 3.11.0 3.12.0", "cwd": "/home/me"}
_INTERVAL = {"ratio": 1.2, "low": 1.1, "high": 1.3, "confidence": 0.99, "p_value": 0.001, "looked_at": 10}
_WORK = {
    "verdict": "more work",
    "instructions": {"A": 1000, "B": 1100},
    "ratio": 1.1,
    "counter": "valgrind 3.19",
    "cpu": "x86-64-v3",
    "outside": 10,
    "parts": [{"part": "outside", "a": 100, "b": 110, "verdict": "more work"}],
    "with_fma": {"A": 900, "B": 1000},
}


def _write(path: Path, events: list[tuple[str, dict[str, Any]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"event": event, "time": _TIME, **fields}) + "\n" for event, fields in events)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _write_run(folder: Path, **benchmark: Any) -> None:
    builder = JournalBuilder()
    steps = [builder.step("toy", name, stage) for name in ("abs", "mul") for stage in ("compile", "threshold")]
    builder.begin()
    for step in steps:
        builder.result(step, statistics={"binary_size_bytes": 100, "dispatch_count": 2}, **benchmark)
    builder.end(0)
    builder.write(folder)


def write_comparison(folder: Path) -> Path:
    """Write a comparison of three models by times; one was also counted, and one was measured by a worker."""
    sides = {name: {"asked": f"3.1{name}.0", "folder": name.lower(), "toolchain": _TOOLCHAIN} for name in "AB"}
    for name in "ab":
        _write_run(folder / name)
    command = {"argv": ["iree-benchmark-module", "--module=m.vmfb"], "cwd": "steps", "environment": [["A", "b"]]}
    side = {"timeout": 60.0, "command": command, "resources": {"cores": 1, "exclusive": True, "device": "local-task"}}
    round_fields = {"times_ms": [1.0, 1.1], "peak_rss_bytes": 9, "disturbed": [], "failure": "", "seconds": 1.0}
    rounds = [{"side": name, **round_fields} for name in "ABBA"]
    block = {"step": "toy/abs@cpu", "kind": "ab", "order": "ABBA", "counted": True, "cpus": [0], "rounds": rounds}
    row: dict[str, Any] = {
        "name": "matmul",
        "kind": "matmul",
        "match": "same",
        "a_ns": 100,
        "b_ns": 200,
        "a_count": 1,
        "b_count": 2,
    }
    row |= {"a_names": ["matmul"], "b_names": ["matmul"], "share": 1.0, "place": "layer"}
    rest = {"a_count": 1, "b_count": 1, "a_ns": 5, "b_ns": 6, "outside": True}
    times = {"a_ns": 110, "b_ns": 210}
    profile: dict[str, Any] = {
        "commands": {name: ["iree-benchmark-module"] for name in "AB"},
        "seconds": 1.0,
        "unit": "ms",
    }
    profile |= {"measured": times, "a_ns": 105, "b_ns": 206, "rows": [row], "others": rest, "notes": ["note"]}
    cause: dict[str, Any] = {"step": "toy/abs@cpu", "dispatches": profile, "work": {**profile, "unit": "instructions"}}
    cause["compile"] = [{"name": "module size", "a": 100, "b": 120, "unit": "bytes", "ratio": 1.2}]
    verdict = {
        "verdict": "slower",
        "reason": "beyond the margin",
        "blocks": 10,
        "control_blocks": 10,
        "replaced_blocks": 1,
        "marked_blocks": 1,
        "disturbance": "other work",
        "peak_rss_bytes": {"A": 100, "B": 200},
        "cpus": [0],
        "tried": {"0": 0.1},
        **_INTERVAL,
        "time_ms": {"A": {"median": 1.0, "spread": 0.1}, "B": {"median": 1.2, "spread": 0.1}},
        "control": {"verdict": "same", **_INTERVAL},
        "own_way": {**_INTERVAL, "contradicts": True},
        "work": _WORK,
    }
    opening = {
        "kind": "compare",
        **_START_FIELDS,
        "resumed": False,
        "sides": sides,
        "kept": {"options": {"metric": "time", "sides": ["3.11.0", "3.12.0"]}},
        "rules": {"alpha": 0.01, "looks": [10, 14], "least": 0.01, "band": 0.03, "allow": 0.1, "budget_seconds": 24.0}
        | {"seed": 1, "least_work": 0.0001, "outside": [0.0001, 100]},
        "rounds": {"repetitions": 5, "min_time": 0.05, "cpus": [0], "choose": True},
        "machine": _MACHINE,
        "lock_folder": "/locks",
        "elsewhere": True,
    }
    models = ["toy/abs@cpu", "toy/mul@cpu", "toy/far@cpu", "toy/now@cpu"]
    benchmarks = {models[0]: dict.fromkeys("AB", side)}
    mean_ratio = {"ratio": 1.1, "low": 1.0, "high": 1.2, "confidence": 0.95, "models": 2}
    worker_fields = {"step": models[2], "worker": "host-1", "problem": "", "notes": ["waited"], "machine": _MACHINE}
    return _write(
        folder / "journal.jsonl",
        [
            ("opening", opening),
            ("prepared", {"sides": sides, "models": models, "left_out": {"toy/no@cpu": "x"}, "benchmarks": benchmarks}),
            ("block", block),
            ("start", {"step": models[3], "worker": "host-2"}),
            ("measured", {**worker_fields, "blocks": [block], "where": cause}),
            ("remark", {"text": "a machine left"}),
            ("result", {"step": models[0], "times": verdict}),
            ("result", {"step": models[2], "times": {**verdict, "verdict": "same"}}),
            ("result", {"step": models[1], "work": {"reason": "more", **_WORK}}),
            ("summary", {"verdicts": {"slower": 1, "same": 1}, "geometric_mean": mean_ratio}),
            ("where", cause),
            ("end", {"exit_code": 1, "problem": "why", "seconds": 1.0, "interrupted": False}),
        ],
    )


def write_bisect(folder: Path) -> Path:
    """Write a bisection that has found a change."""
    irees = [{"label": name, "iree": name} for name in ("3.10.0", "3.11.0", "3.12.0", "3.13.0")]
    interval = {"low": 1.0, "high": 2.0, "confidence": 0.99}
    search: dict[str, Any] = {"last_old": "3.10.0", "first_new": "3.12.0", "between": ["3.11.0"], "over": True}
    search["changes"] = [["3.10.0", "3.12.0"], ["3.12.0", "3.13.0"]]
    trials: list[tuple[str, dict[str, Any]]] = []
    for number, name in enumerate(("3.10.0", "3.13.0", "3.12.0")):
        trial: dict[str, Any] = {
            "step": name,
            "bad": number > 0,
            "value": 1.0 + number,
            "text": f"×{number}",
            "reason": "",
        }
        trial |= {"third": number == 2, "folder": name, "seconds": 1.0, **interval}
        commit = {**_TOOLCHAIN, "compiler_commit": f"{number}" * 40}
        trials.append(("result", {**trial, "toolchain": commit, "search": search if number else None}))
    request_options = {"good": "3.10.0", "bad": "3.13.0", "metric": "time", "source": "iree", "into": "b"}
    opening: dict[str, Any] = {
        "kind": "bisect",
        **_START_FIELDS,
        "name": "b",
        "resumed": False,
        "confidence": 0.99,
        "lock_folder": "/locks",
        "metric": "time",
    }
    opening |= {"chain": "toy/abs@cpu", "good": "3.10.0", "bad": "3.13.0", "row": irees[::3]}
    opening |= {"good_is_older": True, "kept": {"options": request_options}, "commit": "compiler_commit"}
    change = {"commit": "1" * 40, "date": "2026-01-01", "author": "A", "subject": "S (#1)", "pull": 1}
    end = {"exit_code": 0, "problem": "", "seconds": 1.0, "interrupted": False}
    state = ("search", {**search, "between": []})
    events = [("opening", opening), ("refined", {"row": irees}), state, *trials, ("change", change), ("end", end)]
    return _write(folder / "journal.jsonl", events)


def write_matrix(folder: Path) -> Path:
    """Write a matrix of four releases."""
    return write_four_releases(folder) / "journal.jsonl"


def write_explanation(folder: Path) -> Path:
    """Write an explanation of failures of every kind."""
    builder = JournalBuilder()
    names = ("wrong", "crash", "slow", "same", "none")
    steps = [builder.step("toy", name, "threshold") for name in names]
    builder.begin()
    for step in steps:
        builder.result(step, verdict="failed", reason="9 of 9 values differ")
    builder.end(1)
    builder.write(folder)
    cases = [{"case": f"toy/{name}@cpu", "kind": "wrong numbers", "reason": "9 of 9 values differ"} for name in names]
    dispatch: dict[str, Any] = {
        "dispatch": "main$dispatch_1",
        "call": 1,
        "of": 3,
        "error": 0.5,
        "inputs": ["4xf32"],
        "note": "n",
    }
    dispatch |= {"outputs": ["4xf32"], "reference": "vmvx", "repeated": True, "why": "", "operator": "MatMul"}
    dispatch |= {"in_f64": {"target": 0.1, "reference": None}, "around": [[0, "a", 0.1], [1, "b", 0.5], [2, "c", None]]}
    sizes = {"before": {"operations": 9, "bytes": 90}, "after": {"operations": 1, "bytes": 10}}
    reduction = {**sizes, "tried": 3, "complete": False, "phase": "flow", "names": ["linalg.matmul"], "why": ""}
    slower_dispatch: dict[str, Any] = {
        "tried": [{"name": "d", "said": "slower"}],
        "name": "d",
        "a_ns": 1,
        "b_ns": 2,
        "share": 0.5,
        "unit": "ms",
    }
    slower_dispatch |= {"inputs": ["4xf32"], "why": ""}
    bundle = {
        "problem": "",
        "folder": "toy/wrong.cpu/bundle",
        "bytes": 100,
        "exit_code": 1,
        "form": "the whole program",
    }
    probes = {"probes": [{"name": "data tiling off", "flag": "--x", "verdict": "passes", "reason": "r"}]}
    case_events = [
        ("wrong", "again", {"failed": 2, "same": True}),
        ("wrong", "located", dispatch),
        ("wrong", "operator", dispatch),
        ("wrong", "bundle", bundle),
        ("wrong", "probes", probes),
        ("crash", "reduced", reduction),
        ("slow", "slower", slower_dispatch),
        ("same", "same", {"as": "toy/wrong@cpu"}),
        ("none", "nothing", {"why": "it did not fail again"}),
    ]
    opening: dict[str, Any] = {**_START_FIELDS, "kind": "explain", "command": "gauntlet explain latest"}
    opening |= {"cases": cases, "toolchain": _TOOLCHAIN}
    result_events = [
        {"step": f"toy/{name}@cpu", "bundled": True, "private": True, "seconds": 1.0, "budget": 5} for name in names
    ]
    return _write(
        folder / "explain" / "journal.jsonl",
        [
            ("opening", {**opening, "base": _TOOLCHAIN}),
            *(("start", {"step": f"toy/{name}@cpu"}) for name in names),
            *((part, {"step": f"toy/{case}@cpu", **fields}) for case, part, fields in case_events),
            *(("result", fields) for fields in result_events[:4]),
            ("end", {"exit_code": 4, "problem": "", "seconds": 1.0, "interrupted": False}),
        ],
    )
