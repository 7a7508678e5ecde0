"""A web server on the loopback interface; a test decides its responses, which may be faulty."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Request", "Server", "make_responder", "run_server", "send_response"]

Request = BaseHTTPRequestHandler


@dataclass
class Server:
    base: str
    responders: dict[str, Callable[[Request], None]] = field(default_factory=dict)
    hits: Counter[str] = field(default_factory=Counter)
    # This is set at the end of the test, so that a stalling response ends.
    stop_event: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str, responder: Callable[[Request], None]) -> str:
        self.responders[path] = responder
        return self.base + path


def send_response(request: Request, body: bytes = b"", status: int = 200, **headers: str) -> None:
    """Send a body; its length is Content-Length unless `headers` have another. In their names, `_` stands for `-`."""
    request.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)
    request.wfile.flush()


def make_responder(body: bytes = b"", status: int = 200, **headers: str) -> Callable[[Request], None]:
    """Return a responder that sends this response, as `send_response` does."""
    return lambda request: send_response(request, body, status, **headers)


@contextmanager
def run_server() -> Iterator[Server]:
    server: Server

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.hits[self.path] += 1
            responder = server.responders.get(self.path)
            if responder is None:
                self.send_error(404)
            else:
                responder(self)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    class QuietServer(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client hung up: part of the test

    http_server = QuietServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http_server.server_address[1]}")
    thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stop_event.set()
        http_server.shutdown()
        http_server.server_close()
        thread.join()
