"""Packages of commits, from a fake of GitHub's API with faults; the real uv installs them."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.experiments.bisect_question import find_ready, resolve_package
from iree_gauntlet.toolchains.candidates import Candidate
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import ToolchainLocations, provide_environment
from tests.support.artifact_server import Request, Server, make_responder, run_server, send_response
from tests.support.iree_source import make_commit_packages, make_toolchain_place
from tests.support.iree_wheels import write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_NAME = f"{platform.system().lower()}_{platform.machine()}_release_packages"


@dataclass
class GitHub:
    """A repository's API.

    Attributes:
        server: answers.
        folder: of the cache's environments.
        tokens: what was sent, by path.
    """

    server: Server
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def answers(self, path: str, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()

        def answer(request: Request) -> None:
            self.tokens[path] = request.headers.get("Authorization", "")
            send_response(request, body, status, **headers)

        self.server.url(f"/repo/{path}", answer)

    def runs(self, *numbers: int) -> None:
        found = {"total_count": len(numbers), "workflow_runs": [{"id": number} for number in numbers]}
        self.answers(f"actions/workflows/pkgci.yml/runs?head_sha={_COMMIT}&per_page=100&page=1", found)

    def artifacts(self, run: int, *artifacts: dict[str, Any], total: int = 0, page: int = 1) -> None:
        found = {"total_count": total or len(artifacts), "artifacts": list(artifacts)}
        self.answers(f"actions/runs/{run}/artifacts?per_page=100&page={page}", found)

    def archive(self, content: bytes, number: int = 7) -> dict[str, Any]:
        """An artifact with a content."""
        self.answers(f"actions/artifacts/{number}/zip", content)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return {"id": number, "name": _NAME, "size_in_bytes": len(content), "expired": False, "digest": digest}

    def place(self, token: dict[str, str] | None = None, *, offline: bool = False) -> ToolchainLocations:
        packages = make_commit_packages(f"{self.server.base}/repo", **(token or {}))
        return make_toolchain_place(self.folder, environments=self.folder, packages=packages, offline=offline)

    def environment(
        self, text: str = f"commit:{_COMMIT}", token: dict[str, str] | None = None, *, offline: bool = False
    ) -> Path:
        return provide_environment(parse_choice(text), self.place(token, offline=offline)).path

    def refused(self, token: dict[str, str] | None = None) -> ToolchainError:
        with pytest.raises(ToolchainError) as caught:
            self.environment(token=token)
        assert not [path for path in self.folder.glob("*") if path.is_dir()]
        assert not list(self.folder.glob(".downloading*"))
        return caught.value


@pytest.fixture
def github(tmp_path: Path) -> Iterator[GitHub]:
    with run_server() as server:
        yield GitHub(server, tmp_path / "envs")


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    return [write_wheel(folder, noun, "3.14.0.dev1") for noun in ("compiler", "runtime")]


def packed(*files: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return stream.getvalue()


def packed_wheels(wheels: list[Path]) -> bytes:
    return packed(*((path.name, path.read_bytes()) for path in wheels))


def test_packages_of_a_commit_are_installed_once(github: GitHub, wheels: list[Path]) -> None:
    artifact = github.archive(packed_wheels(wheels))
    github.runs(3, 2)
    github.artifacts(3, {"id": 1, "name": "logs", "size_in_bytes": 1})
    # On the second page.
    others = [{"id": number, "name": f"other-{number}", "size_in_bytes": 1} for number in range(100)]
    github.artifacts(2, *others, total=101)
    github.artifacts(2, artifact, total=101, page=2)
    path = github.environment(token={"GITHUB_TOKEN": "secret"})
    assert path.name.startswith(f"commit-{_COMMIT[:12]}-")
    assert github.tokens["actions/artifacts/7/zip"] == "Bearer secret"
    asked = sum(github.server.hits.values())
    assert github.environment() == path
    assert github.environment(f"commit:{_COMMIT[:8]}", offline=True) == path
    assert sum(github.server.hits.values()) == asked
    assert not list(github.folder.glob(".downloading*"))


def test_another_host_does_not_get_the_token(github: GitHub, wheels: list[Path]) -> None:
    content = packed_wheels(wheels)
    github.runs(3)
    github.artifacts(3, github.archive(content))
    github.answers("elsewhere.zip", content)
    elsewhere = github.server.base.replace("127.0.0.1", "localhost")
    github.answers("actions/artifacts/7/zip", b"", 302, Location=f"{elsewhere}/repo/elsewhere.zip")
    github.environment(token={"GITHUB_TOKEN": "secret"})
    assert github.tokens["actions/artifacts/7/zip"] == "Bearer secret"
    assert github.tokens["elsewhere.zip"] == ""


def test_a_short_hash_is_looked_up_and_archives_within_are_opened(github: GitHub, wheels: list[Path]) -> None:
    github.answers(f"commits/{_COMMIT[:8]}", {"sha": _COMMIT})
    inner = packed(*((f"dist/{path.name}", path.read_bytes()) for path in wheels), ("../../escape.txt", b"x"))
    artifact = github.archive(packed(("packages.zip", inner), ("notes.txt", b"x")))
    github.runs(3)
    github.artifacts(3, artifact)
    path = github.environment(f"commit:{_COMMIT[:8]}")
    assert path.name.startswith(f"commit-{_COMMIT[:12]}-")


def test_what_has_no_packages_is_told_apart(github: GitHub, wheels: list[Path]) -> None:
    github.runs()
    assert github.refused().message == f"IREE's CI has not built commit {_COMMIT[:12]}"
    github.runs(3)
    github.artifacts(3, {**github.archive(packed_wheels(wheels)), "expired": True})
    error = github.refused()
    assert error.message == f"the packages of commit {_COMMIT[:12]} have expired: GitHub keeps them for 90 days"
    assert error.hint == f"Build it: source:DIR@{_COMMIT[:12]}, with a checkout of IREE."
    github.artifacts(3, {"id": 1, "name": "macos_arm64_release_packages", "size_in_bytes": 1})
    assert "it has macos_arm64_release_packages" in github.refused().message


def _status(status: int, **headers: str) -> Callable[[GitHub], None]:
    path = f"actions/workflows/pkgci.yml/runs?head_sha={_COMMIT}&per_page=100&page=1"
    return lambda github: github.answers(path, {"message": "no"}, status, **headers)


@pytest.mark.parametrize(
    ("fault", "token", "what", "hint"),
    [
        (_status(401), {}, "GitHub requires a token that can read actions", "Set $GITHUB_TOKEN"),
        (_status(403), {"GH_TOKEN": "secret"}, "the token cannot read GitHub's actions (status 403)", "source:DIR@"),
        (
            _status(403, x_ratelimit_remaining="0", x_ratelimit_reset="1795700000"),
            {},
            "GitHub refuses further requests until 13:33 UTC",
            "A token in $GITHUB_TOKEN raises the limit.",
        ),
        (
            _status(403, retry_after="60"),
            {"GITHUB_TOKEN": "secret"},
            "GitHub refuses further requests for 60 s",
            "source:DIR@",
        ),
        (_status(404), {}, f"GitHub knows no commit {_COMMIT}", "Check its spelling."),
        (_status(500), {}, "GitHub answers with status 500", "source:DIR@"),
    ],
)
def test_refusals_say_what_to_do(
    github: GitHub, fault: Callable[[GitHub], None], token: dict[str, str], what: str, hint: str
) -> None:
    fault(github)
    error = github.refused(token)
    assert what in error.message
    assert hint in error.hint
    assert "secret" not in str(error)


def test_what_comes_damaged_is_not_installed(github: GitHub, wheels: list[Path]) -> None:
    content = packed_wheels(wheels)
    artifact = github.archive(content)
    github.runs(3)
    github.artifacts(3, artifact)

    github.server.url("/repo/actions/artifacts/7/zip", make_responder(content[:-40], Content_Length=str(len(content))))
    assert "were truncated after" in github.refused().message
    github.server.url("/repo/actions/artifacts/7/zip", make_responder(content[:-1] + b"x"))
    assert "differ from what GitHub reports" in github.refused().message
    github.artifacts(3, github.archive(content[:-10]))
    assert "are damaged" in github.refused().message
    github.artifacts(3, github.archive(packed(("notes.txt", b"x"))))
    assert "it has no wheel" in github.refused().message


def test_nobody_who_answers_and_no_network(tmp_path: Path, github: GitHub) -> None:
    with pytest.raises(ToolchainError, match="GitHub does not answer: ConnectionError"):
        provide_environment(parse_choice(f"commit:{_COMMIT}"), make_toolchain_place(tmp_path))
    with pytest.raises(ToolchainError, match="and offline mode is on") as caught:
        github.environment(offline=True)
    assert f"gauntlet toolchain.install commit:{_COMMIT}" in caught.value.hint
    github.answers(f"commits/{_COMMIT[:8]}", b"<html>")
    with pytest.raises(ToolchainError, match="does not answer with JSON"):
        github.environment(f"commit:{_COMMIT[:8]}")
    with pytest.raises(NoSuchToolchainError, match="knows no commit 7777777"):
        github.environment("commit:7777777")


def test_a_bisect_takes_a_package_where_there_is_one(github: GitHub, wheels: list[Path]) -> None:
    said: list[str] = []
    candidate = Candidate(_COMMIT[:12], f"source:/x/iree@{_COMMIT}")
    github.runs()
    assert resolve_package(candidate, github.place(), said.append) == candidate
    assert said == [f"{_COMMIT[:12]}: IREE's CI has not built commit {_COMMIT[:12]}; building it instead"]
    github.runs(3)
    github.artifacts(3, github.archive(packed_wheels(wheels)))
    assert resolve_package(candidate, github.place(), said.append) == Candidate(_COMMIT[:12], f"commit:{_COMMIT}")
    assert find_ready((Candidate("a", "3.12.0"), candidate), github.place()) == {1}
    release = Candidate("3.12.0", "3.12.0")
    assert resolve_package(release, github.place(), said.append) == release
    assert len(said) == 1


@pytest.mark.parametrize("text", ["commit:", "commit:123", f"commit:{_COMMIT}0", "commit:HEAD", "commit:../../x"])
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="7 to 40 digits"):
        parse_choice(text)
    assert parse_choice("commit:89ece87b").kind is ChoiceKind.COMMIT
