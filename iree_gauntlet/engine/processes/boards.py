"""Boards: machines on which the tools of a target run, reached by OpenSSH's client.

A command that begins with `ssh`, its options and a host runs its program there: `ssh HOST iree-run-module --module=…`.
The program and the files of its flags are copied once into the board's cache, by hash; outputs come back; standard
output and error are those of ssh. `board.sh`, which is copied as well, does the board's part.

All calls share one connection (ControlMaster), which ssh itself ends when it is idle. For each command, a first call,
the guard, takes the board's lock and makes a folder. The guard lives until its input ends, whatever the reason: the
command is over, the toolkit was killed, or the connection broke. Then it ends the command's processes, removes the
folder, and frees the lock.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.measuring.machine.disturbance import RoundState
from iree_gauntlet.measuring.machine.machine_state import measure_cpu_use, read_cpu_times, read_machine_state
from iree_gauntlet.steps import Command
from iree_gauntlet.system.short_process import get_signal_name
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.measuring.machine.machine_state import MachineState


_SCRIPT = Path(__file__).with_name("board.sh")
_CACHE = ".cache/iree-gauntlet-board"
_INSTALL = (
    f'umask 077; d="$HOME/{_CACHE}"; mkdir -p "$d" && cat > "$d/$1.$$" && mv "$d/$1.$$" "$d/$1" && '
    'exec sh "$d/$1" facts'
)
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ControlPersist": "30",
    "LogLevel": "ERROR",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "5",
}
_SSH_FAILED = 255
# Exit codes of board.sh.
_NO_SPACE = 28
_CALL_ERRORS = {
    65: ("a file arrived damaged on {host}", "run again; check its disk and memory"),
    75: ("{host} is in use: its cache stays as it is", "try again when no run uses it"),
}
_CALL_SECONDS, _LOCK_SECONDS, _BEAT_SECONDS, _END_SECONDS = 60.0, 3600.0, 15.0, 20.0
# A board that cannot be reached is not tried again for so long.
_RETRY_SECONDS = 60.0
# Flags whose values name files, also by a path relative to the command's folder; the others do so by a full path.
_FILE_FLAGS = ("--executable_plugin", "--expected_output", "--flagfile", "--input", "--module", "--parameters")
_OUTPUT_FLAGS = ("--benchmark_out", "--device_profiling_output", "--output")
_FLAG = re.compile(r"(--[\w-]+)=(.*)", re.DOTALL)
# What precedes a path in a flag's value: `4xf32=@path`, `scope=path`, `@path`.
_PREFIX = re.compile(r"(?:[^=/]*=)?[@+*]?")
# Machines of ELF files (elf.h), and the names that uname(1) has for them.
_MACHINES = {40: ("arm",), 62: ("x86_64", "amd64"), 183: ("aarch64", "arm64"), 243: ("riscv64",)}
# The answers of board.sh to `facts` and `run`.
_FACTS = re.compile(r"folder (.+)\nsystem (.+)\nfree (\d+)\n((?:missing .+\n)*)")
_STATUS = re.compile(r"code (\d+)\nbegan ([\d.]+)\nended ([\d.]+)\n")
_NOT_STARTED = (126, 127)
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries|version .\S+' not found")
# What ssh prints if it cannot connect, with the message and the next step for it, which may name groups of the pattern.
_CONNECT_ERRORS = (
    (
        r"Offending \S+ key in (?P<file>.+):(?P<number>\d+)\n(?:.*\n)*Host key for (?P<name>\S+) has changed",
        "the host key of {host} has changed: it is not the one in {file}:{number}",
        "find out why; if the change is right: ssh-keygen -f '{file}' -R '{name}', then connect once by hand: {ssh}",
    ),
    (
        r"Host key verification failed|host key is known",
        "the host key of {host} is not known here",
        "connect once by hand and compare the fingerprint: {ssh}",
    ),
    (
        r"Permission denied \(|Too many authentication failures",
        "{host} does not let this user in: {line}",
        "nobody can type a password here: add a key (ssh-copy-id), or start ssh-agent, until this works: {ssh}",
    ),
    (
        r"(?P<line>Can't open user config file.*|.*Bad configuration option.*|unknown option.*)",
        "ssh does not take these options: {line}",
        "correct the words of `runner` until this works: {ssh}",
    ),
    (r"Could not resolve hostname", "{host} is no known host: {line}", "correct the name, or name it in ~/.ssh/config"),
)
_NO_SPACE_TEXT = "No space left on device"


class BoardError(GauntletError):
    """A board cannot be reached, or cannot run what it is given."""


class _ConnectionError(BoardError):
    """The connection to a board broke."""


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """A board as its own commands describe it.

    Attributes:
        folder: its cache.
        system: `Linux aarch64`.
        missing_commands: the required commands that it lacks.
    """

    folder: str
    system: str
    free_bytes: int
    missing_commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoardFile:
    """A file in a board's cache; `name` is its SHA-256 and its name."""

    name: str
    bytes: int
    last_use: float


