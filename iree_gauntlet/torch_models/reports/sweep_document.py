"""The report of a sweep: the result of recipes for each entry of `model_params`, and their speed-ups at each shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from iree_gauntlet.document import (
    Block,
    ColouredCell,
    Column,
    ColumnKind,
    Document,
    Folded,
    Heading,
    Items,
    OnPage,
    Table,
)
from iree_gauntlet.formatting import byte_size, duration, format_error, milliseconds
from iree_gauntlet.journal_events import Opening
from iree_gauntlet.records.chain_figures import NOTHING
from iree_gauntlet.records.sweep_record import MEASURED, SAME
from iree_gauntlet.reports.report_files import provenance
from iree_gauntlet.torch_models.reports.sweep_plots import draw_plots
from iree_gauntlet.torch_models.reports.sweep_rows import find_mean_ratio, format_ratio, group_entries, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.document import Picture
    from iree_gauntlet.records.sweep_record import IreeTimes, TorchTimes
    from iree_gauntlet.torch_models.reports.sweep_rows import Row, SweepEntry, SweepHeader


_SIGNS = {"faster": "▲ ", "slower": "▼ "}
# Of a point that a sweep did not come to: what became of it, and why, by the sweep's state.
NOT_MEASURED = "not measured"
UNREACHED = {
    "interrupted": "the sweep was interrupted",
    "unfinished": "the sweep was killed, or is still under way",
    "complete": "nothing says what became of it",
}
LEGEND = (
    "speed-up: the baseline's time over the recipe's, above 1 is faster; in parentheses its 95 % interval",
    "it is the middle of the ratios within blocks of rounds, so that it need not be the quotient of the median times",
    "▲ is faster and ▼ slower, by 1 % or more; = is the same within 3 %, ? is inconclusive",
    "of a recipe: geometric mean, lowest and highest speed-up, at how many shapes it is what, least SQNR, its bytes",
    "eager/IREE, compile/IREE: torch's time over IREE's for the same recipe, above 1 means that IREE is faster",
)
_TITLE = "IREE Gauntlet: micro-benchmarks"
_BASELINE = "baseline, ms"
# What a terminal shows.
_MOST_ROWS, _MOST_DOUBTS = 60, 12


def make_speedup_cell(row: Row | None) -> ColouredCell | str:
    """The speed-up of a variant, with a sign where it is one; in its place the result of the variant, if anything."""
    if row is None or row.speedup is None:
        return NOTHING if row is None or row.variant.status == MEASURED else row.variant.status
    word = row.speedup.word
    return ColouredCell(f"{_SIGNS.get(word, '')}{format_ratio(row.speedup)}", word)


def _time_text(side: IreeTimes | TorchTimes | None) -> str:
    """A time in ms, without its unit."""
    return milliseconds(side.ms) if side else NOTHING


def format_decibels(value: float | None) -> str:
    """A signal-to-noise ratio: `42.1 dB`, `exact` where nothing differs."""
    if value is None:
        return NOTHING
    return "exact" if value == math.inf else f"{value:.1f} dB"


def _format_size(value: float | None) -> str:
    """A number of bytes in decimal units."""
    return NOTHING if value is None or not math.isfinite(value) else byte_size(value)


def find_doubts(rows: Iterable[Row]) -> tuple[str, ...]:
    """What was not measured and why, and the notes, each once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        reason = f": {row.variant.reason}" if row.variant.reason else ""
        status = [] if row.variant.status == MEASURED else [f"{row.variant.status}{reason}"]
        for text in (*row.record.notes, *(f"{row.recipe}: {said}" for said in (*status, *row.variant.notes))):
            found.setdefault(text, []).append(row.label)
    return tuple(f"{text} ({_name_some(labels)})" for text, labels in found.items())


def collect_heading_facts(header: SweepHeader, rows: Sequence[Row]) -> tuple[str, ...]:
    """What a heading says below its title: the run, IREE, the machine, how much was measured."""
    toolchain, machine = header.toolchain, header.machine
    points = len({row.place for row in rows})
    facts = (
        f"run {header.run}" if header.run else "",
        f"configuration {header.config}" if header.config else "",
        f"IREE {toolchain.compiler}" if toolchain.compiler else "",
        f"runtime {toolchain.runtime}" if toolchain.runtime != toolchain.compiler else "",
        ", ".join(f"{name} {version}" for name, version in header.versions.items()),
        f"{machine.cpu}, {machine.cores} cores" if machine.cores else "",
        f"locks in {header.lock_folder}" if header.lock_folder else "",
        f"{points} point{'s' if points != 1 else ''}, {len(rows)} variants",
    )
    return tuple(fact for fact in facts if fact)


