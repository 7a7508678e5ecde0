"""A user's checkout of IREE: commits, submodules, and git worktrees that share its objects.

The user's own work tree is only read. Worktrees of the checkout and of its submodules are created in the cache; git
registers these worktrees in the checkout (`git worktree list`).
"""

from __future__ import annotations

import difflib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.formatting import list_first
from iree_gauntlet.system.short_process import run_tool

if TYPE_CHECKING:
    from iree_gauntlet.system.short_process import ProcessOutput


# Checking out LLVM takes minutes on a slow disk.
_TIMEOUT_SECONDS = 1800.0
_RUNTIME_SUBMODULES = "build_tools/scripts/git/runtime_submodules.txt"
_SUBMODULE_MODE = "160000"
_MAX_LISTED_NAMES = 4
# git sets these variables when it runs hooks.
_REPOSITORY_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"),
)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with IREE's sources, under git."""

    folder: Path
    git: str

    @classmethod
    def open(cls, folder: Path | None, search_path: str) -> Checkout:
        """Open the checkout in a folder; raise a ToolchainError without a checkout of IREE, or without git."""
        clone = "git clone https://github.com/iree-org/iree.git && git -C iree submodule update --init"
        if folder is None or not folder.is_dir():
            raise NoSuchToolchainError(f"source:{folder} is not a folder", f"Get the sources: {clone}")
        git = shutil.which("git", path=search_path)
        if git is None:
            raise ToolchainError("a source build needs git on the PATH", "Install it: sudo apt install git")
        checkout = cls(folder, git)
        top_level = checkout._run(["rev-parse", "--show-toplevel"])
        if top_level.exit_code != 0:
            reason = (top_level.stderr.strip().splitlines() or ["no reason given"])[0]
            raise NoSuchToolchainError(f"source:{folder} is not a git checkout: {reason}", f"Get one: {clone}")
        if not folder.samefile(top_level.stdout.rstrip("\n")):
            hint = f"Name its top folder: source:{top_level.stdout.strip()}"
            raise NoSuchToolchainError(f"source:{folder} is a subfolder of a checkout", hint)
        if missing := [name for name in ("CMakeLists.txt", "runtime") if not (folder / name).exists()]:
            hint = f"Get one: {clone}"
            raise NoSuchToolchainError(f"source:{folder} is not a checkout of IREE: it has no {missing[0]}", hint)
        return checkout

    def resolve_commit(self, ref: str) -> str:
        """Resolve a branch, a tag or an abbreviated hash to a commit."""
        commit = self._find_commit(ref)
        if not commit:
            names = self._run(["for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"])
            refs = names.stdout.split()
            # If only a remote has the branch, suggest its full name.
            remote = [name for name in refs if name.endswith(f"/{ref}")]
            suggestions = remote or difflib.get_close_matches(ref, refs, n=3)
            question = f"Did you mean {' or '.join(suggestions)}? " if suggestions else ""
            hint = f"{question}Fetch new commits: git -C {self.folder} fetch --tags"
            raise NoSuchToolchainError(f"source:{self.folder} has no commit {ref}", hint)
        return commit

    def resolve_version(self, text: str) -> str:
        """Resolve a release or nightly (such as `3.6.0`) by its tag, or else any argument of `resolve_commit`."""
        by_tag = self._find_commit(f"refs/tags/iree-{text}") or self._find_commit(f"refs/tags/v{text}")
        return by_tag or self.resolve_commit(text)

    def _find_commit(self, ref: str) -> str:
        result = self._run(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"])
        return result.stdout.strip() if result.exit_code == 0 else ""

    def list_commits(self, first: str, second: str) -> tuple[list[str], bool]:
        """List the commits of the first-parent history from the older of two commits to the newer one, both included.

        Return also whether `first` is the older commit. Raise a UsageError if both are equal, or neither is an
        ancestor of the other.
        """
        if first == second:
            raise UsageError(f"both ends are {first[:12]}", "Name two commits.")
        for low, high in ((first, second), (second, first)):
            if self._run(["merge-base", "--is-ancestor", low, high]).exit_code == 0:
                revisions = self._run_checked(["rev-list", "--first-parent", "--reverse", f"{low}..{high}"])
                return [low, *revisions.split()], low == first
        base = self._run(["merge-base", first, second]).stdout.strip()[:12]
        raise UsageError(
            f"neither {first[:12]} nor {second[:12]} is an ancestor of the other",
            f"Use their merge base as one end: {base}." if base else "They have no commit in common.",
        )

    def describe(self, commit: str) -> dict[str, str]:
        """Return a commit's `commit`, `date`, `author` and `subject`."""
        lines = self._run_checked(
            ["-c", "log.showSignature=false", "show", "--no-patch", "--format=%H%n%as%n%an%n%s", commit]
        ).splitlines()
        return dict(zip(("commit", "date", "author", "subject"), lines, strict=True))

    def is_modified(self) -> bool:
        """Return whether files of the work tree, or of its submodules, differ from the checked-out commit."""
        return bool(self._run_checked(["status", "--porcelain", "--untracked-files=no"]))

    def require_submodules(self, commit: str, *, runtime_only: bool) -> dict[str, str]:
        """Return the needed submodules of a commit (path → submodule's commit); raise an error if one is missing."""
        submodules = self._list_submodules(commit, runtime_only=runtime_only)
        missing = [path for path in submodules if not (self.folder / path / ".git").exists()]
        if missing:
            hint = f"Get them: git -C {self.folder} submodule update --init"
            raise ToolchainError(
                f"source:{self.folder} lacks submodules: {list_first(missing, _MAX_LISTED_NAMES)}", hint
            )
        return submodules

    def create_worktree(self, commit: str, tree: Path, *, runtime_only: bool) -> None:
        """Create a worktree of a commit with its submodules; in an existing worktree, write only files that differ.

        No other process may use the folder. `runtime_only` leaves out submodules that only the compiler needs.

        Raises:
            ToolchainError: a submodule or its commit does not exist, or git fails.
        """
        submodules = self.require_submodules(commit, runtime_only=runtime_only)
        for path, revision in submodules.items():
            if self._run(["-C", path, "cat-file", "-e", f"{revision}^{{commit}}"]).exit_code != 0:
                hint = f"Fetch it: git -C {self.folder / path} fetch origin {revision}"
                raise ToolchainError(f"{path} has no commit {revision[:12]}, which {commit[:12]} needs", hint)
        self._check_out(Path(), commit, tree)
        for path, revision in submodules.items():
            self._check_out(Path(path), revision, tree / path)

    def remove_worktree(self, tree: Path) -> None:
        """Delete a worktree, and git's records of the worktree and its submodules."""
        submodules = [Path(path) for path in self._list_submodules("HEAD") if (tree / path / ".git").exists()]
        shutil.rmtree(tree, ignore_errors=True)
        for path in (Path(), *submodules):
            self._run(["-C", str(path), "worktree", "prune"])

    def _list_submodules(self, commit: str, *, runtime_only: bool = False) -> dict[str, str]:
        """List the submodules of a commit that a build needs: path → submodule's commit."""
        entries = [
            line.split(None, 3) for line in self._run_checked(["ls-tree", "-r", "-z", commit]).split("\0") if line
        ]
        submodules = {path: revision for mode, _, revision, path in entries if mode == _SUBMODULE_MODE}
        listing = self._run(["show", f"{commit}:{_RUNTIME_SUBMODULES}"]) if runtime_only else None
        if listing is None or listing.exit_code != 0:
            return submodules
        return {path: revision for path, revision in submodules.items() if path in listing.stdout.split()}

    def _check_out(self, path: Path, commit: str, tree: Path) -> None:
        """Make a worktree of a commit, from the checkout or from the checkout's submodule at a path."""
        if (tree / ".git").is_file():
            git_dir = self._run(["-C", str(tree), "rev-parse", "--absolute-git-dir"])
            if git_dir.exit_code == 0:
                # Only a killed git can have left this lock, because no other process works here.
                Path(git_dir.stdout.rstrip("\n"), "index.lock").unlink(missing_ok=True)
                if self._run(["-C", str(tree), "checkout", "--quiet", "--force", "--detach", commit]).exit_code == 0:
                    return
            shutil.rmtree(tree)
        self._run_checked(["-C", str(path), "worktree", "prune"])
        self._run_checked(["-C", str(path), "worktree", "add", "--quiet", "--force", "--detach", str(tree), commit])

    def _run_checked(self, arguments: list[str]) -> str:
        result = self._run(arguments)
        if result.exit_code != 0:
            output = " ".join(result.stderr.split())[-300:]
            hint = "Run it by hand, and fix what it reports."
            raise ToolchainError(f"git -C {self.folder} {' '.join(arguments)} failed: {output}", hint)
        return result.stdout

    def _run(self, arguments: list[str]) -> ProcessOutput:
        # Variables of hooks must not redirect git. Git must not refresh the index of the checkout, which is only read.
        environment = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        return run_tool(
            [self.git, "-C", str(self.folder), *arguments], timeout=_TIMEOUT_SECONDS, environment=environment
        )
