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

__all__ = ["Request", "Server", "serving", "whole"]

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


def whole(content: bytes) -> Callable[[Request], None]:
    """An ordinary answer."""

    def answer(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return answer


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
