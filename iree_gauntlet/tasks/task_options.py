"""Define Invoke tasks: tables of options, tasks made from functions, and exit codes.

For completion, a shell passes the words of the line; if the last word has not begun, there is no empty word for it.
Bash splits `--model=x` into three words.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task

from iree_gauntlet import messages
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.requests import (
    CacheRequest,
    ExecutionRequest,
    FolderRequest,
    NetworkRequest,
    Option,
    OutputRequest,
    RunRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
    format_option,
    list_options,
    parse_request,
    parse_value,
)
from iree_gauntlet.settings import find_project_folder, find_shipped_folder
from iree_gauntlet.system.faults import make_unexpected_error
from iree_gauntlet.system.standard_streams import find_output_error, open_standard_streams
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.requests import Defaults
    from iree_gauntlet.stages import Stage


SELECTION = list_options(SelectionRequest)
CACHE = list_options(CacheRequest)
TOOLCHAIN = list_options(ToolchainRequest)
BATCH = list_options(ExecutionRequest, "batch")
COUNTING = list_options(ExecutionRequest, "counter", "count_cpu")
SHARD = list_options(ShardRequest)
RUNNING = (
    *(option for option in list_options(ExecutionRequest) if option not in (*BATCH, *COUNTING)),
    *list_options(FolderRequest),
    *list_options(NetworkRequest),
)

OUTPUT = list_options(OutputRequest)


def describe_defaults(options: tuple[Option, ...], **defaults: str) -> tuple[Option, ...]:
    """Add one task's defaults to the help of options; these defaults apply if no suite is passed."""
    return tuple(
        replace(option, help=f"{option.help} Default without --suite: {defaults[option.name]}.")
        if option.name in defaults
        else option
        for option in options
    )


def _format_help(option: Option) -> str:
    """Return an option's help, with the default if it is informative and not in the help already."""
    if option.default in (None, "", 0) or isinstance(option.default, bool | list) or "default" in option.help:
        return option.help
    is_number = isinstance(option.default, int | float)
    return f"{option.help.removesuffix('.')} (default: {f'{option.default:g}' if is_number else option.default})."


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Some options of a task, and the function that reads their values."""

    options: tuple[Option, ...]
    read: Callable[[Mapping[str, Any]], object]


def part_of(request: type, *names: str) -> TaskPart:
    """Return a part with the options `names` of a request; without names, with all options."""
    return TaskPart(list_options(request, *names), partial(parse_request, request))


def run_part(options: tuple[Option, ...], defaults: Defaults, *stages: Stage) -> TaskPart:
    """Return a part with some options of a run."""
    names = [option.name for option in options]
    return TaskPart(options, lambda values: RunRequest.of({name: values[name] for name in names}, defaults, stages))


def _make_argument(option: Option) -> Argument:
    argument = (_Words if option.default is None and option.repeats else Argument)(
        names=tuple(filter(None, (option.name.replace("_", "-"), option.short))),
        kind=list if option.repeats else str if option.default is None else type(option.default),
        default=option.default,
        help=_format_help(option),
        positional=option.default is None,
        attr_name=option.name if "_" in option.name else None,
    )
    # A `raw_value` of None marks a missing value; Invoke does not set it for repeatable arguments.
    argument.raw_value = None
    return argument


class _Words(Argument):
    """A positional argument for one word; more words can follow as options with the argument's name."""

    @property
    def value(self) -> Any:
        """The words; None instead of no words, so that Invoke reports the argument as missing."""
        return self._value or None

    @value.setter
    def value(self, word: str) -> None:
        self._value = [*(self._value or ()), word]
        self.raw_value = word


class GauntletTask(Task[Any]):
    """A task whose function gets the values that its parts read from the command line.

    Attributes:
        group: the part of the task's name before the dot; empty if the name has no dot.
        usage: the usage of a task that takes words without `--`; otherwise empty.
        words_option: the option that gets the words after the task as its values; None if no option does.
    """

    def __init__(
        self, command: Callable[..., ExitCode], name: str, parts: Sequence[TaskPart | Option | type], usage: str
    ) -> None:
        self.command = command
        self.group, _, name = name.rpartition(".")
        self.parts = list(map(_make_part, parts))
        self.options = (*(option for part in self.parts for option in part.options), *OUTPUT)
        self.usage = usage
        self.words_option = next((option for option in self.options if option.takes), None)
        super().__init__(command, name, positional=[option.name for option in self.options if option.default is None])

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the options as arguments for Invoke's parser."""
        del ignore_unknown_help
        return list(map(_make_argument, self.options))

    def __call__(self, *_context: Any, **values: Any) -> None:
        """Run the command.

        Raises:
            Exit: its exit code is not 0.
        """
        if any(values[name] in ("--help", "-h", ["--help"], ["-h"]) for name in self.positional):
            # Invoke takes `--help` for the value of a positional argument.
            option_lines = [
                f"  {format_option(option.name)}\n      {_format_help(option)}"
                for option in self.options
                if option.default is not None
            ]
            lines = "\n".join([inspect.getdoc(self) or "", "", "Options:", *option_lines])
            sys.stdout.write(f"Usage: {self.usage}\n\nDocstring:\n  {lines}\n")
            return
        # Enable bytecode again: Invoke disables it, so that each start would compile all later imports again.
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

        with messages.set_verbosity(quiet=values["quiet"], verbose=values["verbose"]):
            code = run_to_exit_code(lambda: self.command(*(part.read(values) for part in self.parts)))
        if code is not ExitCode.OK:
            raise Exit(code=int(code))


