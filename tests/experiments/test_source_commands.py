"""Commands with an IREE that the test builds from source, with real git, CMake, Ninja and C compiler."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import UsageError
from iree_gauntlet.experiments.bisect_question import describe_change
from iree_gauntlet.experiments.qualify import _choose_row
from iree_gauntlet.records.bisect_outcome import CandidateRow
from iree_gauntlet.requests import QualifyRequest
from tests.support.command_line import LIMIT_SECONDS, CommandResult
from tests.support.iree_source import (
    MISSING_TOOLS,
    IreeSource,
    hold,
    make_toolchain_place,
    make_wait_command,
    release,
    write_watched_compiler,
)
from tests.support.processes import wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.iree, pytest.mark.skipif(bool(MISSING_TOOLS), reason=f"needs {', '.join(MISSING_TOOLS)}")]


@pytest.fixture
def source(tmp_path: Path) -> IreeSource:
    return IreeSource.make(tmp_path / "iree")


@pytest.fixture
def cc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiler of C that commands use, which can be told to hang."""
    path, _ = write_watched_compiler(tmp_path / "cc")
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, path)
    return tmp_path / "cc"


def compiled(cc: Path) -> list[str]:
    calls = cc / "calls.txt"
    return [Path(line.split()[-1]).name for line in calls.read_text().splitlines()] if calls.exists() else []


def folders(project: Project, kind: str) -> list[Path]:
    folder = project.folder / "cache" / "toolchains" / kind
    return sorted(path for path in folder.glob("*") if path.is_dir()) if folder.exists() else []


def test_from_a_checkout_to_a_verdict_and_again_after_a_change(project: Project, source: IreeSource) -> None:
    iree = f"source:{source.folder}"
    first = project.gauntlet("run", "--iree", iree)
    assert first.code == 0, first.text
    assert f"{iree}: configuring with CMake" in first.err
    toolchain = project.journal.run.toolchain
    assert toolchain.compiler_commit == source.commits["first"]
    assert toolchain.source == f"source: {source.commits['first'][:12]} of {source.folder}"
    again = project.gauntlet("run", "--iree", iree)
    assert "configuring" not in again.err
    assert "compiles: 1 from cache, 0 made" in again.out
    source.write(flag="--iree-opt-level=O1")
    changed = project.gauntlet("run", "--iree", iree)
    assert changed.code == 0, changed.text
    assert "compiles: 0 from cache, 1 made" in changed.out
    assert project.journal.run.toolchain.source.endswith(", modified")
    assert "modified" in (project.newest / "summary.md").read_text()
    broken = source.folder / "compiler" / "planted.h"
    broken.write_text(broken.read_text() + "int wrong = ;\n")
    failed = project.gauntlet("run", "--iree", iree)
    assert failed.code == 3
    assert "compiler/planted.h:4: expected expression before" in failed.err
    assert "To repeat: " in failed.err


def test_builds_are_made_listed_shown_and_removed(project: Project, source: IreeSource) -> None:
    second = source.commit("second")
    folder = os.path.relpath(source.folder, project.folder)
    built = project.gauntlet("toolchain.build", folder, f"{folder}@main~")
    assert built.code == 0, built.text
    assert f"use it: --iree 'source:{folder}@main~'" in built.out
    listed = project.gauntlet("toolchain.list")
    assert f"{second[:12]} of {source.folder}" in listed.out
    assert f"{source.commits['first'][:12]} of {source.folder}" in listed.out
    assert listed.out.count("build folder") == 2
    document = json.loads(project.gauntlet("toolchain.list", "--format", "json").out)
    assert {item["commit"] for item in document["builds"]} == {second, source.commits["first"]}
    shown = project.gauntlet("toolchain.show", "--iree", f"source:{folder}@main~")
    assert f"9.0.0.dev @ {source.commits['first']}" in shown.out
    missing = project.gauntlet("plan", "--iree", f"source:{folder}@main")
    assert f"gauntlet toolchain.build source:{folder}@main" in missing.text
    for path in (*folders(project, "builds"), *folders(project, "work")):
        removed = project.gauntlet("toolchain.remove", path.name)
        assert removed.code == 0, removed.text
    assert not folders(project, "builds") + folders(project, "work")
    for repository in (source.folder, source.folder / "third_party" / "llvm-project"):
        assert source.git("worktree", "list", cwd=repository).count("\n") == 0


