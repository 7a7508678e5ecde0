"""The tools of the failing IREE, which run in an explanation's folder, and the symptom by which a failure is known."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.diagnostics import find_diagnostic, normalize_diagnostic
from iree_gauntlet.engine.commands import split_calls
from iree_gauntlet.engine.modules.module_key import flag_ingredients, join_flags, make_key
from iree_gauntlet.engine.processes.supervisor import Outcome, find_linker, is_disk_full
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import EXTERNAL_SIGNALS
from iree_gauntlet.steps import Command
from iree_gauntlet.toolchains.devices import read_host_cpu, targets_host_cpu
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.failures import Failure


# The hint after an error for lack of disk space.
NO_SPACE_HINT = "Free some space (see `doctor`), and explain the run again to continue."
_FAILED = "[FAILED]"
_MAX_LOG_BYTES = 8_000_000
_THRESHOLD = re.compile(r"--expected_(\w+)_threshold=")
WRONG, FAILURE, CRASH, HANG = "wrong numbers", "failure", "crash", "does not end"
# A stack frame in LLVM's format: `#4 0x00007f… (anonymous namespace)::Op::match(mlir::Op) File.cpp:0:0`.
_FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ (.+)$", re.MULTILINE)
# Frames that belong to the reporting of a crash, not to its cause.
_HANDLING = re.compile(
    r"llvm::sys::|SignalHandler|\blibc\b|libc\.so|libpthread|__assert|gsignal|\babort\b|\braise\b|pthread_kill"
    r"|report_fatal_error|llvm_unreachable"
)
# The last message of a program that aborts itself.
_LAST_WORDS = re.compile(r"^(?:LLVM ERROR: .*|.*Assertion [`'].*|.*UNREACHABLE executed.*)$", re.MULTILINE)
_MODULE_FRAME = re.compile(r"\(([^()]*/)?([^()/]+\+0x[0-9a-f]+)\)$")
_ERROR = re.compile(r"\berror: (.*)")
_CUSTOM = re.compile(r" \(([\w.]+)\)$")
# The placeholders of `normalize_diagnostic` for parts that differ.
_DIFFERS = re.compile("[…#]+")
_SPECIAL = re.compile(r"([\\.\[\](){}*+?^$|])")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a process; `output_mismatches` are iree-run-module's lines about unexpected outputs."""

    outcome: Outcome
    output_mismatches: tuple[str, ...]
    errors: str

    @property
    def passed(self) -> bool:
        """True if the exit code is 0."""
        return self.outcome.exit_code == 0


@dataclass(frozen=True, slots=True)
class Symptom(Recorded):
    """The symptom of a failure.

    Attributes:
        said: the process's message, in one line.
        pattern: an extended regular expression (grep -E) that one line of the messages matches; empty: any line does.
        seconds: the time after which the process counts as hanging; 0 for other symptoms.
    """

    ending: str
    said: str = ""
    pattern: str = ""
    seconds: float = 0.0

    def is_in(self, result: ToolResult) -> bool:
        """Return True if a process shows this symptom too."""
        if _describe_ending(result) != self.ending:
            return False
        return any(re.search(self.pattern, line) for line in result.errors.splitlines() or [""])


def find_symptom(result: ToolResult, timeout: float) -> Symptom | None:
    """Return the symptom of a process with time limit `timeout`; None if it passed or was killed from outside."""
    ending = _describe_ending(result)
    if ending == WRONG:
        return Symptom(ending, join_lines(result.output_mismatches[0]))
    if ending == HANG:
        return Symptom(ending, f"not finished in {timeout:.0f} s", seconds=timeout)
    if ending == CRASH:
        words = _LAST_WORDS.search(result.errors)
        if words is not None:
            return Symptom(ending, join_lines(f"{result.outcome.signal}: {words[0]}"), find_pattern(words[0]))
        frame = _format_crash_frame(result.errors)
        return Symptom(ending, f"{result.outcome.signal}{f' in {frame}' if frame else ''}", _escape(frame))
    if ending == FAILURE:
        match = _ERROR.search(result.errors)
        lines = (line.strip() for line in result.errors.splitlines() if line.strip())
        line = match[1] if match else next(lines, "")
        return Symptom(ending, join_lines(find_diagnostic(line)).rstrip(": "), find_pattern(line))
    return None


