"""The tools of the IREE that failed, run for an explanation in its folder, and what a failure shows when they end."""

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

from iree_gauntlet.diagnostics import find_diagnostic, find_same_in_all
from iree_gauntlet.engine.modules.module_key import flag_ingredients, join_flags, make_key
from iree_gauntlet.engine.processes.supervisor import Outcome, find_linker, is_disk_full
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import one_line
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import SENT_SIGNALS
from iree_gauntlet.steps import Command
from iree_gauntlet.toolchains.devices import means_host, read_host_cpu
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.failures import Failure


# What to do where there was no room.
GO_ON = "Free some space (see `doctor`), and explain the run again: it goes on there."
_FAILED = "[FAILED]"
_MOST_BYTES = 8_000_000
_THRESHOLD = re.compile(r"--expected_(\w+)_threshold=")
WRONG, FAILURE, CRASH, HANG = "wrong numbers", "failure", "crash", "does not end"
# As LLVM prints a stack: `#4 0x00007f… (anonymous namespace)::Op::match(mlir::Op) File.cpp:0:0`.
_FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ (.+)$", re.MULTILINE)
# How the process came to print it.
_HANDLING = re.compile(
    r"llvm::sys::|SignalHandler|\blibc\b|libc\.so|libpthread|__assert|gsignal|\babort\b|\braise\b|pthread_kill"
    r"|report_fatal_error|llvm_unreachable"
)
# What a program that ends itself says before.
_LAST_WORDS = re.compile(r"^(?:LLVM ERROR: .*|.*Assertion [`'].*|.*UNREACHABLE executed.*)$", re.MULTILINE)
_MODULE_FRAME = re.compile(r"\(([^()]*/)?([^()/]+\+0x[0-9a-f]+)\)$")
_ERROR = re.compile(r"\berror: (.*)")
_CUSTOM = re.compile(r" \(([\w.]+)\)$")
# What `find_same_in_all` puts for what differs.
_DIFFERS = re.compile("[…#]+")
_SPECIAL = re.compile(r"([\\.\[\](){}*+?^$|])")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a process gave; `complaints` are outputs that are not as expected, as iree-run-module says it."""

    outcome: Outcome
    complaints: tuple[str, ...]
    errors: str

    @property
    def passed(self) -> bool:
        """Whether all was as expected."""
        return self.outcome.exit_code == 0


@dataclass(frozen=True, slots=True)
class Symptom(Recorded):
    """What a failure shows.

    Attributes:
        said: what the process says, in a line.
        pattern: an extended regular expression (grep -E) that a line of what it says matches; empty for any.
        seconds: after which it counts as one that does not end; 0 for all others.
    """

    ending: str
    said: str = ""
    pattern: str = ""
    seconds: float = 0.0

    def is_in(self, ran: ToolResult) -> bool:
        """Whether a process shows it too."""
        if _describe_ending(ran) != self.ending:
            return False
        return any(re.search(self.pattern, line) for line in ran.errors.splitlines() or [""])


def find_symptom(ran: ToolResult, timeout: float) -> Symptom | None:
    """What a process shows that was given so many seconds; None for nothing wrong, or one ended from outside."""
    ending = _describe_ending(ran)
    if ending == WRONG:
        return Symptom(ending, one_line(ran.complaints[0]))
    if ending == HANG:
        return Symptom(ending, f"not done in {timeout:.0f} s", seconds=timeout)
    if ending == CRASH:
        words = _LAST_WORDS.search(ran.errors)
        if words is not None:
            return Symptom(ending, one_line(f"{ran.outcome.signal}: {words[0]}"), find_pattern(words[0]))
        frame = _format_crash_frame(ran.errors)
        return Symptom(ending, f"{ran.outcome.signal}{f' in {frame}' if frame else ''}", _escape(frame))
    if ending == FAILURE:
        found = _ERROR.search(ran.errors)
        lines = (text.strip() for text in ran.errors.splitlines() if text.strip())
        line = found[1] if found else next(lines, "")
        return Symptom(ending, one_line(find_diagnostic(line)).rstrip(": "), find_pattern(line))
    return None


def _describe_ending(ran: ToolResult) -> str:
    """How it ended, in one of four ways; empty for none of them."""
    if ran.outcome.timed_out:
        return HANG
    if ran.outcome.signal:
        return "" if ran.outcome.signal in SENT_SIGNALS else CRASH
    if ran.passed:
        return ""
    return WRONG if ran.complaints else FAILURE


def _format_crash_frame(errors: str) -> str:
    """The function that crashed: the innermost one that has not to do with how the crash is reported."""
    for frame in _FRAME.findall(errors):
        if _HANDLING.search(frame):
            continue
        if where := _MODULE_FRAME.search(frame):
            return where[2]
        text = frame.replace("(anonymous namespace)::", "")
        names = re.split(r"[(<]", text, maxsplit=1)[0].split()
        if names:
            return str(names[-1])
    return ""


def find_pattern(line: str) -> str:
    """A line as a regular expression that is free of what differs from program to program; empty for none."""
    text = find_same_in_all(line) if line.strip() else ""
    custom = _CUSTOM.search(text)
    if custom is not None:
        # It was an attribute of an operation that was printed in full.
        text = text[: custom.start()] + "…" + custom[1]
    pieces, end = [], 0
    for piece in _DIFFERS.split(text):
        # What was put in to close a type that was cut short is not there.
        if (word := piece.strip()) and (place := line.find(word, end)) >= 0:
            pieces.append(_escape(word))
            end = place + len(word)
    return ".*".join(pieces)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


class CompileError(GauntletError):
    """A program does not compile; `hint` has what the compiler said."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What compiles and runs: in the folders, and in the time, that a failure has for it."""

    workbench: Workbench
    supervisor: Supervisor
    folder: Path
    failure: Failure

    def knows(self, tool: str, flag: str) -> bool:
        """Whether a tool of this release has a flag."""
        return flag.lstrip("-").partition("=")[0] in self.workbench.flags_of(tool).names

    def compile(
        self, name: str, source: Path, flags: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> Path:
        """As `try_compile`; CompileError where it does not compile, or not in time."""
        ran = self.try_compile(name, source, flags, timeout=timeout, cwd=cwd)
        if not ran.passed:
            what = "took too long" if ran.outcome.timed_out else ran.outcome.signal or "failed"
            first = next((line for line in ran.errors.splitlines() if "error" in line.lower()), "")
            raise CompileError(f"{name}: iree-compile {what}", first[:400])
        return self.folder / name

    def compile_text(self, name: str, text: str, flags: Sequence[str], *, timeout: float | None = None) -> Path:
        """The same of a program that stands in `<name>.mlir` then, to `<name>.vmfb`."""
        source = self.folder / f"{name}.mlir"
        source.write_text(text, encoding="utf-8")
        return self.compile(f"{name}.vmfb", source, flags, timeout=timeout)

    def try_compile(
        self, name: str, source: Path, flags: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> ToolResult:
        """Compile to `<name>`, which may fail; what the compiler says stands in `<name>.txt`."""
        argv = (self.workbench.iree.compiler.compile, str(source), *flags, "-o", str(self.folder / name))
        return self._run(argv, name, cwd or self.failure.compile_cwd, timeout or self.failure.compile_timeout)

    def cached_compile(self, name: str, flags: Sequence[str]) -> ToolResult:
        """The failure's program, from the cache of modules where it was compiled before; what fails comes again."""
        hashed, cache = self.workbench.store.verified.sha256, self.workbench.modules
        source = self.failure.program
        ingredients = {
            "kind": "explain",
            "program": hashed(source),
            "flags": join_flags(flag_ingredients(flags, hashed, folder=self.failure.compile_cwd)),
            "compiler": self.workbench.iree.compiler.identity,
            "host": read_host_cpu().identity if means_host(flags) else "",
        }
        output = self.folder / name
        entry = cache.lookup(make_key(ingredients)).entry
        if entry is not None:
            cache.materialise(entry, "module", output)
            return ToolResult(Outcome(0), (), "")
        ran = self.try_compile(name, source, flags)
        if ran.passed:
            files, now = {"module": output}, datetime.now(UTC)
            cache.publish(files, name=f"explain {name}", ingredients=ingredients, metadata={}, created=now)
        return ran

    def run_module(
        self, name: str, argv: Sequence[str], *, timeout: float | None = None, cwd: Path | None = None
    ) -> ToolResult:
        """Run iree-run-module with its arguments; what it says stands in `<name>.txt`."""
        words = (self.workbench.iree.runtime.run_module, *argv)
        return self._run(words, name, cwd or self.failure.cwd, timeout or self.failure.timeout)

    def run_with(self, name: str, module: Path, *, argv: Sequence[str] = (), device: str = "") -> ToolResult:
        """Run what failed, or other arguments, with another module in place of its own."""
        given = argv or self.failure.argv[1:]
        words = [f"--module={module}" if word.startswith("--module=") else word for word in given]
        if device:
            words = [f"--device={device}" if word.startswith("--device=") else word for word in words]
        return self.run_module(name, words)

    def plan(self, worker: str, name: str, plan: Mapping[str, object]) -> tuple[str, ...]:
        """The arguments of a program of `workers/iree_side` that carries out a plan, which stands in `<name>.json`."""
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return str(Path(iree_side.__file__).with_name(f"{worker}.py")), str(file)

    def ask(
        self, worker: str, name: str, plan: Mapping[str, object], what: str, *, timeout: float, own: bool = False
    ) -> Any:
        """What a worker answers to a plan, in the Python that has IREE's bindings, or in that of this toolkit.

        Raises:
            GauntletError: that it does not, and why; `what` stands before it.
        """
        argv = self.plan(worker, name, plan)
        if own:
            ran = self._run((sys.executable, "-B", *argv), name, self.folder, timeout)
        else:
            ran = self.python(name, argv, timeout=timeout)
        if ran.passed:
            return json.loads((self.folder / f"{name}.out.txt").read_text(encoding="utf-8"))
        lines = ran.errors.strip().splitlines()
        why = ran.outcome.signal or (lines or [f"exit code {ran.outcome.exit_code}"])[-1]
        why = "it does not end" if ran.outcome.timed_out else why
        raise GauntletError(f"{what}: {why[:400]}", f"See {self.folder / name}.txt.")

    def python(self, name: str, argv: Sequence[str], *, timeout: float) -> ToolResult:
        """Run a program in the Python that has IREE's bindings."""
        python = self.workbench.iree.compiler.python
        if not python:
            raise GauntletError(
                "this IREE was built without its Python bindings, and its dispatches cannot be traced",
                "Build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or explain the failure with a release's wheels.",
            )
        return self._run((python, "-B", *argv), name, self.folder, timeout)

    def _run(self, argv: Sequence[str], name: str, cwd: Path, timeout: float) -> ToolResult:
        out, err = self.folder / f"{name}.out.txt", self.folder / f"{name}.txt"
        # Also for a program of ours that starts the compiler.
        command = Command(tuple(argv), str(cwd), find_linker(self.workbench.iree.compiler.compile))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=timeout)
        if outcome.cancelled:
            raise KeyboardInterrupt
        if outcome.exit_code and is_disk_full(self.folder, outcome.tail):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        complaints = tuple(line for line in _format_beginning(out).splitlines() if line.startswith(_FAILED))
        return ToolResult(outcome, complaints, _format_beginning(err))


def _format_beginning(log: Path) -> str:
    """What a process wrote, as far as anybody looks at it."""
    with log.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode(errors="replace")


def loosened(argv: Sequence[str], least: float) -> tuple[str, ...]:
    """A run's arguments that allow elements to be off by so much at least: of the types that they name, or of f32."""
    named = {found[1]: float(word.partition("=")[2]) for word in argv if (found := _THRESHOLD.match(word))}
    named = named or {"f32": 0.0}
    kept = tuple(word for word in argv if not _THRESHOLD.match(word))
    return (*kept, *(f"--expected_{name}_threshold={max(least, value):g}" for name, value in named.items()))