def test_options_come_from_the_command_line_and_the_settings(project: Project, source: IreeSource) -> None:
    built = project.gauntlet("toolchain.build", str(source.folder), "--commit", "main", "--option", "-DMY=1")
    assert built.code == 0, built.text
    (path,) = folders(project, "builds")
    assert f"use it: --iree {shlex.quote(f'build:{path}')}" in built.out
    assert "MY:UNINITIALIZED=1" in (path / "CMakeCache.txt").read_text()
    ran = project.gauntlet("run", "--iree", f"build:{path}", "--stages", "threshold")
    assert ran.code == 0, ran.text
    settings = project.folder / "gauntlet.toml"
    settings.write_text('[toolchains.source]\noptions = ["-DMY=1"]\n')
    shown = project.gauntlet("toolchain.show", "--iree", f"source:{source.folder}@main")
    assert str(path) in shown.out
    settings.write_text('[toolchains.source]\noptions = ["MY=1"]\n')
    wrong = project.gauntlet("toolchain.list")
    assert wrong.code == 2
    assert "toolchains.source.options[0]: expected an option of CMake, -DNAME=VALUE, found 'MY=1'" in wrong.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("DIR@main", "--commit", "main"), "two commits"),
        (("DIR", "--option", "-G"), "--option -D-G: not an option of CMake"),
        (("DIR", "--commit", "nothing"), "has no commit nothing"),
        (("DIR", "--runtime-only", "--bindings"), "--runtime-only and --bindings cannot be combined"),
        (("/nowhere",), "source:/nowhere is not a folder"),
        ((), "expected toolchain.build SOURCE"),
    ],
)
def test_what_cannot_be_built_is_said(project: Project, source: IreeSource, words: tuple[str, ...], says: str) -> None:
    words = tuple(word.replace("DIR", str(source.folder)) for word in words)
    done = project.gauntlet("toolchain.build", *words)
    assert done.code in (2, 3), done.text
    assert says in done.err
    assert not folders(project, "builds")


def test_a_compiler_from_elsewhere_needs_a_runtime_alone(project: Project, source: IreeSource, cc: Path) -> None:
    done = project.gauntlet("run", "--iree-runtime", f"source:{source.folder}@main", "--stages", "threshold")
    assert done.code == 0, done.text
    assert "compiler.c" not in compiled(cc)
    toolchain = project.journal.run.toolchain
    assert toolchain.runtime_commit == source.commits["first"]
    assert toolchain.source.startswith("compiler installed: ")


def test_two_commits_are_compared_in_a_matrix(project: Project, source: IreeSource) -> None:
    source.commit("second", flag="--iree-opt-level=O0")
    iree = f"source:{source.folder}"
    done = project.gauntlet(
        "matrix", "--iree", f"{iree}@main~", "--iree", f"{iree}@main", "--stages", "threshold", "--run-dir", "m"
    )
    assert done.code == 0, done.text
    document = json.loads((project.folder / "m" / "matrix.json").read_text())
    assert [item["toolchain"]["compiler_commit"] for item in document["irees"]] == list(source.commits.values())


# Faults


def _start(project: Project, source: IreeSource, iree: str = "") -> subprocess.Popen[bytes]:
    return project.start("toolchain.build", iree or str(source.folder))


@pytest.mark.stress
def test_ctrl_c_leaves_a_build_that_goes_on(project: Project, source: IreeSource, cc: Path) -> None:
    hold(cc)
    command = _start(project, source)
    wait_until(lambda: _is_half_built(project, cc) or command.poll() is not None)
    command.send_signal(signal.SIGINT)
    assert command.wait(LIMIT_SECONDS) == 130
    release(cc)
    done = project.gauntlet("toolchain.build", str(source.folder))
    assert done.code == 0, done.text
    _require_no_second_beginning(done.err, cc)


