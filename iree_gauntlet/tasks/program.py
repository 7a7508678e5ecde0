"""Define the command line: `inv …` in a checkout, `gauntlet …` once installed; one namespace."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.config import Config
from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.program import Program

from iree_gauntlet import __version__
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.requests import SEVERAL, format_option
from iree_gauntlet.tasks import cluster_commands, experiment_commands, upkeep_commands
from iree_gauntlet.tasks.task_options import GauntletTask, list_option_values, run_to_exit_code
from iree_gauntlet.torch_models.bench_options import expand_option_names, find_closest_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from invoke.parser.argument import Argument
    from invoke.vendor.lexicon import Lexicon

    from iree_gauntlet.requests import Option


# The flags that may stand between a task and its words; they tell what the words name.
_WORD_FLAGS = ("--slower", "--index")
# The forms in which tasks without --iree, which have two IREEs, take their IREEs.
_IREE_USAGE = {"compare": "compare A B", "qualify": "qualify OLD NEW"}
# The options of Invoke that have a meaning here; Invoke's other options affect shell commands of tasks.
_CORE_OPTIONS = ("complete", "help", "list", "list-depth", "list-format", "print-completion-script", "version")
# Match messages of Invoke.
_UNKNOWN_WORD = re.compile(r"No idea what '(.*)' is!")
_MISSING_WORDS = re.compile(r"'(.*)' did not receive required positional arguments")
_MISSING_VALUE = re.compile(r"Flag <Argument: ([\w-]+).*> needed value")
_BENCH_TASK = "bench"


def _make_namespace() -> Collection:
    collection = Collection()
    for module in (experiment_commands, upkeep_commands, cluster_commands):
        for task in vars(module).values():
            if isinstance(task, GauntletTask):
                if task.group and task.group not in collection.collections:
                    collection.add_collection(Collection(task.group))
                (collection.collections[task.group] if task.group else collection).add_task(task)
    return collection


namespace = _make_namespace()


class _Gauntlet(Program):
    """Invoke's program with the toolkit's exit code for usage errors, and only with options that have an effect."""

    def create_config(self) -> None:
        """Make Invoke's configuration without its files, which are for shell commands: a broken one changes nothing."""
        self.config = Config(lazy=True)

    def core_args(self) -> list[Argument]:
        """Return Invoke's own options, except options for shell commands, because no task has shell commands."""
        return [argument for argument in super().core_args() if argument.name in _CORE_OPTIONS]

    @property
    def args(self) -> Lexicon:
        """Invoke's own options with their values; options that are not available have their defaults."""
        arguments: Lexicon = ParserContext(args=super().core_args()).args
        arguments.update(super().args)
        return arguments

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse the options before the first task."""
        words = sys.argv if argv is None else argv
        with _explain_usage_errors(words):
            # Expand short names with several letters, which `bench` has and Invoke does not support.
            if words[1:2] == [_BENCH_TASK]:
                words = [*words[:2], *expand_option_names(words[2:], dashes=True)]
            super().parse_core(_add_option_names(words))

    def _make_parser(self) -> Parser:
        """Return Invoke's parser with only the command line's tasks, because it copies all options of its tasks."""
        if "--complete" in self.argv:
            return super()._make_parser()
        task_names = [name for name in namespace.task_names if any(name in word for word in self.argv)]
        contexts = [ParserContext(name=name, args=namespace[name].get_arguments()) for name in task_names]
        return Parser(initial=self.initial_context, contexts=contexts)

    def parse_tasks(self) -> None:
        """Parse the tasks and their options."""
        with _explain_usage_errors(self.argv):
            super().parse_tasks()
            for context in self.tasks:
                _require_nonempty_values(context)

    def parse_cleanup(self) -> None:
        """Run the options before the first task, such as a request for a task's help."""
        with _explain_usage_errors(self.argv):
            super().parse_cleanup()


def _require_nonempty_values(context: ParserContext) -> None:
    """Raise an error for a typed 0 or a typed empty text, such as an unset variable, which would mean the default."""
    units = {item.name: item.unit for item in namespace[context.name].options if item.unit and not item.default}
    for argument in (argument for argument in context.args.values() if argument.got_value):
        unit = units.get(str(argument.attr_name or argument.name).replace("-", "_"))
        if unit and argument.value == 0:
            raise UsageError(
                f"{format_option(argument.name)} 0: expected {unit} above 0", "Leave it out for the default."
            )
        # Lists leave empty names out. Of `bench --env`, an empty text is the default of what it stands for.
        if argument.value == "" and not argument.positional and argument.name != "env":
            raise UsageError(
                f"{format_option(argument.name)} is empty: expected a value", "Leave it out for the default."
            )


def _add_option_names(argv: Sequence[str]) -> list[str]:
    """Return the command line with option names before the words that follow a task.

    Invoke needs these names: it does not support optional words, and its positional arguments take only one word.
    """
    words = list(argv)
    match = next(((index, option) for index, word in enumerate(words) if (option := _find_option(word))), None)
    if match is None:
        return words
    start, option = match
    task = words[start]
    begin = start + 2 if words[start + 1 : start + 2] in [[flag] for flag in _WORD_FLAGS] else start + 1
    end = begin
    while end < len(words) and not words[end].startswith("-"):
        end += 1
    if end == begin:
        # Without a folder, make the page of the project's runs.
        return [*words[:begin], "", *words[begin:]] if words[start:begin] == ["report", "--index"] else words
    if option.takes != SEVERAL and end > begin + 1:
        message = f"{task} takes one {option.takes}, not {shlex.join(words[begin:end])}"
        raise UsageError(message, "Quote a name with blanks, and put options after it.")
    return [
        *words[:begin],
        *(part for word in words[begin:end] for part in (format_option(option.name), word)),
        *words[end:],
    ]


