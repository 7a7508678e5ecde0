"""Finds the instruction at which a program under qemu crashes: it runs the program again under qemu's debugger stub.

    python -m iree_gauntlet.measuring.code.emulated_crash -o crash.json -- qemu-aarch64 … iree-run-module …

The stub speaks GDB's remote protocol (*Debugging with GDB*, appendix E) on a socket.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import LOCAL_SYNC, LOCAL_TASK
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence


# GDB's numbers of the signals that end a program: of SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGBUS and SIGSEGV.
_CRASH_SIGNALS = frozenset({4, 5, 6, 8, 10, 11})
# The program counter follows 32 registers of 8 bytes, on aarch64 and on riscv64.
_COUNTER_DIGITS = slice(32 * 16, 33 * 16)
_PAGE_BYTES = 4096
# As many bytes of code before and after the instruction as tell dispatches apart.
_CODE_BYTES = 64
_INSTRUCTION_BYTES = 4
_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class CrashPlace(Recorded):
    """The place at which an emulated program crashes: its address, and as hex the code before and from it on."""

    address: int
    code_before: str
    code: str

    @property
    def instruction(self) -> str:
        """The instruction as a number, as disassemblers show it: `04bf5000`; empty if its memory is not readable."""
        return bytes.fromhex(self.code)[:_INSTRUCTION_BYTES][::-1].hex()

    def find_function(self, bodies: Sequence[tuple[str, bytes]]) -> str:
        """Return the name of the only function with the code around the instruction; empty if none or several have."""
        head, code = bytes.fromhex(self.code_before), bytes.fromhex(self.code)
        for start, end in itertools.product(
            range(0, len(head) + 1, _INSTRUCTION_BYTES), range(len(code), _INSTRUCTION_BYTES, -_INSTRUCTION_BYTES)
        ):
            # The function may begin or end near the instruction: try the longest parts first.
            names = [name for name, body in bodies if head[start:] + code[:end] in body]
            if names:
                return names[0] if len(names) == 1 else ""
        return ""


@dataclass(frozen=True, slots=True)
class _Debugger:
    """A connection to qemu's debugger stub."""

    connection: socket.socket

    def ask(self, command: str) -> str:
        """Send a command and return the reply; empty if the program has ended."""
        self.connection.sendall(f"${command}#{sum(command.encode()) % 256:02x}".encode())
        reply = bytearray()
        # Two digits of a checksum follow the mark of a packet's end.
        while b"#" not in reply[:-2]:
            if not (chunk := self.connection.recv(_PAGE_BYTES)):
                return ""
            reply += chunk
        self.connection.sendall(b"+")
        return reply.partition(b"$")[2].partition(b"#")[0].decode()

    def _read(self, address: int, size: int) -> str:
        """Return some memory as hex; empty if it is not readable."""
        reply = self.ask(f"m{address:x},{size:x}") if size else ""
        return "" if reply.startswith("E") else reply

    def find_crash(self) -> CrashPlace | None:
        """Continue the program up to the signal that ends it; None if it ends by itself."""
        reply = self.ask("c")
        while reply.startswith(("T", "S")):
            signal = int(reply[1:3], 16)
            if signal in _CRASH_SIGNALS:
                digits = self.ask("g")[_COUNTER_DIGITS]
                address = int.from_bytes(bytes.fromhex(digits), "little")
                # Reading stops at the end of a page, since the next one may be unreadable.
                offset = address % _PAGE_BYTES
                sizes = min(_CODE_BYTES, offset), min(_CODE_BYTES, _PAGE_BYTES - offset)
                head, code = self._read(address - sizes[0], sizes[0]), self._read(address, sizes[1])
                return CrashPlace(address, head, code)
            reply = self.ask(f"C{signal:02x}")
        return None


def make_crash_argv(python: str, words: Sequence[str], output: Path) -> tuple[str, ...]:
    """Return the command that finds the instruction at which another command crashes.

    The stub cannot stop two threads that crash at once, so the device is the one that uses a single thread.
    """
    devices = {f"--device={LOCAL_TASK.name}": f"--device={LOCAL_SYNC.name}"}
    words = [devices.get(word, word) for word in words]
    return (python, "-m", "iree_gauntlet.measuring.code.emulated_crash", "-o", str(output), "--", *words)


def main(arguments: Sequence[str]) -> int:
    """Find the instruction as the command line requests."""
    parser = argparse.ArgumentParser(prog="emulated_crash")
    parser.add_argument("-o", dest="output", required=True, type=lambda text: Path(text).resolve())
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    # The path of a socket is short, unlike that of $TMPDIR in a step's folder.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as connection:
        path = f"{folder}/gdb"
        emulator, *words = options.command
        with subprocess.Popen([emulator, "-g", path, *words]) as process:
            try:
                _connect(connection, path, process)
                crash = _Debugger(connection).find_crash()
            finally:
                process.kill()
    if crash is None:
        sys.stderr.write("emulated_crash: the program did not crash again\n")
        return 1
    write_atomic(options.output, json.dumps(crash.as_dict()).encode())
    return 0


def _connect(connection: socket.socket, path: str, process: subprocess.Popen[bytes]) -> None:
    """Connect to the debugger stub, which opens its socket a moment after the start."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(path)
            return
        time.sleep(0.01)
    raise SystemExit("emulated_crash: qemu does not answer")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
