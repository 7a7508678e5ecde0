"""IREEs with a known fault: build trees of the installed tools, each behind a script.

A tool's flags and version are queried once a session and then read from a file. Scripts contain no path of a test, so
trees with the same scripts have the same identity at any path, and share their modules in the cache.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.hanging import HANG
from tests.support.session_folder import make_once
from tests.support.toy_project import Project

__all__ = ["SyntheticBuild", "fill_module_cache", "write_build_tree", "write_slow_benchmark"]

# The script multiplies the times that the real iree-benchmark-module prints as JSON numbers.
_SCALED_BENCHMARK = """#!{python}
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
_TOOL_SCRIPT = """#!/bin/sh
{name}case "$*" in
--version) exec cat {answers}/{tool}.version ;;
--help|--help-list-hidden) exec cat {answers}/{tool}.help ;;
esac
{before}
exec {real} "$@"
"""
# The script prints Google Benchmark's report. Each start takes the next times of the list, cyclically.
_BENCHMARK_SCRIPT = """
# NAME
folder=${0%/*}/../synthetic
times=$folder/times
[ -e "$folder/unpinned" ] && [ "$(nproc)" -gt 1 ] && times=$folder/unpinned
[ -e "$folder/named" ] && read -r word < "$folder/named" && case "$*" in *"$word"*) times=$folder/others ;; esac
read -r started < "$folder/started"
[ -e "$folder/hang-after" ] && read -r most < "$folder/hang-after" && [ "$started" -ge "$most" ] && HANG
echo $((started + 1)) > "$folder/started"
repetitions=1 format=
for word; do
  case $word in
  --benchmark_repetitions=*) repetitions=${word#*=} ;;
  --benchmark_format=*) format=${word#*=} ;;
  esac
done
[ "$format" = json ] || { echo "a report for people was asked for" >&2; exit 1; }
exec awk -v first=$((started * repetitions % COUNT)) -v count="$repetitions" '
BEGIN { printf "{\\"context\\": {\\"library_build_type\\": \\"release\\"}, \\"benchmarks\\": [" }
NR > first && NR <= first + count {
  printf "%s{\\"name\\": \\"BM_f/process_time/real_time\\", \\"run_type\\": \\"iteration\\", ", comma
  printf "\\"iterations\\": 7, \\"real_time\\": %s, \\"cpu_time\\": %s, \\"time_unit\\": \\"ms\\"}", $1, $1
  comma = ", "
}
NR == first + count { exit }
END { print "]}" }' "$times"
"""
# The length of a list of times, their mean in ms, and their relative standard deviation.
_TIME_COUNT, _MEAN_MS, _RELATIVE_NOISE = 2400, 10.0, 0.004


def write_slow_benchmark(folder: Path, factor: float, *, once: bool = False) -> Path:
    """Write an iree-benchmark-module that multiplies real times by a factor; `once`: only in its first start."""
    folder.mkdir(parents=True)
    script = folder / "iree-benchmark-module"
    tool = find_installed().runtime.benchmark_module
    text = _SCALED_BENCHMARK.format(
        python=sys.executable, tool=tool, mark=str(folder / "started"), factor=factor, once=once
    )
    script.write_text(text)
    script.chmod(0o755)
    return script


def write_build_tree(root: Path, *, name: str = "", **before: str) -> str:
    """Write a build tree of the installed tools; return the argument of `--iree` for it.

    `before`: shell commands that a tool's script runs first, by the tool's name with underscores.
    """
    toolchain = find_installed()
    compiler_folder, tools_folder = Path(toolchain.compiler.compile).parent, root / "tools"
    tools_folder.mkdir(parents=True)
    (root / "lib").mkdir()
    # Nothing loads this file.
    (root / "lib" / "libIREECompiler.so").write_text("in the wheel\n")
    tool_paths = [Path(toolchain.runtime.run_module), Path(toolchain.runtime.benchmark_module)]
    tool_paths += [compiler_folder / tool for tool in ("iree-compile", "iree-lld", "iree-link", "iree-opt")]
    query_folder = make_once("tools-answers", _query_tools)
    for path in tool_paths:
        script = tools_folder / path.name
        text = _TOOL_SCRIPT.format(
            name=f"# {name}\n" if name else "",
            answers=shlex.quote(str(query_folder)),
            tool=path.name,
            before=before.pop(path.name.replace("-", "_"), ""),
            real=shlex.quote(str(path)),
        )
        script.write_text(text)
        script.chmod(0o755)
    assert not before, f"there are no such tools: {before}"
    return f"build:{root}"


