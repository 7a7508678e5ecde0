"""Synthetic journals of runs, in the format of real ones."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin
from iree_gauntlet.journal_events import EndEvent, RunOpening
from iree_gauntlet.journal_format import JournalRecord
from iree_gauntlet.results import MS_PER_UNIT, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN_NAME = "20261121-051800-cpu"
_BEGIN = datetime(2026, 11, 21, 5, 18, tzinfo=UTC)


@dataclass
class JournalBuilder:
    """The lines of a journal, in the order of their addition; the clock advances with each."""

    run: str = RUN_NAME
    steps: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    now: datetime = _BEGIN

    def step(self, model: str, submodel: str, stage: str, role: str = "", **changes: Any) -> str:
        """Plan a step, which needs the previous one of its chain; return its id."""
        target = changes.pop("target", "cpu")
        chain = f"{model}/{submodel}@{target}"
        name = f"{stage}.{role}" if role else stage
        folder = f"steps/{chain}/{name}"
        needs = [step["id"] for step in self.steps if step["chain"] == chain][-1:]
        argv = {
            "import": ("iree-import-onnx", "program.onnx", "-o", "program.mlirbc"),
            "compile": ("iree-compile", "program.mlirbc", "--iree-hal-target-backends=llvm-cpu", "-o", "m.vmfb"),
            "threshold": ("iree-run-module", "--device=local-task", "--module=m.vmfb", "--input=@in 0.npy"),
            "benchmark": ("iree-benchmark-module", "--device=local-task", "--module=m.vmfb"),
        }.get(stage)
        step = asdict(
            Step(
                id=f"{chain}:{name}",
                chain=chain,
                dialect="sharktank",
                model=model,
                submodel=submodel,
                target=target,
                sku=changes.pop("sku", ""),
                stage=Stage(stage),
                folder=folder,
                timeout=60.0,
                origin=Origin(f"specs/regression_tests/{model}/{submodel}.json"),
                needs=tuple(needs),
                command=Command(argv, folder) if argv else None,
            )
        )
        self.steps.append({**step, **changes})
        return str(step["id"])

    def begin(self, **changes: Any) -> None:
        """Add the opening, with all steps planned so far."""
        self._add(
            {
                "event": "opening",
                "kind": "run",
                "name": self.run,
                "version": "0.1.0",
                "suite": "cpu",
                "command": "inv run --suite suites/cpu.toml",
                "cwd": "/home/me/gauntlet",
                "target": [{"name": "cpu", "sku": ""}],
                "toolchain": {
                    "compiler": "3.13.0rc20261016",
                    "compiler_commit": "89ece87b0c1d2e3f4a5b",
                    "runtime": "3.13.0rc20261016",
                    "runtime_commit": "89ece87b0c1d2e3f4a5b",
                    "identity": "c0ffee",
                    "source": "installed: /home/me/venv",
                },
                "machine": {
                    "host": "bench-1",
                    "cpu": "Xeon",
                    "cores": 2,
                    "memory_bytes": 8_000_000_000,
                    "os": "Linux 6.8",
                    "python": "3.11.9",
                },
                "steps": self.steps,
                **changes,
            }
        )

    def start(self, step: str) -> None:
        self._add({"event": "start", "step": step})

    def result(self, step: str, verdict: str = "passed", reason: str = "", **changes: Any) -> None:
        """Add a step's result, after the step's start unless the step is skipped."""
        if verdict != "skipped":
            self.start(step)
        seconds = changes.get("seconds", 0.0 if verdict == "skipped" else 1.25)
        self.now += timedelta(seconds=seconds)
        plan = next((planned_step for planned_step in self.steps if planned_step["id"] == step), {})
        folder = plan.get("folder", "steps/gone")
        process = plan.get("command")
        command = f"cd {folder} && {' '.join(process['argv'])}" if process else ""
        for check in changes.get("checks", ()):
            if check["golden"] is not None and ": " in check["note"]:
                file, _, name = check["note"].partition(": ")
                golden = {"metric": check["metric"], "value": check["golden"], "factor": check["factor"]}
                golden |= {"statistic": "mean", "sku": check["sku"], "release": check["release"]}
                # Goldens that a test has planned are kept.
                plan["goldens"] = [*plan.get("goldens", ()), {**golden, "origin": {"file": file, "field": name}}]
        self._add(
            {
                "event": "result",
                "step": step,
                "verdict": verdict,
                "reason": reason,
                "command": command,
                "seconds": seconds,
                "cpu_seconds": seconds,
                "peak_rss_bytes": 200_000_000 if process and verdict != "skipped" else 0,
                "exit_code": 0 if process and verdict == "passed" else None,
                "signal": "",
                "timed_out": False,
                "cache": None,
                "checks": [],
                "outputs": [],
                "samples": None,
                "statistics": None,
                "notes": [],
                "log": f"{folder}/stderr.txt" if process and verdict != "skipped" else "",
                "tail": [],
                "fetched": [],
                "tool_seconds": seconds if process else 0.0,
                **changes,
            }
        )

    def worker(self, name: str, **machine: Any) -> None:
        """Add the event that a machine joins the cluster."""
        self._add({"event": "worker", "name": name, "machine": machine})

    def remark(self, text: str) -> None:
        self._add({"event": "remark", "text": text})

    def end(self, exit_code: int = 0, *, seconds: float = 61.2, interrupted: bool = False) -> None:
        self._add({"event": "end", "exit_code": exit_code, "seconds": seconds, "interrupted": interrupted})

    @property
    def opening(self) -> RunOpening:
        """The first opening, parsed."""
        return RunOpening.from_dict(self.lines[0])

    @property
    def planned_steps(self) -> tuple[Step, ...]:
        """The steps, parsed."""
        return tuple(map(Step.from_dict, self.steps))

    @property
    def record(self) -> JournalRecord:
        """The record of the journal, without a file."""
        opening_lines = [line for line in self.lines if line["event"] == "opening"]
        result_lines = [line for line in self.lines if line["event"] == "result"]
        return JournalRecord(
            path=Path(RUN_NAME) / "journal.jsonl",
            runs=tuple(map(RunOpening.from_dict, opening_lines)),
            steps=tuple(opening_lines[-1]["steps"]) if opening_lines else (),
            starts={line["step"]: line["time"] for line in self.lines if line["event"] == "start"},
            results={line["step"]: Result.from_dict(line) for line in result_lines},
            result_times={line["step"]: line["time"] for line in result_lines},
            end=next((EndEvent.from_dict(line) for line in self.lines if line["event"] == "end"), None),
        )

    def write(self, folder: Path, truncated_line: str = "") -> Path:
        """Write the journal into a run's directory; `truncated_line` follows the last newline."""
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in self.lines) + truncated_line
        (folder / "journal.jsonl").write_text(text, encoding="utf-8")
        return folder

    def _add(self, line: dict[str, Any]) -> None:
        self.now += timedelta(milliseconds=1)
        time = self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.lines.append({"event": line["event"], "time": time, **line})


