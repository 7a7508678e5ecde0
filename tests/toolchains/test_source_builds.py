"""Builds of a small fake checkout of IREE, with real git, CMake, Ninja and C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from iree_gauntlet.errors import GauntletError, NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import find_toolchain
from iree_gauntlet.toolchains.source_builds import COMPILER, RUNTIME, Build, find_first_error
from tests.support.iree_source import (
    MISSING_TOOLS,
    IreeSource,
    make_source_builds,
    make_toolchain_place,
    write_watched_compiler,
)

pytestmark = [pytest.mark.iree, pytest.mark.skipif(bool(MISSING_TOOLS), reason=f"needs {', '.join(MISSING_TOOLS)}")]

_BOTH = frozenset((COMPILER, RUNTIME))


@pytest.fixture
def source(tmp_path: Path) -> IreeSource:
    return IreeSource.make(tmp_path / "iree")


def of(source: IreeSource, ref: str = "") -> Choice:
    return parse_choice(f"source:{source.folder}@{ref}" if ref else f"source:{source.folder}")


def version_of(build: Build) -> str:
    argv = [str(build.path / "tools" / "iree-compile"), "--version"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[-1]


# Choices


@pytest.mark.parametrize(
    ("text", "folder", "ref"),
    [
        ("source:/x/iree", "/x/iree", ""),
        ("source:/x/iree@main", "/x/iree", "main"),
        ("source:/x@1/iree@v1", "/x@1/iree", "v1"),
    ],
)
def test_a_checkout_is_named_with_or_without_a_commit(text: str, folder: str, ref: str) -> None:
    choice = parse_choice(text)
    assert (choice.kind, str(choice.folder), choice.ref) == (ChoiceKind.SOURCE, folder, ref)


def test_a_folder_with_an_at_in_its_name_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "iree@2").mkdir()
    choice = parse_choice(f"source:{tmp_path}/iree@2")
    assert (choice.folder, choice.ref) == (tmp_path / "iree@2", "")


@pytest.mark.parametrize("text", ["source:", "source:/x@", "source:@main", "source:/x@--all"])
def test_what_names_no_commit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must follow the"):
        parse_choice(text)


# Commits


def test_a_commit_is_built_once_and_stays_as_it_is(
    source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.bump_llvm(2)
    second = source.commit("second")
    before = source.git("status", "--porcelain"), source.git("rev-parse", "HEAD")
    cc, calls = write_watched_compiler(tmp_path / "cc")
    builds = make_source_builds(tmp_path / "cache", CC=cc, CXX=cc)
    build = builds.provide(of(source, "main"), _BOTH)
    assert (build.commit, build.modified, build.parts) == (second, False, ("compiler", "runtime"))
    assert version_of(build) == "9.1.0.dev"
    assert "checking out" in capsys.readouterr().out
    whole = len(calls.read_text().splitlines())
    assert builds.provide(of(source, second[:10]), _BOTH) == build
    assert len(calls.read_text().splitlines()) == whole
    assert capsys.readouterr().out == ""
    # The one before it, built in the same folder: what has not changed is not compiled again.
    first = builds.provide(of(source, "main~"), _BOTH)
    assert version_of(first) == "9.0.0.dev"
    assert version_of(build) == "9.1.0.dev"
    assert whole < len(calls.read_text().splitlines()) < 2 * whole
    assert (source.git("status", "--porcelain"), source.git("rev-parse", "HEAD")) == before


def test_builds_of_a_projects_cache_from_before_are_used_and_go_on(
    source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = make_source_builds(tmp_path / "cache")
    built = own.provide(of(source, "main"), _BOTH)
    (work,) = own.work_folders()
    capsys.readouterr()
    shared = replace(make_source_builds(tmp_path / "user"), legacy_folders=(own.folder,))
    assert shared.provide(of(source, "main"), _BOTH) == built
    assert capsys.readouterr().out == "", "it is not built again"
    second = source.commit("second")
    newer = shared.provide(of(source, "main"), _BOTH)
    assert (newer.path.parent, newer.commit) == (shared.folder, second)
    assert shared.work_folders() == [work], "what was begun goes on where it is"
    assert {path for path, _, _ in shared.all()} == {built.path, newer.path}


def test_other_options_make_another_build(source: IreeSource, tmp_path: Path) -> None:
    plain = make_source_builds(tmp_path / "cache").provide(of(source, "main"), _BOTH)
    other = make_source_builds(tmp_path / "cache", options=("-DIREE_ENABLE_ASSERTIONS=OFF",)).provide(
        of(source, "main"), _BOTH
    )
    assert plain.path != other.path
    assert other.options == ("-DIREE_ENABLE_ASSERTIONS=OFF",)


def test_a_runtime_alone_needs_no_compiler_and_is_taken_from_a_whole_build(source: IreeSource, tmp_path: Path) -> None:
    cc, calls = write_watched_compiler(tmp_path / "cc")
    builds = make_source_builds(tmp_path / "cache", CC=cc, CXX=cc)
    alone = builds.provide(of(source, "main"), frozenset({RUNTIME}))
    assert "compiler.c" not in calls.read_text()
    assert not (alone.path / "tools" / "iree-compile").exists()
    whole = builds.provide(of(source, "main"), _BOTH)
    assert whole.path != alone.path
    shutil.rmtree(alone.path)
    assert builds.provide(of(source, "main"), frozenset({RUNTIME})) == whole


def test_what_was_built_for_one_half_gets_the_other(source: IreeSource, tmp_path: Path) -> None:
    builds = make_source_builds(tmp_path / "cache")
    half = builds.provide(of(source, "main"), frozenset({COMPILER}))
    assert not (half.path / "tools" / "iree-run-module").exists()
    whole = builds.provide(of(source, "main"), _BOTH)
    assert whole.parts == ("compiler", "runtime")
    # This process has used the half, and goes on using it.
    assert half.path.exists()
    assert builds.provide(of(source, "main"), frozenset({COMPILER})) == whole


def test_a_build_outlives_the_compiler_that_made_it(source: IreeSource, tmp_path: Path) -> None:
    built = make_source_builds(tmp_path / "cache").provide(of(source, "main"), _BOTH)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "")
    without = make_source_builds(tmp_path / "cache", PATH=str(tools), CC="/gone/cc")
    assert without.provide(of(source, "main"), _BOTH) == built
    with pytest.raises(ToolchainError, match=r"\$CC, which is '/gone/cc' and not a program on the PATH"):
        without.provide(of(source), _BOTH)


def test_one_commit_of_two_checkouts_is_built_once_more_and_kept_once(source: IreeSource, tmp_path: Path) -> None:
    clone = IreeSource(tmp_path / "clone")
    source.git("clone", "-q", "--recurse-submodules", str(source.folder), str(clone.folder))
    builds = make_source_builds(tmp_path / "cache")
    assert builds.provide(of(source, "main"), _BOTH) == builds.provide(of(clone, "main"), _BOTH)
    assert len(builds.all()) == 1


# Work trees


def test_a_work_tree_is_built_as_it_is(source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builds = make_source_builds(tmp_path / "cache")
    first = builds.provide(of(source), _BOTH)
    assert (first.commit, first.modified) == (source.commits["first"], False)
    capsys.readouterr()
    assert builds.provide(of(source), _BOTH) == first
    assert capsys.readouterr().out == ""
    source.write(flag="--iree-opt-level=O1")
    changed = builds.provide(of(source), _BOTH)
    assert changed.modified
    assert changed.path != first.path
    # This process has used the first one.
    assert version_of(first) == "9.0.0.dev"
    # Another one does not: it is pruned with the next build.
    second = source.commit("second", flag="--iree-opt-level=O1")
    again = make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    assert (again.commit, again.modified) == (second, False)
    # What was committed is what was built.
    assert again.path == changed.path
    assert len([path for path, _, _ in builds.all()]) == 2


def test_what_reads_profiles_is_built_with_the_runtime(source: IreeSource, tmp_path: Path) -> None:
    built = make_source_builds(tmp_path / "cache").provide(of(source, "main"), frozenset({RUNTIME}))
    assert (built.path / "tools" / "iree-profile").is_file()
    # A checkout from before there was one has no such target.
    listing = source.folder / "CMakeLists.txt"
    text = listing.read_text()
    listing.write_text("\n".join(line for line in text.splitlines() if "iree-profile" not in line) + "\n")
    source.commit("older", "No profiles")
    built = make_source_builds(tmp_path / "cache").provide(of(source, "main"), frozenset({RUNTIME}))
    assert not (built.path / "tools" / "iree-profile").exists()


def test_what_is_built_again_as_it_was_is_no_other_build(
    source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = make_source_builds(tmp_path / "cache")
    first = builds.provide(of(source), _BOTH)
    (source.folder / "runtime" / "planted.h").touch()
    again = builds.provide(of(source), _BOTH)
    assert (again.path, again.commit, again.modified) == (first.path, first.commit, False)
    assert "up to date" in capsys.readouterr().out


def test_an_option_that_the_project_does_not_have_is_named(
    source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_source_builds(tmp_path / "cache", options=("-DIREE_BULD_TESTS=ON",)).provide(of(source, "main"), _BOTH)
    assert "the project has no option IREE_BULD_TESTS: check the spelling" in capsys.readouterr().out


def test_a_branch_of_the_remote_is_named_whole(source: IreeSource, tmp_path: Path) -> None:
    source.git("branch", "next")
    clone = IreeSource(tmp_path / "clone")
    source.git("clone", "-q", "--recurse-submodules", str(source.folder), str(clone.folder))
    with pytest.raises(NoSuchToolchainError, match="has no commit next") as caught:
        make_source_builds(tmp_path / "cache").provide(of(clone, "next"), _BOTH)
    assert "Did you mean origin/next?" in caught.value.hint


def test_builds_of_a_work_tree_that_nobody_uses_go(source: IreeSource, tmp_path: Path) -> None:
    first = make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    shutil.rmtree(tmp_path / "cache" / "toolchains" / "leases")
    source.write(flag="--iree-opt-level=O1")
    second = make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    assert not first.path.exists()
    assert second.path.exists()


def test_builds_of_another_checkouts_work_tree_stay(source: IreeSource, tmp_path: Path) -> None:
    clone = IreeSource(tmp_path / "clone")
    source.git("clone", "-q", "--recurse-submodules", str(source.folder), str(clone.folder))
    first = make_source_builds(tmp_path / "cache").provide(of(clone), _BOTH)
    shutil.rmtree(tmp_path / "cache" / "toolchains" / "leases")
    make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    assert first.path.exists()


def test_offline_a_work_tree_is_its_last_build(source: IreeSource, tmp_path: Path) -> None:
    offline = make_source_builds(tmp_path / "cache", offline=True)
    with pytest.raises(ToolchainError, match="is not built") as caught:
        offline.provide(of(source), _BOTH)
    assert f"gauntlet toolchain.build source:{source.folder}" in caught.value.hint
    built = make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    source.write(flag="--iree-opt-level=O1")
    assert offline.provide(of(source), _BOTH) == built


def test_a_cache_that_was_moved_builds_again(
    source: IreeSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_source_builds(tmp_path / "cache").provide(of(source), _BOTH)
    (tmp_path / "cache").rename(tmp_path / "moved")
    source.write(flag="--iree-opt-level=O1")
    assert make_source_builds(tmp_path / "moved").provide(of(source), _BOTH).modified
    assert "has been moved" in capsys.readouterr().out


def test_a_damaged_build_is_made_again(source: IreeSource, tmp_path: Path) -> None:
    builds = make_source_builds(tmp_path / "cache")
    built = builds.provide(of(source, "main"), _BOTH)
    (built.path / "tools" / "iree-compile").write_bytes(b"")
    assert [why for _, _, why in builds.all()] == ["is damaged: tools/iree-compile has changed"]
    assert version_of(builds.provide(of(source, "main"), _BOTH)) == "9.0.0.dev"


# What does not build


def test_what_does_not_compile_names_file_and_line_and_goes_on_when_mended(source: IreeSource, tmp_path: Path) -> None:
    builds = make_source_builds(tmp_path / "cache")
    source.write(broken="int wrong = ;")
    with pytest.raises(ToolchainError) as caught:
        builds.provide(of(source), _BOTH)
    assert f"cannot build {source.folder}: compiler/planted.h:3: expected expression before" in caught.value.message
    log = Path(caught.value.hint.partition("Log: ")[2].splitlines()[0])
    assert "int wrong = ;" in log.read_text()
    repeat = caught.value.hint.partition("To repeat: ")[2]
    assert subprocess.run(repeat, shell=True, check=False, capture_output=True).returncode == 1
    source.git("checkout", "-q", "--", ".")
    assert not builds.provide(of(source), _BOTH).modified


def test_what_does_not_configure_names_its_message(source: IreeSource, tmp_path: Path) -> None:
    source.commit("second", cmake="needs a newer moon")
    with pytest.raises(ToolchainError, match=r"cannot configure .*/iree at .{12}: planted.cmake:1: needs a newer moon"):
        make_source_builds(tmp_path / "cache").provide(of(source, "main"), _BOTH)
    assert make_source_builds(tmp_path / "cache").provide(of(source, "main~"), _BOTH).path.exists()


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("[1/2] x\nFAILED: [code=1] a.o \ncc -c a.c\n/s/a.c:7:3: error: no such thing\n", "/s/a.c:7: no such thing"),
        ("FAILED: t \nld.lld: error: undefined symbol: f\n>>> referenced\n", "ld.lld: error: undefined symbol: f"),
        ("FAILED: t \n/usr/bin/ld: a.o: undefined reference to `f'\n", "/usr/bin/ld: a.o: undefined reference to `f'"),
        (
            "CMake Error at CMakeLists.txt:9 (project):\n  No CMAKE_CXX_COMPILER\n",
            "CMakeLists.txt:9: No CMAKE_CXX_COMPILER",
        ),
        ("CMake Error at a.cmake:1 (add):\n  No x\nninja: error: rebuilding 'build.ninja': …\n", "a.cmake:1: No x"),
        ("CMake Error: The source directory does not exist.\n", "The source directory does not exist."),
        ("ninja: error: unknown target 'x'\n", "ninja: error: unknown target 'x'"),
        ("nothing\n", ""),
    ],
)
def test_the_first_error_is_found(said: str, first: str) -> None:
    assert find_first_error(said) == first


def test_a_full_disk_is_called_one(source: IreeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cc, _ = write_watched_compiler(tmp_path / "cc")
    (tmp_path / "cc" / "full").touch()
    builds = make_source_builds(tmp_path / "cache", CC=cc, CXX=cc)
    with pytest.raises(GauntletError, match="disk full") as caught:
        builds.provide(of(source, "main"), _BOTH)
    assert "Free space, and run again." in caught.value.hint
    (tmp_path / "cc" / "full").unlink()
    assert builds.provide(of(source, "main"), _BOTH).path.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    with pytest.raises(GauntletError, match=r"a build needs about 1.1 GB, but .* has 1.0 MB left"):
        make_source_builds(tmp_path / "other").provide(of(source, "main"), _BOTH)


def test_submodules_that_are_not_there_are_named(source: IreeSource, tmp_path: Path) -> None:
    clone = IreeSource(tmp_path / "clone")
    source.git("clone", "-q", str(source.folder), str(clone.folder))
    builds = make_source_builds(tmp_path / "cache")
    for choice in (of(clone), of(clone, "main")):
        with pytest.raises(ToolchainError, match="lacks submodules: third_party/llvm-project") as caught:
            builds.provide(choice, _BOTH)
        assert caught.value.hint == f"Get them: git -C {clone.folder} submodule update --init"
    # Said before anything is made.
    assert builds.work_folders() == []
    # Its own are enough for the runtime.
    listing = clone.folder / "build_tools/scripts/git/runtime_submodules.txt"
    listing.parent.mkdir(parents=True)
    listing.write_text("third_party/flatcc\n")
    clone.git("add", ".")
    clone.git("-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "-m", "listing")
    assert builds.provide(of(clone), frozenset({RUNTIME})).parts == ("runtime",)


def test_a_submodules_commit_that_is_not_there_is_named(source: IreeSource, tmp_path: Path) -> None:
    clone = IreeSource(tmp_path / "clone")
    source.git("clone", "-q", "--recurse-submodules", str(source.folder), str(clone.folder))
    source.bump_llvm(2)
    source.commit("second")
    clone.git("fetch", "-q", "--no-recurse-submodules")
    with pytest.raises(
        ToolchainError, match=r"third_party/llvm-project has no commit .{12}, which .{12} needs"
    ) as caught:
        make_source_builds(tmp_path / "cache").provide(of(clone, "origin/main"), _BOTH)
    assert "third_party/llvm-project fetch origin " in caught.value.hint


def test_what_is_no_checkout_is_said(source: IreeSource, tmp_path: Path) -> None:
    builds = make_source_builds(tmp_path / "cache")
    (tmp_path / "empty").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    source.git("init", "-q", cwd=other)
    for folder, words in (
        (tmp_path / "none", "is not a folder"),
        (tmp_path / "empty", "is not a git checkout"),
        (source.folder / "compiler", "is a subfolder of a checkout"),
        (other, "is not a checkout of IREE: it has no CMakeLists.txt"),
    ):
        with pytest.raises(NoSuchToolchainError, match=words):
            builds.provide(parse_choice(f"source:{folder}"), _BOTH)
    source.git("branch", "release-1")
    with pytest.raises(NoSuchToolchainError, match="has no commit relase-1") as caught:
        builds.provide(of(source, "relase-1"), _BOTH)
    assert caught.value.hint.startswith("Did you mean release-1?")


def test_everything_that_is_missing_is_said_at_once(
    source: IreeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "")
    old = tools / "cmake"
    old.write_text("#!/bin/sh\necho cmake version 3.10.2\n")
    old.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    builds = make_source_builds(tmp_path / "cache", PATH=str(tools))
    with pytest.raises(ToolchainError) as caught:
        builds.provide(of(source), _BOTH)
    assert caught.value.message == (
        f"a source build needs cmake 3.21 or newer ({old} is 3.10.2) and ninja 1.10 or newer and a C and a C++ compiler"
    )
    assert "sudo apt install cmake ninja-build clang lld" in caught.value.hint
    assert "pip install 'iree-gauntlet[source]'" in caught.value.hint


# As a toolchain


def test_halves_may_be_built_from_different_commits(source: IreeSource, tmp_path: Path) -> None:
    second = source.commit("second", flag="--iree-opt-level=O1")
    place = make_toolchain_place(tmp_path, search_path=os.environ["PATH"])
    found = find_toolchain(of(source, "main"), of(source, "main~"), place)
    assert (found.compiler.commit, found.runtime.commit) == (second, source.commits["first"])
    assert found.compiler.source == f"source: {second[:12]} of {source.folder}"
    whole = find_toolchain(of(source, "main"), of(source, "main"), place)
    assert whole.compiler.identity == found.compiler.identity
    assert whole.runtime.commit == second