def _describe_ending(result: ToolResult) -> str:
    """Return which of the four endings a failure had; empty if none."""
    if result.outcome.timed_out:
        return HANG
    if result.outcome.signal:
        return "" if result.outcome.signal in EXTERNAL_SIGNALS else CRASH
    if result.passed:
        return ""
    return WRONG if result.output_mismatches else FAILURE


def _format_crash_frame(errors: str) -> str:
    """Return the crashed function: the innermost frame that does not belong to the reporting of the crash."""
    for frame in _FRAME.findall(errors):
        if _HANDLING.search(frame):
            continue
        if match := _MODULE_FRAME.search(frame):
            return match[2]
        text = frame.replace("(anonymous namespace)::", "")
        names = re.split(r"[(<]", text, maxsplit=1)[0].split()
        if names:
            return str(names[-1])
    return ""


def find_pattern(line: str) -> str:
    """Make a regular expression from a line, leaving out parts that differ between programs; it may be empty."""
    text = normalize_diagnostic(line) if line.strip() else ""
    custom = _CUSTOM.search(text)
    if custom is not None:
        # Drop the text before the name of an attribute: the operation was printed in full.
        text = text[: custom.start()] + "…" + custom[1]
    pieces, end = [], 0
    for piece in _DIFFERS.split(text):
        # A piece may be only closing brackets that were added to a truncated type: the line does not have them.
        if (part := piece.strip()) and (position := line.find(part, end)) >= 0:
            pieces.append(_escape(part))
            end = position + len(part)
    return ".*".join(pieces)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


class CompileError(GauntletError):
    """An error for a program that does not compile; `hint` has the compiler's message."""


