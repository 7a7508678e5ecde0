"""A project whose `bench` has models, a Python that seems to have torch, and one that measures in synthetic times."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from iree_gauntlet.journal_format import read_journal
from tests.support.command_line import run_here
from tests.support.fake_measuring import MeasuringPython
from tests.support.fake_torch import stand_in
from tests.support.session_folder import made_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from tests.support.command_line import Done

__all__ = ["Bench", "Benchmarks", "PerfFiles", "first_benchmarks"]

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
    """What `bench -o perf.json` has written in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def perf(self) -> list[dict[str, Any]]:
        return self._entries("perf.json")

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Of runs that asked for `perf.json`."""
        return self._entries("perf.failed.json")

    def _entries(self, name: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads((self.folder / name).read_text())
        return entries


class Benchmarks(PerfFiles):
    """What benchmarks have left in a folder."""

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
        """A copy of what was built last of a model, with the plan of its measurement next to it."""
        run = max((self.folder / "runs").glob(f"*-bench-{model}*"))
        (steps,) = run.glob(f"steps/{model}/*")
        shutil.copytree(steps / "export", folder)
        # It was made in a folder of another name.
        plan = (
            (steps / "benchmark" / "plan.json")
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
    """A project with two models, and a Python that seems to have torch.

    `real`: the steps that really measure, as a shell's pattern of their names: others answer what torch computed, in
    synthetic times.
    """

    def __init__(self, folder: Path, *, warm: bool = True, real: str = "") -> None:
        super().__init__(folder)
        self.project = Project(folder)
        if warm:
            shutil.copytree(first_benchmarks().folder / "cache", folder / "cache", symlinks=True, dirs_exist_ok=True)
        self.python = stand_in(folder)
        self.toolchain = {"python": MeasuringPython(folder, real=f"*/{real}/*" if real else "").path}
        self.models = folder / "specs" / "models"
        self.models.mkdir()
        (self.models / "line.py").write_text(_MODELS)

    def run(self, *words: str) -> Done:
        return self.project.gauntlet("bench", "--torch-python", str(self.python), *words, **self.toolchain)

    def module(self, *words: str) -> Done:
        """`python -m iree_gauntlet.bench …`."""
        return run_here(words, self.folder, self.project.environment(), self.toolchain, package="iree_gauntlet.bench")


def first_benchmarks() -> Benchmarks:
    """Benchmarks whose cache had nothing and in which all is real. Whoever asks for them shares them.

    They are those of `line` in Fp16 and in Fp32, and that of `counter`, which is traced too.
    """
    return Benchmarks(made_once("bench", _benchmarks))


def _benchmarks(folder: Path) -> None:
    bench = Bench(folder, warm=False, real="*")
    line = ("-m", "line", "-c", "small", "-df")
    runs = (
        (*line, "Fp16", "--loop-count", "3"),
        (*line, "Fp32", "--loop-count", "7"),
        ("-m", "counter", "--loop-count", "3", "--trace", "light"),
    )
    for words in runs:
        done = bench.run(*words, "-o", "perf.json")
        assert done.code == 0, done.text
        with (folder / "said.txt").open("a") as said:
            said.write(done.out)
