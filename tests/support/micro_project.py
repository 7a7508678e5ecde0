"""A project whose `micro` has a Python that seems to have torch, and one that measures in synthetic times."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from iree_gauntlet.journal_format import read_journal
from tests.support.fake_measuring import MeasuringPython
from tests.support.fake_torch import stand_in
from tests.support.session_folder import made_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from tests.support.command_line import Done

__all__ = ["SHAPE", "Micro", "Sweep", "first_sweep"]

SHAPE = "[4, 64, 128]"
_POINT = "lin/4-64-128"
_CONFIG = """
quantization_config_recipe_names: [{recipes}]
output_dir: measured
model_params:
"""
_ENTRY = """
  - name: {name}
    matrix_shapes:
      - name: custom
        shapes: [{shape}]
    high_precision_dtype: torch.float32
    device: cpu
    model_type: linear
    enable_profiler: {profile}
    enable_memory_profiler: {profile}
"""


class Sweep:
    """What a sweep has left in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def run(self) -> Path:
        """The folder of the newest run."""
        journals = (self.folder / "runs").glob("*/journal.jsonl")
        return max(journals, key=lambda path: path.stat().st_mtime_ns).parent

    @property
    def journal(self) -> JournalRecord:
        return read_journal(self.run / "journal.jsonl")

    def result(self, step: str, point: str = _POINT) -> dict[str, Any]:
        return self.journal.results[f"{point}@cpu:{step}"].as_dict()

    def record(self, point: str = _POINT) -> dict[str, Any]:
        found: dict[str, Any] = self.result("benchmark", point)["statistics"]["micro"]
        return found

    def variant(self, label: str) -> dict[str, Any]:
        return next(item for item in self.record()["variants"] if item["label"] == label)

    @property
    def results(self) -> Path:
        """The folder of tables and records."""
        return self.run / "results"

    @property
    def builds(self) -> list[str]:
        """Recipes whose models torch was asked for."""
        path = self.folder / "builds.txt"
        return path.read_text().split() if path.exists() else []


class Micro(Sweep):
    """A project with a configuration.

    `checked`: variants whose outputs are those of their modules, as a shell's pattern; those of others are torch's.
    """

    def __init__(self, folder: Path, *, warm: bool = True, checked: str = "", measures: bool = False) -> None:
        super().__init__(folder)
        self.project = Project(folder, cache="flags")
        if warm:
            shutil.copytree(first_sweep().folder / "cache" / "modules", folder / "cache" / "modules", symlinks=True)
        self.torch = stand_in(folder)
        self.measuring = MeasuringPython(folder, real=f"*/threshold.{checked}/*" if checked else "")
        self._toolchain = {} if measures else {"python": self.measuring.path}
        self.write()

    def write(self, *entries: str, recipes: str = "int8wo, O3", shape: str = SHAPE, profile: str = "false") -> None:
        """Writes the configuration: a point for each entry, one of `lin` where none is named."""
        points = [_ENTRY.format(name=name, shape=shape, profile=profile) for name in entries or ("lin",)]
        (self.folder / "lin.yml").write_text(_CONFIG.format(recipes=recipes) + "".join(points))

    def words(self, *words: str) -> tuple[str, ...]:
        common = ("--torch-python", str(self.torch), "--against", "none", "--disturbed", "count")
        return ("micro", "--config", "lin.yml", *common, *words)

    def sweep(self, *words: str) -> Done:
        return self.gauntlet(*self.words(*words))

    def gauntlet(self, *words: str) -> Done:
        return self.project.gauntlet(*words, **self._toolchain)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A sweep in a process of its own."""
        return self.project.start(*self.words(*words), **self._toolchain)


def first_sweep() -> Sweep:
    """A sweep whose cache had nothing: its models were compiled and checked for real. All who ask share it."""
    return Sweep(made_once("micro", _sweep))


def _sweep(folder: Path) -> None:
    micro = Micro(folder, warm=False, checked="*")
    micro.measuring.takes("baseline", 3.0)
    micro.measuring.takes("int8wo", 1.5)
    done = micro.sweep("--output", "oss.json")
    assert done.code == 0, done.text
    (folder / "said.txt").write_text(done.text)
