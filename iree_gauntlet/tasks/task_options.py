"""Tasks as Invoke has them: tables of options, tasks made of functions, and how they end.

A shell hands over the words of the line so far, without the one that is about to begin, and bash takes `--model=x` for
three words.
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
    ConductRequest,
    FolderRequest,
    NetworkRequest,
    Option,
    OutputRequest,
    RunRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
    dashed,
    options_of,
    read,
    value_of,
)
from iree_gauntlet.settings import find_project_folder, find_shipped_folder
from iree_gauntlet.system.faults import explain_escaped
from iree_gauntlet.system.standard_streams import find_lost_output, open_standard_streams
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import Defaults
    from iree_gauntlet.stages import Stage


SELECTION = options_of(SelectionRequest)
CACHE = options_of(CacheRequest)
TOOLCHAIN = options_of(ToolchainRequest)
BATCH = options_of(ConductRequest, "batch")
COUNTING = options_of(ConductRequest, "counter", "count_cpu")
SHARD = options_of(ShardRequest)
RUNNING = (
    *(option for option in options_of(ConductRequest) if option not in (*BATCH, *COUNTING)),
    *options_of(FolderRequest),
    *options_of(NetworkRequest),
)

OUTPUT = options_of(OutputRequest)


def with_defaults(options: tuple[Option, ...], **defaults: str) -> tuple[Option, ...]:
    """The options with the defaults of one task named in their help; they apply where no suite is given."""
    return tuple(
        replace(option, help=f"{option.help} Default without --suite: {defaults[option.name]}.")
        if option.name in defaults
        else option
        for option in options
    )


def _format_help(option: Option) -> str:
    """The help of an option, with its default where that says something and the text does not."""
    if option.default in (None, "", 0) or isinstance(option.default, bool | list) or "default" in option.help:
        return option.help
    number = isinstance(option.default, int | float)
    return f"{option.help.removesuffix('.')} (default: {f'{option.default:g}' if number else option.default})."


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Some options of a task, and what it is given of their values."""

    options: tuple[Option, ...]
    read: Callable[[Mapping[str, Any]], object]


def part_of(request: type, *names: str) -> TaskPart:
    """A request of which a task has some options: those that are named, or all."""
    return TaskPart(options_of(request, *names), partial(read, request))


def run_part(options: tuple[Option, ...], defaults: Defaults, *stages: Stage) -> TaskPart:
    """A run of which a task has some options."""
    names = [option.name for option in options]
    return TaskPart(options, lambda values: RunRequest.of({name: values[name] for name in names}, defaults, stages))


def _make_argument(item: Option) -> Argument:
    argument = (_Words if item.default is None and item.repeats else Argument)(
        names=tuple(filter(None, (item.name.replace("_", "-"), item.short))),
        kind=list if item.repeats else str if item.default is None else type(item.default),
        default=item.default,
        help=_format_help(item),
        positional=item.default is None,
        attr_name=item.name if "_" in item.name else None,
    )
    # By which Invoke knows that a value is still missing; it leaves it out for what may be repeated.
    argument.raw_value = None
    return argument


class _Words(Argument):
    """A positional argument that a word fills, with Invoke as without it, and that may be repeated by its name."""

    @property
    def value(self) -> Any:
        """The words; None, by which Invoke knows that it is missing, while there is none."""
        return self._value or None

    @value.setter
    def value(self, word: str) -> None:
        self._value = [*(self._value or ()), word]
        self.raw_value = word


class GauntletTask(Task[Any]):
    """A task that is given what its parts read of the command line.

    Attributes:
        group: what its name begins with, as typed; empty for none.
        usage: how it is typed, where an option is given without `--`; empty for none.
        taking: the option that the words behind the task come to be the value of; None where it takes none so.
    """

    def __init__(
        self, command: Callable[..., ExitCode], name: str, parts: Sequence[TaskPart | Option | type], usage: str
    ) -> None:
        self.command = command
        self.group, _, name = name.rpartition(".")
        self.parts = list(map(_as_part, parts))
        self.options = (*(option for part in self.parts for option in part.options), *OUTPUT)
        self.usage = usage
        self.taking = next((option for option in self.options if option.takes), None)
        super().__init__(command, name, positional=[item.name for item in self.options if item.default is None])

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """The options as Invoke's parser has them."""
        del ignore_unknown_help
        return list(map(_make_argument, self.options))

    def __call__(self, *_context: Any, **values: Any) -> None:
        """Runs the command.

        Raises:
            Exit: it ended with another code than 0.
        """
        if any(values[name] in ("--help", "-h", ["--help"], ["-h"]) for name in self.positional):
            # Invoke takes the wish for help for the value.
            said = [
                f"  {dashed(option.name)}\n      {_format_help(option)}"
                for option in self.options
                if option.default is not None
            ]
            lines = "\n".join([inspect.getdoc(self) or "", "", "Options:", *said])
            sys.stdout.write(f"Usage: {self.usage}\n\nDocstring:\n  {lines}\n")
            return
        # Invoke turns bytecode off for all that is imported from here on: each start would compile it again.
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

        with messages.loudness(quiet=values["quiet"], verbose=values["verbose"]):
            code = run_to_exit_code(lambda: self.command(*(part.read(values) for part in self.parts)))
        if code is not ExitCode.OK:
            raise Exit(code=int(code))


