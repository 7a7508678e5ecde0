"""The command line: `inv …` in a checkout, `gauntlet …` once installed; one namespace."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.program import Program
from invoke.vendor.lexicon import Lexicon

from iree_gauntlet import __version__
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.requests import SEVERAL, dashed
from iree_gauntlet.tasks import cluster_commands, experiment_commands, upkeep_commands
from iree_gauntlet.tasks.task_options import GauntletTask, option_values, run_to_exit_code
from iree_gauntlet.torch_models.bench_options import find_nearest_option, spell_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from invoke.parser.argument import Argument

    from iree_gauntlet.requests import Option


# Flags that say what the words behind them are.
_BEFORE_WORDS = ("--slower", "--index")
# How the tasks without --iree, and with two of them, have them named.
_NAMES_IREES = {"compare": "compare A B", "bisect": "--good A --bad B"}
# Those of Invoke's options that mean something here; the others are about shell commands that its tasks run.
_CORE = ("complete", "help", "list", "list-depth", "list-format", "print-completion-script", "version")
# What Invoke says.
_UNKNOWN = re.compile(r"No idea what '(.*)' is!")
_LACKS_WORDS = re.compile(r"'(.*)' did not receive required positional arguments")
_LACKS_VALUE = re.compile(r"Flag <Argument: ([\w-]+).*> needed value")
_BENCH = "bench"
# Options that name an IREE.
_IREES = frozenset({"iree", "iree-compiler", "iree-runtime"})


def _make_namespace() -> Collection:
    made = Collection()
    for module in (experiment_commands, upkeep_commands, cluster_commands):
        for task in vars(module).values():
            if isinstance(task, GauntletTask):
                if task.group and task.group not in made.collections:
                    made.add_collection(Collection(task.group))
                (made.collections[task.group] if task.group else made).add_task(task)
    return made


namespace = _make_namespace()


class _Contexts(Lexicon):
    # The tasks of one line are not copied: Invoke takes a copy of each that it comes to.
    def __deepcopy__(self, _memo: object) -> _Contexts:
        return self


class _Gauntlet(Program):
    """Invoke's program with our exit code for a command line that cannot be read, and those of its options that do."""

    def core_args(self) -> list[Argument]:
        """Invoke's own options, but for those of the shell commands that its tasks run: there are none here."""
        return [item for item in super().core_args() if item.name in _CORE]

    @cached_property
    def _defaults(self) -> Lexicon:
        return ParserContext(args=super().core_args()).args

    @property
    def args(self) -> Lexicon:
        """Invoke's own options with their values; those that cannot be given have their defaults."""
        self._defaults.update(super().args)
        return self._defaults

    def parse_core(self, argv: list[str] | None) -> None:
        """Parse the options before the first task."""
        words = sys.argv if argv is None else argv
        with _explain_usage_errors(words):
            # The short names of `bench`, of more than one letter, as Invoke can read them.
            if words[1:2] == [_BENCH]:
                words = [*words[:2], *spell_out(words[2:], dashes=True)]
            super().parse_core(_name_words(words))

    def _make_parser(self) -> Parser:
        """Invoke's parser with the tasks that are named alone: it copies all options of each that it has."""
        if "--complete" in self.argv:
            return super()._make_parser()
        named = [name for name in namespace.task_names if any(name in word for word in self.argv)]
        contexts = [ParserContext(name=name, args=namespace[name].get_arguments()) for name in named]
        parser = Parser(initial=self.initial_context, contexts=contexts)
        parser.contexts = _Contexts(parser.contexts)  # type: ignore[no-untyped-call]
        return parser

    def parse_tasks(self) -> None:
        """Parse the tasks and their options."""
        with _explain_usage_errors(self.argv):
            super().parse_tasks()
            for context in self.tasks:
                _refuse_empty_values(context)

    def parse_cleanup(self) -> None:
        """Do what the options before the first task ask for, such as a task's help."""
        with _explain_usage_errors(self.argv):
            super().parse_cleanup()


def _refuse_empty_values(context: ParserContext) -> None:
    """A 0 or an empty IREE that was typed is not the one that stands for an option which was left out."""
    units = {item.name: item.unit for item in namespace[context.name].options if item.unit and not item.default}
    for argument in (item for item in context.args.values() if item.got_value and not item.value):
        unit = units.get(str(argument.attr_name or argument.name).replace("-", "_"))
        if unit and argument.value == 0:
            raise UsageError(f"{dashed(argument.name)} 0: expected {unit} above 0", "Leave it out for the default.")
        if argument.name in _IREES:
            raise UsageError(f"{dashed(argument.name)} is empty: expected an IREE", "Leave it out for the one here.")
        if argument.name == "cluster":
            raise UsageError("--cluster is empty: expected an address", "Leave it out to run on this machine.")


def _name_words(argv: Sequence[str]) -> list[str]:
    """A command line on which each word behind a task that takes some is the value of its option.

    Invoke knows no words that may be left out, and fills a positional argument with one.
    """
    words = list(argv)
    found = next(((place, option) for place, word in enumerate(words) if (option := _find_taking(word))), None)
    if found is None:
        return words
    start, option = found
    task = words[start]
    begin = start + 2 if words[start + 1 : start + 2] in [[flag] for flag in _BEFORE_WORDS] else start + 1
    end = begin
    while end < len(words) and not words[end].startswith("-"):
        end += 1
    if end == begin:
        # The page of all runs is of the project's where no folder is named.
        return [*words[:begin], "", *words[begin:]] if words[start:begin] == ["report", "--index"] else words
    if option.takes != SEVERAL and end > begin + 1:
        what = f"{task} takes one {option.takes}, not {shlex.join(words[begin:end])}"
        raise UsageError(what, "Put one with blanks in its name in quotes, and its options behind it.")
    return [*words[:begin], *(part for word in words[begin:end] for part in (dashed(option.name), word)), *words[end:]]


