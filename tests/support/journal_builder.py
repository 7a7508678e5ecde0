"""Journals of runs that never were, in the words of real ones."""

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

RUN = "20261121-051800-cpu"
_BEGIN = datetime(2026, 11, 21, 5, 18, tzinfo=UTC)


@dataclass
class JournalBuilder:
    """Lines of a journal, in the order in which they are added; the clock ticks with each."""

    run: str = RUN
    steps: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    now: datetime = _BEGIN

    def step(self, model: str, submodel: str, stage: str, role: str = "", **changes: Any) -> str:
        """Plan a step; it needs the one before it in its chain."""
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
        """The opening, with all steps planned so far."""
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
        """A result, of a step that was started unless it is skipped."""
        if verdict != "skipped":
            self.start(step)
        seconds = changes.get("seconds", 0.0 if verdict == "skipped" else 1.25)
        self.now += timedelta(seconds=seconds)
        planned = next((one for one in self.steps if one["id"] == step), {})
        folder = planned.get("folder", "steps/gone")
        process = planned.get("command")
        command = f"cd {folder} && {' '.join(process['argv'])}" if process else ""
        for held in changes.get("checks", ()):
            if held["golden"] is not None and ": " in held["note"]:
                file, _, name = held["note"].partition(": ")
                golden = {"metric": held["metric"], "value": held["golden"], "factor": held["factor"]}
                golden |= {"statistic": "mean", "sku": held["sku"], "release": held["release"]}
                # Beside those that a test has planned.
                planned["goldens"] = [*planned.get("goldens", ()), {**golden, "origin": {"file": file, "field": name}}]
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
        """A machine of a cluster takes part."""
        self._add({"event": "worker", "name": name, "machine": machine})

    def remark(self, text: str) -> None:
        self._add({"event": "remark", "text": text})

    def end(self, exit_code: int = 0, *, seconds: float = 61.2, interrupted: bool = False) -> None:
        self._add({"event": "end", "exit_code": exit_code, "seconds": seconds, "interrupted": interrupted})

    @property
    def event(self) -> RunOpening:
        """The first opening, read."""
        return RunOpening.from_dict(self.lines[0])

    @property
    def planned(self) -> tuple[Step, ...]:
        """The steps, read."""
        return tuple(map(Step.from_dict, self.steps))

    @property
    def record(self) -> JournalRecord:
        """The record of a journal that was never written to a file."""
        runs = [line for line in self.lines if line["event"] == "opening"]
        results = [line for line in self.lines if line["event"] == "result"]
        return JournalRecord(
            path=Path(RUN) / "journal.jsonl",
            runs=tuple(map(RunOpening.from_dict, runs)),
            steps=tuple(runs[-1]["steps"]) if runs else (),
            starts={line["step"]: line["time"] for line in self.lines if line["event"] == "start"},
            results={line["step"]: Result.from_dict(line) for line in results},
            result_times={line["step"]: line["time"] for line in results},
            end=next((EndEvent.from_dict(line) for line in self.lines if line["event"] == "end"), None),
        )

    def write(self, folder: Path, torn: str = "") -> Path:
        """Write the journal into a run's folder; `torn` follows the last newline."""
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in self.lines) + torn
        (folder / "journal.jsonl").write_text(text, encoding="utf-8")
        return folder

    def _add(self, line: dict[str, Any]) -> None:
        self.now += timedelta(milliseconds=1)
        time = self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.lines.append({"event": line["event"], "time": time, **line})


