"""Starting a step's process in its own folder, and what is common to all of their results."""

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


# Bytes of a log that are looked through for the first error.
_MOST_LOG = 1 << 20


@dataclass
class Processes:
    """Runs the processes of steps under one supervisor; paths of logs are relative to the run's folder."""

    supervisor: Supervisor
    run_dir: Path

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        """Runs a step's command, or another one for it, to its end; `name` is the prefix of its logs."""
        command = command or step.process
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        return self.supervisor.run(
            command,
            stdout=folder / f"{name}stdout.txt",
            stderr=folder / f"{name}stderr.txt",
            timeout=step.timeout,
            # Next to the outputs, where there is room for them; a path with a space goes to the system's folder.
            tmpdir=folder if is_plain_path(str(folder)) else None,
        )

    def typed(self, step: Step) -> str:
        """The step's command as a person would type it."""
        if step.command is None:
            return ""
        return format_shell_line(replace(step.command, env=(*find_linker(step.command.argv[0]), *step.command.env)))

    def log(self, step: Step, stream: str = "stderr.txt") -> str:
        """Path of a step's log, relative to the run's folder."""
        return str((Path(step.folder) / stream).relative_to(self.run_dir))

    def write_log(self, step: Step, stream: str, lines: Sequence[str]) -> str:
        """Writes what there is to say of a failure where no process has; the file's path, as of `log`."""
        path = Path(step.folder) / stream
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise GauntletError(f"{path}: cannot write the log: {error.strerror}", "make room there") from error
        return self.log(step, stream)

    def stdout(self, step: Step, name: str = "") -> str:
        """What the process wrote to standard output."""
        return (Path(step.folder) / f"{name}stdout.txt").read_text(encoding="utf-8", errors="replace")

    def error_lines(self, step: Step, name: str = "") -> Sequence[str]:
        """The first lines of standard error, bounded."""
        with (Path(step.folder) / f"{name}stderr.txt").open("rb") as stream:
            return stream.read(_MOST_LOG).decode("utf-8", errors="replace").splitlines()

    def complete(self, step: Step, outcome: Outcome, result: Result) -> Result:
        """Adds what is known of the process to the result of its step."""
        said = ""
        if step.expect_match and result.failure:
            said = "\n".join((self.stdout(step)[:_MOST_LOG], *self.error_lines(step)))
        return replace(
            result,
            command=self.typed(step),
            cpu_seconds=result.cpu_seconds + outcome.cpu_seconds,
            peak_rss_bytes=max(result.peak_rss_bytes, outcome.peak_rss_bytes),
            tool_seconds=result.tool_seconds + outcome.seconds,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            timed_out=outcome.timed_out,
            log=result.log or self.log(step),
            said=said,
        )


def require_pipes(process: Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """What a process reads and what it writes, both of which it was started with as pipes."""
    if process.stdin is None or process.stdout is None:
        raise TypeError("a process without pipes")
    return process.stdin, process.stdout