def test_a_killed_command_leaves_a_build_that_goes_on(project: Project, source: IreeSource, cc: Path) -> None:
    hold(cc)
    command = _start(project, source)
    wait_until(lambda: _is_half_built(project, cc) or command.poll() is not None)
    command.kill()
    command.wait()
    # What it was compiling holds the lock until it is done; Ninja ends with it, as nobody hears it any more.
    release(cc)
    done = project.gauntlet("toolchain.build", str(source.folder))
    assert done.code == 0, done.text
    _require_no_second_beginning(done.err, cc)


def _is_half_built(project: Project, cc: Path) -> bool:
    """Whether the runtime's tools are there, and the compiler's library is under way."""
    work = folders(project, "work")
    tools = (
        [work[0] / "build" / "tools" / name for name in ("iree-run-module", "iree-benchmark-module")] if work else []
    )
    return bool(tools) and all(tool.exists() for tool in tools) and "compiler.c" in compiled(cc)


def _require_no_second_beginning(said: str, cc: Path) -> None:
    assert "configuring" not in said
    # Each of the two tools has it.
    assert compiled(cc).count("runtime.c") == 2


def test_a_folder_that_somebody_builds_in_is_not_removed(project: Project, source: IreeSource, cc: Path) -> None:
    hold(cc)
    command = _start(project, source)
    wait_until(lambda: compiled(cc) or command.poll() is not None)
    (work,) = folders(project, "work")
    refused = project.gauntlet("toolchain.remove", work.name)
    assert refused.code == 3
    assert f"a running process builds in {work}" in refused.err
    release(cc)
    assert command.wait(LIMIT_SECONDS) == 0
    assert project.gauntlet("toolchain.remove", work.name).code == 0


def test_a_cache_behind_a_link_is_one(project: Project, source: IreeSource, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project.folder / "cache")
    cache = ("--cache-dir", str(tmp_path / "link"))
    built = project.gauntlet("toolchain.build", f"{source.folder}@main", *cache)
    assert built.code == 0, built.text
    (path,) = folders(project, "builds")
    removed = project.gauntlet("toolchain.remove", path.name, *cache)
    assert removed.code == 0, removed.text
    assert not path.exists()


def _lines(cc: Path) -> list[str]:
    return (cc / "calls.txt").read_text().splitlines()


@pytest.mark.stress
def test_a_command_that_is_killed_while_it_configures_begins_again(
    project: Project, source: IreeSource, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    hold(tmp_path)
    hang = f"execute_process(COMMAND sh -c \"touch '{began}'; {make_wait_command(tmp_path)}\")\n"
    (source.folder / "planted.cmake").write_text(hang)
    command = _start(project, source)
    wait_until(lambda: began.exists() or command.poll() is not None)
    command.kill()
    command.wait()
    release(tmp_path)
    done = project.gauntlet("toolchain.build", str(source.folder))
    assert done.code == 0, done.text
    assert "configuring with CMake" in done.err


def test_a_command_that_is_killed_while_it_copies_leaves_nothing_half_made(
    project: Project, source: IreeSource
) -> None:
    assert project.gauntlet("toolchain.build", f"{source.folder}@main").code == 0
    (path,) = folders(project, "builds")
    # As a kill leaves it.
    half = path.with_name(f".making-{path.name}-00000000")
    path.rename(half)
    (half / "gauntlet-build.json").unlink()
    shown = project.gauntlet("toolchain.show", "--iree", f"source:{source.folder}@main")
    assert shown.code == 3
    done = project.gauntlet("toolchain.build", f"{source.folder}@main")
    assert done.code == 0, done.text
    assert [item.name for item in path.parent.iterdir() if item.is_dir()] == [path.name]


def test_two_commands_build_one_commit_once(project: Project, source: IreeSource, cc: Path) -> None:
    hold(cc)
    both = [_start(project, source, f"{source.folder}@main") for _ in range(2)]
    wait_until(lambda: compiled(cc) or any(command.poll() is not None for command in both))
    release(cc)
    assert [command.wait(LIMIT_SECONDS) for command in both] == [0, 0]
    assert len(_lines(cc)) == len(set(_lines(cc)))
    assert len(folders(project, "builds")) == 1


def test_the_command_of_a_failure_can_be_repeated(project: Project, source: IreeSource) -> None:
    source.write(broken="int wrong = ;")
    done = project.gauntlet("toolchain.build", str(source.folder))
    assert done.code == 3
    repeat = shlex.split(_repeat(done))
    assert b"planted.h:3" in subprocess.run(repeat, check=False, capture_output=True).stdout
    source.write()
    assert subprocess.run(repeat, check=False, capture_output=True).returncode == 0


def _repeat(done: CommandResult) -> str:
    return done.err.partition("To repeat: ")[2].splitlines()[0]


@pytest.mark.stress
def test_programs_of_onnx_are_imported_by_a_builds_own_bindings(project: Project, source: IreeSource) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Abs", ["x"], ["y"])],
        "abs",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets), project.regressions / "abs.onnx")
    project.regression(mlir="abs.onnx", run_function="abs")
    shutil.rmtree(project.benchmarks)
    done = project.gauntlet("run", "--iree", f"source:{source.folder}@main")
    assert done.code == 0, done.text
    (path,) = folders(project, "builds")
    assert (path / "compiler" / "bindings" / "python" / "iree" / "compiler").is_dir()
    shown = project.gauntlet("toolchain.show", "--iree", f"source:{source.folder}@main")
    assert "ONNX importer:            onnx " in shown.out


