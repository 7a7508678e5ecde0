"""Saves pictures of pages: of every kind of record, to look at, or of one page, for the docs.

`python tools/page_pictures.py FOLDER [BEFORE]` writes a record of each kind (`tests/support/page_samples.py`), its
page, and FOLDER/pictures.html: a row for each record, with a picture at each width. BEFORE is the folder that the same
command wrote in another checkout: each row has its pictures too, so that two versions of the toolkit can be compared.

`python tools/page_pictures.py PAGE PICTURE [HEADING]` saves the top of one page, or what begins with a heading.

Needs Chromium and the package playwright (the dependency group `test`).
"""

from __future__ import annotations

import re
import shutil
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.page_samples import write_page_samples

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The widths of the screens, and those of their pictures on the page of pictures.
_WIDTHS = {400: 210, 1280: 650, 2560: 920}
# A picture shows at most this many pixels of a page; the first screen ends at the line.
_MAX_HEIGHT, _SCREEN_HEIGHT = 3000, 900
_DOCS_WIDTH = 1180
_SHEET = "pictures.html"
_STYLE = """body { font: 15px system-ui, sans-serif; margin: 1rem; }
div { overflow-x: auto; white-space: nowrap; }
figure { display: inline-block; margin: 0 1rem 1rem 0; vertical-align: top; }
img { border: 1px solid #999; display: block; object-fit: cover; object-position: top; }"""
_FIGURE = (
    '<figure><a href="{0}"><img src="{0}" alt="" width="{1}" height="460"></a><figcaption>{2}</figcaption></figure>'
)


def save_picture(browser: Browser, page_file: Path, picture: Path, width: int, heading: str | None = None) -> str:
    """Save a picture of a page and return what is wrong with it: that it scrolls sideways, or messages of scripts.

    Without a heading, the picture has the whole page; with one, the screen that begins there ("" for the top).
    """
    page = browser.new_page(viewport={"width": width, "height": _SCREEN_HEIGHT})
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.goto(page_file.resolve().as_uri())
    page_width, height = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    faults += [f"{page_width} pixels wide"] if page_width > width else []
    if heading is None:
        page.set_viewport_size({"width": width, "height": min(height, _MAX_HEIGHT)})
    elif heading:
        page.locator("h2, h3", has_text=heading).first.evaluate("(element) => element.scrollIntoView()")
    page.screenshot(path=picture)
    page.close()
    return "; ".join(faults)


def write_pictures(browser: Browser, folder: Path, before: Path | None) -> Path:
    """Write all records, their pages, their pictures, and the page of pictures; return that page's path."""
    if folder.exists():
        # Remove nothing that this program has not written.
        if not (folder / _SHEET).is_file():
            sys.exit(f"{folder} exists, and was not written by this program: name another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    rows = []
    for name, page in write_page_samples(folder).items():
        figures = []
        for width, shown_width in _WIDTHS.items():
            picture = folder / f"{re.sub('[^a-z0-9]+', '-', name)}-{width}.png"
            faults = save_picture(browser, page, picture, width)
            figures += [] if before is None else [(before / picture.name, shown_width, f"{width}, before")]
            figures.append((picture, shown_width, f"{width}: {escape(faults)}" if faults else f"{width}"))
        pictures = "".join(_FIGURE.format(escape(path.resolve().as_uri()), *shown) for path, *shown in figures)
        title = f'<a href="{escape(page.resolve().as_uri())}">{escape(name)}</a>, {page.stat().st_size / 1e3:.0f} kB'
        rows.append(f"<h2>{title}</h2>\n<div>{pictures}</div>\n")
    sheet = folder / _SHEET
    text = f"<!doctype html>\n<title>Pages</title>\n<style>{_STYLE}</style>\n{''.join(rows)}"
    sheet.write_text(text, encoding="utf-8")
    return sheet


def main() -> None:
    """Save the pictures that the command line asks for."""
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    source, *others = sys.argv[1:]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if source.endswith(".html"):
            save_picture(browser, Path(source), Path(others[0]), _DOCS_WIDTH, others[1] if others[1:] else "")
        else:
            sheet = write_pictures(browser, Path(source), Path(others[0]) if others else None)
            sys.stdout.write(f"{sheet}\n")


if __name__ == "__main__":
    main()
