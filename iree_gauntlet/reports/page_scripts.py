"""The scripts of a page: what copies its commands, and what zooms its charts, uPlot (MIT) among them."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from iree_gauntlet.document import Chart, Folded, OnPage
from iree_gauntlet.figures import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.document import Block


class PageScripts:
    """The scripts of a document, with the data of its charts.

    Args:
        blocks: of the document.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._charts = tuple(_charts(blocks))
        self._numbers = {id(chart): number for number, chart in enumerate(self._charts)}

    def number(self, chart: Chart) -> int:
        """Which one it is."""
        return self._numbers[id(chart)]

    @property
    def policy(self) -> Markup:
        """What the page's content policy says of scripts: these alone run, whatever a name in the page holds."""
        digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in self._scripts)
        return Markup("; script-src {}").format(Markup(" ").join(map(Markup("'sha256-{}'").format, digests)))

    @property
    def _scripts(self) -> tuple[str, ...]:
        return (shipped("page.js"), *([_chart_script()] if self._charts else []))

    @property
    def style(self) -> Markup:
        """The style sheet of uPlot."""
        return Markup(shipped("uplot/uPlot.min.css")) if self._charts else Markup()  # noqa: S704

    @property
    def written(self) -> Markup:
        """The data and the scripts, for the end of the page."""
        # In a script, only what could end it has a meaning.
        data = json.dumps(_data(self._charts), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        charts = Markup('<script type="application/json" id="charts">{}</script>\n').format(Markup(data))  # noqa: S704
        scripts = (Markup("<script>{}</script>").format(Markup(script)) for script in self._scripts)  # noqa: S704
        return (charts if self._charts else Markup()) + Markup("\n").join(scripts)


def _charts(blocks: Iterable[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Folded | OnPage):
            yield from _charts(block.blocks)


def _data(charts: Iterable[Chart]) -> dict[str, Any]:
    """What `charts.js` reads: origins and rows of them once each, for most charts share them."""
    origins: dict[tuple[str, ...], int] = {}
    tracks: dict[tuple[int, ...], int] = {}
    shown = []
    for chart in charts:
        track = tuple(origins.setdefault(tuple(map(clean, origin)), len(origins)) for origin in chart.origins)
        shown.append(
            {
                "track": tracks.setdefault(track, len(tracks)),
                "values": [int(value) if value == int(value) else float(f"{value:.6g}") for value in chart.values],
                "unit": chart.unit,
                "says": chart.says,
                "level": chart.level,
                "changes": chart.changes,
                "disturbed": chart.disturbed,
            }
        )
    return {"origins": list(origins), "tracks": list(tracks), "charts": shown}


@cache
def _chart_script() -> str:
    licence = shipped("uplot/LICENSE").strip()
    return f"/*\n{licence}\n*/\n{shipped('uplot/uPlot.iife.min.js').strip()}\n{shipped('charts.js')}"


@cache
def shipped(name: str) -> str:
    """A file that lies beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")