class SyntheticBuild:
    """A build whose programs compute correctly, in synthetic times.

    Real times depend on the machine. The synthetic times have a mean of 10 ms and the noise of a quiet machine. Each
    build has its own list of times, which is the same in each test.

    `before`: the first commands of other tools' scripts, by the tools' names.

    Attributes:
        iree: the argument of `--iree`.
    """

    def __init__(self, root: Path, factor: float = 1.0, **before: str) -> None:
        text = _BENCHMARK_SCRIPT.replace("NAME", root.name).replace("HANG", HANG).replace("COUNT", str(_TIME_COUNT))
        # Memory is that of the real tool.
        script = f'case "$*" in *--print_statistics*) ;; *)\n{text} ;; esac'
        self.iree = write_build_tree(root, iree_benchmark_module=script, **before)
        self._folder = root / "synthetic"
        self._folder.mkdir()
        self._write("times", factor, _RELATIVE_NOISE)
        (self._folder / "started").write_text("0\n")

    def set_unpinned_times(self, factor: float, noise: float) -> SyntheticBuild:
        """Set other times for processes that are not pinned to one CPU; return the build."""
        self._write("unpinned", factor, noise)
        return self

    def set_times_for(self, argument_text: str, factor: float) -> SyntheticBuild:
        """Set other times for processes whose command line contains a text; return the build."""
        self._write("others", factor, _RELATIVE_NOISE)
        (self._folder / "named").write_text(f"{argument_text}\n")
        return self

    def _write(self, name: str, factor: float, noise: float) -> None:
        seed = list(self._folder.parent.name.encode())
        times = _MEAN_MS * factor * np.exp(np.random.default_rng(seed).normal(0, noise, _TIME_COUNT))
        (self._folder / name).write_text("".join(f"{time:.9g}\n" for time in times))

    def hang_after(self, starts: int) -> None:
        """Make the starts after the first `starts` hang."""
        (self._folder / "hang-after").write_text(f"{starts}\n")

    def stop_hanging(self) -> None:
        """Make later starts finish again."""
        (self._folder / "hang-after").unlink()


def fill_module_cache(project: Project) -> None:
    """Copy modules of `abs`, built by a tree with the installed compiler, into a project's cache.

    What a build with another compiler, or another name, compiles has another size, by the length of the paths.
    """
    shutil.copytree(make_once("tree-cache", _compile_abs), project.folder / "cache", dirs_exist_ok=True)


def _query_tools(folder: Path) -> None:
    toolchain = find_installed()
    queries = [
        (toolchain.compiler.compile, "--version", "version"),
        (toolchain.compiler.compile, "--help-list-hidden", "help"),
    ]
    queries += [(tool, "--help", "help") for tool in (toolchain.runtime.run_module, toolchain.runtime.benchmark_module)]
    for tool, option, suffix in queries:
        result = subprocess.run([tool, option], capture_output=True, check=True)
        (folder / f"{Path(tool).name}.{suffix}").write_bytes(result.stdout)


def _compile_abs(cache: Path) -> None:
    project = Project(cache.with_name("tree-project"), cache="empty")
    iree = write_build_tree(project.folder / "tree")
    result = project.gauntlet("compile", "--iree", iree, "--cache-dir", str(cache))
    assert result.code == 0, result.text
