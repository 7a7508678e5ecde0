"""The reports of a matrix, from its record and the journals of its runs alone: also of one that was killed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from iree_gauntlet.cleaning import one_line
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.records.matrix_outcome import matrix_outcome
from iree_gauntlet.reports.junit import junit_document
from iree_gauntlet.reports.junit_schema import schema_document
from iree_gauntlet.reports.matrix_document import matrix_document
from iree_gauntlet.reports.matrix_json import matrix_csv, matrix_json
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.report_files import Reports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.records.matrix_outcome import MatrixIree, MatrixOutcome

__all__ = ["MATRIX_REPORTS", "matrix_junit", "matrix_reports"]

MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.html", "matrix.json", "matrix.csv")
_COUNTS = ("tests", "failures", "errors")


def matrix_reports(folder: Path) -> Reports:
    """The reports of the matrix in a folder.

    Raises:
        GauntletError: the record or a journal cannot be read.
    """
    outcome = matrix_outcome(folder)
    document = matrix_document(outcome)

    def contents() -> Iterator[str]:
        yield matrix_junit(outcome)
        yield markdown(document)
        yield html_page(document)
        yield matrix_json(outcome)
        yield matrix_csv(outcome)

    return Reports(MATRIX_REPORTS, contents, lambda _: document, outcome.exit_code, document.answer)


def matrix_junit(matrix: MatrixOutcome) -> str:
    """The whole document, with its XML declaration; encode it as UTF-8."""
    root = ET.Element("testsuites", {"name": f"iree-gauntlet matrix {matrix.suite}".rstrip()})
    for iree in matrix.irees:
        if iree.outcome is not None:
            run = ET.fromstring(junit_document(iree.outcome))  # noqa: S314 - our own document, made just now
            for suite in run.findall("testsuite"):
                suite.set("name", one_line(f"{iree.label}/{suite.get('name', '')}"))
                for case in suite.findall("testcase"):
                    case.set("classname", one_line(f"{iree.label}.{case.get('classname', '')}"))
                root.append(suite)
        if iree.problem:
            root.append(_without_run(iree))
    suites = root.findall("testsuite")
    for index, suite in enumerate(suites):
        suite.set("id", str(index))
    for name in _COUNTS:
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    return schema_document(root)


def _without_run(iree: MatrixIree) -> ET.Element:
    """A suite of one test, which is an error, or skipped where the IREE was left out."""
    left_out = iree.exit_code in (None, ExitCode.OK)
    counts = {"tests": "1", "failures": "0", "errors": str(int(not left_out)), "skipped": str(int(left_out))}
    suite = ET.Element("testsuite", {"name": one_line(f"{iree.label}/toolchain"), **counts, "time": "0.000"})
    case = ET.SubElement(
        suite, "testcase", {"name": "toolchain", "classname": one_line(f"{iree.label}.iree"), "time": "0.000"}
    )
    kind = {} if left_out else {"type": "error"}
    found = ET.SubElement(case, "skipped" if left_out else "error", {**kind, "message": one_line(iree.problem)})
    found.text = iree.hint
    return suite
