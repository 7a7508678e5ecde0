"""Directories of synthetic matrices: a record, and the journals of its runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.journal_builder import CACHE_MISS, JournalBuilder, make_comparison, make_samples

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MATRIX_REPORTS",
    "make_chain",
    "make_compile_result",
    "make_release_run",
    "write_four_releases",
    "write_qualification",
    "write_record",
]

MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.html", "matrix.json", "matrix.csv")
_TIME = "2026-11-21T05:18:00.000Z"
_RELEASES = ("3.5.0", "3.9.0", "3.12.0", "3.13.0")
_STAGES = ("compile", "threshold", "benchmark")


def make_compile_result(
    seconds: float = 4.0, peak_rss_bytes: int = 200_000_000, dispatches: int | None = 55, size: int = 68_000_000
) -> dict[str, Any]:
    """Return the fields of a compile's result with its metrics."""
    return {
        "cache": CACHE_MISS,
        "statistics": {
            "tool_seconds": seconds,
            "peak_rss_bytes": peak_rss_bytes,
            "dispatch_count": dispatches,
            "binary_size_bytes": size,
        },
    }


def make_release_run(label: str, **chains: dict[str, Any]) -> JournalBuilder:
    """Make a run of models `m/<name>`.

    `chains`: by name, the keywords of the results of `compile`, `threshold` and `benchmark`.
    """
    builder = JournalBuilder(run=label)
    steps = {name: {stage: builder.step("m", name, stage) for stage in _STAGES} for name in chains}
    toolchain = {"compiler": f"{label}rc1", "compiler_commit": "89ece87b8985aa", "identity": label}
    builder.begin(toolchain=toolchain)
    for name, results in chains.items():
        for stage in _STAGES:
            builder.result(steps[name][stage], **results.get(stage, {}))
    builder.end()
    return builder


def make_chain(*, ms: float = 9.0, error: float = 1e-6, **compile_fields: Any) -> dict[str, Any]:
    """Return the results of a chain in which all steps pass."""
    return {
        "compile": make_compile_result(**compile_fields),
        "threshold": {
            "outputs": [make_comparison(max_abs_error=error / 2), make_comparison(index=1, max_abs_error=error)]
        },
        "benchmark": {"samples": make_samples(ms * 0.99, ms, ms * 1.01)},
    }


def make_failed_chain(stage: str, reason: str) -> dict[str, Any]:
    """Return the results of a chain that fails at a stage; steps that need this stage are skipped."""
    passed_chain = make_chain()
    index = _STAGES.index(stage)
    wrong_outputs = {"outputs": [make_comparison(passed=False)]} if stage == "threshold" else {}
    skips = {name: {"verdict": "skipped", "reason": f"{stage} came out failed"} for name in _STAGES[index + 1 :]}
    return {
        **{name: passed_chain[name] for name in _STAGES[:index]},
        stage: {"verdict": "failed", "reason": reason, **wrong_outputs},
        # The benchmark runs even if the numbers are wrong.
        **({"benchmark": passed_chain["benchmark"]} if stage == "threshold" else skips),
    }


def write_record(
    folder: Path,
    runs: dict[str, JournalBuilder | str | None],
    *,
    results: dict[str, int] | None = None,
    end: dict[str, Any] | bool | None = True,
    truncated_line: str = "",
) -> Path:
    """Write the directory of a matrix.

    `runs`: by label, a run, the reason why its IREE is unavailable, or None if it has not started. `results`:
    exit codes of finished runs; 0 for all by default. `end`: the `end` event's fields; True for a finished matrix,
    None or False for no event.
    """
    folder.mkdir(parents=True, exist_ok=True)
    irees = [{"label": label, "iree": label, "folder": label.replace(":", "-")} for label in runs]
    lines: list[dict[str, Any]] = [
        {
            "event": "opening",
            "kind": "matrix",
            "name": folder.name,
            "version": "0.1.0",
            "suite": "releases",
            "command": "gauntlet matrix --iree …",
            "cwd": "/home/me",
            "irees": irees,
            "kept": {"options": {}, "defaults": {"model": "*", "targets": ["cpu"], "sku": "", "suite": ""}},
        }
    ]
    for label, run in runs.items():
        toolchain_event: dict[str, Any] = {"event": "toolchain", "step": label, "toolchain": None}
        if isinstance(run, str):
            toolchain_event |= {"error": run, "hint": "Nearest: 3.13.0."}
        else:
            toolchain_event["toolchain"] = {"compiler": f"{label}rc1", "identity": label, "runtime": f"{label}rc1"}
        lines.append(toolchain_event)
    for iree, (label, run) in zip(irees, runs.items(), strict=True):
        if not isinstance(run, JournalBuilder):
            continue
        run.write(folder / iree["folder"])
        lines.append({"event": "start", "step": label})
        exit_code = 0 if results is None else results.get(label)
        if exit_code is not None:
            lines.append({"event": "result", "step": label, "exit_code": exit_code, "error": "", "hint": ""})
    if end:
        fields = {"interrupted": False, "stopped": ""} if end is True else end
        lines.append({"event": "end", **fields})
    text = "".join(json.dumps({"time": _TIME, **line}) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text + truncated_line, encoding="utf-8")
    return folder


