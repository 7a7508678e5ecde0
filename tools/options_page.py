"""Makes docs/reference/options.md from the declarations of all options.

    python tools/options_page.py

Needs pytest next to the toolkit: the plugin's options are on the page as well.
"""

from __future__ import annotations

import inspect
import re
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from iree_gauntlet import pytest_plugin
from iree_gauntlet.artifacts import parameters
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
from iree_gauntlet.tasks.program import namespace
from iree_gauntlet.tasks.task_options import GauntletTask
from iree_gauntlet.torch_models.bench_options import OPTIONS as BENCH_OPTIONS

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md"
_BEGIN = """\
# Options of every command

<!-- Made by `python tools/options_page.py`: change the declarations, not this page. -->

`gauntlet NAME --option VALUE` and `inv NAME --option VALUE` mean the same ([what differs](../how-to/run.md)).
`gauntlet --help NAME` prints the options of one command.

- A **switch** takes no value.
- An option that is **repeatable** is given once for each value.
- A number with a unit is above 0; 0 means that the option is left out.
- A default of – means none; the text says what happens then.
"""
_TIME_LIMITS = tuple(option.name for option in options_of(ConductRequest) if option.name.startswith("timeout_"))
_CONDUCT = tuple(option.name for option in options_of(ConductRequest) if option.name not in _TIME_LIMITS)
# Groups of options that several commands take; one that holds another comes before it.
_GROUPS = {
    "Selection": ("Which cases of which specs, and where they run.", options_of(SelectionRequest)),
    "IREE": ("Which IREE, and the folder where it is installed.", options_of(ToolchainRequest)),
    "Conduct": ("How steps are run and judged.", options_of(ConductRequest, *_CONDUCT)),
    "Time limits": ("Of steps.", options_of(ConductRequest, *_TIME_LIMITS)),
    "Folder": ("Where a run goes, and whether it continues an earlier one.", options_of(FolderRequest)),
    "Network": ("How files are fetched.", options_of(NetworkRequest)),
    "Shard": ("Which part of a selection.", options_of(ShardRequest)),
    "Cache": ("Where downloads, modules and releases of IREE are kept.", options_of(CacheRequest)),
    "Output": ("How much is said; every command takes them.", options_of(OutputRequest)),
    "Format": ("How the result is shown.", options_of(FormatRequest)),
}
_HEAD = "| option | value | default | |\n| --- | --- | --- | --- |\n"
_HEAD_OF_BENCH = "| option | value | default | | on IREE |\n| --- | --- | --- | --- | --- |\n"


def page() -> str:
    """The whole page."""
    tasks = _tasks()
    words = [f"[{name}](#{_anchor(name)})" for name in tasks]
    parts = [_BEGIN, f"Commands: {' · '.join(words)}", "", "## Options that several commands take", ""]
    for title, (about, options) in _GROUPS.items():
        parts += [f"### {title}", "", about, "", _table(options)]
    parts += ["## Commands", ""]
    for name, task in tasks.items():
        parts += _command(name, task)
    parts += ["## Programs", "", *_programs()]
    return "\n".join(parts).rstrip() + "\n"


def _tasks() -> dict[str, GauntletTask]:
    names = sorted(namespace.task_names, key=lambda name: ("." in name, name))
    tasks = {name: namespace[name] for name in names}
    assert all(isinstance(task, GauntletTask) for task in tasks.values())
    return cast("dict[str, GauntletTask]", tasks)


def _command(name: str, task: GauntletTask) -> Iterator[str]:
    yield from (f"### {name}", "")
    yield from _described(task.__doc__ or "")
    if name == "bench":
        yield "`python -m iree_gauntlet.bench` takes the same options, with underscores or dashes."
        yield "With `inv`, only the long names with dashes are known."
        yield "What levels, fidelities and formats come to on IREE: [numbers](../explanation/numerics.md)."
        yield from ("", _bench_table())
        return
    groups, own = _grouped(task.options)
    if groups:
        links = ", ".join(f"[{title}](#{_anchor(title)})" for title in groups)
        yield from (f"Takes {links}{', and:' if own else '.'}", "")
    if own:
        yield _table(own, set(task.positional))


def _grouped(options: Sequence[Option]) -> tuple[list[str], list[Option]]:
    """Titles of the groups that a command takes as a whole; its other options, and those with another help."""
    left = list(options)
    own: list[Option] = []
    titles = []
    for title, (_, options_of_group) in _GROUPS.items():
        group = {option.name: option for option in options_of_group}
        here = [option for option in left if option.name in group and _alike(option, group[option.name])]
        if len(here) == len(group):
            titles.append(title)
            own += [option for option in here if option.help != group[option.name].help]
            left = [option for option in left if option not in here]
    return titles, [option for option in options if option in left or option in own]


