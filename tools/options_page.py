"""Writes docs/reference/options.md from the declarations of all options.

    python tools/options_page.py

Needs pytest besides the toolkit, since the page also lists the pytest plugin's options.
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
    ExecutionRequest,
    FolderRequest,
    FormatRequest,
    NetworkRequest,
    Option,
    OutputRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
    format_option,
    list_options,
)
from iree_gauntlet.tasks.program import namespace
from iree_gauntlet.tasks.task_options import GauntletTask
from iree_gauntlet.torch_models.bench_options import OPTIONS as BENCH_OPTIONS

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["PAGE", "render_page"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md"
_INTRODUCTION = """\
# Options of every command

<!-- Made by `python tools/options_page.py`: change the declarations, not this page. -->

`gauntlet NAME --option VALUE` and `inv NAME --option VALUE` mean the same ([what differs](../how-to/run.md)).
`gauntlet --help NAME` prints the options of one command.

- A **switch** takes no value.
- An option that is **repeatable** is given once for each value.
- A number with a unit is above 0; 0 means that the option is left out.
- A default of – means none; the text says what happens then.
"""
_TIME_LIMITS = tuple(option.name for option in list_options(ExecutionRequest) if option.name.startswith("timeout_"))
_EXECUTION_OPTIONS = tuple(option.name for option in list_options(ExecutionRequest) if option.name not in _TIME_LIMITS)
# Several commands take these groups of options. A group that contains another group precedes that group.
_GROUPS = {
    "Selection": ("Which cases of which specs, and where they run.", list_options(SelectionRequest)),
    "IREE": ("Which IREE, and the folder where it is installed.", list_options(ToolchainRequest)),
    "Execution": ("How steps are run and judged.", list_options(ExecutionRequest, *_EXECUTION_OPTIONS)),
    "Time limits": ("Of steps.", list_options(ExecutionRequest, *_TIME_LIMITS)),
    "Folder": ("Where a run goes, and whether it continues an earlier one.", list_options(FolderRequest)),
    "Network": ("How files are fetched.", list_options(NetworkRequest)),
    "Shard": ("Which part of a selection.", list_options(ShardRequest)),
    "Cache": ("Where downloads, modules and releases of IREE are kept.", list_options(CacheRequest)),
    "Output": ("How much is said; every command takes them.", list_options(OutputRequest)),
    "Format": ("How the result is shown.", list_options(FormatRequest)),
}
_TABLE_HEAD = "| option | value | default | |\n| --- | --- | --- | --- |\n"
_BENCH_TABLE_HEAD = "| option | value | default | | on IREE |\n| --- | --- | --- | --- | --- |\n"


def render_page() -> str:
    """Return the complete page."""
    tasks = _list_tasks()
    links = [f"[{name}](#{_make_anchor(name)})" for name in tasks]
    parts = [_INTRODUCTION, f"Commands: {' · '.join(links)}", "", "## Options that several commands take", ""]
    for title, (description, options) in _GROUPS.items():
        parts += [f"### {title}", "", description, "", _format_table(options)]
    parts += ["## Commands", ""]
    for name, task in tasks.items():
        parts += _format_command(name, task)
    parts += ["## Programs", "", *_format_programs()]
    return "\n".join(parts).rstrip() + "\n"


def _list_tasks() -> dict[str, GauntletTask]:
    names = sorted(namespace.task_names, key=lambda name: ("." in name, name))
    tasks = {name: namespace[name] for name in names}
    assert all(isinstance(task, GauntletTask) for task in tasks.values())
    return cast("dict[str, GauntletTask]", tasks)


def _format_command(name: str, task: GauntletTask) -> Iterator[str]:
    yield from (f"### {name}", "")
    yield from _format_docstring(task.__doc__ or "")
    if name == "bench":
        yield "`python -m iree_gauntlet.bench` takes the same options, with underscores or dashes."
        yield "With `inv`, only the long names with dashes are known."
        yield "What levels, fidelities and formats come to on IREE: [numbers](../explanation/numerics.md)."
        yield from ("", _format_bench_table())
        return
    groups, ungrouped = _group_options(task.options)
    if groups:
        links = ", ".join(f"[{title}](#{_make_anchor(title)})" for title in groups)
        yield from (f"Takes {links}{', and:' if ungrouped else '.'}", "")
    if ungrouped:
        yield _format_table(ungrouped, set(task.positional))


def _group_options(options: Sequence[Option]) -> tuple[list[str], list[Option]]:
    """Return the titles of complete groups, and the other options, with those whose help differs from the group's."""
    rest = list(options)
    with_other_help: list[Option] = []
    titles = []
    for title, (_, options_of_group) in _GROUPS.items():
        group = {option.name: option for option in options_of_group}
        members = [option for option in rest if option.name in group and _are_equivalent(option, group[option.name])]
        if len(members) == len(group):
            titles.append(title)
            with_other_help += [option for option in members if option.help != group[option.name].help]
            rest = [option for option in rest if option not in members]
    return titles, [option for option in options if option in rest or option in with_other_help]