def make_check(
    metric: str, measured: float, golden: float | None, factor: float = 1.0, **changes: Any
) -> dict[str, Any]:
    """Make a check of a golden, as the journal has it."""
    unit = {"time_ms": "ms", "dispatch_count": "dispatches", "binary_size_bytes": "bytes"}.get(metric, "instructions")
    limit = None if golden is None else golden * factor
    return {
        "metric": metric,
        "measured": measured,
        "golden": golden,
        "factor": factor,
        "limit": limit,
        "unit": unit,
        "statistic": "mean" if metric == "time_ms" else "",
        "sku": "",
        "release": "",
        "passed": None if limit is None else measured <= limit,
        "note": "",
        **changes,
    }


def make_comparison(*, passed: bool = True, **changes: Any) -> dict[str, Any]:
    """Make a comparison of one output, as the journal has it."""
    return {
        "index": 0,
        "type": "1x384xf32",
        "passed": passed,
        "message": "",
        "mismatches": 0 if passed else 12,
        "count": 384,
        "max_abs_error": 1.2e-5 if passed else 0.1,
        "max_rel_error": 3.4e-6 if passed else 0.025,
        "worst_index": [0, 3],
        "worst_actual": "4",
        "worst_expected": "4.00001" if passed else "4.1",
        "cosine_similarity": 1.0 if passed else 0.99987,
        "actual_nans": 0,
        "expected_nans": 0,
        "actual_infs": 0,
        "expected_infs": 0,
        "atol": 1e-4,
        "rtol": 1e-5,
        "actual_path": "",
        "expected_path": "",
        **changes,
    }