@dataclass(frozen=True, slots=True)
class IreeTools:
    """The compiler and the runtime, run in the folders and with the time limits of a failure."""

    workbench: Workbench
    supervisor: Supervisor
    folder: Path
    failure: Failure

    def has_flag(self, tool: str, flag: str) -> bool:
        """Return True if a tool of this release has a flag."""
        return flag.lstrip("-").partition("=")[0] in self.workbench.get_flags(tool).names

    def compile(
        self, name: str, source: Path, flags: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> Path:
        """Compile as `try_compile`; CompileError if that fails or takes too long."""
        result = self.try_compile(name, source, flags, timeout=timeout, cwd=cwd)
        if not result.passed:
            problem = "took too long" if result.outcome.timed_out else result.outcome.signal or "failed"
            error_line = next((line for line in result.errors.splitlines() if "error" in line.lower()), "")
            raise CompileError(f"{name}: iree-compile {problem}", error_line[:400])
        return self.folder / name

    def compile_text(self, name: str, text: str, flags: Sequence[str], *, timeout: float | None = None) -> Path:
        """Write a program to `<name>.mlir` and compile it to `<name>.vmfb`."""
        source = self.folder / f"{name}.mlir"
        source.write_text(text, encoding="utf-8")
        return self.compile(f"{name}.vmfb", source, flags, timeout=timeout)

    def try_compile(
        self, name: str, source: Path, flags: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> ToolResult:
        """Compile to `<name>`, with the compiler's messages in `<name>.txt`; it may fail."""
        argv = (self.workbench.iree.compiler.compile, str(source), *flags, "-o", str(self.folder / name))
        return self._run(argv, name, cwd or self.failure.compile_cwd, timeout or self.failure.compile_timeout)

    def cached_compile(self, name: str, flags: Sequence[str]) -> ToolResult:
        """Compile the failure's program, or take the module from the cache; failures are not cached."""
        hash_file, cache = self.workbench.store.hash_cache.sha256, self.workbench.modules
        source = self.failure.program
        key_inputs = {
            "kind": "explain",
            "program": hash_file(source),
            "flags": join_flags(flag_ingredients(flags, hash_file, folder=self.failure.compile_cwd)),
            "compiler": self.workbench.iree.compiler.identity,
            "host": read_host_cpu().identity if targets_host_cpu(flags) else "",
        }
        output = self.folder / name
        entry = cache.lookup(make_key(key_inputs)).entry
        if entry is not None:
            cache.materialise(entry, "module", output)
            return ToolResult(Outcome(0), (), "")
        result = self.try_compile(name, source, flags)
        if result.passed:
            files, time = {"module": output}, datetime.now(UTC)
            cache.publish(files, name=f"explain {name}", ingredients=key_inputs, metadata={}, created=time)
        return result

    def run_module(
        self, name: str, argv: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> ToolResult:
        """Run iree-run-module, or `run_calls.py` for several calls, with its messages in `<name>.txt`."""
        iree = self.workbench.iree
        makes_calls = bool(split_calls(argv))
        tool = (iree.compiler.python, "-B", self.failure.argv[0]) if makes_calls else (iree.runtime.run_module,)
        args = (*tool, *argv)
        return self._run(args, name, cwd or self.failure.cwd, timeout or self.failure.timeout)

    def run_with_module(self, name: str, module: Path, *, argv: Sequence[str] = (), device: str = "") -> ToolResult:
        """Run the failing command, or other arguments, with another module."""
        command = argv or self.failure.argv[1:]
        args = [f"--module={module}" if arg.startswith("--module=") else arg for arg in command]
        if device:
            args = [f"--device={device}" if arg.startswith("--device=") else arg for arg in args]
        return self.run_module(name, args)

    def write_plan(self, worker: str, name: str, plan: Mapping[str, object]) -> tuple[str, ...]:
        """Write a plan to `<name>.json`; return the arguments for the worker (`workers/iree_side`) that executes it."""
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return str(Path(iree_side.__file__).with_name(f"{worker}.py")), str(file)

    def run_worker(
        self, worker: str, name: str, plan: Mapping[str, object], prefix: str, *, timeout: float, local: bool = False
    ) -> Any:
        """Run a plan in a worker, in the Python of IREE's bindings (`local`: in this one); return its answer.

        Raises:
            GauntletError: the worker failed; its message begins with `prefix`.
        """
        argv = self.write_plan(worker, name, plan)
        if local:
            result = self._run((sys.executable, "-B", *argv), name, self.folder, timeout)
        else:
            result = self.run_python(name, argv, timeout=timeout)
        if result.passed:
            return json.loads((self.folder / f"{name}.out.txt").read_text(encoding="utf-8"))
        lines = result.errors.strip().splitlines()
        reason = result.outcome.signal or (lines or [f"exit code {result.outcome.exit_code}"])[-1]
        reason = "it does not end" if result.outcome.timed_out else reason
        raise GauntletError(f"{prefix}: {reason[:400]}", f"See {self.folder / name}.txt.")

    def run_python(self, name: str, argv: Sequence[str], *, timeout: float) -> ToolResult:
        """Run a program in the Python that has IREE's bindings."""
        python = self.workbench.iree.compiler.python
        if not python:
            raise GauntletError(
                "this IREE was built without its Python bindings, so its dispatches cannot be traced",
                "Build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or explain the failure with a release's wheels.",
            )
        return self._run((python, "-B", *argv), name, self.folder, timeout)

    def _run(self, argv: Sequence[str], name: str, cwd: Path, timeout: float) -> ToolResult:
        out, err = self.folder / f"{name}.out.txt", self.folder / f"{name}.txt"
        # Set the linker for every process, because workers may start the compiler too.
        command = Command(tuple(argv), str(cwd), find_linker(self.workbench.iree.compiler.compile))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=timeout)
        if outcome.cancelled:
            raise KeyboardInterrupt
        if outcome.exit_code and is_disk_full(self.folder, outcome.tail):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        return ToolResult(outcome, read_mismatches(out), _read_beginning(err))


def read_mismatches(log: Path) -> tuple[str, ...]:
    """Read iree-run-module's lines about unexpected outputs."""
    return tuple(line for line in _read_beginning(log).splitlines() if line.startswith(_FAILED))


def _read_beginning(log: Path) -> str:
    """Read a log file up to the size limit."""
    with log.open("rb") as stream:
        return stream.read(_MAX_LOG_BYTES).decode(errors="replace")


def loosen_thresholds(argv: Sequence[str], minimum: float) -> tuple[str, ...]:
    """Return a run's arguments with thresholds of at least `minimum`, for the types in the arguments, or for f32."""
    thresholds = {match[1]: float(arg.partition("=")[2]) for arg in argv if (match := _THRESHOLD.match(arg))}
    thresholds = thresholds or {"f32": 0.0}
    rest = tuple(arg for arg in argv if not _THRESHOLD.match(arg))
    return (*(f"--expected_{name}_threshold={max(minimum, size):g}" for name, size in thresholds.items()), *rest)
