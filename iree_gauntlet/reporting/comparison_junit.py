"""A comparison as JUnit XML: a testcase for each model. `slower` is a failure, what could not be judged an error."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import junit_xml

from iree_gauntlet.reporting.cleaning import clean, one_line
from iree_gauntlet.reporting.comparison_rows import time_rows
from iree_gauntlet.reporting.junit_schema import schema_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.reporting.comparison import ComparisonRecord
    from iree_gauntlet.reporting.comparison_rows import TimeRow

__all__ = ["comparison_junit"]

_ERRORS = ("error", "inconclusive", "not measured")


def comparison_junit(record: ComparisonRecord) -> str:
    """The whole document, with its XML declaration; encode it as UTF-8."""
    rows = time_rows(record)
    name = "compare " + " ".join(side.asked for side in record.sides)
    suite = junit_xml.TestSuite(
        name=one_line(name),
        test_cases=[_case(row, record) for row in rows],
        timestamp=one_line(str(record.opening.get("time") or "")),
        hostname=one_line(str((record.opening.get("machine") or {}).get("host") or "")),
        properties={one_line(key): one_line(value, 4096) for key, value in _properties(record)},
    )
    root = ET.Element("testsuites", {"name": clean(f"iree-gauntlet {name}"), "tests": str(len(rows))})
    root.set("failures", str(sum(row.verdict == "slower" for row in rows)))
    root.set("errors", str(sum(row.verdict in _ERRORS for row in rows)))
    element = suite.build_xml_doc()
    for item in (element, *element.findall("testcase")):
        # The time that rounds took says nothing of the model.
        item.attrib.pop("time", None)
    root.append(element)
    return schema_document(root)


def _case(row: TimeRow, record: ComparisonRecord) -> junit_xml.TestCase:
    figures = f"A {row.a} ms, B {row.b} ms: {row.ratio} ({row.span}); A against A {row.floor}" if row.ratio else ""
    case = junit_xml.TestCase(
        name=str(record.options.get("metric") or "time"), classname=one_line(f"compare.{row.model}"), stdout=figures
    )
    message = one_line(f"{row.verdict}: {row.ratio} {row.reason}" if row.ratio else f"{row.verdict}: {row.reason}")
    if row.verdict == "slower":
        case.add_failure_info(message, figures, "slower")
    elif row.verdict in _ERRORS:
        case.add_error_info(message, figures, row.verdict)
    return case


def _properties(record: ComparisonRecord) -> Iterator[tuple[str, str]]:
    for side in record.sides:
        for key in ("compiler", "compiler_commit", "runtime", "runtime_commit", "identity"):
            if side.toolchain.get(key):
                yield f"{side.name}.{key}", str(side.toolchain[key])
    for key, value in sorted((record.opening.get("rules") or {}).items()):
        yield f"rules.{key}", json.dumps(value)
