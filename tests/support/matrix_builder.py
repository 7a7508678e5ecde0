"""Folders of matrices that never were: a record, and the journals of its runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.journal_builder import MISS, JournalBuilder, comparison, samples

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MATRIX_REPORTS", "compile_result", "four_releases", "release_run", "write_record"]

MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.html", "matrix.json", "matrix.csv")
_TIME = "2026-11-21T05:18:00.000Z"
RELEASES = ("3.5.0", "3.9.0", "3.12.0", "3.13.0")
STAGES = ("compile", "threshold", "benchmark")


def compile_result(
    seconds: float = 4.0, peak: int = 200_000_000, dispatches: int | None = 55, size: int = 68_000_000
) -> dict[str, Any]:
    """The fields of a compile's result that hold its figures."""
    return {
        "cache": MISS,
        "statistics": {
            "tool_seconds": seconds,
            "peak_rss_bytes": peak,
            "dispatch_count": dispatches,
            "binary_size_bytes": size,
        },
    }


def release_run(label: str, **chains: dict[str, Any]) -> JournalBuilder:
    """A run of models `m/<name>`.

    `chains`: for each, `compile`, `threshold` and `benchmark`: keywords of the step's result.
    """
    builder = JournalBuilder(run=label)
    steps = {name: {stage: builder.step("m", name, stage) for stage in STAGES} for name in chains}
    toolchain = {"compiler": f"{label}rc1", "compiler_commit": "89ece87b8985aa", "identity": label}
    builder.begin(toolchain=toolchain)
    for name, results in chains.items():
        for stage in STAGES:
            builder.result(steps[name][stage], **results.get(stage, {}))
    builder.end()
    return builder


def chain(*, ms: float = 9.0, error: float = 1e-6, **compiled: Any) -> dict[str, Any]:
    """A chain in which all is well."""
    return {
        "compile": compile_result(**compiled),
        "threshold": {"outputs": [comparison(max_abs_error=error / 2), comparison(index=1, max_abs_error=error)]},
        "benchmark": {"samples": samples(ms * 0.99, ms, ms * 1.01)},
    }


def failed(stage: str, reason: str) -> dict[str, Any]:
    """A chain that fails at a stage; what needs it is skipped."""
    whole = chain()
    at = STAGES.index(stage)
    wrong = {"outputs": [comparison(passed=False)]} if stage == "threshold" else {}
    cut = {name: {"verdict": "skipped", "reason": f"{stage} came out failed"} for name in STAGES[at + 1 :]}
    return {
        **{name: whole[name] for name in STAGES[:at]},
        stage: {"verdict": "failed", "reason": reason, **wrong},
        # Times are taken also where the numbers are wrong.
        **({"benchmark": whole["benchmark"]} if stage == "threshold" else cut),
    }


def write_record(
    folder: Path,
    runs: dict[str, JournalBuilder | str | None],
    *,
    results: dict[str, int] | None = None,
    end: dict[str, Any] | bool | None = True,
    torn: str = "",
) -> Path:
    """Write the folder of a matrix.

    `runs`: by label: a run, why the IREE is not available, or None for one that was not begun. `results`: exit codes of
    runs that finished; 0 for all where none are given. `end`: the `end` event's fields; True for one that finished,
    None or False for none.
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
        found: dict[str, Any] = {"event": "toolchain", "step": label, "toolchain": None}
        if isinstance(run, str):
            found |= {"error": run, "hint": "Nearest: 3.13.0."}
        else:
            found["toolchain"] = {"compiler": f"{label}rc1", "identity": label, "runtime": f"{label}rc1"}
        lines.append(found)
    for iree, (label, run) in zip(irees, runs.items(), strict=True):
        if not isinstance(run, JournalBuilder):
            continue
        run.write(folder / iree["folder"])
        lines.append({"event": "start", "step": label})
        code = 0 if results is None else results.get(label)
        if code is not None:
            lines.append({"event": "result", "step": label, "exit_code": code, "error": "", "hint": ""})
    if end:
        fields = {"interrupted": False, "stopped": ""} if end is True else end
        lines.append({"event": "end", **fields})
    text = "".join(json.dumps({"time": _TIME, **line}) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text + torn, encoding="utf-8")
    return folder


def four_releases(folder: Path) -> Path:
    """A matrix in which most happens that can between releases."""
    runs: dict[str, JournalBuilder | str | None] = {
        "3.5.0": release_run(
            "3.5.0",
            l3=chain(ms=12.0, dispatches=97, seconds=5.0),
            rec=failed("compile", "error: large vector sizes | in a `softmax`"),
            common=failed("threshold", "output 0: 12 of 384 elements differ"),
            cls=chain(ms=3.0, size=726_002),
        ),
        "3.9.0": release_run(
            "3.9.0",
            l3=failed("threshold", "output 1: the module returns element type i64"),
            rec=chain(ms=97.0),
            common=chain(ms=41.0),
            cls=chain(ms=2.6, size=1_176_754),
        ),
        "3.12.0": release_run(
            "3.12.0",
            l3=chain(ms=9.8),
            rec=chain(ms=96.0),
            common=chain(ms=41.2),
            cls=chain(ms=2.75, size=833_674, error=1e-4),
        ),
        "3.13.0": release_run(
            "3.13.0", l3=chain(ms=9.0), rec=chain(ms=99.0), common=chain(ms=40.0), cls=chain(ms=3.2, size=833_586)
        ),
    }
    return write_record(folder, runs, results={"3.5.0": 1, "3.9.0": 1, "3.12.0": 0, "3.13.0": 0})
