from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from iree_gauntlet.formatting import clean_text
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.reports.junit import format_run_junit
from tests.support.journal_builder import RUN_NAME, JournalBuilder, make_check, make_comparison, make_every_verdict
from tests.support.places import DATA


@pytest.fixture(scope="module")
def schema() -> Any:
    return etree.XMLSchema(etree.parse(str(DATA / "junit-10.xsd")))


def document(builder: JournalBuilder, schema: Any) -> Any:
    """The parsed document, found valid."""
    text = format_run_junit(read_outcome(builder.record))
    root = etree.fromstring(text.encode())
    schema.assertValid(root)
    return root


def case(root: Any, suite: str, name: str) -> Any:
    (found,) = root.xpath("testsuite[@name=$suite]/testcase[@name=$name]", suite=suite, name=name)
    return found


def test_a_suite_for_each_chain_and_a_case_for_each_step(schema: Any) -> None:
    root = document(make_every_verdict(), schema)
    assert root.attrib["tests"] == "18"
    assert root.attrib["failures"] == "3"
    assert root.attrib["errors"] == "3"
    suites = root.findall("testsuite")
    assert len(suites) == 8
    assert [suite.attrib["skipped"] for suite in suites] == ["0", "0", "2", "0", "1", "0", "1", "0"]
    found = case(root, "dtln/two@cpu", "compile.pipeline")
    assert found.attrib["classname"] == "sharktank.dtln.two@cpu"
    assert suites[0].attrib["file"] == "specs/regression_tests/ocr/classifier.json"
    assert suites[0].attrib["hostname"] == "bench-1"
    assert suites[0].attrib["timestamp"] == "2026-11-21T05:18:00.002Z"


@pytest.mark.parametrize(
    ("suite", "name", "element", "attributes"),
    [
        ("ocr/detector@cpu", "threshold", "failure", ("failed", "output 0 differs: 12 of 384 elements")),
        ("dtln/two@cpu", "compile", "failure", ("xpassed", "unexpected pass: it was expected to fail: no scatter")),
        ("minilm/l3@cpu", "compile", "error", ("SIGSEGV", "iree-compile was killed by SIGSEGV")),
        ("magika/v3@cpu", "compile", "error", ("timeout", "ran longer than its 60 s and was ended with its children")),
        ("dtln/one@cpu", "compile", "skipped", ("skipped", "expected failure: no scatter")),
        ("punet/fp16@cpu", "compile", "skipped", ("skipped", "specific_chip_to_ignore: cpu")),
    ],
)
def test_each_verdict_has_its_element(
    schema: Any, suite: str, name: str, element: str, attributes: tuple[str, str]
) -> None:
    found = case(document(make_every_verdict(), schema), suite, name).find(element)
    assert (found.attrib["type"], found.attrib["message"]) == attributes


def test_a_failure_says_by_how_much_and_how_to_see_it_again(schema: Any) -> None:
    root = document(make_every_verdict(), schema)
    text = case(root, "ocr/detector@cpu", "benchmark").find("failure").text
    assert "12.40 ms exceeds 9.90 ms (golden 9.00 ms × 1.1): +25.3 %" in text
    assert "specs/b.json: golden_time_ms.mi300" in text
    assert "\nreproduce:\n  cd steps/ocr/detector@cpu/benchmark && iree-benchmark-module " in text
    assert f"full log: steps/ocr/detector@cpu/benchmark/stderr.txt in the folder of run {RUN_NAME}" in text
    compared = case(root, "ocr/detector@cpu", "threshold").find("failure").text
    assert "12 of 384 elements differ (3.1 %)" in compared
    assert "worst at [0, 3]: 4 where 4.1 was expected" in compared
    assert "\x1b" not in compared


def test_a_killed_run_has_its_lost_steps_as_errors(schema: Any) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "s", "compile")
    builder.begin()
    builder.start(step)
    root = document(builder, schema)
    error = case(root, "m/s@cpu", "compile").find("error")
    assert error.attrib["type"] == "unfinished"
    assert root.xpath("string(//property[@name='remark.1']/@value)").startswith("the journal has no end")


def test_properties_carry_versions_flags_and_measured_values(schema: Any) -> None:
    root = document(make_every_verdict(), schema)
    found = {one.attrib["name"]: one.attrib["value"] for one in root[0].iter("property")}
    assert found["compiler.version"] == "3.13.0rc20261016"
    assert found["compile.flags"] == "--iree-hal-target-backends=llvm-cpu"
    assert found["device"] == "local-task"
    assert found["compile.dispatch_count"] == "76"
    assert found["benchmark.mean_ms"] == "9.1"


def test_no_steps_make_an_empty_document(schema: Any) -> None:
    builder = JournalBuilder()
    builder.begin()
    root = document(builder, schema)
    assert len(root) == 0
    assert root.attrib["tests"] == "0"


def test_short_times_are_decimals(schema: Any) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "s", "compile")
    builder.begin()
    builder.result(step, seconds=1e-7)
    assert document(builder, schema)[0].attrib["time"] == "0.000"


def test_a_huge_text_is_cut_and_said_to_be(schema: Any) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "s", "threshold")
    builder.begin()
    builder.result(step, "failed", "why", outputs=[make_comparison(index=i, passed=False) for i in range(2000)])
    text = document(builder, schema)[0].find("testcase/failure").text
    assert len(text) < 70_000
    assert "… cut here: " in text


anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(
    text=anything,
    verdict=st.sampled_from(["passed", "failed", "error", "skipped", "xfailed", "xpassed", "inconclusive"]),
)
def test_any_text_anywhere_gives_a_valid_document(schema: Any, text: str, verdict: str) -> None:
    builder = JournalBuilder(run=text)
    step = builder.step(f"m{text}", text, "threshold", notes=[text], sku=text)
    builder.begin(suite=text, machine={"host": text, "cpu": text}, toolchain={"compiler": text})
    changes = {
        "command": text,
        "log": text,
        "signal": text,
        "tail": [text, text],
        "notes": [text],
        "cache": {"hit": False, "key": text, "reason": text},
        "checks": [make_check("time_ms", 2, 1, note=text)],
        "outputs": [make_comparison(passed=False, message=text, type=text, worst_actual=text)],
        "statistics": {f"of {text}": text},
        "fetched": [{"url": text, "path": text, "bytes": 1, "seconds": 0.1, "cached": False}],
    }
    builder.result(step, verdict, text, **changes)
    root = document(builder, schema)
    assert len(root) == 1
    assert len(root[0].findall("testcase")) == 1


@given(anything)
def test_cleaned_text_can_be_encoded_and_stays_clean(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned
    assert not any(ord(char) < 32 and char not in "\t\n" for char in cleaned)


def test_cleaning_keeps_what_is_text_and_marks_what_is_not() -> None:
    assert clean_text("\x1b[1;31merror\x1b[0m: a\r\nb\rc") == "error: a\nb\nc"
    assert clean_text("\x1b]0;title\x07x") == "x"
    assert clean_text("a\x00b\ud800c\ufffed") == "a\ufffdb\ufffdc\ufffdd"
    assert clean_text("naïve ✓ 𝄞 \t") == "naïve ✓ 𝄞 \t"
