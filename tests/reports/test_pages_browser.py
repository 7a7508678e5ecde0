"""Every kind of page in Debian's Chromium: any width, light and dark, without scripts, by keyboard, on paper."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.reports.experiment_reports import make_reports, write_reports
from iree_gauntlet.reports.runs_index import write_index
from tests.reports.test_page_samples import ANSWERS
from tests.reports.test_reporting_explained import explained, failed_run
from tests.support.browser import NEEDS_CHROMIUM, OpenPage, launch_chromium
from tests.support.journal_builder import JournalBuilder, make_check, make_every_verdict, make_samples
from tests.support.matrix_builder import write_four_releases
from tests.support.page_samples import PAGE_SAMPLES, write_page_samples
from tests.support.whole_records import write_comparison

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

# The pixels between the margins of a printed page, by Chromium's own margins.
_A4_WIDTH = 717
_HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'`|\\" + "n" * 160
# The least contrast of text: WCAG 2.2, 1.4.3.
_CONTRAST = 4.5
# Each text that is seen, with its colour and that of what is behind it; pale bars and lines are no text.
_COLOURS = """() => {
  const channels = (text) => {
    const numbers = text.match(/[-\\d.e]+/g).map(Number);
    return text.startsWith("color(") ? numbers.map((n, i) => (i < 3 ? n * 255 : n)) : numbers;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("script, style, title") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
    found.push([element.textContent.trim().slice(0, 40), channels(ink), behind(element)]);
  }
  return found;
}"""

# The text that begins in the first screen, without what is folded.
_FIRST_SCREEN = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let text = "";
  while (texts.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const box = range.getBoundingClientRect();
    if (box.height && box.bottom < 900) text += texts.currentNode.textContent;
  }
  return text;
}"""

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as browser:
        yield browser


def _thousands() -> JournalBuilder:
    """A run of 2,304 steps."""
    builder = JournalBuilder()
    names = [f"case_{number:04}" for number in range(1152)]
    steps = [builder.step("ops", name, stage) for name in names for stage in ("compile", "threshold")]
    builder.begin()
    for number, name in enumerate(steps):
        builder.result(name, "failed" if number % 97 == 0 else "passed", "error: no such op", seconds=0.1)
    builder.end(1)
    return builder


def _failures() -> JournalBuilder:
    """Sixty failures of models with hostile names of more than 200 characters."""
    builder = JournalBuilder()
    steps = [builder.step(f"{number}{_HOSTILE}", "s", "benchmark") for number in range(60)]
    builder.begin()
    for name in steps:
        checks = [make_check("dispatch_count", 2, 1), make_check("time_ms", 12.5, 9.0, 1.1)]
        builder.result(
            name, "failed", _HOSTILE, samples=make_samples(9.0), checks=checks, tail=[_HOSTILE] * 20, notes=[_HOSTILE]
        )
    builder.end(1)
    return builder


def _long_names(folder: Path) -> Path:
    """A comparison of models and dispatches with long names."""
    for journal in (write_comparison(folder), *folder.glob("?/journal.jsonl")):
        text = journal.read_text(encoding="utf-8").replace("toy/", "rapid_orientation_of_documents/classifier_")
        journal.write_text(
            text.replace('"matmul"', f'"main$async_dispatch_14{"_conv_14x14x256" * 4}"'), encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    samples = write_page_samples(tmp_path_factory.mktemp("samples"))
    folder = tmp_path_factory.mktemp("runs")
    made = {"run": make_every_verdict, "thousands": _thousands, "failures": _failures}
    written = {name: builder().write(folder / name) for name, builder in made.items()}
    written["long"] = _long_names(folder / "long")
    written["releases"] = write_four_releases(folder / "releases")
    written["explained"] = explained(failed_run(folder))
    for path in written.values():
        write_reports(path)
    write_reports(written["explained"] / "explain")
    index, _ = write_index(folder, make_reports, all_of_them=True)
    found = {"short index": index, "short explanation": written["explained"] / "explain" / "explain.html"}
    names = {"long": "comparison", "releases": "matrix"}
    pages = {name: path / f"{names.get(name, 'summary')}.html" for name, path in written.items()}
    return {**samples, **pages, **found}


_PAGES = (
    *("run", "thousands", "failures", "long", "explained", "short explanation", "short index"),
    *(name for name in PAGE_SAMPLES if name not in ("run, failures", "matrix, 300 failures")),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 3840])
