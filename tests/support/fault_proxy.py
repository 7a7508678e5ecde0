"""An HTTP proxy before a real server, with the faults of networks and proxies.

The proxy forwards requests as a whole and responses block by block, and counts bytes and requests. Each `Fault` affects
a number of matching requests. Requests have no body, since the proxy is for downloads.
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

__all__ = ["Fault", "FaultProxy", "run_proxy"]

_BLOCK_BYTES = 16 << 10
_RANGE = re.compile(r"bytes=(\d+)-")
# These headers apply to one connection, so the proxy does not forward them.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass
class Fault:
    """A fault of some requests.

    Attributes:
        max_uses: the number of requests that the fault affects; None: all.
        cut_after: bytes of a body after which the connection is closed.
        stall_after: bytes of a body after which nothing is sent, while the connection stays open.
        spares_resumed: leave out requests that begin at an offset at which a response stalled.
        headers: replacements of the server's headers; None removes a header.
        flip_at: offset in the body of the byte in which a bit is flipped.
    """

    max_uses: int | None = 1
    from_byte: int = 0
    to_byte: int = sys.maxsize
    cut_after: int | None = None
    reset: bool = False
    stall_after: int | None = None
    spares_resumed: bool = False
    status: int = 0
    retry_after: str = ""
    headers: dict[str, str | None] = field(default_factory=dict)
    flip_at: int | None = None
    ignores_range: bool = False
    before_response: Callable[[], object] | None = None


@dataclass
class FaultProxy:
    """A running proxy.

    Attributes:
        upstream: `http://host:port` of the server.
        base: `http://host:port` of the proxy.
        sent_bytes: bytes of bodies that were sent to clients.
        range_starts: first bytes of the requested ranges, in order; -1 without a range.
        stall_offsets: offsets in the file at which responses stalled.
    """

    upstream: str
    base: str = ""
    faults: list[Fault] = field(default_factory=list)
    sent_bytes: int = 0
    range_starts: list[int] = field(default_factory=list)
    stall_offsets: list[int] = field(default_factory=list)
    stop_event: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, url: str) -> str:
        """Return the URL of the proxy for a URL of the server."""
        assert url.startswith(self.upstream)
        return self.base + url.removeprefix(self.upstream)

    def reset_counts(self) -> None:
        with self.lock:
            self.sent_bytes = 0
            self.range_starts.clear()

    def take_fault(self, first: int) -> Fault:
        """Return the fault of a request for bytes from `first` on, and count its use."""
        with self.lock:
            self.range_starts.append(first)
            for fault in self.faults:
                is_resumed = fault.spares_resumed and first in self.stall_offsets
                is_affected = fault.from_byte <= max(first, 0) < fault.to_byte and not is_resumed
                if is_affected and (fault.max_uses is None or fault.max_uses > 0):
                    if fault.max_uses is not None:
                        fault.max_uses -= 1
                    return fault
        return Fault()

    def count_sent(self, byte_count: int) -> None:
        with self.lock:
            self.sent_bytes += byte_count

    def stall_at(self, offset: int) -> None:
        """Stall a response at an offset of the file, until the proxy stops."""
        with self.lock:
            self.stall_offsets.append(offset)
        self.stop_event.wait()


class _CloseConnectionError(Exception):
    """Raised to close the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def do_GET(self) -> None:
        match = _RANGE.match(self.headers.get("Range", ""))
        first = int(match[1]) if match else -1
        fault = self.proxy.take_fault(first)
        try:
            self._forward(fault, 0 if fault.ignores_range else max(first, 0))
        except _CloseConnectionError:
            self.close_connection = True
            if fault.reset:
                # With this option, closing sends RST instead of FIN.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _forward(self, fault: Fault, first: int) -> None:
        if fault.before_response is not None:
            fault.before_response()
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
                if name.lower() not in _HOP_BY_HOP and not (fault.ignores_range and name.lower() == "range"):
                    upstream.putheader(name, value)
            upstream.putheader("Connection", "close")
            upstream.endheaders()
            with upstream.getresponse() as response:
                self._send_response(response, fault, first)
        finally:
            upstream.close()

    def _send_response(self, response: http.client.HTTPResponse, fault: Fault, first: int) -> None:
        self.send_response_only(response.status, response.reason)
        replacements = {name.lower(): value for name, value in fault.headers.items()}
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP and name.lower() not in replacements:
                self.send_header(name, value)
        length = response.getheader("Content-Length")
        if length is None or "content-length" in replacements:
            self.close_connection = True
            self.send_header("Connection", "close")
        if length is not None and "content-length" not in replacements:
            self.send_header("Content-Length", length)
        for name, replacement in fault.headers.items():
            if replacement is not None:
                self.send_header(name, replacement)
        self.end_headers()
        self._send_body(response, fault, first)

    def _send_body(self, response: http.client.HTTPResponse, fault: Fault, first: int) -> None:
        sent_bytes = 0
        while True:
            limits = [limit - sent_bytes for limit in (fault.cut_after, fault.stall_after) if limit is not None]
            if limits and min(limits) <= 0:
                self._end_body(fault, first + sent_bytes)
            block = bytearray(response.read(min([_BLOCK_BYTES, *limits])))
            if not block:
                return
            if fault.flip_at is not None and sent_bytes <= fault.flip_at < sent_bytes + len(block):
                block[fault.flip_at - sent_bytes] ^= 0x10
            # Counted before the client can have them, so that none is counted after a reset of the counts.
            self.proxy.count_sent(len(block))
            self.wfile.write(block)
            sent_bytes += len(block)

    def _end_body(self, fault: Fault, offset: int) -> None:
        self.wfile.flush()
        if fault.stall_after is not None:
            self.proxy.stall_at(offset)
        raise _CloseConnectionError

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client hung up: part of the test


@contextmanager
def run_proxy(upstream: str, *, port: int = 0) -> Iterator[FaultProxy]:
    """Run a proxy before a server until the end of the block, which frees its port.

    `upstream`: `http://host:port` of the server; a path after it is ignored. `port`: the proxy's; any by default.
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
        proxy.stop_event.set()
        server.shutdown()
        with suppress(OSError):
            server.server_close()
        thread.join()