def write_four_releases(folder: Path) -> Path:
    """Write a matrix with most of the possible changes between releases."""
    runs: dict[str, JournalBuilder | str | None] = {
        "3.5.0": make_release_run(
            "3.5.0",
            l3=make_chain(ms=12.0, dispatches=97, seconds=5.0),
            rec=make_failed_chain("compile", "error: large vector sizes | in a `softmax`"),
            common=make_failed_chain("threshold", "output 0: 12 of 384 elements differ"),
            cls=make_chain(ms=3.0, size=726_002),
        ),
        "3.9.0": make_release_run(
            "3.9.0",
            l3=make_failed_chain("threshold", "output 1: the module returns element type i64"),
            rec=make_chain(ms=97.0),
            common=make_chain(ms=41.0),
            cls=make_chain(ms=2.6, size=1_176_754),
        ),
        "3.12.0": make_release_run(
            "3.12.0",
            l3=make_chain(ms=9.8),
            rec=make_chain(ms=96.0),
            common=make_chain(ms=41.2),
            cls=make_chain(ms=2.75, size=833_674, error=1e-4),
        ),
        "3.13.0": make_release_run(
            "3.13.0",
            l3=make_chain(ms=9.0),
            rec=make_chain(ms=99.0),
            common=make_chain(ms=40.0),
            cls=make_chain(ms=3.2, size=833_586),
        ),
    }
    return write_record(folder, runs, results={"3.5.0": 1, "3.9.0": 1, "3.12.0": 0, "3.13.0": 0})


def _make_failed(stage: str, kind: str) -> dict[str, Any]:
    chain = make_failed_chain(stage, "error: failed")
    return {**chain, stage: {**chain[stage], "failure": kind}}


def write_qualification(
    folder: Path, allowed: float = 1.0, among: tuple[str, ...] = (), **others: tuple[dict[str, Any], dict[str, Any]]
) -> Path:
    """Write the record of two releases between which models got better, worse, and broke.

    `others`: by name, further models: the results of `make_chain` with each release.
    """
    runs = {
        "3.12.0": make_release_run(
            "3.12.0",
            same=make_chain(),
            larger=make_chain(size=1_000_000),
            smaller=make_chain(size=1_000_000),
            broken=make_chain(),
            mended=_make_failed("compile", "does not compile"),
            red=_make_failed("threshold", "wrong numbers"),
            **{name: chains[0] for name, chains in others.items()},
        ),
        "3.13.0": make_release_run(
            "3.13.0",
            same=make_chain(size=68_000_001),
            larger=make_chain(size=1_020_000, dispatches=54),
            smaller=make_chain(size=900_000),
            broken=_make_failed("compile", "does not compile"),
            mended=make_chain(),
            red=_make_failed("threshold", "wrong numbers"),
            **{name: chains[1] for name, chains in others.items()},
        ),
    }
    write_record(folder / "matrix", dict(runs), results={"3.12.0": 1, "3.13.0": 1})
    opening = {"kind": "qualify", "name": folder.name, "old": "3.12.0", "new": "3.13.0", "allowed": allowed}
    opening["row"] = {"good": "3.12.0", "bad": "3.13.0", "among": list(among)}
    events = [
        {"event": "opening", **opening},
        {"event": "start", "step": "matrix"},
        {"event": "result", "step": "matrix", "exit_code": 1},
        {"event": "end", "exit_code": 1},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder
