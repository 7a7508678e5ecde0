"""Counts the instructions of one call of a model: `python -m iree_gauntlet.measuring.instructions.count_call`.

    count_call --counter=valgrind:/usr/bin/valgrind -o counts.json -- iree-benchmark-module --module=…

The benchmark runs once with 1 call and once with 1 + n calls. The cost of starting cancels out: one call is
(count of 1 + n calls - count of 1 call) / n, where n is large enough for 5 * 10^7 instructions. The written document:

    counter       the counter, such as valgrind 3.19.0
    calls         n
    instructions  instructions of one call, of all threads, without the kernel
    dispatches    [[name, instructions of one call, file:line of the program or an empty text], …], by valgrind only
    own           instructions of one call that interpret the module's own code; null if functions are not known

Three effects would change the counts, and are prevented:
- Copying and clearing memory depends on its alignment, and alignment on the lengths of names. So files are passed as
  links with equal names, and arguments and environment are padded to one size.
- Memory that is new from the system need not be cleared, and only some calls get new memory. So the C library keeps one
  large heap, and each call but the first clears all memory that it uses.
- The C library's search for a free block depends on all earlier allocations, even on the module's bytes. So the module
  is mapped, and each thread keeps all its small blocks, so that one of each size is available.
A seccomp filter hides io_uring from valgrind, which hangs in io_uring's wait; IREE then uses epoll.
Exit codes: 0; 2 if nothing could be counted, with one line that explains why.
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
import shutil
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


# Starting a process varies by some hundred instructions, which is less than 0.001 % of this number.
_MIN_INSTRUCTIONS = 5 * 10**7
# Fewer calls would make the variation a larger fraction; more calls would not be worth their time.
_MIN_CALLS, _MAX_CALLS = 3, 20_000
# Arguments and environment of a process are padded to a multiple of this; these variables are passed on.
_STACK_ALIGNMENT_BYTES = 8192
_PASSED_VARIABLES = ("LD_", "VALGRIND")
# IREE's runtime leaves an empty file in TMPDIR for each shared library that it loads. The path is relative to the
# folder in which the tool runs, so that it has the same length everywhere.
_TEMPORARY_FOLDER = "temporary"
# "Memory Allocation Tunables" of the C library's manual: all memory is from the heap, which grows by 1 GiB and never
# shrinks; and as many blocks of each size as possible stay with the thread that has freed them.
_MALLOC_TUNABLES = (
    "glibc.malloc.mmap_max=0:glibc.malloc.top_pad=1073741824:glibc.malloc.trim_threshold=1099511627776"
    ":glibc.malloc.tcache_count=65535"
)
_FILE_ARGUMENT = re.compile(r"(--module=|--parameters=(?:[^=]*=)?|--input=[^@]*@)(.+)")
_IO_URING_SETUP = 425
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
# struct sock_filter: load a word of seccomp_data, compare, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SECCOMP_ALLOW, _SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
_DISPATCH = re.compile(r".*_(?:dispatch|encoding)_\d+")
# This is the loop that interprets the module's own code, as compilers name its parts.
_INTERPRETER = re.compile(r"iree_vm_bytecode_dispatch(?:[_.].*)?")
# The C library writes the report with as many instructions as its times have digits.
_REPORT = re.compile(r"_*(?:mpn_\w+|printf_\w+|vfprintf\w*|vsnprintf\w*|hack_digit)")
_UNKNOWN_INSTRUCTION = re.compile(r"unhandled instruction|[Uu]nrecognised instruction")


class CountError(GauntletError):
    """Nothing could be counted."""


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """The instructions of one process; `places` has, by function, the `file:line` with the most instructions."""

    total: int
    functions: Mapping[str, int]
    places: Mapping[str, str]


class ProcessCounter(Protocol):
    """A counter of a process' instructions."""

    def count(self, argv: Sequence[str], stdout: int) -> ProcessCounts:
        """Run a process, in the environment of `make_environment`, and count its instructions."""


