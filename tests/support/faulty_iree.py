"""IREEs with a known fault: build trees of the installed tools, each behind a script.

What a tool says of itself (its flags, its version) was asked once a session and is read from a file. Scripts hold no
path of a test, so that trees with the same scripts are one IREE, wherever they stand: what one of them has compiled,
another finds in the cache.
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
from tests.support.session_folder import made_once
from tests.support.toy_project import Project

__all__ = ["MadeUpTimes", "compiled_before", "slow_benchmarks", "tree"]

# Tools look for each other next to themselves, and iree-benchmark-module prints times as JSON numbers.
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
_SCRIPT = """#!/bin/sh
{name}case "$*" in
--version) exec cat {answers}/{tool}.version ;;
--help|--help-list-hidden) exec cat {answers}/{tool}.help ;;
esac
{before}
exec {real} "$@"
"""
# Google Benchmark's report. Each start takes the next times of the list, which begins again where it ends.
_TIMES = """
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
# Times of a list, what they are in the mean, and by what share they scatter.
_COUNT, _MS, _NOISE = 2400, 10.0, 0.004


def slow_benchmarks(folder: Path, factor: float, *, once: bool = False) -> Path:
    """An iree-benchmark-module that reports real times, longer by a factor; only in its first start, or in all."""
    folder.mkdir(parents=True)
    script = folder / "iree-benchmark-module"
    tool = find_installed().runtime.benchmark_module
    text = _SCALED.format(python=sys.executable, tool=tool, mark=str(folder / "started"), factor=factor, once=once)
    script.write_text(text)
    script.chmod(0o755)
    return script


def tree(root: Path, *, name: str = "", **before: str) -> str:
    """A build tree of the installed tools, as `--iree` takes it."""
    found = find_installed()
    compiler, tools = Path(found.compiler.compile).parent, root / "tools"
    tools.mkdir(parents=True)
    (root / "lib").mkdir()
    # Nothing loads it.
    (root / "lib" / "libIREECompiler.so").write_text("in the wheel\n")
    real = [Path(found.runtime.run_module), Path(found.runtime.benchmark_module)]
    real += [compiler / tool for tool in ("iree-compile", "iree-lld", "iree-link", "iree-opt")]
    answers = made_once("tools-answers", _ask)
    for path in real:
        script = tools / path.name
        text = _SCRIPT.format(
            name=f"# {name}\n" if name else "",
            answers=shlex.quote(str(answers)),
            tool=path.name,
            before=before.pop(path.name.replace("-", "_"), ""),
            real=shlex.quote(str(path)),
        )
        script.write_text(text)
        script.chmod(0o755)
    assert not before, f"there are no such tools: {before}"
    return f"build:{root}"


class MadeUpTimes:
    """A build whose programs compute what they should, in synthetic times.

    A benchmark that is really measured takes as long as the machine lets it. These take 10 ms, and scatter as those of
    a quiet machine do; each build has its own, the same ones in each test.

    `before`: what the scripts of other tools do first, as for `tree`.

    Attributes:
        iree: as `--iree` takes it.
    """

    def __init__(self, root: Path, factor: float = 1.0, **before: str) -> None:
        script = _TIMES.replace("NAME", root.name).replace("HANG", HANG).replace("COUNT", str(_COUNT))
        self.iree = tree(root, iree_benchmark_module=script, **before)
        self._folder = root / "synthetic"
        self._folder.mkdir()
        self._write("times", factor, _NOISE)
        (self._folder / "started").write_text("0\n")

    def unpinned(self, factor: float, noise: float) -> MadeUpTimes:
        """The same with other times in processes that are not pinned to one CPU."""
        self._write("unpinned", factor, noise)
        return self

    def named(self, word: str, factor: float) -> MadeUpTimes:
        """The same with other times of those whose command line has a word in it."""
        self._write("others", factor, _NOISE)
        (self._folder / "named").write_text(f"{word}\n")
        return self

    def _write(self, name: str, factor: float, noise: float) -> None:
        seed = list(self._folder.parent.name.encode())
        times = _MS * factor * np.exp(np.random.default_rng(seed).normal(0, noise, _COUNT))
        (self._folder / name).write_text("".join(f"{time:.9g}\n" for time in times))

    def hang_after(self, starts: int) -> None:
        """The next start after so many never finishes."""
        (self._folder / "hang-after").write_text(f"{starts}\n")

    def go_on(self) -> None:
        """None hangs any more."""
        (self._folder / "hang-after").unlink()


def compiled_before(project: Project) -> None:
    """Puts what trees with the installed compiler have compiled of `abs` into a project's cache."""
    shutil.copytree(made_once("tree-cache", _compile), project.folder / "cache", dirs_exist_ok=True)


def _ask(folder: Path) -> None:
    found = find_installed()
    questions = [
        (found.compiler.compile, "--version", "version"),
        (found.compiler.compile, "--help-list-hidden", "help"),
    ]
    questions += [(tool, "--help", "help") for tool in (found.runtime.run_module, found.runtime.benchmark_module)]
    for tool, question, kind in questions:
        answer = subprocess.run([tool, question], capture_output=True, check=True)
        (folder / f"{Path(tool).name}.{kind}").write_bytes(answer.stdout)


def _compile(cache: Path) -> None:
    project = Project(cache.with_name("tree-project"), cache="empty")
    iree = tree(project.folder / "tree")
    done = project.gauntlet("compile", "--iree", iree, "--cache-dir", str(cache))
    assert done.code == 0, done.text
