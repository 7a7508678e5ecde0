"""Pages in a real browser, Debian's Chromium."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDS_CHROMIUM = [
    pytest.mark.stress,
    pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, until the block is left."""
    with sync_playwright() as playwright:
        # Its sandbox wants rights that containers have not; what it opens is our own.
        yield playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])


class Opened:
    """A page that is open, and what was said and asked for meanwhile."""

    def __init__(
        self, browser: Browser, file: Path, width: int = 1280, *, scheme: str = "light", scripts: bool = True
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=scripts,
        )
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
