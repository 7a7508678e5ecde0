"""An editor's side of the language server protocol: completion and diagnostics."""

from __future__ import annotations

import itertools
import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Editor", "start_editor"]


class Editor:
    """A client of a running server; only pytest's time limit ends the wait for a missing message."""

    def __init__(self, process: subprocess.Popen[bytes], settings: dict[str, Any]) -> None:
        self._process = process
        self._settings = settings
        self._request_ids = itertools.count(1)
        self._diagnostics: dict[str, list[dict[str, Any]]] = {}

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request; return its result."""
        request_id = next(self._request_ids)
        self._write({"id": request_id, "method": method, "params": params})
        while (message := self._read_message()).get("id") != request_id or "method" in message:
            continue
        assert "error" not in message, message
        return message["result"]

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self._write({"method": method, "params": params})

    def open(self, path: Path, language: str) -> None:
        """Open a file as it is on the disk."""
        document = {"uri": path.as_uri(), "languageId": language, "version": 1, "text": path.read_text()}
        self.notify("textDocument/didOpen", {"textDocument": document})

    def wait_for_diagnostics(self, path: Path) -> list[dict[str, Any]]:
        """Wait for the first diagnostics of an open file; return them."""
        while not self._diagnostics.get(path.as_uri()):
            self._read_message()
        return self._diagnostics[path.as_uri()]

    def list_completions(self, path: Path, line: int, character: int) -> list[str]:
        """Return the labels of the completions at a position in a file; lines and characters count from 0."""
        position = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}
        result = self.request("textDocument/completion", position)
        return [completion["label"] for completion in (result if isinstance(result, list) else result["items"])]

    def _read_message(self) -> dict[str, Any]:
        """Read the next message; answer the message if it is a request."""
        assert self._process.stdout is not None
        length = 0
        while header := self._process.stdout.readline().strip():
            name, _, value = header.decode().partition(":")
            length = int(value) if name == "Content-Length" else length
        assert length, f"the server ended with {self._process.poll()}"
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            self._diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif "method" in message and "id" in message:
            sections = message["params"].get("items") if message["method"] == "workspace/configuration" else None
            self._write({"id": message["id"], "result": [self._settings for _ in sections] if sections else None})
        return message

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()


@contextmanager
def start_editor(command: list[str], folder: Path, settings: dict[str, Any]) -> Iterator[Editor]:
    """Start a server with an editor that has a directory open; kill it at the end of the block."""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        client = Editor(process, settings)
        capabilities = {
            "textDocument": {"completion": {}, "publishDiagnostics": {}},
            "workspace": {"configuration": True, "workspaceFolders": True, "didChangeConfiguration": {}},
        }
        client.request(
            "initialize",
            {
                "processId": None,
                "rootUri": folder.as_uri(),
                "capabilities": capabilities,
                "workspaceFolders": [{"uri": folder.as_uri(), "name": "project"}],
                "initializationOptions": {"handledSchemaProtocols": ["file"], "provideFormatter": False, **settings},
            },
        )
        client.notify("initialized", {})
        yield client
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