def _alike(one: Option, other: Option) -> bool:
    return (one.default, one.choices, one.unit, one.short) == (other.default, other.choices, other.unit, other.short)


def _described(text: str) -> Iterator[str]:
    """A docstring, its examples as commands."""
    prose, _, examples = inspect.cleandoc(text).partition("\nExample")
    yield from (_plain(" ".join(prose.split("\n\n")[0].splitlines())), "")
    for paragraph in prose.strip().split("\n\n")[1:]:
        yield from (_plain(" ".join(paragraph.splitlines())), "")
    if examples:
        lines = [line.strip() for line in examples.partition(":")[2].strip().splitlines()]
        commands = [line if "gauntlet" in line else f"gauntlet {line}" for line in lines]
        yield from ("```bash", *commands, "```", "")


def _table(options: Iterable[Option], positional: Iterable[str] = ()) -> str:
    rows = []
    for option in options:
        names = (dashed(option.name), f"-{option.short}" if option.short else "")
        if option.name in positional:
            rows.append(_row((option.name.upper(),), _value(option), "required", option.help))
        else:
            rows.append(_row(names, _value(option), _default(option), option.help))
    return _HEAD + "".join(rows)


def _bench_table() -> str:
    rows = []
    for option in BENCH_OPTIONS:
        names = (f"-{option.short}" if option.short else "", f"--{option.name}")
        number = option.least is not None and not option.choices
        value = f"whole number of {option.least} or more" if number else _value(option)
        default = f"`{option.value}`" if option.value else _default(option)
        rows.append(_row(names, value, default, option.help, option.on_iree))
    return _HEAD_OF_BENCH + "".join(rows)


def _row(names: Iterable[str], value: str, default: str, text: str, *more: str) -> str:
    """A row of a table; `text` is plain, all else Markdown."""
    shown = " ".join(f"`{name}`" for name in names if name)
    return f"| {' | '.join((shown, value, default, _plain(text), *more))} |\n"


def _value(option: Option) -> str:
    if isinstance(option.default, bool):
        return "switch"
    number = isinstance(option.default, int | float)
    kind = ", ".join(f"`{choice}`" for choice in option.choices) or option.unit or ("a number" if number else "text")
    return f"{kind}; repeatable" if isinstance(option.default, list) else kind


def _default(option: Option) -> str:
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if option.default in (None, "", []) or (option.default == 0 and option.unit):
        return "–"
    return f"`{option.default:g}`" if isinstance(option.default, int | float) else f"`{option.default}`"


class _Recorder:
    """Stands for pytest's parser and its group."""

    def __init__(self) -> None:
        self.added: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def getgroup(self, *_: str) -> _Recorder:
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        self.added.append((names, attributes))


def _programs() -> Iterator[str]:
    yield from ("### python -m iree_gauntlet.bench, python -m iree_gauntlet.micro", "")
    yield from ("The options of [bench](#bench) and of [micro](#micro).", "")
    parser = parameters.build_parser()
    yield from (f"### {parser.prog}", "", parser.description or "", "")
    yield _HEAD + "".join(_row_of_action(action) for action in parser._actions if action.default is not SUPPRESS)  # noqa: SLF001 - argparse has no other list
    yield from ("One of `--random` and `--splat` is required.", "")
    recorder = _Recorder()
    pytest_plugin.pytest_addoption(cast("Any", recorder))
    yield from ("### pytest", "", "Of the [plugin](../how-to/run.md#with-pytest) for torch models.", "")
    yield _HEAD + "".join(_row_of_pytest(names, attributes) for names, attributes in recorder.added)


def _row_of_action(action: Action) -> str:
    value = {int: "whole number", float: "number", Path: "file"}.get(cast("Any", action.type), "text")
    default = "required" if action.required else f"`{action.default}`" if action.default else "–"
    return _row(action.option_strings or (action.dest.upper(),), value, default, action.help or "")


def _row_of_pytest(names: Iterable[str], attributes: Mapping[str, Any]) -> str:
    switch = "action" in attributes
    choices = ", ".join(f"`{choice}`" for choice in attributes.get("choices", ()))
    value = choices or ("switch" if switch else attributes["metavar"].lower())
    default = f"`{attributes['default']}`" if "default" in attributes else "off" if switch else "–"
    return _row(names, value, default, attributes["help"])


def _plain(text: str) -> str:
    """A text of declarations as Markdown that reads the same; what stands in backticks stays."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: written\n")