# Bisects


def _history(source: IreeSource) -> None:
    """Commits with planted changes, and a branch that was merged; the order of their names is that of their dates."""
    source.git("tag", "iree-9.0.0", "HEAD")
    for name in "abcd":
        source.commit(name)
    for name in "efg":
        source.commit(name, broken="int wrong = ;")
    source.commit("mended")
    source.git("checkout", "-q", "-b", "side")
    source.commit("of-a-branch", flag="crash")
    source.git("checkout", "-q", "main")
    source.git("merge", "-q", "--no-ff", "-s", "ours", "-m", "Merge pull request #41 from ada/side", "side")
    source.commits["merge"] = source.git("rev-parse", "HEAD")
    source.commit("h", "Take another sign (#42)", flag="negate")
    source.commit("i", flag="negate")
    source.commit("j", flag="negate")
    source.commit("k", "Crash now and for ever", flag="crash")
    source.commit("l", flag="crash")
    source.git("tag", "iree-9.1.0", "HEAD")


@pytest.fixture(scope="module")
def shared_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, IreeSource]]:
    """A checkout with these commits, and a project whose cache keeps their builds."""
    folder = tmp_path_factory.mktemp("history")
    source = IreeSource.make(folder / "iree")
    _history(source)
    project = Project(folder / "project")
    yield project, source
    project.close()


@pytest.fixture
def history(shared_history: tuple[Project, IreeSource]) -> tuple[Project, IreeSource]:
    shared_history[0].reset()
    return shared_history


@pytest.mark.stress
def test_the_commit_is_found_that_made_the_compiler_crash(project: Project, source: IreeSource) -> None:
    _history(source)
    words = ("bisect", "--source", str(source.folder), "--good", "9.0.0", "--bad", "9.1.0", "--model", "toy")
    done = project.gauntlet(*words, "--metric", "compiles", "--run-dir", "b")
    assert done.code == 0, done.text
    assert "15 commits, 0 already built; at most 6 builds" in done.text
    document = json.loads((project.folder / "b" / "bisect.json").read_text())
    assert document["first_new"] == source.commits["k"][:12]
    assert document["last_old"] == source.commits["j"][:12]
    assert document["change"] == {
        "commit": source.commits["k"],
        "date": source.git("show", "--no-patch", "--format=%as", source.commits["k"]),
        "author": "Ada Example",
        "subject": "Crash now and for ever",
        "pull": None,
    }
    assert document["commits"].endswith(f"{source.commits['j']}...{source.commits['k']}")
    assert f"Changed by {source.commits['k'][:12]} of 2026-11-" in (project.folder / "b" / "bisect.md").read_text()
    built = len(folders(project, "builds"))
    # Those that are there are taken where they do as well.
    again = project.gauntlet(*words, "--metric", "runs", "--run-dir", "r")
    assert again.code == 0, again.text
    # Both ends are built; what is left is no more than the search may try.
    said = re.search(r"15 commits, (\d+) already built; at most (\d+) builds?, about (.+) going by", again.text)
    assert said is not None, again.text
    assert (int(said[1]), int(said[2])) == (built, 4)
    document = json.loads((project.folder / "r" / "bisect.json").read_text())
    assert document["first_new"] == source.commits["h"][:12]
    assert len(folders(project, "builds")) <= built + 2