def _list_remarks(header: SweepHeader, rows: Sequence[Row]) -> tuple[str, ...]:
    """What a reader must know before the figures: that a sweep did not finish, and what has none and why."""
    points: dict[tuple[str, str], list[str]] = {}
    for item in header.missing:
        points.setdefault((item.status, item.reason), []).append(item.point)
    said = [f"{status}: {reason} ({_name_some(names)})" for (status, reason), names in points.items()]
    if header.state == "complete":
        return tuple(said)
    measured = len({(row.point.name, row.label) for row in rows})
    total = measured + len(header.missing)
    left = f"{measured} of {total} points measured; micro --resume continues it"
    return (f"{UNREACHED[header.state]}: {left}", *said)


def summarise(entry: SweepEntry, recipe: str) -> tuple[str, ...]:
    """The result of a recipe over all shapes of an entry, in the order of a summary's columns.

    Means are geometric; the signal-to-noise ratio is the worst; weights are a share of the baseline's.
    """
    rows = entry.of_recipe(recipe)
    found = [row.speedup for row in rows if row.speedup]
    ratios = [ratio.ratio for ratio in found]
    words = [ratio.word for ratio in found]
    noises = [row.errors.sqnr_db for row in rows if row.errors.sqnr_db is not None]
    shares = []
    for row in rows:
        baseline = entry.baseline(row.label)
        if baseline and baseline.variant.parameter_bytes and row.variant.parameter_bytes is not None:
            shares.append(row.variant.parameter_bytes / baseline.variant.parameter_bytes)
    share = find_mean_ratio(shares)
    same = sum(row.variant.status == SAME for row in rows)
    faster, slower = words.count("faster"), words.count("slower")
    missing = sum(row.variant.iree is None for row in rows) + len(entry.shapes) - len({row.label for row in rows})
    return (
        recipe,
        _format_mean(ratios),
        f"{times(min(ratios))} … {times(max(ratios))}" if ratios else NOTHING,
        *(str(count) if count else NOTHING for count in (faster, slower, len(words) - faster - slower + same, missing)),
        format_decibels(min(noises, default=None)),
        NOTHING if share is None else f"{100 * share:.0f} %",
        *(
            _format_beside(row.variant.torch_eager for row in rows),
            _format_beside(row.variant.torch_compile for row in rows),
        ),
    )


def _format_beside(sides: Iterable[TorchTimes | None]) -> str:
    return _format_mean([side.beside_iree.ratio for side in sides if side and side.beside_iree])


def _format_mean(ratios: Sequence[float]) -> str:
    mean = find_mean_ratio(ratios)
    return NOTHING if mean is None else times(mean)


def _name_some(labels: Sequence[str]) -> str:
    """The first few shapes, and how many more."""
    unique = list(dict.fromkeys(labels))
    more = len(unique) - 3
    return ", ".join(unique[:3]) + (f" and {more} more" if more > 0 else "")


def _make_columns(names: Sequence[str], *figures: str) -> tuple[Column, ...]:
    return (
        *(Column(title, ColumnKind.NAME) for title in names),
        *(Column(title, ColumnKind.NUMBER) for title in figures),
    )


_SUMMARY = _make_columns(
    ["recipe"],
    *("speed-up", "from … to", "faster", "slower", "neither", "missing", "SQNR", "weights"),
    *("eager/IREE", "compile/IREE"),
)
_FIGURES = (
    *_make_columns(
        ["m-k-n", "shape", "recipe", "status"],
        *("IREE, ms", "speed-up", "torch eager, ms", "torch eager / IREE"),
        *("torch.compile, ms", "torch.compile / IREE", "max error", "relative error", "SQNR", "module", "parameters"),
        *("peak memory", "device memory", "compile", "first call, ms", "of peak"),
    ),
    Column("the module shows"),
)