def main(arguments: Sequence[str]) -> int:
    """Count the instructions as the command line requests."""
    parser = argparse.ArgumentParser(prog="count_call")
    parser.add_argument("--counter", required=True)
    parser.add_argument("-o", dest="output", required=True, type=lambda text: Path(text).resolve())
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    kind, _, path = options.counter.partition(":")
    try:
        folder = options.output.parent
        counter = _Valgrind(path, folder) if kind == CounterKind.VALGRIND else _Hardware(folder)
        counts = count_call(counter, options.command, folder)
    except GauntletError as error:
        sys.stderr.write(f"count_call: {error.message}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"count_call: {error.filename or options.output}: {error.strerror}\n")
        return 2
    write_atomic(options.output, json.dumps(counts.as_dict()))
    return 0


def count_call(counter: ProcessCounter, command: Sequence[str], folder: Path) -> Counts:
    """Count the instructions of a call of `iree-benchmark-module`; `command` must not have Google Benchmark's flags.

    `folder` is for the tool's output.
    """
    command = link_files(command, folder)
    temporary_folder = folder / _TEMPORARY_FOLDER
    temporary_folder.mkdir(exist_ok=True)
    try:
        single, several = (_run_benchmark(counter, command, calls, folder) for calls in (1, 2))
        calls, call_count = 1, several.total - single.total
        if call_count <= 0:
            raise CountError(
                f"two calls took {several.total:,} instructions, one {single.total:,}: not the same work twice"
            )
        if call_count < 2 * _MIN_INSTRUCTIONS:
            calls = min(_MAX_CALLS, max(_MIN_CALLS, math.ceil(_MIN_INSTRUCTIONS / call_count)))
            several = _run_benchmark(counter, command, 1 + calls, folder)
    finally:
        shutil.rmtree(temporary_folder)
    names = several.functions.keys() | single.functions.keys()
    difference = {name: several.functions.get(name, 0) - single.functions.get(name, 0) for name in names}
    # Leave out functions with less than one instruction per call, which come from variations of start and end.
    by_name = {name: count for name, count in difference.items() if abs(count) >= calls and not _REPORT.fullmatch(name)}
    dispatches = sorted(
        (name, round(count / calls), several.places.get(name, ""))
        for name, count in by_name.items()
        if _DISPATCH.match(name)
    )
    total = sum(by_name.values()) if difference else several.total - single.total
    own_code = sum(count for name, count in by_name.items() if _INTERPRETER.fullmatch(name))
    return Counts(round(total / calls), calls, tuple(dispatches), round(own_code / calls) if own_code else None)


def _run_benchmark(counter: ProcessCounter, command: Sequence[str], calls: int, folder: Path) -> ProcessCounts:
    """Count the instructions of a benchmark of so many calls."""
    output = folder / f"stdout.{min(calls, 3)}.txt"
    argv = [*command, "--benchmark_format=json", "--benchmark_repetitions=1", f"--benchmark_min_time={calls}x"]
    with output.open("wb") as stdout:
        counts = counter.count(argv, stdout.fileno())
    benchmarks = parse_benchmark_rows(output.read_text(encoding="utf-8", errors="replace"))
    if len(benchmarks) != 1:
        raise CountError(f"the module has {len(benchmarks)} functions, but the benchmark names none of them")
    iterations = benchmarks[0].iterations
    if sum(iterations) != calls:
        raise CountError(f"{calls} calls were requested, but the benchmark made {sum(iterations)}")
    return counts


class _Valgrind:
    """Counts by valgrind's cachegrind, without a cache model."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder

    def count(self, argv: Sequence[str], stdout: int) -> ProcessCounts:
        refuse_io_uring()
        output, log = self._folder / "cachegrind.out", self._folder / "valgrind.txt"
        for path in (output, log):
            path.unlink(missing_ok=True)
        # In these options, `%` begins a process number, or a variable.
        out_text, log_text = (str(path).replace("%", "%%") for path in (output, log))
        options = ["--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out_text}", f"--log-file={log_text}"]
        command = [self._path, *options, *argv]
        process = subprocess.run(command, stdout=stdout, cwd=self._folder, env=make_environment(argv), check=False)
        if process.returncode != 0:
            log_message = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            sys.stderr.write(log_message)
            if _UNKNOWN_INSTRUCTION.search(log_message):
                raise CountError(
                    "valgrind does not support an instruction of the module (it lacks AVX-512, for example): "
                    "compile for another CPU, with --count-cpu, or leave that out"
                )
            raise CountError(f"{Path(argv[0]).name} {_describe_exit(process.returncode)} under valgrind")
        if not output.is_file():
            tool = (self._folder / argv[0]).resolve()
            raise CountError(f"{tool} starts another program, but valgrind counts only the first")
        with output.open(encoding="utf-8", errors="replace") as lines:
            counts = read_cachegrind(lines)
        output.unlink()
        return counts


class _Hardware:
    """Counts by the CPU's own counter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def count(self, argv: Sequence[str], stdout: int) -> ProcessCounts:
        ready, start = os.pipe()
        pid = os.fork()
        if pid == 0:
            # The child waits until the counter is attached; counting starts with the program.
            try:
                os.close(start)
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
            os.close(start)
        _, status = os.waitpid(pid, 0)
        total = int.from_bytes(os.read(counter, 8), sys.byteorder)
        os.close(counter)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise CountError(f"{Path(argv[0]).name} {_describe_exit(code)}")
        return ProcessCounts(total, {}, {})


def link_files(command: Sequence[str], folder: Path) -> list[str]:
    """Replace a command's tool and files by links in a folder, whose names do not depend on the files' names.

    The command has to be run in `folder`.
    """
    links = folder / "links"
    links.mkdir(exist_ok=True)

    def link(target: str) -> str:
        # The tools determine a file's format by its suffix.
        name = links / f"{len(links_made):03}{Path(target).suffix}"
        name.unlink(missing_ok=True)
        name.symlink_to(Path(target).resolve())
        links_made.append(name)
        return f"links/{name.name}"

    links_made: list[Path] = []
    words = [link(command[0])]
    for word in command[1:]:
        match = _FILE_ARGUMENT.fullmatch(word)
        words.append(f"{match[1]}{link(match[2])}" if match else word)
    return words


def make_environment(argv: Sequence[str]) -> dict[str, str]:
    """Make an environment with one heap per process, padded so that arguments and environment have a fixed size."""
    passed_variables = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_VARIABLES)}
    fixed_variables = {"LC_ALL": "C", "GLIBC_TUNABLES": _MALLOC_TUNABLES, "TMPDIR": _TEMPORARY_FOLDER}
    environment = {**fixed_variables, **passed_variables, "FILLED_UP": ""}
    entries = [*argv, *(f"{name}={value}" for name, value in environment.items())]
    size = sum(len(os.fsencode(entry)) + 1 for entry in entries)
    environment["FILLED_UP"] = "x" * (-size % _STACK_ALIGNMENT_BYTES)
    return environment


