"""A project whose runs end with its test, and tools that tell when they start."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING, Any

from toy_project import Project

from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TOOLS", "TidyProject"]

# The tool of each stage that has a process, as a toolchain names it.
TOOLS = {"import": "python", "compile": "compile", "threshold": "run_module", "benchmark": "benchmark_module"}


class TidyProject(Project):
    """A project whose runs end with the test, also with one that fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, output: Any = subprocess.DEVNULL, **toolchain: str) -> subprocess.Popen[bytes]:
        self._started.append(super().start(*words, output=output, **toolchain))
        return self._started[-1]

    def close(self) -> None:
        """Ends every run that was started."""
        for run in self._started:
            run.kill()
            run.wait()

    def telling_tools(self, slow: str = "") -> dict[str, str]:
        """The real tools behind programs that first write their stage to `self.calls`; that of a slow one waits."""
        assert self.gauntlet("plan").code == 0
        found = find_installed()
        tools = {}
        for stage, name in TOOLS.items():
            path = self.folder / f"{stage}.sh"
            wait = "sleep 20\n" if stage == slow else ""
            real = shlex.quote(getattr(found, name))
            path.write_text(f'#!/bin/sh\necho {stage} >> {self._calls}\n{wait}exec {real} "$@"\n')
            path.chmod(0o755)
            tools[name] = str(path)
        return tools

    @property
    def _calls(self) -> Path:
        return self.folder / "calls.txt"

    @property
    def calls(self) -> list[str]:
        """Stages whose tools were started, in the order of their starts."""
        return self._calls.read_text().split() if self._calls.exists() else []
