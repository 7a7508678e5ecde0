"""A stand-in for a checkout of IREE: small, under git, with a submodule; its tools start those of the wheels.

So compiles, numbers and dispatches are real, and so are git, CMake, Ninja and the C compiler. What a commit changes is
planted: a flag that the compiler gets, a crash, an error of the C compiler or of CMake.
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
from iree_gauntlet.toolchains.find import CommitPackages, ToolchainPlace
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.installer import Installer
from iree_gauntlet.toolchains.source_builds import SourceBuilds
from tests.support.session_folder import made_once

_FILES = Path(__file__).with_suffix("")
_LLVM = "third_party/llvm-project"
MISSING = [tool for tool in ("git", "cmake", "ninja", "cc") if shutil.which(tool) is None]


@dataclass
class IreeSource:
    """A checkout."""

    folder: Path
    commits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> IreeSource:
        """A checkout with one commit, `first`, and its submodule: a copy of one that is made once a session."""
        template = made_once("iree-checkout", _make_checkout)
        shutil.copytree(template, folder, symlinks=True)
        return cls(folder, {"first": cls(folder).git("rev-parse", "HEAD")})

    def git(self, *words: str, at: Path | None = None) -> str:
        """Runs git; what it says."""
        same = ("GIT_AUTHOR_NAME", "Ada Example", "GIT_COMMITTER_NAME", "Ada Example")
        mail = ("GIT_AUTHOR_EMAIL", "ada@example.com", "GIT_COMMITTER_EMAIL", "ada@example.com")
        names = dict(zip((*same, *mail)[::2], (*same, *mail)[1::2], strict=True))
        date = f"2026-11-{1 + len(self.commits) % 28:02}T12:00:00Z"
        environment = {**os.environ, **names, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        argv = ["git", "-c", "protocol.file.allow=always", "-C", str(at or self.folder), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    def write(self, *, flag: str = "", runtime: str = "", broken: str = "", cmake: str = "") -> None:
        """Writes what is planted into the work tree.

        `flag`: that the compiler gets; `crash` for one that does, `negate` for one that takes another sign.
        """
        version = f"9.{len(self.commits)}.0.dev"
        text = f'#define PLANTED_VERSION "{version}"\n#define PLANTED_COMPILER "{flag}"\n{broken}\n'
        (self.folder / "compiler" / "planted.h").write_text(text)
        (self.folder / "runtime" / "planted.h").write_text(f'#define PLANTED_RUNTIME "{runtime}"\n')
        (self.folder / "planted.cmake").write_text(f'message(FATAL_ERROR "{cmake}")\n' if cmake else "")

    def commit(self, name: str, subject: str = "", **planted: str) -> str:
        """Commits what is planted; its hash."""
        self.write(**planted)
        (self.folder / "runtime" / "NOTES").write_text(f"{name}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject or name)
        self.commits[name] = self.git("rev-parse", "HEAD")
        return self.commits[name]

    def bump_llvm(self, revision: int) -> None:
        """Commits to the submodule, and takes that commit."""
        llvm = self.folder / _LLVM
        (llvm / "llvm.h").write_text(f"#define LLVM_REVISION {revision}\n")
        self.git("commit", "-q", "-am", f"LLVM {revision}", at=llvm)


def _make_llvm(folder: Path) -> None:
    llvm = IreeSource(folder)
    llvm.git("init", "-q", "-b", "main")
    (folder / "llvm.h").write_text("#define LLVM_REVISION 1\n")
    llvm.git("add", ".")
    llvm.git("commit", "-q", "-m", "LLVM as it was")


def _make_checkout(folder: Path) -> None:
    shutil.copytree(_FILES, folder, dirs_exist_ok=True)
    installed = find_installed()
    compiler, runtime = (Path(path).parent for path in (installed.compiler.compile, installed.runtime.run_module))
    (folder / "wheels.cmake").write_text(f'set(WHEEL_COMPILER "{compiler}")\nset(WHEEL_RUNTIME "{runtime}")\n')
    source = IreeSource(folder)
    source.git("init", "-q", "-b", "main")
    source.git("submodule", "--quiet", "add", str(made_once("llvm-project", _make_llvm)), _LLVM)
    source.commit("first", "Begin")


def builds_in(cache: Path, *, offline: bool = False, options: tuple[str, ...] = (), **environ: str) -> SourceBuilds:
    """The source builds of a cache; what they say is printed."""
    folder, uses = cache / "toolchains" / "builds", Leases(cache / "toolchains")
    environ = {**os.environ, **environ}
    return SourceBuilds(folder, options, environ, offline=offline, uses=uses, mark_used=uses.use, news=print)


def packages_at(api: str = "http://127.0.0.1:9/nothing", **environ: str) -> CommitPackages:
    """Packages of commits at an address, where by default nobody answers; what they say is printed."""
    return CommitPackages(api, environ, print)


def place_in(
    cache: Path,
    *,
    environments: Path | None = None,
    offline: bool = False,
    packages: CommitPackages | None = None,
    nightlies: str = "",
    search_path: str = "",
) -> ToolchainPlace:
    """Where toolchains are looked for in a cache; its environments keep to themselves what they do."""
    envs = environments or cache / "envs"
    made = Environments(envs, Installer(), offline=offline, mark_used=lambda _: None, news=lambda _: None)
    builds = builds_in(cache, offline=offline)
    return ToolchainPlace(made, builds, packages or packages_at(), nightlies, hash_file, search_path)


def watched_compiler(folder: Path) -> tuple[str, Path]:
    """A C compiler that writes down what it compiles, and waits at compiler.c while `hold` holds the folder.

    Returns:
        Its path, and that of what it writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, calls = folder / "watched-cc", folder / "calls.txt"
    path.write_text(
        f"""#!/bin/sh
case "$*" in *compiler.c*|*tool.c*|*runtime.c*)
  echo "$*" >> '{calls}'
  case "$*" in *compiler.c*) {waiting(folder)} ;; esac
  if [ -e '{folder}/full' ]; then echo 'fatal error: error writing: No space left on device' >&2; exit 1; fi ;;
esac
exec cc "$@"
"""
    )
    path.chmod(0o755)
    return str(path), calls


def hold(folder: Path) -> None:
    """Keeps whoever waits by `waiting` from going on."""
    os.mkfifo(folder / "held")


def waiting(folder: Path) -> str:
    """As a command of a shell: waits while a folder is held."""
    return f"if [ -p '{folder}/held' ]; then cat '{folder}/held' 2> /dev/null; fi"


def let_go(folder: Path) -> None:
    """Lets everybody go on who waits, and who comes later."""
    # A writer wakes the readers; who comes behind it finds nothing to wait for.
    writer = os.open(folder / "held", os.O_RDWR)
    (folder / "held").unlink()
    os.close(writer)
