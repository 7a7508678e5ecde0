"""The packages that IREE's CI has built for a commit: artifacts of GitHub's workflows, by its API.

GitHub keeps them for 90 days, and gives them only to who has a token. What is asked for is: the runs of the workflow
for the commit, the artifacts of each run, and one archive, which holds the wheels, or archives that do.
"""

from __future__ import annotations

import hashlib
import platform
import re
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import requests

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError
from iree_gauntlet.figures import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# In the order of looking.
_TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
_WORKFLOW = "pkgci.yml"
_PER_PAGE = 100
_SECONDS = 60.0
_NEWS_SECONDS = 10.0
_BLOCK = 1 << 20
_NO_ACCESS = (401, 403, 429)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class CommitPackages:
    """Where packages of commits are.

    Attributes:
        api: URL of a repository in GitHub's API.
        environ: has the token.
        news: receives a line for each thing that takes long.
    """

    api: str
    environ: Mapping[str, str]
    news: Callable[[str], None]

    def commit_of(self, beginning: str) -> str:
        """The whole hash of a commit.

        Raises:
            ToolchainError: GitHub does not know it, or does not answer.
        """
        if len(beginning) == 40:
            return beginning
        found = self._asked(f"commits/{beginning}", beginning)
        return str(found["sha"])

    def fetch(self, commit: str, folder: Path) -> None:
        """Downloads the packages of a commit, and lays its wheels into a folder.

        Raises:
            ToolchainError: there are none, they have expired, GitHub asks for a token or for patience, or what came is
                damaged.
        """
        artifact = self._artifact(commit)
        archive = folder / "artifact.zip"
        self.news(f"commit:{commit[:12]}: downloading {artifact['name']} ({byte_size(int(artifact['size_in_bytes']))})")
        self._download(artifact, archive, commit)
        try:
            _unpack(archive, folder)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            what = f"the packages of commit {commit[:12]} came damaged: {error}"
            raise ToolchainError(what, "Try again.") from error
        archive.unlink()

    def _artifact(self, commit: str) -> Mapping[str, Any]:
        """The artifact with the packages for this platform, of the newest run that has one."""
        name = f"{platform.system().lower()}_{platform.machine()}_release_packages"
        runs = list(self._listed(f"actions/workflows/{_WORKFLOW}/runs?head_sha={commit}", "workflow_runs", commit))
        expired, others = False, set()
        for run in runs:
            for artifact in self._listed(f"actions/runs/{run['id']}/artifacts", "artifacts", commit):
                if artifact["name"] == name and not artifact.get("expired"):
                    return artifact
                expired = expired or artifact["name"] == name
                others.add(str(artifact["name"]))
        if not runs:
            why = f"IREE's CI has not built commit {commit[:12]}"
        elif expired:
            why = f"the packages of commit {commit[:12]} have expired: GitHub keeps them for 90 days"
        else:
            there = ", ".join(sorted(others)) or "nothing"
            why = f"IREE's CI has no {name} of commit {commit[:12]}: there is {there}"
        raise NoSuchToolchainError(why, _build_hint(commit))

    def _listed(self, path: str, key: str, commit: str) -> Iterator[dict[str, Any]]:
        """What all pages of a list hold."""
        mark = "&" if "?" in path else "?"
        page, seen = 1, 0
        while True:
            answer = self._asked(f"{path}{mark}per_page={_PER_PAGE}&page={page}", commit)
            yield from answer[key]
            seen += len(answer[key])
            if not answer[key] or seen >= answer.get("total_count", 0):
                return
            page += 1

    def _asked(self, path: str, commit: str) -> Any:
        response = self._get(f"{self.api}/{path}", commit)
        try:
            return response.json()
        except ValueError as error:
            raise ToolchainError(f"{self.api}/{path} answers with no JSON", "Is that GitHub's API?") from error

    def _download(self, artifact: Mapping[str, Any], path: Path, commit: str) -> None:
        response = self._get(f"{self.api}/actions/artifacts/{artifact['id']}/zip", commit, stream=True)
        digest, size, told = hashlib.sha256(), 0, time.monotonic()
        try:
            with response, path.open("wb") as file:
                for block in response.iter_content(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    size += len(block)
                    if time.monotonic() - told > _NEWS_SECONDS:
                        told = time.monotonic()
                        self.news(f"commit:{commit[:12]}: {byte_size(size)} so far")
        except (requests.RequestException, OSError) as error:
            what = f"the packages of commit {commit[:12]} were cut short after {byte_size(size)}: {error}"
            raise ToolchainError(what, "Try again.") from error
        known = _HASH.fullmatch(str(artifact.get("digest") or ""))
        if known and digest.hexdigest() != known[1]:
            what = f"the packages of commit {commit[:12]} came with another content than GitHub says"
            raise ToolchainError(what, f"Try again. Expected sha256 {known[1]}, came {digest.hexdigest()}.")

    def _get(self, url: str, commit: str, *, stream: bool = False) -> requests.Response:
        token = next((self.environ[name] for name in _TOKEN_VARIABLES if self.environ.get(name)), "")
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        # requests leaves it out where GitHub sends it on to another host.
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        try:
            response = requests.get(url, headers=headers, timeout=_SECONDS, stream=stream)
        except requests.RequestException as error:
            raise ToolchainError(
                f"GitHub does not answer: {type(error).__name__} at {url}", _build_hint(commit)
            ) from error
        if response.ok:
            return response
        if response.status_code in _NO_ACCESS and (until := _patience(response.headers)):
            more = "" if token else f" With a token in ${_TOKEN_VARIABLES[0]} there are more."
            raise ToolchainError(f"GitHub answers no more questions {until}", f"{_build_hint(commit)}{more}")
        if response.status_code in _NO_ACCESS:
            what = f"GitHub gives no packages without a token that may read actions (status {response.status_code})"
            if token:
                what = f"the token may not read GitHub's actions (status {response.status_code})"
            hint = f"Set ${_TOKEN_VARIABLES[0]}, such as to what `gh auth token` prints. {_build_hint(commit)}"
            raise ToolchainError(what, hint)
        if response.status_code in (404, 422):
            raise NoSuchToolchainError(f"GitHub knows no commit {commit} at {self.api}", "Mind its spelling.")
        raise ToolchainError(f"GitHub answers with status {response.status_code} at {url}", _build_hint(commit))


def _patience(headers: Mapping[str, str]) -> str:
    """How long GitHub answers nothing more, by one of its two limits; empty where that is not why."""
    if headers.get("x-ratelimit-remaining") == "0":
        return f"until {time.strftime('%H:%M UTC', time.gmtime(int(headers.get('x-ratelimit-reset') or 0)))}"
    wait = headers.get("retry-after", "")
    return f"for {wait} s" if wait.isdigit() else ""


def _build_hint(commit: str) -> str:
    return f"Build it: source:DIR@{commit[:12]}, with a checkout of IREE."


def _unpack(archive: Path, folder: Path) -> None:
    """Lays the wheels of an archive into a folder; those of archives within it too.

    Raises:
        BadZipFile, OSError, EOFError: it is damaged.
    """
    with zipfile.ZipFile(archive) as outer:
        for item in outer.infolist():
            name = PurePosixPath(item.filename).name
            if item.is_dir() or PurePosixPath(name).suffix not in (".whl", ".zip"):
                continue
            path = folder / name
            with outer.open(item) as source, path.open("wb") as target:
                while block := source.read(_BLOCK):
                    target.write(block)
            if path.suffix == ".zip" and path != archive:
                _unpack(path, folder)
                path.unlink()
