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
def launch_chromium() -> Iterator[Browser]:
    """Launch the browser; close it at the end of the block."""
    with sync_playwright() as playwright:
        # Chromium's sandbox needs rights that containers lack. Without a sandbox, it opens only pages of the toolkit.
        yield playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])


class OpenPage:
    """An open page, with its console messages and errors, and the URLs of its requests."""

    def __init__(
        self, browser: Browser, file: Path, width: int = 1280, *, scheme: str = "light", scripts: bool = True
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            java_script_enabled=scripts,
        )
        self.page: Page = self.context.new_page()
        self.messages: list[str] = []
        self.requested_urls: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        self.page.goto(file.as_uri())
