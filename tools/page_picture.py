"""Saves the top of a page as a picture: `python tools/page_picture.py history.html docs/pictures/history.png`.

Needs Chromium and the package playwright (the dependency group `test`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

_WIDTH, _HEIGHT = 1180, 900


def main() -> None:
    """Save a screenshot of a page; a third argument names a heading to start at, and its first chart is zoomed."""
    page_file, picture, *model = sys.argv[1:]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.goto(Path(page_file).resolve().as_uri())
        if model:
            heading = page.locator("h2", has_text=model[0]).first
            heading.scroll_into_view_if_needed()
            if page.locator(f"h2:has-text('{model[0]}') ~ figure button").count():
                page.locator(f"h2:has-text('{model[0]}') ~ figure button").first.click()
            heading.evaluate("(element) => element.scrollIntoView()")
        page.screenshot(path=picture)


if __name__ == "__main__":
    main()