def _find_taking(task: str) -> Option | None:
    """The option that the words behind a task are the value of; None for a task without, and what is no task."""
    return namespace[task].taking if task in namespace.task_names else None


@contextmanager
def _explain_usage_errors(argv: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        raise Exit(code=int(ExitCode.USAGE)) from error
    except (ParseError, ValueError) as error:
        # A ValueError is Python's own, for an option that takes a number: it ends with what was given.
        what = (
            _say_plainly(error)
            if isinstance(error, ParseError)
            else _explain_no_number(argv, str(error).rpartition(": ")[2])
        )
        task = next((word for word in argv[1:] if word in namespace.task_names), "TASK")
        sys.stderr.write(f"error: {what}\n  `gauntlet --help {task}` shows what {task} understands.\n")
        raise Exit(code=int(ExitCode.USAGE)) from error


def _explain_no_number(argv: Sequence[str], quoted: str) -> str:
    """What was given for which option, as typed: `-j x`, `-jx` or `--jobs=x`."""
    value = quoted.strip("'\"")
    for before, word in pairwise(argv):
        if word == value and before.startswith("-"):
            return f"{before} {value}: {value} is not a number"
        if word.startswith("-") and word.endswith(value):
            return f"{word}: {value} is not a number"
    return f"{value} is not a number"


def _say_plainly(error: ParseError) -> str:
    """What Invoke cannot read, in plain words, and what may be meant."""
    text = str(error)
    if lacking := _LACKS_VALUE.match(text):
        return f"{dashed(lacking[1])} needs a value"
    if task_lacks := _LACKS_WORDS.match(text):
        return f"expected {namespace[task_lacks[1]].usage}"
    unknown = _UNKNOWN.match(text)
    if unknown is None:
        return text
    word = unknown[1].partition("=")[0]
    task = str(error.context.name or "") if error.context else ""
    if not word.startswith("-"):
        return _explain_not_a_task(unknown[1], text)
    if of_others := _explain_option_of_others(word, task):
        return of_others
    known = [flag for flag in error.context.flags if flag.startswith("--")] if error.context else []
    near = find_nearest_option(word).replace("_", "-") if task == _BENCH else _find_nearest(word, known)
    where = f"{task} has" if task else "there is"
    return f"{where} no option {word}" + (f"; did you mean {near}?" if near else "")


def _explain_option_of_others(word: str, task: str) -> str:
    """What to say of an option that other tasks have; empty for any other."""
    if word == "--iree" and task in _NAMES_IREES:
        return f"{task} has no --iree: name them as {_NAMES_IREES[task]}"
    return f"{task} does not run on a cluster" if word == "--cluster" and task else ""


def _explain_not_a_task(word: str, text: str) -> str:
    """What is wrong with a word that is no option: the second value of one, or the name of no task."""
    before = sys.argv[sys.argv.index(word) - 1] if word in sys.argv else ""
    if before.startswith("-") and sys.argv.count(before) > 1:
        return f"{before} can be given once"
    task = next((item for item in sys.argv if (option := _find_taking(item)) and option.default is not None), "")
    if task and any(item.startswith("-") for item in sys.argv[sys.argv.index(task) : sys.argv.index(word)]):
        return f"{text} What {task} is about comes before its options"
    near = _find_nearest(word, [*namespace.task_names, "--help"])
    takes = before in namespace.task_names and any(item.name == "model" for item in namespace[before].options)
    near = near or (f"--model {word}" if takes else "")
    return f"{text} Did you mean {near}?" if near else text


def _find_nearest(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - for a slip alone

    return next(iter(get_close_matches(word, list(known), n=1)), "")


def _complete_value(argv: Sequence[str]) -> list[str]:
    """What a shell may put behind the words of a line that it hands over, as words or as one; Invoke knows the rest."""
    words = [part for word in argv for part in word.split()]
    task = next((word for word in words[1:] if word in namespace.task_names), "")
    try:
        return option_values(words, namespace[task].options) if task else []
    except GauntletError:
        # A folder of specs that cannot be read: whoever presses Tab gets no message, and `list` has it.
        return []


def main() -> None:
    """Entry point of the console command."""
    code = run_to_exit_code(_run_line)
    if code is not ExitCode.OK:
        sys.exit(int(code))


def _run_line() -> ExitCode:
    """Does what the command line says; what it ends with."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the working folder was removed", "Change to one that exists.") from error
    if sys.argv[1:2] == ["--complete"] and (values := _complete_value(sys.argv[3:])):
        sys.stdout.write("".join(f"{value}\n" for value in values))
        return ExitCode.OK
    try:
        _Gauntlet(name="gauntlet", binary="gauntlet", namespace=namespace, version=__version__).run()
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            # Invoke ends with 1 where somebody presses Ctrl-C before a task has begun.
            raise KeyboardInterrupt from end
        return ExitCode(int(end.code or 0))
    return ExitCode.OK