def _are_equivalent(a: Option, b: Option) -> bool:
    return (a.default, a.choices, a.unit, a.short) == (b.default, b.choices, b.unit, b.short)


def _format_docstring(text: str) -> Iterator[str]:
    """Format a docstring as Markdown, its examples as commands."""
    prose, _, examples = inspect.cleandoc(text).partition("\nExample")
    yield from (_escape_markdown(" ".join(prose.split("\n\n")[0].splitlines())), "")
    for paragraph in prose.strip().split("\n\n")[1:]:
        yield from (_escape_markdown(" ".join(paragraph.splitlines())), "")
    if examples:
        lines = [line.strip() for line in examples.partition(":")[2].strip().splitlines()]
        commands = [line if "gauntlet" in line else f"gauntlet {line}" for line in lines]
        yield from ("```bash", *commands, "```", "")


def _format_table(options: Iterable[Option], positional: Iterable[str] = ()) -> str:
    rows = []
    for option in options:
        names = (format_option(option.name), f"-{option.short}" if option.short else "")
        if option.name in positional:
            rows.append(_format_row((option.name.upper(),), _describe_value(option), "required", option.help))
        else:
            rows.append(_format_row(names, _describe_value(option), _describe_default(option), option.help))
    return _TABLE_HEAD + "".join(rows)


def _format_bench_table() -> str:
    rows = []
    for option in BENCH_OPTIONS:
        names = (f"-{option.short}" if option.short else "", f"--{option.name}")
        is_number = option.minimum is not None and not option.choices
        value = f"whole number of {option.minimum} or more" if is_number else _describe_value(option)
        default = f"`{option.default_text}`" if option.default_text else _describe_default(option)
        rows.append(_format_row(names, value, default, option.help, option.on_iree))
    return _BENCH_TABLE_HEAD + "".join(rows)


def _format_row(names: Iterable[str], value: str, default: str, text: str, *extra_cells: str) -> str:
    """Format a row of a table; `text` is plain text, the other cells are Markdown."""
    name_cell = " ".join(f"`{name}`" for name in names if name)
    return f"| {' | '.join((name_cell, value, default, _escape_markdown(text), *extra_cells))} |\n"


def _describe_value(option: Option) -> str:
    if isinstance(option.default, bool):
        return "switch"
    is_number = isinstance(option.default, int | float)
    values = (
        ", ".join(f"`{choice}`" for choice in option.choices) or option.unit or ("a number" if is_number else "text")
    )
    return f"{values}; repeatable" if isinstance(option.default, list) else values


def _describe_default(option: Option) -> str:
    if isinstance(option.default, bool):
        return "on" if option.default else "off"
    if option.default in (None, "", []) or (option.default == 0 and option.unit):
        return "–"
    return f"`{option.default:g}`" if isinstance(option.default, int | float) else f"`{option.default}`"


class _FakeParser:
    """A test double of pytest's parser and its option group."""

    def __init__(self) -> None:
        self.options: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def getgroup(self, *_: str) -> _FakeParser:
        return self

    def addoption(self, *names: str, **attributes: Any) -> None:
        self.options.append((names, attributes))


def _format_programs() -> Iterator[str]:
    yield from ("### python -m iree_gauntlet.bench, python -m iree_gauntlet.micro", "")
    yield from ("The options of [bench](#bench) and of [micro](#micro).", "")
    parser = parameters.build_parser()
    yield from (f"### {parser.prog}", "", parser.description or "", "")
    yield _TABLE_HEAD + "".join(_format_action(action) for action in parser._actions if action.default is not SUPPRESS)  # noqa: SLF001 - argparse has no other list
    yield from ("One of `--random` and `--splat` is required.", "")
    fake_parser = _FakeParser()
    pytest_plugin.pytest_addoption(cast("Any", fake_parser))
    yield from ("### pytest", "", "Of the [plugin](../how-to/run.md#with-pytest) for torch models.", "")
    yield _TABLE_HEAD + "".join(_format_pytest_option(names, attributes) for names, attributes in fake_parser.options)


def _format_action(action: Action) -> str:
    value = {int: "whole number", float: "number", Path: "file"}.get(cast("Any", action.type), "text")
    default = "required" if action.required else f"`{action.default}`" if action.default else "–"
    return _format_row(action.option_strings or (action.dest.upper(),), value, default, action.help or "")


def _format_pytest_option(names: Iterable[str], attributes: Mapping[str, Any]) -> str:
    is_switch = attributes.get("action") == "store_true"
    choices = ", ".join(f"`{choice}`" for choice in attributes.get("choices", ()))
    value = choices or ("switch" if is_switch else attributes["metavar"].lower())
    default = f"`{attributes['default']}`" if attributes.get("default") else "off" if is_switch else "–"
    return _format_row(names, value, default, attributes["help"])


def _escape_markdown(text: str) -> str:
    """Escape plain text for Markdown, except within backticks."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _make_anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: written\n")