def make_sweep_document(rows: Sequence[Row], header: SweepHeader) -> Document:
    """What people read of it."""
    blocks: list[Block] = []
    names: set[str] = set()
    for entry in group_entries(rows):
        blocks += _write_entry(entry, draw_plots(entry, names))
    blocks += [Heading("How to read it", 3), Items(tuple((line,) for line in LEGEND))] if rows else []
    *facts, answer = collect_heading_facts(header, rows)
    return Document(
        "IREE Gauntlet: micro-benchmarks",
        answer,
        tuple(facts),
        tuple(blocks),
        remarks=_list_remarks(header, rows),
        provenance=provenance(
            header.toolchain.compiler,
            Opening.from_dict({**header.as_dict(), "kind": "micro", "time": header.started}),
            ("results.md", "results.csv", "results.json"),
        ),
    )


def make_speedup_table(entry: SweepEntry) -> Table:
    """Shapes and recipes, the longer axis down; next to the shapes the baseline's time in ms."""
    shapes, recipes = entry.shapes, entry.recipes
    baselines = {shape: entry.baseline(shape) for shape in shapes}
    times = {shape: _time_text(row.variant.iree if row else None) for shape, row in baselines.items()}
    cells = {(recipe, shape): make_speedup_cell(entry.row(recipe, shape)) for recipe in recipes for shape in shapes}
    if len(shapes) < len(recipes):
        lines = [(recipe, *(cells[recipe, shape] for shape in shapes)) for recipe in recipes]
        rows = ((_BASELINE, *(times[shape] for shape in shapes)), *lines)
        return Table(_make_columns(["m-k-n"], *shapes), rows, _MOST_ROWS)
    rows = tuple((shape, times[shape], *(cells[recipe, shape] for recipe in recipes)) for shape in shapes)
    return Table(_make_columns(["m-k-n"], _BASELINE, *recipes), rows, _MOST_ROWS)


def _write_entry(entry: SweepEntry, pictures: Iterable[Picture]) -> Iterator[Block]:
    yield Heading(entry.title)
    yield _make_table(
        _SUMMARY, [summarise(entry, recipe) for recipe in dict.fromkeys(row.recipe for row in entry.rows)]
    )
    yield from pictures
    yield Heading("Speed-ups", 3)
    yield make_speedup_table(entry)
    if found := find_doubts(entry.rows):
        yield Heading("Notes", 3)
        yield Items(tuple((text,) for text in found), _MOST_DOUBTS)
    figures = _make_table(_FIGURES, list(map(_collect_figures, entry.rows)))
    yield OnPage((Folded(f"All figures ({len(entry.rows)})", (figures,)),))


def _make_table(columns: Sequence[Column], lines: Sequence[tuple[str, ...]]) -> Table:
    """A table without the columns in which nothing stands."""
    kept = [index for index in range(len(columns)) if any(line[index] not in ("", NOTHING) for line in lines)]
    return Table(tuple(columns[index] for index in kept), tuple(tuple(line[index] for index in kept) for line in lines))


def _collect_figures(row: Row) -> tuple[str, ...]:
    """In the order of `_FIGURES`."""
    eager, compiled = row.variant.torch_eager, row.variant.torch_compile
    first = row.variant.first_call_ms if row.variant.iree else None
    share = NOTHING if row.peak_share.share is None else f"{100 * row.peak_share.share:.0f} % {row.peak_share.bound}"
    error = [NOTHING if value is None else format_error(value) for value in (row.errors.max, row.errors.relative)]
    return (
        *(row.label, row.point.shape, row.recipe, row.variant.status),
        *(_time_text(row.variant.iree), format_ratio(row.speedup)),
        *(_time_text(eager), format_ratio(eager.beside_iree if eager else None)),
        *(_time_text(compiled), format_ratio(compiled.beside_iree if compiled else None)),
        *(*error, format_decibels(row.errors.sqnr_db)),
        *(_format_size(row.variant.module_bytes), _format_size(row.variant.parameter_bytes)),
        *(_format_size(row.variant.peak_rss_bytes), _format_size(row.variant.device_peak_bytes)),
        NOTHING if row.variant.compile_s is None else duration(row.variant.compile_s),
        NOTHING if first is None else milliseconds(first),
        *(share, "; ".join(row.variant.shows)),
    )
