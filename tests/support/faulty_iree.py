"""IREEs with a known fault: build trees of the installed tools, some of them behind a script."""

from __future__ import annotations

import sys
from pathlib import Path

from iree_gauntlet.toolchains.installed import find_installed

# Tools look for each other beside themselves, and iree-benchmark-module prints times as JSON numbers.
_SCALED = """#!{python}
import json, pathlib, subprocess, sys
done = subprocess.run([{tool!r}, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
mark = pathlib.Path({mark!r})
factor = {factor} if not {once} or not mark.exists() else 1.0
try:
    document = json.loads(done.stdout)
    mark.touch()
    for row in document["benchmarks"]:
        row["real_time"] *= factor
    print(json.dumps(document))
except ValueError:
    print(done.stdout, end="")
sys.exit(done.returncode)
"""


def slow_benchmarks(folder: Path, factor: float, *, once: bool = False) -> Path:
    """An iree-benchmark-module that reports times that are longer by a factor; only in its first start, or in all."""
    folder.mkdir(parents=True)
    script = folder / "iree-benchmark-module"
    tool = find_installed().benchmark_module
    text = _SCALED.format(python=sys.executable, tool=tool, mark=str(folder / "started"), factor=factor, once=once)
    script.write_text(text)
    script.chmod(0o755)
    return script


def tree(root: Path, **replaced: Path) -> str:
    """A build tree of the installed tools, as `--iree` takes it.

    Args:
        root: where to.
        replaced: scripts in place of a tool, by its name with underscores.
    """
    found = find_installed()
    compiler, tools = Path(found.compile).parent, root / "tools"
    tools.mkdir(parents=True)
    (root / "lib").mkdir()
    for name in ("iree-compile", "iree-lld", "iree-link", "iree-opt"):
        _script(tools / name, compiler / name)
    for tool in (found.run_module, found.benchmark_module):
        _script(tools / Path(tool).name, Path(tool))
    for name, script in replaced.items():
        (tools / name.replace("_", "-")).write_text(f'#!/bin/sh\nexec "{script}" "$@"\n')
    (root / "lib" / "libIREECompiler.so").symlink_to(compiler / "libIREECompiler.so")
    return f"build:{root}"


def _script(path: Path, tool: Path) -> None:
    path.write_text(f'#!/bin/sh\nexec "{tool}" "$@"\n')
    path.chmod(0o755)
