"""A project with models for `bench`, a fake Python with torch, and a fake Python that measures synthetic times."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from iree_gauntlet.journal_format import read_journal
from tests.support.command_line import run_in_process
from tests.support.fake_measuring import MeasuringPython
from tests.support.fake_torch import write_fake_python
from tests.support.session_folder import make_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from tests.support.command_line import CommandResult

__all__ = ["Bench", "Benchmarks", "PerfFiles", "make_first_benchmarks"]

_MODELS = """
from iree_gauntlet.bench import benchmark_model

@benchmark_model(configs=["small", "other"], parameters={"small": 4096})
def line(training: bool, config: str, microbatch: int = 2):
    raise AssertionError("models are built in the Python that has torch")

@benchmark_model
def counter(training: bool):
    raise AssertionError("models are built in the Python that has torch")
"""


class PerfFiles:
    """The files that `bench -o perf.json` has written in a directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def perf(self) -> list[dict[str, Any]]:
        return self._entries("perf.json")

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The failures of runs with `-o perf.json`."""
        return self._entries("perf.failed.json")

    def _entries(self, name: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads((self.folder / name).read_text())
        return entries


class Benchmarks(PerfFiles):
    """The files of benchmarks in a directory."""

    @property
    def newest(self) -> Path:
        """The folder of the newest run."""
        journals = (self.folder / "runs").glob("*/journal.jsonl")
        return max(journals, key=lambda path: path.stat().st_mtime_ns).parent

    @property
    def journal(self) -> JournalRecord:
        return read_journal(self.newest / "journal.jsonl")

    def result(self, name: str) -> dict[str, Any]:
        return self.journal.results[name].as_dict()

    def copy_build(self, model: str, folder: Path) -> Path:
        """Copy the latest build of a model, with the plan of its measurement, to `folder`; return `folder`."""
        run = max((self.folder / "runs").glob(f"*-bench-{model}*"))
        (case_folder,) = run.glob(f"steps/{model}/*")
        shutil.copytree(case_folder / "export", folder)
        # `make_once` has renamed the directory of the build, so the paths in the plan are replaced.
        plan = (
            (case_folder / "benchmark" / "plan.json")
            .read_text()
            .replace(str(self.folder.with_suffix(".part")), str(self.folder))
        )
        script = "measure_generative" if "generations" in json.loads(plan) else "measure_module"
        (folder / f"{script}.json").write_text(plan)
        return folder

    @property
    def builds(self) -> list[str]:
        path = self.folder / "builds.txt"
        return path.read_text().split() if path.exists() else []


class Bench(Benchmarks):
    """A project with two models, and a fake Python with torch.

    `real_steps`: a shell pattern of the steps that really measure; the other steps return torch's outputs and
    synthetic times.
    """

    def __init__(self, folder: Path, *, warm: bool = True, real_steps: str = "") -> None:
        super().__init__(folder)
        self.project = Project(folder)
        if warm:
            shutil.copytree(
                make_first_benchmarks().folder / "cache", folder / "cache", symlinks=True, dirs_exist_ok=True
            )
        self.torch_python = write_fake_python(folder)
        self.toolchain = {"python": MeasuringPython(folder, real_plans=f"*/{real_steps}/*" if real_steps else "").path}
        self.models = folder / "specs" / "models"
        self.models.mkdir()
        (self.models / "line.py").write_text(_MODELS)

    def run(self, *arguments: str) -> CommandResult:
        return self.project.gauntlet("bench", "--torch-python", str(self.torch_python), *arguments, **self.toolchain)

    def module(self, *arguments: str) -> CommandResult:
        """Run `python -m iree_gauntlet.bench …`."""
        return run_in_process(
            arguments, self.folder, self.project.environment(), self.toolchain, package="iree_gauntlet.bench"
        )


def make_first_benchmarks() -> Benchmarks:
    """Return benchmarks that began with an empty cache, so that everything really ran; all tests share them.

    The benchmarks are `line` in Fp16 and in Fp32, and `counter`, which is also traced.
    """
    return Benchmarks(make_once("bench", _run_benchmarks))


def _run_benchmarks(folder: Path) -> None:
    bench = Bench(folder, warm=False, real_steps="*")
    line_options = ("-m", "line", "-c", "small", "-df")
    argument_lists = (
        (*line_options, "Fp16", "--loop-count", "3"),
        (*line_options, "Fp32", "--loop-count", "7"),
        ("-m", "counter", "--loop-count", "3", "--trace", "light"),
    )
    for arguments in argument_lists:
        result = bench.run(*arguments, "-o", "perf.json")
        assert result.code == 0, result.text
        with (folder / "said.txt").open("a") as log_file:
            log_file.write(result.out)
