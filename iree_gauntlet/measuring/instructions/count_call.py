"""Counts the instructions of one call of a model: `python -m iree_gauntlet.measuring.instructions.count_call`.

    count_call --counter=valgrind:/usr/bin/valgrind -o counts.json -- iree-benchmark-module --module=…

The benchmark runs twice, for one call and for several, and what starting costs cancels out: one call is
(count of 1 + n calls - count of 1) / n, where n is large enough for 5 * 10^7 instructions. The document that it writes:

    counter       what has counted: valgrind 3.19.0
    calls         n
    instructions  of one call, all threads, without the kernel
    dispatches    [[name, instructions of one call, file:line of the program or an empty text], …], by valgrind only
    own           of them those that interpret the module's own code; null where functions are not known

What a process copies and clears takes more or fewer instructions by how its memory is aligned, and that depends on the
lengths of names: files are given by links of equal names, and arguments and environment are filled up to one size.
Memory that the system has just given need not be cleared, and the C library asks the system in one call and not in the
next: here it keeps one large heap, so that each call but the first clears all that it uses. How long the C library
looks for a free block depends on all that was allocated before, the module's bytes among it: here the module is mapped,
and each thread keeps all its small blocks, so that one of each size is at hand.
Under valgrind a seccomp filter hides io_uring: valgrind does not know that its wait blocks, and hangs; IREE uses epoll
then. Exit codes: 0; 2 where nothing could be counted, with one line that says why.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.instructions.counters import CounterKind, Counts, open_hardware_counter
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# Starting a process varies by some hundred instructions: less than 0.001 % of so many.
_ENOUGH = 5 * 10**7
# Of fewer calls, what varies is a larger share; more are not worth their time.
_FEWEST_CALLS, _MOST_CALLS = 3, 20_000
# Bytes of a process' arguments and environment, or a multiple of them; and what is left of the environment.
_STACK_TOP = 8192
_KEPT_ENVIRONMENT = ("LD_", "VALGRIND")
# "Memory Allocation Tunables" of the C library's manual: all from the heap, which grows by 1 GiB and never shrinks; and
# as many blocks of each size as there can be stay with the thread that has freed them.
_MALLOC = (
    "glibc.malloc.mmap_max=0:glibc.malloc.top_pad=1073741824:glibc.malloc.trim_threshold=1099511627776"
    ":glibc.malloc.tcache_count=65535"
)
_FILE = re.compile(r"(--module=|--parameters=(?:[^=]*=)?|--input=[^@]*@)(.+)")
_IO_URING_SETUP = 425
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
# struct sock_filter: load a word of seccomp_data, compare, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_DISPATCH = re.compile(r".*_(?:dispatch|encoding)_\d+")
# The loop that interprets the module's own code, as compilers name its parts.
_INTERPRETER = re.compile(r"iree_vm_bytecode_dispatch(?:[_.].*)?")
# The C library, writing the report: by as many instructions as its times have digits.
_REPORT = re.compile(r"_*(?:mpn_\w+|printf_\w+|vfprintf\w*|vsnprintf\w*|hack_digit)")
_UNKNOWN_INSTRUCTION = re.compile(r"unhandled instruction|[Uu]nrecognised instruction")


class CountError(GauntletError):
    """Nothing could be counted."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The instructions of one process; `places` are where a function has most of its own, `file:line`."""

    total: int
    functions: Mapping[str, int]
    places: Mapping[str, str]


class ProcessCounter(Protocol):
    """Counts a process."""

    def count(self, argv: Sequence[str], stdout: int) -> Counted:
        """Runs a process, in the environment of `make_environment`, and counts its instructions, or says why not."""


