"""A project for `micro`, with a fake Python with torch, and a fake Python that measures synthetic times."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from iree_gauntlet.journal_format import read_journal
from tests.support.fake_measuring import MeasuringPython
from tests.support.fake_torch import write_fake_python
from tests.support.session_folder import make_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from tests.support.command_line import CommandResult

__all__ = ["SHAPE", "Micro", "Sweep", "make_first_sweep"]

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
    """The files of a sweep in a directory."""

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
        record: dict[str, Any] = self.result("benchmark", point)["statistics"]["micro"]
        return record

    def variant(self, label: str) -> dict[str, Any]:
        return next(variant for variant in self.record()["variants"] if variant["label"] == label)

    @property
    def results(self) -> Path:
        """The folder of tables and records."""
        return self.run / "results"

    @property
    def builds(self) -> list[str]:
        """The recipes whose models the fake torch was called to build."""
        path = self.folder / "builds.txt"
        return path.read_text().split() if path.exists() else []


class Micro(Sweep):
    """A project with a configuration.

    `real_outputs`: a shell pattern of the variants whose modules run for their outputs; other variants return torch's
    outputs. `real_times`: measure with the real Python.
    """

    def __init__(self, folder: Path, *, warm: bool = True, real_outputs: str = "", real_times: bool = False) -> None:
        super().__init__(folder)
        self.project = Project(folder, cache="flags")
        if warm:
            shutil.copytree(
                make_first_sweep().folder / "cache" / "modules", folder / "cache" / "modules", symlinks=True
            )
        self.torch_python = write_fake_python(folder)
        self.measuring_python = MeasuringPython(
            folder, real_plans=f"*/threshold.{real_outputs}/*" if real_outputs else ""
        )
        self._toolchain = {} if real_times else {"python": self.measuring_python.path}
        self.write()

    def write(self, *entries: str, recipes: str = "int8wo, O3", shape: str = SHAPE, profile: str = "false") -> None:
        """Write the configuration, with a point for each entry; by default the only entry is `lin`."""
        points = [_ENTRY.format(name=name, shape=shape, profile=profile) for name in entries or ("lin",)]
        (self.folder / "lin.yml").write_text(_CONFIG.format(recipes=recipes) + "".join(points))

    def words(self, *arguments: str) -> tuple[str, ...]:
        common_options = ("--torch-python", str(self.torch_python), "--against", "none", "--disturbed", "count")
        return ("micro", "--config", "lin.yml", *common_options, *arguments)

    def sweep(self, *arguments: str) -> CommandResult:
        return self.gauntlet(*self.words(*arguments))

    def gauntlet(self, *arguments: str) -> CommandResult:
        return self.project.gauntlet(*arguments, **self._toolchain)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a sweep in a process of its own."""
        return self.project.start(*self.words(*arguments), **self._toolchain)


def make_first_sweep() -> Sweep:
    """Return a sweep with an empty cache, so it really compiled and checked its models; all tests share the sweep."""
    return Sweep(make_once("micro", _sweep))


def _sweep(folder: Path) -> None:
    micro = Micro(folder, warm=False, real_outputs="*")
    micro.measuring_python.set_call_ms("baseline", 3.0)
    micro.measuring_python.set_call_ms("int8wo", 1.5)
    result = micro.sweep("--output", "oss.json")
    assert result.code == 0, result.text
    (folder / "said.txt").write_text(result.text)