def _as_part(part: TaskPart | Option | type) -> TaskPart:
    if isinstance(part, Option):
        return TaskPart((part,), lambda values: value_of(part, values[part.name]))
    return part if isinstance(part, TaskPart) else part_of(part)


def gauntlet_task(
    name: str, *parts: TaskPart | Option | type, usage: str = ""
) -> Callable[[Callable[..., ExitCode]], GauntletTask]:
    """Makes a task of a function that is given a request for each part, or the value of an option."""
    return lambda command: GauntletTask(command, name, parts, usage)


def console_presenter() -> Presenter:
    """Shows runs on standard output; brings the reports, for which `--list` must not wait."""
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    return ConsolePresenter(sys.stdout)


def run_to_exit_code(command: Callable[[], ExitCode]) -> ExitCode:
    """What a command ends with; a mistake of the user becomes a message, and so does a fault of the toolkit."""
    open_standard_streams()
    try:
        code = command()
        sys.stdout.flush()
    except GauntletError as error:
        code = _say_error(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not look like a failure of what is tested
        lost = find_lost_output()
        if lost is None or not isinstance(error, OSError):
            code = _say_error(explain_escaped(error))
        elif isinstance(lost, BrokenPipeError):
            # The reader of our output went away (`| head`): nothing is left to be said.
            code = ExitCode.OK
        else:
            code = _say_error(GauntletError(f"standard output: {lost.strerror}", "Send it to where it can be written."))
    return code


def _say_error(error: GauntletError) -> ExitCode:
    """Says what went wrong; what the command ends with."""
    sys.stderr.write(f"error: {error}\n")
    if "GITHUB_ACTIONS" in os.environ:
        from iree_gauntlet.reports.github import format_error_command  # noqa: PLC0415 - for a mistake in CI alone

        # One that is lost has been spoken of already, or is not what this is about.
        with suppress(OSError):
            sys.stdout.write(format_error_command(str(error), os.environ))
            sys.stdout.flush()
    return error.exit_code


def option_values(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """What may follow, where the last word is an option or the beginning of its value; nothing elsewhere."""
    last, before = [*reversed(words), "", ""][:2]
    if "=" in (last, before):
        place = len(words) - 1 - [*reversed(words)].index("=")
        name, prefix = words[place - 1], ""
    elif last.startswith("--"):
        name = last.partition("=")[0]
        prefix = f"{name}=" if last != name else ""
    else:
        name, prefix = before, ""
    option = next((item for item in options if dashed(item.name) == name), None)
    values = _list_values(option) if option else []
    # A value that is whole: the next word is something else.
    return [] if last in values else [f"{prefix}{value}" for value in values]


def _list_values(option: Option) -> list[str]:
    match option.name:
        case "model":
            return sorted({spec.model for spec in _list_specs() if not spec.defines_module})
        case "submodel":
            return sorted({spec.submodel for spec in _list_specs() if not spec.defines_module})
        case "markers":
            return sorted({word for spec in _list_specs() for word in spec.words or ()})
        case "suite":
            places = (find_project_folder() / "suites", find_shipped_folder() / "suites")
            return sorted({path.stem for place in places for path in place.glob("*.toml")})
        case "target":
            return list(FAMILIES)
    return list(option.choices)


def _list_specs() -> list[Spec]:
    from iree_gauntlet.dialects.load import read_specs  # noqa: PLC0415
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415 - it brings pydantic

    folder = find_project_folder() / "specs"
    return [spec for spec in read_specs([folder]) if isinstance(spec, Spec)] if folder.is_dir() else []