def main(arguments: Sequence[str]) -> int:
    """Counts what a command line asks for."""
    parser = argparse.ArgumentParser(prog="count_call")
    parser.add_argument("--counter", required=True)
    parser.add_argument("-o", dest="output", required=True, type=lambda text: Path(text).resolve())
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(arguments)
    kind, _, path = asked.counter.partition(":")
    try:
        folder = asked.output.parent
        counter = _Valgrind(path, folder) if kind == CounterKind.VALGRIND else _Hardware(folder)
        counts = count_call(counter, asked.command, folder)
    except GauntletError as error:
        sys.stderr.write(f"count_call: {error.what}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"count_call: {error.filename or asked.output}: {error.strerror}\n")
        return 2
    write_atomic(asked.output, json.dumps(counts.as_dict()))
    return 0


def count_call(counter: ProcessCounter, command: Sequence[str], folder: Path) -> Counts:
    """The instructions of one call of `iree-benchmark-module`, whose arguments have none of Google Benchmark's.

    The folder is for what the tool says.
    """
    command = link_files(command, folder)
    once, more = (_run_benchmark(counter, command, calls, folder) for calls in (1, 2))
    calls, each = 1, more.total - once.total
    if each <= 0:
        raise CountError(f"two calls took {more.total:,} instructions, one {once.total:,}: not the same work twice")
    if each < 2 * _ENOUGH:
        calls = min(_MOST_CALLS, max(_FEWEST_CALLS, math.ceil(_ENOUGH / each)))
        more = _run_benchmark(counter, command, 1 + calls, folder)
    names = more.functions.keys() | once.functions.keys()
    added = {name: more.functions.get(name, 0) - once.functions.get(name, 0) for name in names}
    # What has less than an instruction a call is no part of one: starting and ending vary a little.
    of_calls = {name: count for name, count in added.items() if abs(count) >= calls and not _REPORT.fullmatch(name)}
    dispatches = sorted(
        (name, round(count / calls), more.places.get(name, ""))
        for name, count in of_calls.items()
        if _DISPATCH.match(name)
    )
    whole = sum(of_calls.values()) if added else more.total - once.total
    own = sum(count for name, count in of_calls.items() if _INTERPRETER.fullmatch(name))
    return Counts(round(whole / calls), calls, tuple(dispatches), round(own / calls) if own else None)


def _run_benchmark(counter: ProcessCounter, command: Sequence[str], calls: int, folder: Path) -> Counted:
    """The instructions of a benchmark of so many calls."""
    output = folder / f"stdout.{min(calls, 3)}.txt"
    argv = [*command, "--benchmark_format=json", "--benchmark_repetitions=1", f"--benchmark_min_time={calls}x"]
    with output.open("wb") as stdout:
        counted = counter.count(argv, stdout.fileno())
    benchmarks = parse_benchmark_rows(output.read_text(encoding="utf-8", errors="replace"))
    if len(benchmarks) != 1:
        raise CountError(f"the module has {len(benchmarks)} functions, and the benchmark names none of them")
    iterations = benchmarks[0].iterations
    if sum(iterations) != calls:
        raise CountError(f"{calls} calls were asked for, and the benchmark made {sum(iterations)}")
    return counted


class _Valgrind:
    """Counts by valgrind's cachegrind, without a model of caches."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder

    def count(self, argv: Sequence[str], stdout: int) -> Counted:
        refuse_io_uring()
        out, log = self._folder / "cachegrind.out", self._folder / "valgrind.txt"
        for path in (out, log):
            path.unlink(missing_ok=True)
        # Their `%` begins a number of the process, or a variable.
        out_text, log_text = (str(path).replace("%", "%%") for path in (out, log))
        options = ["--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out_text}", f"--log-file={log_text}"]
        words = [self._path, *options, *argv]
        ended = subprocess.run(words, stdout=stdout, cwd=self._folder, env=make_environment(argv), check=False)
        if ended.returncode != 0:
            said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            sys.stderr.write(said)
            if _UNKNOWN_INSTRUCTION.search(said):
                raise CountError(
                    "valgrind does not know an instruction of the module (AVX-512 is one that it does not): "
                    "compile for another CPU, with --count-cpu, or leave that out"
                )
            raise CountError(f"{Path(argv[0]).name} {_describe_ending(ended.returncode)} under valgrind")
        if not out.is_file():
            tool = (self._folder / argv[0]).resolve()
            raise CountError(f"{tool} starts another program, and valgrind looks into none but the first")
        with out.open(encoding="utf-8", errors="replace") as lines:
            counted = read_cachegrind(lines)
        out.unlink()
        return counted


class _Hardware:
    """Counts by the CPU's own counter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self, argv: Sequence[str], stdout: int) -> Counted:
        ready, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            # Until the counter is there; it begins with the program.
            try:
                os.close(begin)
                os.read(ready, 1)
                os.dup2(stdout, 1)
                os.chdir(self._folder)
                os.execve(argv[0], list(argv), make_environment(argv))  # noqa: S606 - no shell is wanted
            finally:
                os._exit(127)
        os.close(ready)
        try:
            counter = open_hardware_counter(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise CountError(f"the CPU's counter cannot be read: {error.strerror}") from error
        finally:
            os.close(begin)
        _, status = os.waitpid(pid, 0)
        total = int.from_bytes(os.read(counter, 8), sys.byteorder)
        os.close(counter)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise CountError(f"{Path(argv[0]).name} {_describe_ending(code)}")
        return Counted(total, {}, {})


def link_files(command: Sequence[str], folder: Path) -> list[str]:
    """A command whose tool and files are links in a folder of their own, named alike whatever they are called.

    It has to be run in `folder`.
    """
    links = folder / "links"
    links.mkdir(exist_ok=True)

    def link(target: str) -> str:
        # The tools tell a file's format by its suffix.
        name = links / f"{len(made):03}{Path(target).suffix}"
        name.unlink(missing_ok=True)
        name.symlink_to(Path(target).resolve())
        made.append(name)
        return f"links/{name.name}"

    made: list[Path] = []
    words = [link(command[0])]
    for word in command[1:]:
        named = _FILE.fullmatch(word)
        words.append(f"{named[1]}{link(named[2])}" if named else word)
    return words


def make_environment(argv: Sequence[str]) -> dict[str, str]:
    """An environment with one heap that makes the top of a process' stack one size with these arguments."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT_ENVIRONMENT)}
    environment = {"LC_ALL": "C", "GLIBC_TUNABLES": _MALLOC, **kept, "FILLED_UP": ""}
    texts = [*argv, *(f"{name}={value}" for name, value in environment.items())]
    size = sum(len(os.fsencode(text)) + 1 for text in texts)
    environment["FILLED_UP"] = "x" * (-size % _STACK_TOP)
    return environment


def _describe_ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def read_cachegrind(lines: Iterable[str]) -> Counted:
    """What cachegrind wrote (its manual, "Cachegrind Output File Format")."""
    functions: dict[str, int] = defaultdict(int)
    by_line: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    file = function = ""
    total = None
    for line in lines:
        if line[:1].isdigit():
            number, _, count = line.partition(" ")
            functions[function] += int(count.split()[0])
            # `-` stands for a program whose text has no places.
            if number != "0" and Path(file).name not in ("???", "-") and _DISPATCH.match(function):
                by_line[function][f"{file}:{number}"] += int(count.split()[0])
        elif line.startswith("fl="):
            file = line[3:].rstrip("\n")
        elif line.startswith("fn="):
            function = line[3:].rstrip("\n")
        elif line.startswith("summary:"):
            total = int(line.split()[1])
    if total is None:
        raise CountError("cachegrind's file is cut short", "Is the disk full?")
    places = {name: max(counts, key=lambda place: counts[place]) for name, counts in by_line.items()}
    return Counted(total, dict(functions), places)


def refuse_io_uring() -> None:
    """Has io_uring_setup fail with ENOSYS, in this process and all that it starts."""
    architecture = _AUDIT_ARCHITECTURES.get(platform.machine())
    if architecture is None or not sys.platform.startswith("linux"):
        return
    # (code, jump if true, jump if false, value) of seccomp_data: its number is at 0, its architecture at 4.
    program = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, 3, architecture),
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))

    class SocketFilter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))

    instructions = (Instruction * len(program))(*(Instruction(*item) for item in program))
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(SocketFilter(len(program), instructions)), 0, 0
    )
    if refused:
        raise CountError(f"io_uring cannot be kept away: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