def _describe_exit(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def read_cachegrind(lines: Iterable[str]) -> ProcessCounts:
    """Read the counts that cachegrind wrote (its manual, "Cachegrind Output File Format")."""
    functions: dict[str, int] = defaultdict(int)
    by_line: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    file = function = ""
    total = None
    for line in lines:
        if line[:1].isdigit():
            line_number, _, count = line.partition(" ")
            functions[function] += int(count.split()[0])
            # `-` is the file of a program without debug information.
            if line_number != "0" and Path(file).name not in ("???", "-") and _DISPATCH.match(function):
                by_line[function][f"{file}:{line_number}"] += int(count.split()[0])
        elif line.startswith("fl="):
            file = line[3:].rstrip("\n")
        elif line.startswith("fn="):
            function = line[3:].rstrip("\n")
        elif line.startswith("summary:"):
            total = int(line.split()[1])
    if total is None:
        raise CountError("cachegrind's file is cut short", "Is the disk full?")
    places = {name: max(counts, key=lambda location: counts[location]) for name, counts in by_line.items()}
    return ProcessCounts(total, dict(functions), places)


def refuse_io_uring() -> None:
    """Make io_uring_setup fail with ENOSYS, in this process and its children."""
    architecture = _AUDIT_ARCHITECTURES.get(platform.machine())
    if architecture is None or not sys.platform.startswith("linux"):
        return
    # Each entry is (code, jump if true, jump if false, value). In seccomp_data, the call number is at offset 0 and the
    # architecture at offset 4.
    program = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, 3, architecture),
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _SECCOMP_ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _SECCOMP_ALLOW),
    ]

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))

    class SocketFilter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction)))

    instructions = (Instruction * len(program))(*(Instruction(*fields) for fields in program))
    libc = ctypes.CDLL(None, use_errno=True)
    error_code = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(SocketFilter(len(program), instructions)), 0, 0
    )
    if error_code:
        raise CountError(f"io_uring cannot be disabled: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