def _make_part(part: TaskPart | Option | type) -> TaskPart:
    if isinstance(part, Option):
        return TaskPart((part,), lambda values: parse_value(part, values[part.name]))
    return part if isinstance(part, TaskPart) else part_of(part)


def gauntlet_task(
    name: str, *parts: TaskPart | Option | type, usage: str = ""
) -> Callable[[Callable[..., ExitCode]], GauntletTask]:
    """Return a decorator that makes a function a task; for each part, it gets a request or an option's value."""
    return lambda command: GauntletTask(command, name, parts, usage)


def console_presenter() -> Reporter:
    """Return a presenter on standard output; the reports are imported here, because `--list` must not wait for them."""
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    return ConsolePresenter(sys.stdout)


def run_to_exit_code(command: Callable[[], ExitCode]) -> ExitCode:
    """Run a command and return its exit code; print errors of users and faults of the toolkit as messages."""
    open_standard_streams()
    try:
        try:
            code = command()
        except SystemExit as end:
            # argparse ends so after `--help`.
            code = ExitCode(int(end.code or 0))
        sys.stdout.flush()
    except GauntletError as error:
        code = _print_error(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - no exception here may look like a failure of the tested program
        output_error = find_output_error()
        if output_error is None or not isinstance(error, OSError):
            code = _print_error(make_unexpected_error(error))
        elif isinstance(output_error, BrokenPipeError):
            # The reader of the output, such as `| head`, has closed it: there is nothing left to report.
            code = ExitCode.OK
        else:
            code = _print_error(
                GauntletError(f"standard output: {output_error.strerror}", "Redirect it to a writable place.")
            )
    return code


def _print_error(error: GauntletError) -> ExitCode:
    """Print an error; return the command's exit code."""
    sys.stderr.write(f"error: {error}\n")
    if "GITHUB_ACTIONS" in os.environ:
        from iree_gauntlet.reports.github import format_error_command  # noqa: PLC0415 - only for an error in CI

        # Ignore a closed output: it has been reported already, or is not the cause.
        with suppress(OSError):
            sys.stdout.write(format_error_command(str(error), os.environ))
            sys.stdout.flush()
    return error.exit_code


def list_option_values(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """Return completions if the last word is an option or the start of its value; otherwise none."""
    last_word, previous_word = [*reversed(words), "", ""][:2]
    if "=" in (last_word, previous_word):
        index = len(words) - 1 - [*reversed(words)].index("=")
        name, prefix = words[index - 1], ""
    elif last_word.startswith("--"):
        name = last_word.partition("=")[0]
        prefix = f"{name}=" if last_word != name else ""
    else:
        name, prefix = previous_word, ""
    option = next((option for option in options if format_option(option.name) == name), None)
    values = _list_values(option) if option else []
    # If the last word is a complete value, the next word is not a value of this option.
    return [] if last_word in values else [f"{prefix}{value}" for value in values]


def _list_values(option: Option) -> list[str]:
    match option.name:
        case "model":
            return sorted({spec.model for spec in _list_specs() if not spec.defines_module})
        case "submodel":
            return sorted({spec.submodel for spec in _list_specs() if not spec.defines_module})
        case "markers":
            return sorted({word for spec in _list_specs() for word in spec.words or ()})
        case "suite":
            folders = (find_project_folder() / "suites", find_shipped_folder() / "suites")
            return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
        case "target":
            return list(FAMILIES)
    return list(option.choices)


def _list_specs() -> list[Spec]:
    from iree_gauntlet.dialects.load import read_specs  # noqa: PLC0415
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415 - it imports pydantic

    folder = find_project_folder() / "specs"
    return [spec for spec in read_specs([folder]) if isinstance(spec, Spec)] if folder.is_dir() else []
