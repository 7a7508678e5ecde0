"""Tasks as Invoke has them: tables of options, tasks made of functions, and how they end.

A shell hands over the words of the line so far, without the one that is about to begin, and bash takes `--model=x` for
three words.
"""

from __future__ import annotations

import inspect
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from invoke.tasks import Task, task

from iree_gauntlet import messages
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.requests import (
    CacheRequest,
    ConductRequest,
    FolderRequest,
    FormatRequest,
    NetworkRequest,
    Option,
    OutputRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
    dashed,
    options_of,
)
from iree_gauntlet.settings import project_folder, shipped_folder
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.progress import Presenter


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

FORMAT = options_of(FormatRequest)

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


class GauntletTask(Task):  # type: ignore[type-arg]
    """A task whose short flags are those that its options name, and no others.

    Attributes:
        options: as they were declared; set for each task when it is made.
        usage: how it is typed, where an option is given without `--`; empty for none.
    """

    options: tuple[Option, ...] = ()
    usage = ""

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """An option as Invoke's parser has it."""
        opts = super().arg_opts(name, default, taken_names)
        short = next((option.short for option in self.options if option.name == name), "")
        opts["names"] = tuple(filter(None, (*opts["names"], short)))
        return opts


def gauntlet_task(
    name: str, options: tuple[Option, ...], *, positional: str = "", usage: str = ""
) -> Callable[[Callable[[dict[str, Any]], ExitCode]], Task[Any]]:
    """Makes an Invoke task of a function that takes the values of options by name.

    Args:
        name: the task's name.
        options: its options.
        positional: the option that is given without `--`; empty for none.
        usage: how it is typed, where it has such an option.
    """
    options = (*options, *OUTPUT)

    def decorate(function: Callable[[dict[str, Any]], ExitCode]) -> Task[Any]:
        def body(_context: Any, **values: Any) -> None:
            if positional and values[positional] in ("--help", "-h"):
                # Invoke takes the wish for help for the value.
                others = (option for option in options if option.name != positional)
                said = [f"  {dashed(option.name)}\n      {_format_help(option)}" for option in others]
                lines = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *said])
                sys.stdout.write(f"Usage: {usage}\n\nDocstring:\n  {lines}\n")
                return
            # Invoke turns bytecode off for all that is imported from here on: each start would compile it again.
            sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
            with messages.loudness(quiet=values.pop("quiet"), verbose=values.pop("verbose")):
                code = ended(lambda: function(values))
            if code is not ExitCode.OK:
                raise Exit(code=int(code))

        parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        parameters += [
            inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=option.default)
            for option in options
        ]
        body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        body.__doc__ = function.__doc__
        body.__name__ = name.replace("-", "_")
        kind = type("_Task", (GauntletTask,), {"options": options, "usage": usage})
        made: Task[Any] = task(
            name=name,
            klass=kind,
            help={option.name: _format_help(option) for option in options},
            positional=[positional] if positional else [],
            iterable=[option.name for option in options if isinstance(option.default, list)],
            auto_shortflags=False,
        )(body)
        return made

    return decorate


def console_presenter() -> Presenter:
    """Shows runs on standard output; brings the reports, for which `--list` must not wait."""
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    return ConsolePresenter(sys.stdout)


def ended(command: Callable[[], ExitCode]) -> ExitCode:
    """What a command ends with; a mistake of the user becomes a message."""
    try:
        code = command()
    except GauntletError as error:
        sys.stderr.write(f"error: {error}\n")
        if "GITHUB_ACTIONS" in os.environ:
            from iree_gauntlet.reports.github import error_command  # noqa: PLC0415 - for a mistake in CI alone

            sys.stdout.write(error_command(str(error), os.environ))
        code = error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    sys.stdout.flush()
    return code


def option_values(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """What may follow, where the last word is an option or the beginning of its value; nothing elsewhere.

    Args:
        words: of the command line, as the shell has split them.
        options: of the task.
    """
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
            places = (project_folder() / "suites", shipped_folder() / "suites")
            return sorted({path.stem for place in places for path in place.glob("*.toml")})
        case "target":
            return list(FAMILIES)
    return list(option.choices)


def _list_specs() -> list[Spec]:
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415 - it brings pydantic
    from iree_gauntlet.dialects.trees import read_specs  # noqa: PLC0415

    folder = project_folder() / "specs"
    return [spec for spec in read_specs([folder]) if isinstance(spec, Spec)] if folder.is_dir() else []