def check(metric: str, measured: float, golden: float | None, factor: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A check of a golden, as the journal has it."""
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


def comparison(*, passed: bool = True, **changes: Any) -> dict[str, Any]:
    """A comparison of one output, as the journal has it."""
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


def samples(*times: float, unit: str = "ms") -> dict[str, Any]:
    """Repetitions of a benchmark, as the journal has them."""
    scaled = [time * MS_PER_UNIT[unit] for time in times]
    return {"name": "BM_main", "real_time_ms": scaled, "cpu_time_ms": scaled, "iterations": [1 for _ in times]}


HIT = {"hit": True, "key": "aa11", "reason": "in the cache"}
MISS = {"hit": False, "key": "bb22", "reason": "no entry has this key"}
_STATISTICS = {"dispatch_count": 76, "binary_size_bytes": 833_586}


def good_chain(builder: JournalBuilder, model: str, submodel: str) -> list[str]:
    """Plan fetch, compile, threshold and benchmark."""
    return [builder.step(model, submodel, stage) for stage in ("fetch", "compile", "threshold", "benchmark")]


def pass_chain(builder: JournalBuilder, steps: list[str]) -> None:
    """Results of such a chain, all from the caches, all well."""
    fetch, compiled, threshold, benchmark = steps
    url = f"pypi://models==1.0/{fetch.partition('@')[0]}.onnx"
    file = {"url": url, "path": "cache/x.onnx", "bytes": 600_000, "seconds": 0.0, "cached": True}
    builder.result(fetch, fetched=[file], seconds=0.01)
    builder.result(compiled, cache=HIT, statistics=_STATISTICS, seconds=0.02, tool_seconds=0.0)
    builder.result(threshold, outputs=[comparison()])
    checks = [
        check("time_ms", 9.1, None, note="no golden for this SKU; the file has one for mi300"),
        check("dispatch_count", 76, 76),
        check("binary_size_bytes", 833_586, 840_000),
    ]
    builder.result(benchmark, samples=samples(9.0, 9.1, 9.2), checks=checks)


def every_verdict() -> JournalBuilder:
    """A run in which everything happens that can."""
    builder = JournalBuilder()
    good = good_chain(builder, "ocr", "classifier")
    wrong = good_chain(builder, "ocr", "detector")
    crash = good_chain(builder, "minilm", "l3")
    hang = builder.step("magika", "v3", "compile")
    expected = builder.step("dtln", "one", "compile", expect_failure="no scatter")
    surprise = builder.step("dtln", "two", "compile", expect_failure="no scatter")
    pipeline = builder.step(
        "dtln", "two", "compile", "pipeline", notes=["--iree-hip-target was written as --iree-rocm-target"]
    )
    left_out = builder.step("punet", "fp16", "compile", skip="specific_chip_to_ignore: cpu")
    noisy = builder.step("img", "focus", "benchmark")
    builder.begin()
    pass_chain(builder, good)
    file = {
        "url": "https://models.example/d.onnx",
        "path": "cache/d.onnx",
        "bytes": 9_900_000,
        "seconds": 2.0,
        "cached": False,
    }
    builder.result(wrong[0], fetched=[file], seconds=2.0)
    builder.result(
        wrong[1],
        cache=MISS,
        statistics={"tool_seconds": 18.0, "dispatch_count": 130, "binary_size_bytes": 1_176_754},
        seconds=18.25,
    )
    builder.result(
        wrong[2],
        "failed",
        "output 0 differs: 12 of 384 elements",
        outputs=[
            comparison(passed=False),
            comparison(index=1, type="1xi64", max_abs_error=0, max_rel_error=None, atol=0.0, rtol=0.0),
        ],
        exit_code=1,
        tail=["[FAILED] result[0]: element at index 3 (4) does not match | `tick`", "\x1b[31merror\x1b[0m: <end>"],
    )
    builder.result(
        wrong[3],
        "failed",
        "time (mean) is 25.3 % over its limit",
        samples=samples(12_400.0, 12_300.0, 12_500.0, unit="us"),
        checks=[
            check("time_ms", 12.4, 9.0, 1.1, sku="mi300", note="specs/b.json: golden_time_ms.mi300"),
            check("dispatch_count", 130, 126),
        ],
    )
    builder.result(crash[0], seconds=0.01)
    builder.result(
        crash[1],
        "error",
        "iree-compile was killed by SIGSEGV",
        signal="SIGSEGV",
        failure="crashes",
        exit_code=None,
        cache=MISS,
        tail=["Please report issues to https://example.com", "0. Program arguments: iree-compile"],
    )
    builder.result(crash[2], "skipped", "minilm/l3@cpu:compile came out error")
    builder.result(crash[3], "skipped", "minilm/l3@cpu:threshold was skipped")
    late = "ran longer than its 60 s and was ended with its children"
    builder.result(hang, "error", late, timed_out=True, signal="SIGKILL", seconds=60.0, cache=MISS)
    builder.result(expected, "xfailed", "no scatter", exit_code=1, cache=MISS)
    builder.result(surprise, "xpassed", "it was expected to fail: no scatter", cache=MISS)
    builder.result(pipeline, cache=HIT)
    builder.result(left_out, "skipped", "specific_chip_to_ignore: cpu")
    builder.result(
        noisy,
        "inconclusive",
        "the confidence interval 8.9 to 10.4 ms contains the limit 9.9 ms",
        samples=samples(8.9, 10.4),
    )
    builder.end(3, seconds=90.5)
    return builder


def measured_run(
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
    """A run of one chain, with the goldens that its steps know; where a spec has others, they are younger."""
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
    timed = samples(*times)
    builder.result(steps["benchmark"], benchmark, "no verdict", samples=timed, checks=list(checks), statistics=noise)
    if ended:
        builder.end()
    return builder.write(folder / name)