def make_samples(*times: float, unit: str = "ms") -> dict[str, Any]:
    """Make the samples of a benchmark, as the journal has them."""
    times_ms = [time * MS_PER_UNIT[unit] for time in times]
    return {"name": "BM_main", "real_time_ms": times_ms, "cpu_time_ms": times_ms, "iterations": [1 for _ in times]}


CACHE_HIT = {"hit": True, "key": "aa11", "reason": "in the cache"}
CACHE_MISS = {"hit": False, "key": "bb22", "reason": "no entry has this key"}
_STATISTICS = {"dispatch_count": 76, "binary_size_bytes": 833_586}


def plan_chain(builder: JournalBuilder, model: str, submodel: str) -> list[str]:
    """Plan fetch, compile, threshold and benchmark; return their ids."""
    return [builder.step(model, submodel, stage) for stage in ("fetch", "compile", "threshold", "benchmark")]


def add_passed_results(builder: JournalBuilder, steps: list[str]) -> None:
    """Add results of a chain of `plan_chain`, all passed and from the caches."""
    fetch_step, compile_step, threshold_step, benchmark_step = steps
    url = f"pypi://models==1.0/{fetch_step.partition('@')[0]}.onnx"
    fetched_file = {"url": url, "path": "cache/x.onnx", "bytes": 600_000, "seconds": 0.0, "cached": True}
    builder.result(fetch_step, fetched=[fetched_file], seconds=0.01)
    builder.result(compile_step, cache=CACHE_HIT, statistics=_STATISTICS, seconds=0.02, tool_seconds=0.0)
    builder.result(threshold_step, outputs=[make_comparison()])
    checks = [
        make_check("time_ms", 9.1, None, note="no golden for this SKU; the file has one for mi300"),
        make_check("dispatch_count", 76, 76),
        make_check("binary_size_bytes", 833_586, 840_000),
    ]
    builder.result(benchmark_step, samples=make_samples(9.0, 9.1, 9.2), checks=checks)


