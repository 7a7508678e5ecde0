"""A web server on the loopback interface whose answers a test decides, faults included."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Request", "Server", "send", "serving", "whole"]

Request = BaseHTTPRequestHandler


@dataclass
class Server:
    base: str
    answers: dict[str, Callable[[Request], None]] = field(default_factory=dict)
    hits: Counter[str] = field(default_factory=Counter)
    # Set when the test is over, so that a stalling answer ends.
    over: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str, answer: Callable[[Request], None]) -> str:
        self.answers[path] = answer
        return self.base + path


def send(request: Request, body: bytes = b"", status: int = 200, **headers: str) -> None:
    """Answer with this body, its length unless the headers say another one; `_` stands for the `-` of their names."""
    request.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)
    request.wfile.flush()


def whole(content: bytes = b"", status: int = 200, **headers: str) -> Callable[[Request], None]:
    """An ordinary answer, as of `send`."""
    return lambda request: send(request, content, status, **headers)


@contextmanager
def serving() -> Iterator[Server]:
    server: Server

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.hits[self.path] += 1
            answer = server.answers.get(self.path)
            if answer is None:
                self.send_error(404)
            else:
                answer(self)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client hung up: part of the test

    http = Quiet(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        http.shutdown()
        http.server_close()
        thread.join()