@pytest.mark.stress
def test_commits_that_do_not_build_are_left_out(history: tuple[Project, IreeSource]) -> None:
    project, source = history
    a, h = source.commits["a"], source.commits["h"]
    words = ("bisect", "--source", str(source.folder), "--good", a, "--bad", h, "--model", "toy", "--every")
    done = project.gauntlet(*words, "--metric", "error", "--run-dir", "b")
    assert done.code == 0, done.text
    document = json.loads((project.folder / "b" / "bisect.json").read_text())
    assert (document["last_old"], document["first_new"]) == (source.commits["merge"][:12], h[:12])
    reasons = [item["reason"] for item in document["candidates"] if item.get("reason")]
    assert len(reasons) == 3
    assert all(": compiler/planted.h:3: expected expression" in reason for reason in reasons), reasons
    change = document["change"]
    assert (change["subject"], change["pull"]) == ("Take another sign (#42)", 42)
    assert "https://github.com/iree-org/iree/pull/42" in (project.folder / "b" / "bisect.md").read_text()
    assert source.commits["of-a-branch"][:12] not in [item["label"] for item in document["candidates"]]
    place = make_toolchain_place(project.folder, search_path=os.environ["PATH"])
    assert describe_change(source.commits["merge"], str(source.folder), place).pull == 41


def test_from_releases_to_the_commit(history: tuple[Project, IreeSource]) -> None:
    project, source = history
    folder = source.folder
    done = project.gauntlet(
        *("bisect", "--good", f"source:{folder}@iree-9.0.0", "--bad", f"source:{folder}@iree-9.1.0"),
        *("--among", f"source:{folder}@{source.commits['d']}", "--among", f"source:{folder}@{source.commits['j']}"),
        *("--model", "toy", "--metric", "runs", "--into", str(folder), "--run-dir", "b"),
    )
    assert done.code == 0, done.text
    document = json.loads((project.folder / "b" / "bisect.json").read_text())
    assert document["first_new"] == source.commits["h"][:12]
    assert document["change"]["commit"] == source.commits["h"]
    assert f"between iree-{source.commits['d']}" in done.text
    resumed = project.gauntlet("bisect", "--resume", "--run-dir", "b")
    assert resumed.code == 0, resumed.text
    assert json.loads((project.folder / "b" / "bisect.json").read_text())["first_new"] == source.commits["h"][:12]


@pytest.mark.stress
def test_a_checkout_without_the_commits_leaves_the_answer(history: tuple[Project, IreeSource], tmp_path: Path) -> None:
    project, source = history
    other = IreeSource.make(tmp_path / "other").folder
    ends = [f"source:{source.folder}@{source.commits[name]}" for name in ("d", "j")]
    words = ("--good", ends[0], "--bad", ends[1], "--among", ends[0], "--model", "toy", "--metric", "runs")
    done = project.gauntlet("bisect", *words, "--into", str(other), "--run-dir", "b")
    assert done.code == 3, done.text
    document = json.loads((project.folder / "b" / "bisect.json").read_text())
    assert document["first_new"] == f"iree-{source.commits['j']}"
    reason = f"whose commits cannot be searched: source:{other} has no commit {source.commits['d']}"
    assert reason in document["answer"]