def make_every_verdict() -> JournalBuilder:
    """Make a run with every verdict."""
    builder = JournalBuilder()
    passed_chain = plan_chain(builder, "ocr", "classifier")
    failed_chain = plan_chain(builder, "ocr", "detector")
    crashed_chain = plan_chain(builder, "minilm", "l3")
    hanging_step = builder.step("magika", "v3", "compile")
    xfailed_step = builder.step("dtln", "one", "compile", expect_failure="no scatter")
    xpassed_step = builder.step("dtln", "two", "compile", expect_failure="no scatter")
    pipeline_step = builder.step(
        "dtln", "two", "compile", "pipeline", notes=["--iree-hip-target was written as --iree-rocm-target"]
    )
    skipped_step = builder.step("punet", "fp16", "compile", skip="specific_chip_to_ignore: cpu")
    inconclusive_step = builder.step("img", "focus", "benchmark")
    builder.begin()
    add_passed_results(builder, passed_chain)
    fetched_file = {
        "url": "https://models.example/d.onnx",
        "path": "cache/d.onnx",
        "bytes": 9_900_000,
        "seconds": 2.0,
        "cached": False,
    }
    builder.result(failed_chain[0], fetched=[fetched_file], seconds=2.0)
    builder.result(
        failed_chain[1],
        cache=CACHE_MISS,
        statistics={"tool_seconds": 18.0, "dispatch_count": 130, "binary_size_bytes": 1_176_754},
        seconds=18.25,
    )
    builder.result(
        failed_chain[2],
        "failed",
        "output 0 differs: 12 of 384 elements",
        outputs=[
            make_comparison(passed=False),
            make_comparison(index=1, type="1xi64", max_abs_error=0, max_rel_error=None, atol=0.0, rtol=0.0),
        ],
        exit_code=1,
        tail=["[FAILED] result[0]: element at index 3 (4) does not match | `tick`", "\x1b[31merror\x1b[0m: <end>"],
    )
    builder.result(
        failed_chain[3],
        "failed",
        "time (mean) is 25.3 % over its limit",
        samples=make_samples(12_400.0, 12_300.0, 12_500.0, unit="us"),
        checks=[
            make_check("time_ms", 12.4, 9.0, 1.1, sku="mi300", note="specs/b.json: golden_time_ms.mi300"),
            make_check("dispatch_count", 130, 126),
        ],
    )
    builder.result(crashed_chain[0], seconds=0.01)
    builder.result(
        crashed_chain[1],
        "error",
        "iree-compile was killed by SIGSEGV",
        signal="SIGSEGV",
        failure="crashes",
        exit_code=None,
        cache=CACHE_MISS,
        tail=["Please report issues to https://example.com", "0. Program arguments: iree-compile"],
    )
    builder.result(crashed_chain[2], "skipped", "minilm/l3@cpu:compile came out error")
    builder.result(crashed_chain[3], "skipped", "minilm/l3@cpu:threshold was skipped")
    timeout_reason = "ran longer than its 60 s and was ended with its children"
    builder.result(
        hanging_step, "error", timeout_reason, timed_out=True, signal="SIGKILL", seconds=60.0, cache=CACHE_MISS
    )
    builder.result(xfailed_step, "xfailed", "no scatter", exit_code=1, cache=CACHE_MISS)
    builder.result(xpassed_step, "xpassed", "it was expected to fail: no scatter", cache=CACHE_MISS)
    builder.result(pipeline_step, cache=CACHE_HIT)
    builder.result(skipped_step, "skipped", "specific_chip_to_ignore: cpu")
    builder.result(
        inconclusive_step,
        "inconclusive",
        "the confidence interval 8.9 to 10.4 ms contains the limit 9.9 ms",
        samples=make_samples(8.9, 10.4),
    )
    builder.end(3, seconds=90.5)
    return builder


def write_measured_run(
    folder: Path,
    name: str,
    *,
    goldens: Mapping[str, Sequence[dict[str, Any]]] = {},
    sku: str = "",
    times: Sequence[float] = (3.0, 3.2, 3.1),
    dispatches: int = 19,
    size: int = 900,
    disturbed: Sequence[str] = (),
    checks: Sequence[dict[str, Any]] = (),
    threshold: str = "passed",
    compstat: str = "passed",
    benchmark: str = "passed",
    release: str = "3.13.0rc20261016",
    ended: bool = True,
) -> Path:
    """Write a run of one chain; `goldens`: those that were planned, by stage; a spec may have newer goldens."""
    builder = JournalBuilder(run=name)
    steps = {
        stage: builder.step("toy", "net", stage, sku=sku, goldens=list(goldens.get(stage, ())))
        for stage in ("threshold", "compstat", "benchmark")
    }
    builder.begin(toolchain={"compiler": release}, name=name)
    builder.result(steps["threshold"], threshold)
    counts = {"dispatch_count": dispatches, "binary_size_bytes": size}
    builder.result(steps["compstat"], compstat, statistics=counts)
    noise = {"disturbed": list(disturbed)}
    samples = make_samples(*times)
    builder.result(steps["benchmark"], benchmark, "no verdict", samples=samples, checks=list(checks), statistics=noise)
    if ended:
        builder.end()
    return builder.write(folder / name)
