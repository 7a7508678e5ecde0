"""A checkout of IREE that a user has: commits, submodules, and git worktrees that share its objects.

Its own work tree is only read. A worktree of it, and of each of its submodules, is laid out in the cache; git keeps
track of these in the checkout (`git worktree list`).
"""

from __future__ import annotations

import difflib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.formatting import listed
from iree_gauntlet.system.short_process import ask

if TYPE_CHECKING:
    from iree_gauntlet.system.short_process import Answer


# Of a checkout of LLVM without its files: minutes on a slow disk.
_TIMEOUT_SECONDS = 1800.0
_RUNTIME_SUBMODULES = "build_tools/scripts/git/runtime_submodules.txt"
_SUBMODULE = "160000"
_MOST_NAMED = 4
# What hooks of git set.
_OF_ANOTHER_REPOSITORY = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"),
)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with IREE's sources, under git."""

    folder: Path
    git: str

    @classmethod
    def of(cls, folder: Path | None, search_path: str) -> Checkout:
        """The checkout in a folder; ToolchainError where there is none of IREE, or no git."""
        clone = "git clone https://github.com/iree-org/iree.git && git -C iree submodule update --init"
        if folder is None or not folder.is_dir():
            raise NoSuchToolchainError(f"source:{folder} is not a folder", f"Get the sources: {clone}")
        git = shutil.which("git", path=search_path)
        if git is None:
            raise ToolchainError("no git on the PATH, which a source build needs", "Install it: sudo apt install git")
        made = cls(folder, git)
        top = made._ask(["rev-parse", "--show-toplevel"])
        if top.exit_code != 0:
            why = (top.stderr.strip().splitlines() or ["no reason given"])[0]
            raise NoSuchToolchainError(f"source:{folder} is no git checkout: {why}", f"Get one: {clone}")
        if not folder.samefile(top.stdout.rstrip("\n")):
            hint = f"Name its top: source:{top.stdout.strip()}"
            raise NoSuchToolchainError(f"source:{folder} lies within a checkout", hint)
        if missing := [name for name in ("CMakeLists.txt", "runtime") if not (folder / name).exists()]:
            hint = f"Get one: {clone}"
            raise NoSuchToolchainError(f"source:{folder} is no checkout of IREE: it has no {missing[0]}", hint)
        return made

    def commit_of(self, ref: str) -> str:
        """The commit that a branch, a tag or the beginning of a hash means."""
        commit = self._find_commit(ref)
        if not commit:
            names = self._ask(["for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"])
            known = names.stdout.split()
            # A branch that only the remote has, by its whole name.
            remote = [name for name in known if name.endswith(f"/{ref}")]
            near = remote or difflib.get_close_matches(ref, known, n=3)
            meant = f"Did you mean {' or '.join(near)}? " if near else ""
            hint = f"{meant}Get what is new: git -C {self.folder} fetch --tags"
            raise NoSuchToolchainError(f"source:{self.folder} has no commit {ref}", hint)
        return commit

    def version_commit(self, text: str) -> str:
        """The commit of a release or nightly (`3.6.0`, by its tag), or of anything else that `commit_of` takes."""
        by_tag = self._find_commit(f"refs/tags/iree-{text}") or self._find_commit(f"refs/tags/v{text}")
        return by_tag or self.commit_of(text)

    def _find_commit(self, ref: str) -> str:
        answer = self._ask(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"])
        return answer.stdout.strip() if answer.exit_code == 0 else ""

    def commits_between(self, one: str, other: str) -> tuple[list[str], bool]:
        """The commits of the first-parent history from the older of two to the newer one, both among them.

        Returned is also whether the first that was given is the older one; UsageError where both are the same, or
        neither leads to the other.
        """
        if one == other:
            raise UsageError(f"both ends are {one[:12]}", "Name two commits.")
        for low, high in ((one, other), (other, one)):
            if self._ask(["merge-base", "--is-ancestor", low, high]).exit_code == 0:
                told = self._ask_or_fail(["rev-list", "--first-parent", "--reverse", f"{low}..{high}"])
                return [low, *told.split()], low == one
        base = self._ask(["merge-base", one, other]).stdout.strip()[:12]
        raise UsageError(
            f"neither of {one[:12]} and {other[:12]} leads to the other",
            f"Take the commit where they part for one end: {base}." if base else "They have no commit in common.",
        )

    def describe(self, commit: str) -> dict[str, str]:
        """What people want to know of a commit: `commit`, `date`, `author`, `subject`."""
        told = self._ask_or_fail(
            ["-c", "log.showSignature=false", "show", "--no-patch", "--format=%H%n%as%n%an%n%s", commit]
        ).splitlines()
        return dict(zip(("commit", "date", "author", "subject"), told, strict=True))

    def is_modified(self) -> bool:
        """Whether files of its work tree, or of its submodules, are not those of its commit."""
        return bool(self._ask_or_fail(["status", "--porcelain", "--untracked-files=no"]))

    def require_submodules(self, commit: str, *, runtime_only: bool) -> dict[str, str]:
        """The submodules that a build of a commit needs (path → their commit), which the work tree must have."""
        wanted = self._list_submodules(commit, runtime_only=runtime_only)
        missing = [path for path in wanted if not (self.folder / path / ".git").exists()]
        if missing:
            hint = f"Get them: git -C {self.folder} submodule update --init"
            raise ToolchainError(f"source:{self.folder} lacks submodules: {listed(missing, _MOST_NAMED)}", hint)
        return wanted

    def lay_out(self, commit: str, tree: Path, *, runtime_only: bool) -> None:
        """Makes a worktree of a commit, with its submodules; of one that is there, only what differs is written.

        Nobody else uses its folder. `runtime_only` leaves out the submodules that the compiler alone needs.

        Raises:
            ToolchainError: a submodule, or its commit, is not there; or git fails.
        """
        wanted = self.require_submodules(commit, runtime_only=runtime_only)
        for path, revision in wanted.items():
            if self._ask(["-C", path, "cat-file", "-e", f"{revision}^{{commit}}"]).exit_code != 0:
                hint = f"Fetch it: git -C {self.folder / path} fetch origin {revision}"
                raise ToolchainError(f"{path} has no commit {revision[:12]}, which {commit[:12]} needs", hint)
        self._place(Path(), commit, tree)
        for path, revision in wanted.items():
            self._place(Path(path), revision, tree / path)

    def forget(self, tree: Path) -> None:
        """Deletes a worktree, and what git knows of it and of its submodules."""
        inside = [Path(path) for path in self._list_submodules("HEAD") if (tree / path / ".git").exists()]
        shutil.rmtree(tree, ignore_errors=True)
        for path in (Path(), *inside):
            self._ask(["-C", str(path), "worktree", "prune"])

    def _list_submodules(self, commit: str, *, runtime_only: bool = False) -> dict[str, str]:
        """The submodules of a commit that a build needs: path → their commit."""
        entries = [
            line.split(None, 3) for line in self._ask_or_fail(["ls-tree", "-r", "-z", commit]).split("\0") if line
        ]
        found = {path: revision for mode, _, revision, path in entries if mode == _SUBMODULE}
        listing = self._ask(["show", f"{commit}:{_RUNTIME_SUBMODULES}"]) if runtime_only else None
        if listing is None or listing.exit_code != 0:
            return found
        return {path: revision for path, revision in found.items() if path in listing.stdout.split()}

    def _place(self, path: Path, commit: str, tree: Path) -> None:
        """A worktree of the checkout, or of the submodule at a path in it, at a commit."""
        if (tree / ".git").is_file():
            folder = self._ask(["-C", str(tree), "rev-parse", "--absolute-git-dir"])
            if folder.exit_code == 0:
                # Left by a git that was killed: nobody else works here.
                Path(folder.stdout.rstrip("\n"), "index.lock").unlink(missing_ok=True)
                if self._ask(["-C", str(tree), "checkout", "--quiet", "--force", "--detach", commit]).exit_code == 0:
                    return
            shutil.rmtree(tree)
        self._ask_or_fail(["-C", str(path), "worktree", "prune"])
        self._ask_or_fail(["-C", str(path), "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit])

    def _ask_or_fail(self, arguments: list[str]) -> str:
        answer = self._ask(arguments)
        if answer.exit_code != 0:
            said = " ".join(answer.stderr.split())[-300:]
            hint = "Run it by hand, and mend what it says."
            raise ToolchainError(f"git -C {self.folder} {' '.join(arguments)} failed: {said}", hint)
        return answer.stdout

    def _ask(self, arguments: list[str]) -> Answer:
        # Git looks where it is told to, and writes no index of what it only reads.
        environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        return ask([self.git, "-C", str(self.folder), *arguments], timeout=_TIMEOUT_SECONDS, environment=environment)