def _find_option(task: str) -> Option | None:
    """Return the option whose values are the words after a task; None if `task` has no such option, or is no task."""
    return namespace[task].words_option if task in namespace.task_names else None


@contextmanager
def _explain_usage_errors(argv: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        raise Exit(code=int(ExitCode.USAGE)) from error
    except (ParseError, ValueError) as error:
        # Python raises a ValueError if an option's value is no number; the message ends with that value.
        message = (
            _describe_parse_error(error)
            if isinstance(error, ParseError)
            else _describe_invalid_number(argv, str(error).rpartition(": ")[2])
        )
        task = next((word for word in argv[1:] if word in namespace.task_names), "TASK")
        sys.stderr.write(f"error: {message}\n  `gauntlet --help {task}` shows what {task} understands.\n")
        raise Exit(code=int(ExitCode.USAGE)) from error


def _describe_invalid_number(argv: Sequence[str], quoted_value: str) -> str:
    """Describe an invalid number with its option, as typed: `-j x`, `-jx` or `--jobs=x`."""
    value = quoted_value.strip("'\"")
    for previous, word in pairwise(argv):
        if word == value and previous.startswith("-"):
            return f"{previous} {value}: {value} is not a number"
        if word.startswith("-") and word.endswith(value):
            return f"{word}: {value} is not a number"
    return f"{value} is not a number"


def _describe_parse_error(error: ParseError) -> str:
    """Describe an error of Invoke's parser in plain words, with a suggestion."""
    text = str(error)
    if missing_value := _MISSING_VALUE.match(text):
        return f"{format_option(missing_value[1])} needs a value"
    if missing_words := _MISSING_WORDS.match(text):
        return f"expected {namespace[missing_words[1]].usage}"
    unknown_word = _UNKNOWN_WORD.match(text)
    if unknown_word is None:
        return text
    word = unknown_word[1].partition("=")[0]
    task = str(error.context.name or "") if error.context else ""
    if not word.startswith("-"):
        return _describe_unknown_word(unknown_word[1], text)
    if description := _describe_foreign_option(word, task):
        return description
    flags = [flag for flag in error.context.flags if flag.startswith("--")] if error.context else []
    suggestion = find_closest_option(word).replace("_", "-") if task == _BENCH_TASK else _find_nearest(word, flags)
    subject = f"{task} has" if task else "there is"
    return f"{subject} no option {word}" + (f"; did you mean {suggestion}?" if suggestion else "")


def _describe_foreign_option(word: str, task: str) -> str:
    """Describe --iree, --cluster and --dry-run for tasks that do not have them; empty for other options."""
    if word == "--iree" and task in _IREE_USAGE:
        return f"{task} has no --iree: name them as {_IREE_USAGE[task]}"
    if word == "--dry-run" and task:
        changing = next((item.name for item in namespace[task].options if item.name in ("write", "delete")), "")
        return f"{task} has no --dry-run: " + (
            f"without --{changing} it changes nothing" if changing else "`gauntlet plan` prints the steps of a run"
        )
    return f"{task} does not run on a cluster" if word == "--cluster" and task else ""


def _describe_unknown_word(word: str, text: str) -> str:
    """Describe a misplaced word without dashes: an option's second value, or an unknown task."""
    option_text = next((part for part in sys.argv if part.endswith(f"={word}")), "") if word not in sys.argv else ""
    if option_text:
        return f"{option_text.partition('=')[0]} takes no value"
    previous = sys.argv[sys.argv.index(word) - 1] if word in sys.argv else ""
    if previous.startswith("-") and sys.argv.count(previous) > 1:
        return f"{previous} can be given once"
    task = next((part for part in sys.argv if (option := _find_option(part)) and option.default is not None), "")
    if task and any(part.startswith("-") for part in sys.argv[sys.argv.index(task) : sys.argv.index(word)]):
        return f"{text} Put the arguments of {task} before its options"
    suggestion = _find_nearest(word, [*namespace.task_names, "--help"])
    takes_model = previous in namespace.task_names and any(
        option.name == "model" for option in namespace[previous].options
    )
    suggestion = suggestion or (f"--model {word}" if takes_model else "")
    return f"{text} Did you mean {suggestion}?" if suggestion else text


def _find_nearest(word: str, candidates: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a typing error

    return next(iter(get_close_matches(word, list(candidates), n=1)), "")


def _complete_value(argv: Sequence[str]) -> list[str]:
    """Return completions of options' values; `argv` is a line as one or several words. Invoke completes all else."""
    words = [part for word in argv for part in word.split()]
    task = next((word for word in words[1:] if word in namespace.task_names), "")
    try:
        return list_option_values(words, namespace[task].options) if task else []
    except GauntletError:
        # Do not print an error, such as of unreadable specs, during completion; `list` reports it.
        return []


def main() -> None:
    """Entry point of the console command."""
    code = run_to_exit_code(_run_command_line)
    if code is not ExitCode.OK:
        sys.exit(int(code))


def _run_command_line() -> ExitCode:
    """Run the command line; return its exit code."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working folder was removed", "Change to one that exists.") from error
    if sys.argv[1:2] == ["--complete"] and (values := _complete_value(sys.argv[3:])):
        sys.stdout.write("".join(f"{value}\n" for value in values))
        return ExitCode.OK
    try:
        _Gauntlet(name="gauntlet", binary="gauntlet", namespace=namespace, version=__version__).run()
    except SystemExit as exit_error:
        if isinstance(exit_error.__context__, KeyboardInterrupt):
            # Invoke would exit with 1 if Ctrl-C is pressed before a task has begun.
            raise KeyboardInterrupt from exit_error
        return ExitCode(int(exit_error.code or 0))
    return ExitCode.OK
