"""The page of a history in Debian's Chromium: no errors, no requests, and keyboard access to everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reports.test_history_page import page, series, step
from tests.support.browser import NEEDS_CHROMIUM, OpenPage, launch_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

_WIDTHS = (400, 1280, 3840)

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    items = [series(number, 60) for number in range(6)]
    path = tmp_path_factory.mktemp("page") / "history.html"
    path.write_text(page(*items, findings=tuple(step(item, 31) for item in items)), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", _WIDTHS)
def test_nothing_fails_nothing_leaves_and_nothing_is_wider_than_the_window(
    browser: Browser, file: Path, width: int, scheme: str
) -> None:
    opened = OpenPage(browser, file, width, scheme=scheme)
    opened.page.locator("figure button").first.click()
    opened.page.wait_for_selector(".u-over")
    assert opened.messages == []
    assert opened.requested_urls == [file.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    # What is shown differs from what is behind it, in both schemes.
    colours = opened.page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert colours == (
        ["rgb(27, 27, 27)", "rgb(254, 254, 254)"] if scheme == "light" else ["rgb(232, 232, 230)", "rgb(23, 24, 26)"]
    )
    assert opened.page.screenshot(full_page=True).startswith(b"\x89PNG")
    opened.context.close()


def test_tables_and_lines_are_there_without_scripts(browser: Browser, file: Path) -> None:
    opened = OpenPage(browser, file, scripts=False)
    changed, every = opened.page.locator("table").all()
    assert changed.locator("tbody tr").count() == 6
    assert every.locator("tbody tr").count() == 6
    assert opened.page.locator("figure svg path").count() == 6
    assert opened.page.locator("figure button").count() == 0
    opened.context.close()


def test_keys_go_from_the_tables_to_each_chart_and_through_its_points(browser: Browser, file: Path) -> None:
    opened = OpenPage(browser, file)
    reached: list[str] = []
    while len(reached) < 14:
        opened.page.keyboard.press("Tab")
        reached.append(opened.page.evaluate("document.activeElement.textContent"))
    # Scrolling parts take the focus as well: a browser's own rule.
    words = [word for word in reached if word in ("Zoom", "commits") or word.startswith("toy")]
    assert words[:6] == [f"toy00{number}/abs@cpu" for number in range(6)]
    assert words[6:8] == ["Zoom", "commits"]
    button = opened.page.locator("figure button").first
    button.focus()
    opened.page.keyboard.press("Enter")
    point = opened.page.locator(".point").first
    assert "run run59 of 2026-03-04, 59.json\nIREE 3.59.0" in point.inner_text()
    opened.page.keyboard.press("ArrowLeft")
    assert "run run58 of 2026-03-03, 58.json" in point.inner_text()
    assert "gauntlet bisect --good 3.57.0 --bad 3.58.0 --metric time --model toy000" in point.inner_text()
    assert (point.locator("a").get_attribute("href") or "").endswith(f"/compare/{57:040x}...{58:040x}")
    whole = _drawn(opened.page)
    opened.page.keyboard.press("+")
    opened.page.keyboard.press("+")
    assert _drawn(opened.page) != whole
    opened.page.keyboard.press("0")
    assert _drawn(opened.page) == whole
    opened.page.keyboard.press("Home")
    assert "run run0 of 2026-03-01, 0.json" in point.inner_text()
    assert point.locator("a").count() == 0, "there is no run before it"
    assert opened.messages == []
    opened.context.close()


def _drawn(page: Page) -> str:
    """What the canvas shows, as a picture."""
    # uPlot draws once the event is over.
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return str(page.evaluate("document.querySelector('.uplot canvas').toDataURL()"))
