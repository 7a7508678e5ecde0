"""A TCP proxy before a real server, and the faults that networks and proxies have.

It passes requests on and answers back, block by block, and counts what crosses. What goes wrong is said by
`Fault`s; each fits some requests, some number of times. Requests have no body: it is for downloads.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import sys
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Fault", "FaultProxy", "proxying"]

_BLOCK = 16 << 10
_RANGE = re.compile(r"bytes=(\d+)-")
# Of one connection, and none of the proxy's business.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass
class Fault:
    """What goes wrong.

    Attributes:
        times: how often; None for ever.
        cut_after: bytes of a body after which the connection is closed.
        stall_after: bytes of a body after which nothing comes any more, and the connection stays.
        headers: what of the server's headers is replaced; None takes one away.
    """

    times: int | None = 1
    from_byte: int = 0
    to_byte: int = sys.maxsize
    cut_after: int | None = None
    reset: bool = False
    stall_after: int | None = None
    until_back: bool = False
    status: int = 0
    retry_after: str = ""
    headers: dict[str, str | None] = field(default_factory=dict)
    flip: int | None = None
    whole: bool = False
    before: Callable[[], object] | None = None


@dataclass
class FaultProxy:
    """A proxy that runs.

    Attributes:
        upstream: where requests are passed on to, `http://host:port`.
        base: its own `http://host:port`.
        sent: bytes of bodies that were sent to clients.
        requests: first bytes of the ranges that were asked for, in order; -1 without a range.
        stalled: bytes of the file after which nothing came.
    """

    upstream: str
    base: str = ""
    faults: list[Fault] = field(default_factory=list)
    sent: int = 0
    requests: list[int] = field(default_factory=list)
    stalled: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, url: str) -> str:
        """A URL of the server, through the proxy."""
        assert url.startswith(self.upstream)
        return self.base + url.removeprefix(self.upstream)

    def reset_counts(self) -> None:
        with self.lock:
            self.sent = 0
            self.requests.clear()

    def fault(self, first: int) -> Fault:
        """What happens to a request for bytes from `first` on."""
        with self.lock:
            self.requests.append(first)
            for fault in self.faults:
                back = fault.until_back and first in self.stalled
                concerned = fault.from_byte <= max(first, 0) < fault.to_byte and not back
                if concerned and (fault.times is None or fault.times > 0):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return Fault()

    def count(self, sent: int) -> None:
        with self.lock:
            self.sent += sent

    def stall(self, after: int) -> None:
        """Let nothing come any more of a file of which so many bytes have come."""
        with self.lock:
            self.stalled.append(after)
        self.over.wait()


class _EndedError(Exception):
    """The connection is to be closed now."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def do_GET(self) -> None:
        match = _RANGE.match(self.headers.get("Range", ""))
        first = int(match[1]) if match else -1
        fault = self.proxy.fault(first)
        try:
            self._serve(fault, 0 if fault.whole else max(first, 0))
        except _EndedError:
            self.close_connection = True
            if fault.reset:
                # RST instead of FIN.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _serve(self, fault: Fault, first: int) -> None:
        if fault.before is not None:
            fault.before()
        if fault.status:
            self.send_response(fault.status)
            if fault.retry_after:
                self.send_header("Retry-After", fault.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        parts = urlsplit(self.proxy.upstream)
        assert parts.hostname is not None
        upstream = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP and not (fault.whole and name.lower() == "range"):
                    upstream.putheader(name, value)
            upstream.putheader("Connection", "close")
            upstream.endheaders()
            with upstream.getresponse() as response:
                self._answer(response, fault, first)
        finally:
            upstream.close()

    def _answer(self, response: http.client.HTTPResponse, fault: Fault, first: int) -> None:
        self.send_response_only(response.status, response.reason)
        replaced = {name.lower(): value for name, value in fault.headers.items()}
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP and name.lower() not in replaced:
                self.send_header(name, value)
        length = response.getheader("Content-Length")
        if length is None or "content-length" in replaced:
            self.close_connection = True
            self.send_header("Connection", "close")
        if length is not None and "content-length" not in replaced:
            self.send_header("Content-Length", length)
        for name, given in fault.headers.items():
            if given is not None:
                self.send_header(name, given)
        self.end_headers()
        self._body(response, fault, first)

    def _body(self, response: http.client.HTTPResponse, fault: Fault, first: int) -> None:
        done = 0
        while True:
            stops = [stop - done for stop in (fault.cut_after, fault.stall_after) if stop is not None]
            if stops and min(stops) <= 0:
                self._end(fault, first + done)
            block = bytearray(response.read(min([_BLOCK, *stops])))
            if not block:
                return
            if fault.flip is not None and done <= fault.flip < done + len(block):
                block[fault.flip - done] ^= 0x10
            self.wfile.write(block)
            self.proxy.count(len(block))
            done += len(block)

    def _end(self, fault: Fault, after: int) -> None:
        self.wfile.flush()
        if fault.stall_after is not None:
            self.proxy.stall(after)
        raise _EndedError

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client hung up: part of the test


@contextmanager
def proxying(upstream: str, *, port: int = 0) -> Iterator[FaultProxy]:
    """A proxy before a server; nobody listens on its port once it has ended.

    `upstream`: `http://host:port` of the server, a path behind it is left out. `port`: its own; any by default.
    """
    parts = urlsplit(upstream)
    proxy = FaultProxy(f"{parts.scheme}://{parts.netloc}")
    server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"proxy": proxy}))
    proxy.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        server.shutdown()
        with suppress(OSError):
            server.server_close()
        thread.join()
