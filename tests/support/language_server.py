"""An editor's side of the language server protocol, as far as completion and squiggles go."""

from __future__ import annotations

import itertools
import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Editor", "editor"]


class Editor:
    """Talks to a server that runs; a message that does not come is what pytest's time limit is for."""

    def __init__(self, process: subprocess.Popen[bytes], settings: dict[str, Any]) -> None:
        self._process = process
        self._settings = settings
        self._numbers = itertools.count(1)
        self._diagnostics: dict[str, list[dict[str, Any]]] = {}

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The result of a request."""
        number = next(self._numbers)
        self._write({"id": number, "method": method, "params": params})
        while (said := self._next()).get("id") != number or "method" in said:
            continue
        assert "error" not in said, said
        return said["result"]

    def tell(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification."""
        self._write({"method": method, "params": params})

    def open(self, path: Path, language: str) -> None:
        """A file is opened as it is on the disk."""
        document = {"uri": path.as_uri(), "languageId": language, "version": 1, "text": path.read_text()}
        self.tell("textDocument/didOpen", {"textDocument": document})

    def problems(self, path: Path) -> list[dict[str, Any]]:
        """What is underlined in a file that was opened, once something is."""
        while not self._diagnostics.get(path.as_uri()):
            self._next()
        return self._diagnostics[path.as_uri()]

    def completions(self, path: Path, line: int, character: int) -> list[str]:
        """What is proposed at a place of a file (from 0)."""
        place = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": character}}
        answer = self.ask("textDocument/completion", place)
        return [item["label"] for item in (answer if isinstance(answer, list) else answer["items"])]

    def _next(self) -> dict[str, Any]:
        """The next message; what the server asks for is answered."""
        assert self._process.stdout is not None
        length = 0
        while header := self._process.stdout.readline().strip():
            name, _, value = header.decode().partition(":")
            length = int(value) if name == "Content-Length" else length
        assert length, f"the server ended with {self._process.poll()}"
        said: dict[str, Any] = json.loads(self._process.stdout.read(length))
        if said.get("method") == "textDocument/publishDiagnostics":
            self._diagnostics[said["params"]["uri"]] = said["params"]["diagnostics"]
        elif "method" in said and "id" in said:
            asked = said["params"].get("items") if said["method"] == "workspace/configuration" else None
            self._write({"id": said["id"], "result": [self._settings for _ in asked] if asked else None})
        return said

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        self._process.stdin.flush()


@contextmanager
def editor(command: list[str], folder: Path, settings: dict[str, Any]) -> Iterator[Editor]:
    """An editor that has a folder open."""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        made = Editor(process, settings)
        capabilities = {
            "textDocument": {"completion": {}, "publishDiagnostics": {}},
            "workspace": {"configuration": True, "workspaceFolders": True, "didChangeConfiguration": {}},
        }
        made.ask(
            "initialize",
            {
                "processId": None,
                "rootUri": folder.as_uri(),
                "capabilities": capabilities,
                "workspaceFolders": [{"uri": folder.as_uri(), "name": "project"}],
                "initializationOptions": {"handledSchemaProtocols": ["file"], "provideFormatter": False, **settings},
            },
        )
        made.tell("initialized", {})
        yield made
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