@dataclass(frozen=True, slots=True)
class _BoardCall:
    """A command with the paths that it has on a board.

    Attributes:
        files: local paths of the files that it reads, by name in the cache.
        outputs: local paths of the files that it writes, by name in the folder of the run.
    """

    argv: tuple[str, ...]
    files: Mapping[str, Path]
    outputs: Mapping[str, Path]
    program: str


@dataclass(frozen=True, slots=True)
class BoardOutcome:
    """The end of a command on a board; `seconds` and `state` are the board's own, `state` only of a benchmark."""

    exit_code: int | None
    signal: str
    seconds: float
    cpu_seconds: float
    state: RoundState | None


@dataclass(frozen=True, slots=True)
class BoardRun:
    """A command that is ready to run on a board.

    Attributes:
        command: the local command, which is ssh.
        finish: fetches the outputs, given the exit code of ssh and its last lines; raises BoardError.
    """

    command: Command
    finish: Callable[[int | None, Sequence[str]], BoardOutcome]


class Board:
    """A board and the connection to it; commands run one at a time.

    Args:
        words: `ssh`, its options and the host.
        on_wait: called with a line that names the holder, if the board's lock is not free; with "" after the wait.
    """

    def __init__(self, words: Sequence[str], on_wait: Callable[[str], object] = str) -> None:
        self._words = tuple(words)
        self._on_wait = on_wait
        self._mutex = threading.Lock()
        # A path of a socket is short. The name cannot be guessed, and ssh lets only this user use the socket.
        self._socket = Path(f"/tmp/gauntlet-ssh-{secrets.token_hex(8)}")  # noqa: S108
        self._script = ""
        self._facts: BoardFacts | None = None
        self._calls: set[subprocess.Popen[bytes]] = set()
        self._is_cancelled = False
        self._refusal: BoardError | None = None
        self._retry_time = 0.0

    @property
    def host(self) -> str:
        """The host as ssh knows it."""
        return self._words[-1]

    @property
    def _ssh(self) -> str:
        """The command that tries the connection by hand."""
        return shlex.join((*self._words, "true"))

    def connect(self) -> BoardFacts:
        """Connect to the board unless there is a connection, and return its facts.

        Raises:
            BoardError: there is no connection, or the board cannot be used.
        """
        if self._facts is not None and self._socket.exists():
            return self._facts
        if self._refusal is not None and time.monotonic() < self._retry_time:
            raise BoardError(self._refusal.message, self._refusal.hint)
        try:
            self._facts = self._install()
        except BoardError as error:
            self._refusal, self._retry_time = error, time.monotonic() + _RETRY_SECONDS
            raise
        return self._facts

    def _install(self) -> BoardFacts:
        """Connect, and copy board.sh; return the board's facts."""
        content = _SCRIPT.read_bytes()
        name = f"board-{hash_file(_SCRIPT)[:16]}.sh"
        output = self._call(("sh", "-c", _INSTALL, "sh", name), stdin=content, connects=True)
        match = _FACTS.fullmatch(output.decode(errors="replace"))
        if match is None:
            raise BoardError(
                f"{self.host} did not answer as a board does: {output[:200]!r}",
                "its login shell must print nothing when it runs a command, and the board needs a POSIX shell",
            )
        folder, system, free_bytes, missing_commands = match.groups()
        facts = BoardFacts(folder, system, int(free_bytes), tuple(missing_commands.split()[1::2]))
        if facts.missing_commands:
            raise BoardError(
                f"{self.host} lacks {', '.join(facts.missing_commands)}",
                "install them there (coreutils, util-linux, tar)",
            )
        self._script = f"{facts.folder}/{name}"
        return facts

    @contextmanager
    def prepare(self, command: Command) -> Iterator[BoardRun]:
        """Hold the board, with all files of a command there; yield the run, whose local command is then to be run.

        When the block ends, nothing of the command is left on the board. The command's runner is a program of the
        board.

        Raises:
            BoardError: the board cannot run the command, or the connection broke.
        """
        call = _translate(command)
        with self._mutex:
            facts = self.connect()
            # A runner there may be an emulator.
            if not command.runner:
                self._require_machine(facts, call)
            with self._hold(call) as (run, guard):
                watched = "watched" if Path(call.program).name == BENCHMARK_MODULE else ""
                environment = ("env", *(f"{name}={value}" for name, value in command.env)) if command.env else ()
                argv = self._compose("run", run, watched, *environment, *call.argv)
                yield BoardRun(Command(argv, ""), lambda code, tail: self._finish(code, tail, call, run, guard))

    def read_state(self) -> MachineState:
        """Read the state of the board now; raise BoardError if that is impossible."""
        self.connect()
        with _unpack_state(self._call(self._compose_work("state"))) as root:
            return read_machine_state(root=root)

    def list_files(self) -> list[BoardFile]:
        """Return the files in the board's cache; raise BoardError if that is impossible."""
        self.connect()
        lines = self._call(self._compose_work("list")).decode(errors="replace").splitlines()
        fields = (line.split(" ", 2) for line in lines)
        return [BoardFile(path.removeprefix("files/"), int(size), float(time)) for size, time, path in fields]

    def remove(self, names: Sequence[str]) -> None:
        """Remove files from the board's cache; raise BoardError if that is impossible, or the board is in use."""
        self.connect()
        self._call(self._compose_work("remove", *dict.fromkeys(name.partition("/")[0] for name in names)))

    def cancel(self) -> None:
        """End the calls that wait or copy; safe in a signal handler."""
        self._is_cancelled = True
        for process in tuple(self._calls):
            process.kill()

    def close(self) -> None:
        """End the connection."""
        if self._socket.exists():
            with suppress(OSError, subprocess.TimeoutExpired):
                argv = (*self._compose_options(), "-O", "exit", self.host)
                subprocess.run(argv, check=False, capture_output=True, timeout=_END_SECONDS)

    def _compose_options(self, *, connects: bool = False) -> tuple[str, ...]:
        options = {**_OPTIONS, "ControlMaster": "yes" if connects else "no", "ControlPath": str(self._socket)}
        flags = (word for name, value in options.items() for word in ("-o", f"{name}={value}"))
        return (self._words[0], "-T", *flags, *self._words[1:-1])

    def _compose_work(self, *words: str) -> tuple[str, ...]:
        return ("sh", self._script, *words)

    def _compose(self, *words: str, connects: bool = False) -> tuple[str, ...]:
        """Return the local command that does a work of board.sh."""
        return (*self._compose_options(connects=connects), self.host, shlex.join(self._compose_work(*words)))

    @contextmanager
    def _start(
        self, argv: Sequence[str], stdin: int | IO[bytes], errors: IO[bytes]
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start ssh; end it with the block."""
        try:
            process = subprocess.Popen(
                argv, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise BoardError(
                f"{argv[0]} cannot be started: {error.strerror}",
                "boards need OpenSSH's client: apt install openssh-client",
            ) from error
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def _call(
        self,
        command: Sequence[str],
        stdin: bytes | Path = b"",
        *,
        timeout: float | None = _CALL_SECONDS,
        connects: bool = False,
    ) -> bytes:
        """Run a short command on the board; return what it prints.

        Raises:
            BoardError: it failed, or there is no connection.
        """
        argv = (*self._compose_options(connects=connects), self.host, shlex.join(command))
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as text:
            if isinstance(stdin, bytes):
                text.write(stdin)
                text.seek(0)
            source: IO[bytes] = stdin.open("rb") if isinstance(stdin, Path) else text
            with source, self._start(argv, source, errors) as process:
                self._calls.add(process)
                try:
                    output, _ = process.communicate(timeout=timeout)
                except subprocess.TimeoutExpired:
                    raise self._make_break_error("it did not answer") from None
                finally:
                    self._calls.discard(process)
            if process.returncode != 0:
                raise self._explain(process.returncode, errors, connects=connects)
        return output

    def _explain(self, code: int, errors: IO[bytes], *, connects: bool = False) -> BoardError:
        """Return the error for a failed call, from its exit code and what it printed."""
        errors.seek(0)
        lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        line = lines[-1] if lines else ""
        if code in (_SSH_FAILED, -signal.SIGKILL):
            return self._explain_refusal(lines) if connects else self._make_break_error(line)
        if code == _NO_SPACE or any(_NO_SPACE_TEXT in text for text in lines):
            return self._make_space_error()
        message, hint = _CALL_ERRORS.get(
            code,
            ("{host} cannot be used: {line}", f"~/.cache must be writable there; see what this prints: {self._ssh}"),
        )
        return BoardError(message.format(host=self.host, line=line or f"exit code {code}"), hint)

    def _explain_refusal(self, lines: Sequence[str]) -> BoardError:
        """Return the error for a connection that could not be made, from what ssh printed."""
        words = {"host": self.host, "ssh": self._ssh, "line": lines[-1] if lines else "ssh was ended"}
        text = "\n".join(lines)
        message, hint = "{host} cannot be reached: {line}", "is it on? try by hand: {ssh}"
        for pattern, *texts in _CONNECT_ERRORS:
            if match := re.search(pattern, text):
                message, hint = texts
                words |= match.groupdict()
                break
        return _ConnectionError(message.format_map(words), hint.format_map(words))

    def _make_break_error(self, line: str = "") -> _ConnectionError:
        self._facts = None
        self._socket.unlink(missing_ok=True)
        return _ConnectionError(
            f"the connection to {self.host} broke{f' ({line})' if line else ''}",
            "see that the board is on and its network works, then do this step again with --resume",
        )

    def _make_space_error(self) -> BoardError:
        command = shlex.join(("gauntlet", "cache.gc", "--board", shlex.join(self._words)))
        return BoardError(
            f"no space is left on {self.host} in ~/{_CACHE}",
            f"make room there, or remove what was not used for long: {command} --older-than 30d",
        )

    def _require_machine(self, facts: BoardFacts, call: _BoardCall) -> None:
        """Raise BoardError if the program is for another architecture than the board's."""
        path = call.files.get(call.program)
        names = _MACHINES.get(_read_elf_machine(path), ()) if path is not None else ()
        if names and not facts.system.split()[-1].startswith(names):
            raise BoardError(
                f"{path} is for {names[0]}, but {self.host} is {facts.system}",
                "the target's `runtime` must name tools for the board's architecture",
            )

    @contextmanager
    def _hold(self, call: _BoardCall) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """Hold the board's lock, with all files of a call there; yield the run's name and its guard."""
        run = secrets.token_hex(8)
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        is_over = threading.Event()
        with tempfile.TemporaryFile() as errors:
            argv = self._compose("hold", run, owner, *call.files)
            with self._start(argv, subprocess.PIPE, errors) as guard:
                assert guard.stdin is not None, "a pipe was requested"
                beats = threading.Thread(target=_beat, args=(guard.stdin, is_over), daemon=True)
                try:
                    missing = self._await_lock(guard, errors)
                    beats.start()
                    for name in missing:
                        self._put(name, call.files[name])
                    yield run, guard
                finally:
                    is_over.set()
                    if beats.is_alive():
                        beats.join()
                    with suppress(OSError):
                        guard.stdin.close()
                    # The guard ends what still runs there.
                    with suppress(subprocess.TimeoutExpired):
                        guard.wait(_END_SECONDS)

    def _await_lock(self, guard: subprocess.Popen[bytes], errors: IO[bytes]) -> list[str]:
        """Wait until a guard has the lock; return the files that the board lacks.

        Raises:
            BoardError: the connection broke, or the lock was not free in an hour.
        """
        assert guard.stdout is not None, "a pipe was requested"
        missing: list[str] = []
        holder = ""
        timer = threading.Timer(_LOCK_SECONDS, guard.kill)
        timer.daemon = True
        timer.start()
        start = time.monotonic()
        self._calls.add(guard)
        try:
            for line in guard.stdout:
                key, _, value = line.decode(errors="replace").rstrip("\n").partition(" ")
                if key == "held":
                    return missing
                if key == "missing":
                    missing.append(value)
                elif key == "waiting" and (value or "another run") != holder:
                    holder = value or "another run"
                    self._on_wait(f"for {self.host}: {holder} uses it")
        finally:
            timer.cancel()
            self._calls.discard(guard)
            if holder:
                self._on_wait("")
        if holder and time.monotonic() - start >= _LOCK_SECONDS:
            raise BoardError(
                f"no access to {self.host} within {_LOCK_SECONDS:g} s: {holder} uses it", "wait for that run"
            )
        raise self._explain(guard.wait(), errors)

    def _put(self, name: str, path: Path) -> None:
        """Copy a file into the board's cache; raise BoardError if that is impossible."""
        size = path.stat().st_size
        try:
            self._call(self._compose_work("put", name, str(size)), path, timeout=None)
        except _ConnectionError:
            raise
        except BoardError as error:
            error.message = f"{path} ({format_bytes(size)}) was not copied: {error.message}"
            raise

    def _finish(
        self, exit_code: int | None, tail: Sequence[str], call: _BoardCall, run: str, guard: subprocess.Popen[bytes]
    ) -> BoardOutcome:
        """Fetch the outputs of a command whose ssh has ended; return its outcome on the board.

        Raises:
            BoardError: the connection broke, or the command could not run there.
        """
        reports = self._fetch(call, run, guard)
        status = _STATUS.fullmatch(reports.get("status", b"").decode())
        if status is None:
            if exit_code == _SSH_FAILED:
                raise self._make_break_error()
            if exit_code == _NO_SPACE or any(_NO_SPACE_TEXT in line for line in tail):
                raise self._make_space_error()
            raise BoardError(
                f"the command on {self.host} was ended from outside: its end is not recorded",
                "see the board's own log for a lack of memory or space (dmesg), then do this step again with --resume",
            )
        code, seconds, runner = int(status[1]), float(status[3]) - float(status[2]), call.argv[0]
        line = next((line for line in tail if _MISSING_LIBRARY.search(line)), "")
        if code in _NOT_STARTED or (code and line):
            text = line or next(iter(tail), f"exit code {code}")
            if call.program not in runner and re.search(
                rf"{re.escape(runner)}\W*(?:command )?(?:not found|No such file)", text
            ):
                raise BoardError(
                    f"{runner}, the runner on {self.host}, is not there: {text}",
                    "install it there, or correct the words after the host in `runner`",
                )
            raise BoardError(
                f"{Path(call.program).name} cannot be run on {self.host}: {text}",
                "its interpreter and libraries must be there (glibc, libstdc++), on a file system without noexec",
            )
        # A shell reports a signal as 128 and its number.
        ending = get_signal_name(code - 128) if code - 128 in signal.valid_signals() else ""
        cpu_seconds = _sum_times(reports["times.after"]) - _sum_times(reports["times.before"])
        state = None
        if "after" in reports:
            with _unpack_state(reports["before"]) as before, _unpack_state(reports["after"]) as after:
                use = measure_cpu_use(read_cpu_times(before), read_cpu_times(after), cpu_seconds)
                state = RoundState(
                    read_machine_state(root=before), read_machine_state(root=after), seconds, use, board=self.host
                )
        return BoardOutcome(None if ending else code, ending, seconds, cpu_seconds, state)

    def _fetch(self, call: _BoardCall, run: str, guard: subprocess.Popen[bytes]) -> dict[str, bytes]:
        """Write a run's outputs to their local paths; return the contents of its reports by name."""
        import tarfile  # noqa: PLC0415 - only boards need it

        names = ("status", "times.before", "times.after", "before", "after")
        reports: dict[str, bytes] = {}
        with tempfile.TemporaryFile() as errors:
            argv = self._compose("fetch", run, *names, *call.outputs)
            with self._start(argv, subprocess.DEVNULL, errors) as process:
                self._calls.add(process)
                try:
                    with suppress(tarfile.ReadError), tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                        for member in archive:
                            content = archive.extractfile(member)
                            if content is not None and member.name in call.outputs:
                                _write_output(call.outputs[member.name], content)
                            elif content is not None and member.name in names:
                                reports[member.name] = content.read()
                    assert process.stdout is not None, "a pipe was requested"
                    process.stdout.read()
                    code = process.wait()
                finally:
                    self._calls.discard(process)
            if code != 0 and (code == _SSH_FAILED or guard.poll() is not None):
                raise self._explain(_SSH_FAILED, errors)
        return reports


def _beat(pipe: IO[bytes], is_over: threading.Event) -> None:
    """Write a byte to a guard at times, since a broken network looks like a quiet one."""
    while not is_over.wait(_BEAT_SECONDS):
        try:
            pipe.write(b".")
        except OSError:
            return


def _write_output(path: Path, content: IO[bytes]) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            while chunk := content.read(1 << 20):
                file.write(chunk)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _translate(command: Command) -> _BoardCall:
    """Return a command as it runs on a board, in the folder of its run."""
    files: dict[str, Path] = {}
    outputs: dict[str, Path] = {}

    def move(path: Path) -> str:
        # Names of IREE's files end in their format, which the tools need.
        name = f"{_hash(path.resolve())}/{re.sub(r'[^A-Za-z0-9_.-]', '_', path.name)}"
        files[name] = path
        return f"../../files/{name}"

    def translate(word: str) -> str:
        match = _FLAG.fullmatch(word)
        if match is None:
            return move(Path(word)) if Path(word).is_absolute() and Path(word).is_file() else word
        flag, value = match[1], match[2]
        if flag in _OUTPUT_FLAGS:
            prefix = _PREFIX.match(value)
            path = value[prefix.end() :] if prefix else value
            if not path or value == "-":
                return word
            name = f"output_{len(outputs)}_{re.sub(r'[^A-Za-z0-9_.-]', '_', Path(path).name)}"
            outputs[name] = Path(command.cwd, path)
            return f"{flag}={value.removesuffix(path)}{name}"
        for position in sorted({0, *(index + 1 for index, letter in enumerate(value) if letter in "=@+*")}):
            path = Path(command.cwd, value[position:])
            if (flag in _FILE_FLAGS or Path(value[position:]).is_absolute()) and value[position:] and path.is_file():
                return f"{flag}={value[:position]}{move(path)}"
        return word

    argv = (*command.runner, *map(translate, command.argv))
    program = next((name for name, path in files.items() if str(path) in command.argv), "")
    return _BoardCall(argv, files, outputs, program)


def _hash(path: Path) -> str:
    status = path.stat()
    return _hash_version(path, status.st_size, status.st_mtime_ns, status.st_ino)


@cache
def _hash_version(path: Path, _size: int, _mtime: int, _inode: int) -> str:
    return hash_file(path)


def _read_elf_machine(path: Path | None) -> int:
    """Return the machine in the header of an ELF file (elf.h), or 0."""
    header = b""
    if path is not None:
        with path.open("rb") as file:
            header = file.read(20)
    return int.from_bytes(header[18:20], "little") if header.startswith(b"\x7fELF") else 0


def _sum_times(text: bytes) -> float:
    """Return the seconds of CPU time of a shell's children, from the second line of what its `times` prints."""
    words = text.decode().split()[2:4]
    minutes = (re.fullmatch(r"(\d+)m([\d.]+)s", word) for word in words)
    return sum(60 * int(match[1]) + float(match[2]) for match in minutes if match)


@contextmanager
def _unpack_state(text: bytes) -> Iterator[Path]:
    """Yield a folder with the files of /proc and /sys that a text contains: lines of `path:line`."""
    contents: dict[str, list[str]] = {}
    for line in text.decode(errors="replace").splitlines():
        path, _, value = line.partition(":")
        contents.setdefault(path, []).append(value)
    with tempfile.TemporaryDirectory(prefix="gauntlet-board-") as folder:
        for path, lines in contents.items():
            if re.fullmatch(r"/(?:proc|sys)(?:/[\w-][\w.-]*)+", path):
                file = Path(folder, path[1:])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join(lines), encoding="utf-8")
        yield Path(folder)
