"""A fake of GitHub's API for workflows on the loopback interface: pages, rate limits, archives on another host."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.artifact_server import Request, Server, send_response

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOW", "TOKEN", "FakeGitHub", "make_zip"]

TOKEN = "ghp_secret0123456789"
# The server's clock, in seconds since 1970.
NOW = 1_798_761_600
_REPOSITORY = "/repos/acme/models/"
# The beginning of paths on a GitHub of one's own.
_ENTERPRISE = "/api/v3"


def make_zip(files: dict[str, Any]) -> bytes:
    """An archive of documents, or of bytes, by their names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content if isinstance(content, bytes) else json.dumps(content))
    return stream.getvalue()


class _Routes(dict[str, Any]):
    """The responders of a server; every path has the same."""

    def __init__(self, answer: Callable[[Request], None]) -> None:
        super().__init__()
        self.answer = answer

    def get(self, _key: str, _default: Any = None) -> Any:
        return self.answer


@dataclass
class FakeGitHub:
    """The API of the repository acme/models.

    Attributes:
        allowance: requests to the API until the limit is reached; None for no limit.
        most_listed: the number of runs that one query lists.
        tokens: the tokens that the host of the archives got.
    """

    server: Server
    runs: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    jobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    archives: dict[int, bytes] = field(default_factory=dict)
    allowance: int | None = None
    most_listed: int = 1000
    hits: Counter[str] = field(default_factory=Counter)
    tokens: set[str] = field(default_factory=set)
    overrides: dict[str, Callable[[Request], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server.responders = _Routes(self._answer)

    def add_run(self, day: str, **changes: Any) -> int:
        """Add a run of a day, with a job; return its number."""
        number = len(self.runs) + 1
        time = f"{day}T02:00:00Z"
        self.runs.append(
            {
                "id": number,
                "run_number": number,
                "created_at": time,
                "run_started_at": time,
                "head_sha": f"{number:040x}",
                "head_branch": "main",
                "html_url": f"https://github.com/acme/models/actions/runs/{number}",
                "repository": {"id": 5, "full_name": "acme/models"},
                "head_repository": {"id": 5},
                **changes,
            }
        )
        self.jobs[number] = [
            {
                "name": "bench",
                "labels": ["linux-mi325"],
                "runner_name": "runner-7",
                "started_at": time,
                "completed_at": f"{day}T03:00:00Z",
            }
        ]
        return number

    def add_artifact(self, run: int, content: bytes, name: str = "results", **changes: Any) -> int:
        """Add an artifact of a run; return its number."""
        number = 1000 + len(self.archives)
        self.archives[number] = content
        day = self.runs[run - 1]["created_at"][:10]
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        description = {"id": number, "name": name, "size_in_bytes": len(content), "created_at": f"{day}T02:30:00Z"}
        self.artifacts.setdefault(run, []).append(description | {"expired": False, "digest": digest} | changes)
        return number

    @property
    def downloads(self) -> Counter[int]:
        """How often each archive was downloaded."""
        pairs = ((path.rpartition("/")[2], count) for path, count in self.hits.items() if path.startswith("/blob/"))
        return Counter({int(number): count for number, count in pairs})

    def _answer(self, request: Request) -> None:
        request.date_time_string = lambda *_: formatdate(NOW, usegmt=True)  # type: ignore[method-assign]
        parts = urlsplit(request.path)
        self.hits[parts.path] += 1
        token = request.headers.get("Authorization", "")
        if parts.path.startswith("/blob/"):
            self.tokens.add(token)
            send_response(request, self.archives[int(parts.path.rpartition("/")[2])])
            return
        path = parts.path.removeprefix(_ENTERPRISE).removeprefix(_REPOSITORY)
        if path in self.overrides:
            self.overrides[path](request)
        elif token != f"Bearer {TOKEN}":
            send_response(request, b"{}", 401)
        elif self.allowance == 0:
            headers = {"x_ratelimit_remaining": "0", "x_ratelimit_reset": str(NOW + 1800)}
            send_response(request, b'{"message": "API rate limit exceeded"}', 403, **headers)
        else:
            self.allowance = None if self.allowance is None else self.allowance - 1
            self._answer_api(request, path, {name: values[0] for name, values in parse_qs(parts.query).items()})

    def _answer_api(self, request: Request, path: str, query: dict[str, str]) -> None:
        match path.split("/"):
            case ["actions", "workflows", "bench.yml", "runs"]:
                first, _, last = query.get("created", "*..*").partition("..")
                runs = [
                    run
                    for run in sorted(self.runs, key=lambda run: str(run["created_at"]), reverse=True)
                    if query.get("branch", run["head_branch"]) == run["head_branch"]
                    if first == "*" or run["created_at"] >= first
                    if last == "*" or run["created_at"] <= last
                ]
                self._send_page(request, "workflow_runs", runs, query, self.most_listed)
            case ["actions", "runs", run, "artifacts"]:
                self._send_page(request, "artifacts", self.artifacts.get(int(run), []), query)
            case ["actions", "runs", run, "jobs"]:
                self._send_page(request, "jobs", self.jobs.get(int(run), []), query)
            case ["actions", "artifacts", number, "zip"]:
                # GitHub keeps archives on a host of its own.
                location = f"{self.server.base.replace('127.0.0.1', 'localhost')}/blob/{number}?sig=signature"
                send_response(request, b"", 302, Location=location)
            case _:
                send_response(request, b"{}", 404)

    def _send_page(
        self, request: Request, key: str, entries: list[Any], query: dict[str, str], most: int = 10_000
    ) -> None:
        size, page = int(query["per_page"]), int(query["page"])
        document = {"total_count": len(entries), key: entries[:most][size * (page - 1) : size * page]}
        send_response(request, json.dumps(document).encode())
