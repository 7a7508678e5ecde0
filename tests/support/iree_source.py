"""A small fake checkout of IREE under git, with a submodule; its tools start the tools of the wheels.

Therefore compiles, numbers and dispatches are real; git, CMake, Ninja and the C compiler are real too. Commits plant
changes: a flag that the compiler gets, a crash, an error of the C compiler or of CMake.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.toolchains.environments import Environments
from iree_gauntlet.toolchains.find import CommitPackages, ToolchainLocations
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.installer import Installer
from iree_gauntlet.toolchains.source_builds import SourceBuilds
from tests.support.session_folder import make_once

_FILES = Path(__file__).with_suffix("")
_LLVM = "third_party/llvm-project"
MISSING_TOOLS = [tool for tool in ("git", "cmake", "ninja", "cc") if shutil.which(tool) is None]


@dataclass
class IreeSource:
    """A checkout, and its commits by name."""

    folder: Path
    commits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> IreeSource:
        """Copy a checkout, built once a session, with one commit, `first`, and a submodule."""
        template = make_once("iree-checkout", _make_checkout)
        shutil.copytree(template, folder, symlinks=True)
        return cls(folder, {"first": cls(folder).git("rev-parse", "HEAD")})

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run git; return its output."""
        name_pairs = ("GIT_AUTHOR_NAME", "Ada Example", "GIT_COMMITTER_NAME", "Ada Example")
        mail_pairs = ("GIT_AUTHOR_EMAIL", "ada@example.com", "GIT_COMMITTER_EMAIL", "ada@example.com")
        identity = dict(zip((*name_pairs, *mail_pairs)[::2], (*name_pairs, *mail_pairs)[1::2], strict=True))
        date = f"2026-11-{1 + len(self.commits) % 28:02}T12:00:00Z"
        environment = {**os.environ, **identity, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        argv = ["git", "-c", "protocol.file.allow=always", "-C", str(cwd or self.folder), *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    def write(self, *, flag: str = "", runtime: str = "", broken: str = "", cmake: str = "") -> None:
        """Write planted changes into the work tree.

        `flag`: a flag for the compiler; `crash` makes the compiler crash, `negate` makes it change a sign.
        """
        version = f"9.{len(self.commits)}.0.dev"
        text = f'#define PLANTED_VERSION "{version}"\n#define PLANTED_COMPILER "{flag}"\n{broken}\n'
        (self.folder / "compiler" / "planted.h").write_text(text)
        (self.folder / "runtime" / "planted.h").write_text(f'#define PLANTED_RUNTIME "{runtime}"\n')
        (self.folder / "planted.cmake").write_text(f'message(FATAL_ERROR "{cmake}")\n' if cmake else "")

    def commit(self, name: str, subject: str = "", **changes: str) -> str:
        """Commit the planted changes of `write`; return the hash."""
        self.write(**changes)
        (self.folder / "runtime" / "NOTES").write_text(f"{name}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject or name)
        self.commits[name] = self.git("rev-parse", "HEAD")
        return self.commits[name]

    def bump_llvm(self, revision: int) -> None:
        """Commit to the submodule, and check the new commit out."""
        llvm = self.folder / _LLVM
        (llvm / "llvm.h").write_text(f"#define LLVM_REVISION {revision}\n")
        self.git("commit", "-q", "-am", f"LLVM {revision}", cwd=llvm)


def _make_llvm(folder: Path) -> None:
    llvm = IreeSource(folder)
    llvm.git("init", "-q", "-b", "main")
    (folder / "llvm.h").write_text("#define LLVM_REVISION 1\n")
    llvm.git("add", ".")
    llvm.git("commit", "-q", "-m", "LLVM as it was")


def _make_checkout(folder: Path) -> None:
    shutil.copytree(_FILES, folder, dirs_exist_ok=True)
    toolchain = find_installed()
    compiler, runtime = (Path(path).parent for path in (toolchain.compiler.compile, toolchain.runtime.run_module))
    (folder / "wheels.cmake").write_text(f'set(WHEEL_COMPILER "{compiler}")\nset(WHEEL_RUNTIME "{runtime}")\n')
    source = IreeSource(folder)
    source.git("init", "-q", "-b", "main")
    source.git("submodule", "--quiet", "add", str(make_once("llvm-project", _make_llvm)), _LLVM)
    source.commit("first", "Begin")


def make_source_builds(
    cache: Path, *, offline: bool = False, options: tuple[str, ...] = (), **environ: str
) -> SourceBuilds:
    """Make the source builds of a cache; messages are printed."""
    folder, uses = cache / "toolchains" / "builds", Leases(cache / "toolchains")
    environ = {**os.environ, **environ}
    return SourceBuilds(folder, options, environ, offline=offline, uses=uses, mark_used=uses.use, news=print)


def make_commit_packages(api: str = "http://127.0.0.1:9/nothing", **environ: str) -> CommitPackages:
    """Make the packages of commits at a URL, by default without a server; messages are printed."""
    return CommitPackages(api, environ, print)


def make_toolchain_place(
    cache: Path,
    *,
    environments: Path | None = None,
    offline: bool = False,
    packages: CommitPackages | None = None,
    nightlies: str = "",
    search_path: str = "",
) -> ToolchainLocations:
    """Make the locations of toolchains in a cache; messages about environments are dropped."""
    environments_folder = environments or cache / "envs"
    managed_environments = Environments(
        environments_folder, Installer(), offline=offline, mark_used=lambda _: None, news=lambda _: None
    )
    source_builds = make_source_builds(cache, offline=offline)
    return ToolchainLocations(
        managed_environments, source_builds, packages or make_commit_packages(), nightlies, hash_file, search_path
    )


def write_watched_compiler(folder: Path) -> tuple[str, Path]:
    """Write a C compiler that logs its calls, and waits at compiler.c while `hold` holds the directory.

    Returns:
        The paths of the compiler and of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, call_log = folder / "watched-cc", folder / "calls.txt"
    path.write_text(
        f"""#!/bin/sh
case "$*" in *compiler.c*|*tool.c*|*runtime.c*)
  echo "$*" >> '{call_log}'
  case "$*" in *compiler.c*) {make_wait_command(folder)} ;; esac
  if [ -e '{folder}/full' ]; then echo 'fatal error: error writing: No space left on device' >&2; exit 1; fi ;;
esac
exec cc "$@"
"""
    )
    path.chmod(0o755)
    return str(path), call_log


def hold(folder: Path) -> None:
    """Make commands of `make_wait_command` wait."""
    os.mkfifo(folder / "held")


def make_wait_command(folder: Path) -> str:
    """Return a shell command that waits while `hold` holds a directory."""
    return f"if [ -p '{folder}/held' ]; then cat '{folder}/held' 2> /dev/null; fi"


def release(folder: Path) -> None:
    """Let waiting and later commands continue."""
    # A writer wakes the readers; later commands find no pipe to wait for.
    writer = os.open(folder / "held", os.O_RDWR)
    (folder / "held").unlink()
    os.close(writer)
