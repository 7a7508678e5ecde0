"""What a child of the compile server does: one compile, then it ends.

It begins as a copy of the server, the compiler loaded, and must never return into the server's loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.workers.iree_side.merge_programs import merge_programs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.workers.iree_side.compiler_library import CompilerLibrary


# In the private folder: what the child reports in addition to its exit code.
DETAIL_FILE = "gauntlet-detail.json"
_PR_SET_PDEATHSIG = 1
# sysexits.h: an error while doing I/O, and an internal one.
_EXIT_UNWRITABLE = 74
_EXIT_DEFECT = 70
_SMALLEST_ROOM = 1 << 16
_DEFAULTS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGPIPE", "SIGXFSZ")


def become_child(
    library: CompilerLibrary,
    request: Mapping[str, Any],
    streams: tuple[int, int, int],
    private: str,
    server: int,
    told: int,
) -> NoReturn:
    """Do what a request asks for, and end the process.

    Args:
        library: loaded before the fork.
        request: of the server's protocol.
        streams: file descriptors that become standard input, output and error.
        private: folder for its temporary files.
        server: process id of the server, with which it ends.
        told: file descriptor that gives a byte when the client was told of this process, and none if it never is.
    """
    code = _EXIT_DEFECT
    if not os.read(told, 1):
        os._exit(code)
    os.close(told)
    try:
        _set_up(request, streams, private, server)
        code = _work(library, request, Path(private))
    except BaseException:  # noqa: BLE001  a child that came back into the server's loop would serve its requests
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    else:
        library.end(code)
    finally:
        os._exit(code)


def _set_up(request: Mapping[str, Any], streams: tuple[int, int, int], private: str, server: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        # It was gone before the line above.
        os._exit(_EXIT_DEFECT)
    signal.set_wakeup_fd(-1)
    for name in _DEFAULTS:
        # As a program that is started finds them; Python ignores some.
        signal.signal(signal.Signals[name], signal.SIG_DFL)
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.environ["TMPDIR"] = private
    os.chdir(request["cwd"])
    limit, most = request["memory_bytes"], resource.getrlimit(resource.RLIMIT_AS)[1]
    if limit and (most == resource.RLIM_INFINITY or limit < most):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(library: CompilerLibrary, request: Mapping[str, Any], private: Path) -> int:
    programs = request["programs"]
    program = programs[0]
    if request["prefixes"] is not None:
        merged = merge_programs(programs, request["prefixes"])
        detail = {"functions": merged.functions, "refused": sorted(merged.refused)}
        (private / DETAIL_FILE).write_text(json.dumps(detail), encoding="utf-8")
        if merged.refused:
            _say("\n".join(merged.refused.values()))
            return 1
        program = _held(merged.module, "merged.mlirbc")
    # In memory: a full disk is met, and named, when it is written out.
    output = _held(b"", "module.vmfb")
    code = library.compile(program, request["flags"], output)
    if code:
        _say_if_full(private)
        return code
    return _write_out(output, Path(request["output"]))


def _held(data: bytes, name: str) -> str:
    """The path of a file in memory."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)
    return f"/proc/self/fd/{descriptor}"


def _write_out(held: str, output: Path) -> int:
    """Write a module to where it belongs: whole, or not at all."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with Path(held).open("rb") as source, temporary.open("wb") as target:
            left, done = os.fstat(source.fileno()).st_size, 0
            while done < left:
                done += os.sendfile(target.fileno(), source.fileno(), done, left - done)
            os.fsync(target.fileno())
        temporary.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _say(f"error: cannot write {output}: {error.strerror}")
        return _EXIT_UNWRITABLE
    return 0


def _say_if_full(folder: Path) -> None:
    """Name a full disk, which the compiler takes for a failed link."""
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < _SMALLEST_ROOM:
        _say(f"error: {folder}: No space left on device")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
