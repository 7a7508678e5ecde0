"""One process that runs modules for `run_server.py`, and the pipes to it.

Its standard output is for answers alone; what cases print goes to an unnamed file. A pipe that nothing is ever written
to has it ended when the toolkit ends, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.tail import TAIL_LINES, clean_line
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping


_SCRIPT = Path(iree_side.__file__).resolve().with_name("run_server.py")
_LAST_WORDS_SECONDS = 10.0
_MOST_LOG = 1 << 20


class RunWorker:
    """A process that answers requests, one at a time, and the pipes to it.

    Args:
        python: the toolchain's.
        environment: what it inherits; the toolkit's own environment for None.
        memory_bytes: address space that it may take for its cases; 0 for no limit.

    Attributes:
        cases: how many it was given.
        ready: whether it has begun to serve.
        overdue: whether it has not answered in time.
        taken: whether it has begun to read the request that it did not answer.

    Raises:
        ToolchainError: the toolchain's Python cannot be run.
    """

    def __init__(self, python: str, environment: Mapping[str, str] | None, memory_bytes: int) -> None:
        environment = dict(os.environ if environment is None else environment)
        # One case at a time, and mostly small: threads for products of matrices are only in the way.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.memory_bytes = memory_bytes
        self.cases = 0
        self.ready = False
        self.overdue = False
        self.taken = False
        self._pending = b""
        self._log = _unnamed_file()
        try:
            # Emptied after every case that printed something: the process has to write where the end is then.
            fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
            theirs, self._life = os.pipe()
            try:
                self.process = subprocess.Popen(
                    [python, "-B", str(_SCRIPT), str(theirs), str(memory_bytes)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    bufsize=0,
                    env=environment,
                    pass_fds=(theirs,),
                    # Ctrl-C in the terminal is not for it.
                    start_new_session=True,
                )
            except OSError as error:
                os.close(self._life)
                raise ToolchainError(f"{python}: cannot be run: {error.strerror}", "") from error
            finally:
                os.close(theirs)
        except BaseException:
            self._log.close()
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def get_ready(self, timeout: float) -> bool:
        """Whether it has begun to serve."""
        self.ready = self._read(time.monotonic() + timeout) is not None
        if self.ready:
            # What imports have to say is of no case.
            self._log.truncate(0)
        return self.ready

    def ask(self, request: bytes, timeout: float) -> dict[str, Any] | None:
        """Has a request answered; None where the process died, or did not answer in time.

        `taken` says whether it had begun to read it: a process that was ended while it was idle has not.
        """
        deadline = time.monotonic() + timeout
        self.cases += 1
        try:
            data = memoryview(request)
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return None
        record = self._read(deadline)
        if record is None:
            # What nobody has read stays in the pipe, also when its other end is closed.
            unread = bytearray(4)
            fcntl.ioctl(self._requests, termios.FIONREAD, unread)
            self.taken = int.from_bytes(unread, sys.byteorder) < len(request)
        return record

    def _read(self, deadline: float) -> dict[str, Any] | None:
        while not self._pending.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(min(left, 1e6) * 1000):
                self.overdue = True
                return None
            data = os.read(self._answers, 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending, b""
        record: dict[str, Any] = json.loads(line)
        return record

    def printed_bytes(self) -> int:
        """How much has been printed."""
        return os.fstat(self._log.fileno()).st_size

    def printed(self, log: str = "") -> list[str]:
        """The last lines of what was printed, which goes to a file too, and is forgotten."""
        size = self.printed_bytes()
        if not size:
            return []
        data = os.pread(self._log.fileno(), _MOST_LOG, max(0, size - _MOST_LOG))
        lines = data.decode(errors="replace").splitlines()
        if log:
            try:
                Path(log).parent.mkdir(parents=True, exist_ok=True)
                with Path(log).open("wb") as stream:
                    self._log.seek(0)
                    shutil.copyfileobj(self._log, stream)
            except OSError as error:
                lines.append(f"{log}: cannot write the log: {error.strerror}")
        self._log.truncate(0)
        return [clean_line(line) for line in lines if line.strip()][-TAIL_LINES:]

    def kill(self) -> None:
        """Ends it; a second time does nothing."""
        # Popen looks first whether it still is this process.
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    def reap(self) -> None:
        """Waits for its end, and closes the pipes; what it has printed can still be had."""
        try:
            self.process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            # Its answers have ended and it has not.
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_WORDS_SECONDS)
        if self._life >= 0:
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                stream.close()
            os.close(self._life)
            self._life = -1

    def forget(self) -> None:
        """Lets go of what it has printed."""
        self._log.close()


def _unnamed_file() -> IO[bytes]:
    """A file for what cases print; in memory where the disk is full."""
    try:
        return tempfile.TemporaryFile(buffering=0)  # closed by `forget`
    except OSError:
        return os.fdopen(os.memfd_create("printed"), "w+b", buffering=0)