@pytest.mark.parametrize("name", _PAGES)
def test_it_fits_says_nothing_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    opened = OpenPage(browser, pages[name], width, scheme=scheme)
    assert opened.messages == []
    assert opened.requested_urls == [pages[name].as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in opened.page.locator("summary").all()[:20]:
        details.click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
# The maps of a sweep have colours of their own behind their text.
@pytest.mark.parametrize("name", [name for name in _PAGES if name != "sweep"])
def test_all_text_can_be_told_from_what_is_behind_it(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    opened = OpenPage(browser, pages[name], scheme=scheme)
    found: list[tuple[str, list[float], list[float]]] = opened.page.evaluate(_COLOURS)
    assert found
    faint = {(text, round(_contrast(ink, paper), 2)) for text, ink, paper in found if _contrast(ink, paper) < _CONTRAST}
    assert faint == set()
    opened.context.close()


def _contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2.2, "contrast ratio"."""

    def luminance(colour: list[float]) -> float:
        shares = [channel / 255 for channel in colour[:3]]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", _PAGES)
def test_it_is_small_and_reads_the_same_without_scripts(browser: Browser, pages: dict[str, Path], name: str) -> None:
    assert pages[name].stat().st_size < 2_000_000
    texts = []
    for scripts in (False, True):
        opened = OpenPage(browser, pages[name], scripts=scripts)
        texts.append(set(opened.page.locator("main").inner_text().splitlines()))
        opened.context.close()
    # What scripts add are their own buttons.
    assert texts[1] - texts[0] <= {"copy", "Zoom", ""}
    assert texts[0] - texts[1] == set()


def test_keys_reach_commands_tables_and_what_is_folded_in_reading_order(
    browser: Browser, pages: dict[str, Path]
) -> None:
    opened = OpenPage(browser, pages["run"])
    order = []
    for _ in range(12):
        opened.page.keyboard.press("Tab")
        order.append(opened.page.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
    assert order == sorted(order)
    # The keyboard stops only where one can do something: at links, commands to copy, what is folded, what scrolls.
    for width, scrolling in ((1280, set()), (400, {"FIGURE", "PRE"})):
        opened = OpenPage(browser, pages["run"], width)
        stops = "[...document.querySelectorAll('[tabindex], summary, a, button')].map((e) => e.tagName)"
        opened.page.wait_for_function(f"({stops}).includes('FIGURE') === {str(bool(scrolling)).lower()}")
        assert set(opened.page.evaluate(stops)) == {"SUMMARY", "A", "BUTTON"} | scrolling


def test_tables_have_titles_and_paper_shows_what_is_folded_but_output(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["run"])
    titles = opened.page.evaluate("[...document.querySelectorAll('table')].map((e) => e.getAttribute('aria-label'))")
    assert titles[:3] == ["What went wrong", "Figures", "How the time was spent"]
    folded = opened.page.locator("details td", has_text="compiler").first
    assert folded.is_visible() is False
    opened.page.emulate_media(media="print")
    assert folded.is_visible() is True
    assert opened.page.locator("details > pre").first.is_visible() is False


def test_a_verdict_leads_to_its_failure_whose_command_is_folded(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["run"])
    opened.page.locator("main table a").nth(1).click()
    failure = opened.page.locator("h3:target")
    assert failure.inner_text() == "✗ failed ocr/detector@cpu benchmark"
    assert abs(failure.evaluate("element => element.getBoundingClientRect().top")) < 10
    command = opened.page.locator("h3:target ~ details pre.command").first
    assert command.is_visible() is False
    opened.page.locator("h3:target ~ details summary").first.click()
    assert command.is_visible() is True


def test_a_table_is_passed_in_one_step(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["996 cases, 300 failures"])
    link = opened.page.locator("h2:has-text('Figures') + a.skip")
    assert (link.bounding_box() or {"height": 0})["height"] <= 1
    link.focus()
    box = link.bounding_box() or {"x": 0.0, "width": 0.0, "height": 0.0}
    assert box["height"] > 15
    assert box["x"] + box["width"] <= 1280
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Tab")
    # Without it, three hundred links lie between them.
    assert opened.page.evaluate("document.activeElement.textContent") == "696 more cases"
    assert opened.page.locator("h2:has-text('Figures') ~ .wide >> nth=0 >> a").count() == 200
    opened.context.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_the_first_screen_answers(browser: Browser, pages: dict[str, Path], name: str) -> None:
    opened = OpenPage(browser, pages[name])
    assert [text for text in ANSWERS[name] if text not in opened.page.evaluate(_FIRST_SCREEN)] == []
    opened.context.close()


def test_on_a_phone_a_verdict_has_its_iree_and_a_figure_stays_whole(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["matrix"], 400)
    verdicts = opened.page.locator("h3:has-text('Verdicts') ~ .wide >> nth=0 >> tr >> nth=1 >> td.verdict").all()
    labels = [verdict.evaluate("e => getComputedStyle(e, '::before').content") for verdict in verdicts]
    assert labels[:2] + labels[-1:] == ['"3.5.0"', '"3.8.0"', '"3.13.0"']
    opened = OpenPage(browser, pages["history"], 400)
    for cell in opened.page.locator("td.drawn").all():
        assert (cell.bounding_box() or {"height": 99})["height"] < 30
    opened.context.close()


def test_a_case_of_many_is_found_though_it_is_folded(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["thousands"])
    name = "ops/case_0001@cpu"
    assert opened.page.locator("pre", has_text=name).is_visible() is False
    opened.page.locator("summary", has_text="more cases").click()
    assert opened.page.locator("pre", has_text=name).is_visible() is True


def test_a_command_is_copied_by_a_click(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["run"])
    opened.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    opened.page.locator("header button").click()
    opened.page.wait_for_function("window.copied")
    assert opened.page.evaluate("window.copied") == "inv run --suite suites/cpu.toml"
    assert opened.page.locator("header button").inner_text() == "copied"


def test_a_hostile_name_is_text(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["failures"])
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 1
    assert "<script>alert(1)</script>" in opened.page.locator("h3").first.inner_text()
    assert json.loads((pages["failures"].parent / JOURNAL).read_text().splitlines()[0])["event"] == "opening"


def test_on_a_phone_a_model_without_figures_is_a_line_and_others_are_few(
    browser: Browser, pages: dict[str, Path]
) -> None:
    opened = OpenPage(browser, pages["run"], 400)
    rows = opened.page.locator("h2:has-text('Figures') ~ .wide >> nth=0 >> tbody tr").all()
    heights = {row.inner_text().split()[1]: (row.bounding_box() or {"height": 0})["height"] for row in rows}
    assert heights["skipped"] < 45
    assert heights["passed"] < 130
    first = rows[0].locator("td").all()
    assert [cell.evaluate("e => getComputedStyle(e, '::before').content") for cell in first[:2]] == ["none", "none"]


def test_a_comparison_is_whole_at_1280_pixels_and_on_paper(browser: Browser, pages: dict[str, Path]) -> None:
    for width, media in ((1280, "screen"), (_A4_WIDTH, "print")):
        opened = OpenPage(browser, pages["long"], width)
        opened.page.emulate_media(media="print" if media == "print" else "screen")
        for table in opened.page.locator("table").all():
            assert (table.bounding_box() or {"width": 0})["width"] <= width
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        overflowing = "[...document.querySelectorAll('.wide')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert opened.page.evaluate(overflowing) == 0
        opened.context.close()


def test_on_paper_everything_that_scrolls_is_there(browser: Browser, pages: dict[str, Path]) -> None:
    opened = OpenPage(browser, pages["releases"])
    opened.page.emulate_media(media="print")
    style: Any = opened.page.evaluate("getComputedStyle(document.querySelector('.wide')).overflowX")
    assert style == "visible"
    assert opened.page.locator("button").first.is_visible() is False
