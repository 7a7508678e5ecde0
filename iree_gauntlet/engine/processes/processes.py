"""The process of a step, started in the step's own folder, and the fields that all results share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor, find_linker, format_shell_line, is_plain_path
from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from subprocess import Popen

    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Command, Step


# At most this much of a log is searched for the first error.
_MAX_LOG_BYTES = 1 << 20


@dataclass
class Processes:
    """The processes of steps under one supervisor; paths of logs are relative to the run's folder."""

    supervisor: Supervisor
    run_dir: Path

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        """Run a step's command, or `command` in its place, to the end; `name` is the prefix of the logs."""
        command = command or step.required_command
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return self.supervisor.run(
            command,
            stdout=folder / f"{name}stdout.txt",
            stderr=folder / f"{name}stderr.txt",
            timeout=step.timeout,
            # TMPDIR is next to the outputs, where there is room. If that path would need quotes in a shell, TMPDIR is
            # in the system's temporary folder.
            tmpdir=folder if is_plain_path(str(folder)) else None,
        )

    def format_command(self, step: Step) -> str:
        """Return the step's command as a person would type it."""
        if step.command is None:
            return ""
        return format_shell_line(replace(step.command, env=(*find_linker(step.command.argv[0]), *step.command.env)))

    def log(self, step: Step, stream: str = "stderr.txt") -> str:
        """Return the path of a step's log, relative to the run's folder."""
        return str((Path(step.folder) / stream).relative_to(self.run_dir))

    def keep_attempt(self, step: Step, result: Result, number: int) -> Result:
        """Move the files of a failed attempt to a folder of their own; return the result with their new places."""
        folder = Path(step.folder)
        kept_folder = folder / f"attempt{number}"
        try:
            kept_folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                if path.is_file():
                    path.replace(kept_folder / path.name)
        except OSError as error:
            return replace(result, notes=(*result.notes, f"its files could not be kept: {error.strerror}"))

        def find_kept(name: str) -> str:
            path = Path(name)
            return str(kept_folder / path.name) if name and path.parent == folder else name

        log = find_kept(str(self.run_dir / result.log)) if result.log else ""
        outputs = (
            replace(output, actual_path=find_kept(output.actual_path), expected_path=find_kept(output.expected_path))
            for output in result.outputs
        )
        return replace(result, log=log and str(Path(log).relative_to(self.run_dir)), outputs=tuple(outputs))

    def write_log(self, step: Step, stream: str, lines: Sequence[str]) -> str:
        """Write a log for a failure about which no process has written one; return its path as in `log`."""
        path = Path(step.folder) / stream
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise GauntletError(f"{path}: cannot write the log: {error.strerror}", "make room there") from error
        return self.log(step, stream)

    def stdout(self, step: Step, name: str = "") -> str:
        """Return the standard output of the process."""
        return (Path(step.folder) / f"{name}stdout.txt").read_text(encoding="utf-8", errors="replace")

    def error_lines(self, step: Step, name: str = "") -> Sequence[str]:
        """Return the first lines of standard error, bounded."""
        with (Path(step.folder) / f"{name}stderr.txt").open("rb") as stream:
            return stream.read(_MAX_LOG_BYTES).decode("utf-8", errors="replace").splitlines()

    def complete(self, step: Step, outcome: Outcome, result: Result) -> Result:
        """Add the outcome of the process to the result of its step."""
        output = ""
        if step.expect_match and result.failure:
            output = "\n".join((self.stdout(step)[:_MAX_LOG_BYTES], *self.error_lines(step)))
        return replace(
            result,
            command=self.format_command(step),
            cpu_seconds=result.cpu_seconds + outcome.cpu_seconds,
            peak_rss_bytes=max(result.peak_rss_bytes, outcome.peak_rss_bytes),
            tool_seconds=result.tool_seconds + outcome.seconds,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            timed_out=outcome.timed_out,
            log=result.log or self.log(step),
            said=output,
        )


def require_pipes(process: Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Return the standard input and output of a process that was started with pipes for both."""
    if process.stdin is None or process.stdout is None:
        raise TypeError("a process without pipes")
    return process.stdin, process.stdout