@pytest.mark.stress
def test_a_loss_between_two_commits_is_followed_to_its_commit(history: tuple[Project, IreeSource]) -> None:
    project, source = history
    sides = (f"source:{source.folder}@iree-9.0.0", f"source:{source.folder}@{source.commits['j']}")
    done = project.gauntlet("qualify", *sides, "--no-times", "--no-bundles", "--run-dir", "q")
    assert done.code == 1, done.text
    (loss,) = json.loads((project.folder / "q" / "qualify.json").read_text())["losses"]
    commit = source.commits["h"][:12]
    assert (loss["kind"], loss["since"].startswith(f"first bad: {commit}; last good: ")) == ("wrong numbers", True)
    assert loss["since"].endswith(" by Ada Example: Take another sign (#42)")
    page = (project.folder / "q" / "qualify.md").read_text()
    assert "https://github.com/iree-org/iree/pull/42" in page
    command = ("--good", "iree-9.0.0", "--bad", source.commits["j"], "--source", str(source.folder), "--metric", "runs")
    assert f"gauntlet bisect {shlex.join(command)}" in page


def test_a_qualification_searches_among_what_lies_between(source: IreeSource, tmp_path: Path) -> None:
    source.git("tag", "iree-9.0.0", "HEAD")
    source.git("checkout", "-q", "-b", "side")
    source.commit("of-a-branch")
    source.git("checkout", "-q", "main")
    new = source.commit("new")
    checkout = str(source.folder)
    place = make_toolchain_place(tmp_path, search_path=os.environ["PATH"], offline=True)

    def choose(*sides: str, releases: tuple[str, str] = ("", ""), **options: Any) -> CandidateRow:
        return _choose_row(QualifyRequest(sides=sides, **options), releases, place)

    old_commit, new_commit = f"source:{checkout}@iree-9.0.0", f"source:{checkout}@main"
    commits = CandidateRow("iree-9.0.0", "main", source=checkout)
    releases = ("3.12.0", "3.13.0")
    between = CandidateRow(*releases)
    assert choose(old_commit, new_commit) == commits
    assert choose("9.0.0", new_commit, releases=("9.0.0", "")) == replace(commits, good="9.0.0")
    packages = choose("9.0.0", f"commit:{new[:10]}", releases=("9.0.0", ""), source=checkout)
    assert packages == CandidateRow("9.0.0", new[:10], source=checkout, packages=True)
    assert choose(*releases, releases=releases) == between
    assert choose("installed", "nightly", releases=releases) == between
    assert choose(*releases, releases=releases, nightlies=True, source=checkout) == replace(
        between, nightlies=True, into=checkout
    )
    # Two branches have no commits between them, and nothing is known to lie between two builds.
    branches = (f"source:{checkout}@side", new_commit)
    assert choose(*branches) == CandidateRow(*branches, among=branches)
    builds = ("build:a", "build:b")
    assert choose(*builds) == CandidateRow(*builds, among=builds)
    assert choose(*builds, among=("build:c",), source=checkout) == CandidateRow(
        *builds, among=("build:c",), into=checkout
    )
    with pytest.raises(UsageError, match="is an ancestor of the other"):
        choose(*branches, source=checkout)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--good", "main", "--bad", "main"), "both ends are "),
        (("--good", "main", "--bad", "nothing"), "has no commit nothing"),
        (("--good", "main", "--bad", "apart"), "is an ancestor of the other"),
        (("--good", "main~", "--bad", "main", "--nightlies"), "--source and --nightlies exclude each other"),
        (("--good", "main~", "--bad", "main", "--into", "x"), "--source and --into exclude each other"),
    ],
)
def test_commits_that_cannot_be_searched_are_said(
    project: Project, source: IreeSource, words: tuple[str, ...], says: str
) -> None:
    source.git("checkout", "-q", "-b", "apart")
    source.commit("apart")
    source.git("checkout", "-q", "main")
    source.commit("second")
    done = project.gauntlet("bisect", "--source", str(source.folder), *words, "--model", "toy", "--metric", "compiles")
    assert done.code in (2, 3), done.text
    assert says in done.err
