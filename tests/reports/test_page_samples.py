"""A page of each kind of record: links lead somewhere, and the first screen answers what people ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.records.bisect_outcome import format_bisect_command
from tests.reports.test_reporting_causes import list_broken_links, read_page
from tests.support.page_samples import PAGE_SAMPLES, write_page_samples

if TYPE_CHECKING:
    from pathlib import Path

# What a person does next, and what tells how sure a verdict is.
ANSWERS = {
    "run, as expected": ("Changed since run 20261127-121100-00-before", "threshold 5.00 s, benchmark 5.00 s"),
    "run, failures": ("gauntlet explain 20261121-051800-cpu", "gauntlet golden.update", "compile 83.3 s"),
    "996 cases, 300 failures": ("gauntlet explain", "ops/test_gru_002@cpu and 99 more"),
    "comparison, times": (
        "gauntlet explain --slower 20261127-121100-04",
        "gauntlet bisect --good 3.12.0 --bad 3.13.0 --metric time --model ocr --submodel classifier --target cpu",
        "At most 1 % of verdicts are wrong.",
    ),
    "comparison, instructions": ("gauntlet bisect --good 3.12.0 --bad 3.13.0 --metric instructions", "exact"),
    "matrix": (
        "gauntlet bisect --good 3.12.0 --bad 3.13.0 --metric runs --model m --submodel detector",
        "geometric mean of run time over 3 models that every IREE has: 3.8.0 ×1.77",
    ),
    "matrix, 300 failures": ("m/op_000@cpu, m/op_001@cpu, m/op_002@cpu and 297 more: 3.13.0: failed: compile",),
    "bisection": ("first bad: 3.10.0; last good: 3.9.0", "git -C iree show", "99 % confidence"),
    "explanation": ("gauntlet bundle.check runs/20261127-121100-09/explain/toy/wrong.cpu/bundle.tar.gz",),
    "code": ("1 of 13 dispatches in 1 module has other code", "VGPR spills 0 → 109", "B (3.13.0): iree-compile failed"),
    "history": ("gauntlet bisect --good 3.15.0 --bad 3.16.0 --metric time --model ocr --submodel classifier",),
    "index": ("5 cases: 5 failed; toy/wrong@cpu threshold: 9 of 9 values differ",),
    "sweep": ("fastest: int8wo, 1.36× in the geometric mean; 6 points, 42 variants",),
}


# With these headings, details begin.
_DETAILS = ("Figures", "Every series", "Why")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_page_samples(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", PAGE_SAMPLES)
def test_every_link_has_its_target_once(pages: dict[str, Path], name: str) -> None:
    page = read_page(pages[name])
    assert list_broken_links(page, pages[name].parent) == []
    ids = page.xpath("//@id")
    assert len(set(ids)) == len(ids)


def test_a_failure_that_is_not_described_is_found_in_its_row(pages: dict[str, Path]) -> None:
    matrix = read_page(pages["matrix, 300 failures"])
    (link,) = {link for link in matrix.xpath("//table//a/@href") if "op_299@" in link}
    file, _, anchor = link.partition("#")
    (target,) = read_page(pages["matrix, 300 failures"].parent / file).xpath(f"//*[@id='{anchor}']")
    assert target.tag == "td"
    assert target.getparent().text_content().startswith("✗ failed: compilem/op_299@cpu")


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_answers_before_its_details(pages: dict[str, Path], name: str) -> None:
    page = read_page(pages[name])
    parts = page.xpath("//main/*")
    details = next((part for part in parts if part.tag == "h3" or part.text in _DETAILS), None)
    first_parts = parts[: parts.index(details)] if details is not None else parts
    text = "".join("".join(part.itertext()) for part in (*page.xpath("//header"), *first_parts))
    assert [answer for answer in ANSWERS[name] if answer not in text] == []


def test_996_cases_are_a_small_page(pages: dict[str, Path]) -> None:
    assert pages["996 cases"].stat().st_size <= 200_000


@pytest.mark.parametrize(
    ("ends", "metric", "chain", "words"),
    [
        (("3.12.0", "3.13.0"), "time", "ocr/det@cpu", "time --model ocr --submodel det --target cpu"),
        (
            ("3.12.0", "3.13.0rc20261016"),
            "runs",
            "a/b/c@cpu+O3",
            "runs --model a/b --submodel c --target cpu --variant O3",
        ),
        (("3.12.0", "3.12.0"), "time", "ocr/det@cpu", ""),
        (("installed", "3.13.0"), "time", "ocr/det@cpu", ""),
        (("3.13.0", "3.13.0+O3"), "time", "ocr/det@cpu", ""),
        (("3.12.0",), "time", "ocr/det@cpu", ""),
        (("3.12.0", "3.13.0"), "", "ocr/det@cpu", ""),
    ],
)
def test_a_change_between_two_releases_has_a_command_that_finds_it(
    ends: tuple[str, ...], metric: str, chain: str, words: str
) -> None:
    start = f"gauntlet bisect --good {ends[0]} --bad {ends[-1]} --metric "
    assert format_bisect_command(ends, metric, chain) == (start + words if words else "")
