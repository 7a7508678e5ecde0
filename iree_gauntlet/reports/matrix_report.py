"""The reports of a matrix, from its record and the journals of its runs alone: also of one that was killed.

docs/reference/results.md has the fields of `matrix.json` (`"schema": 1`; within one number keys are only added) and the
columns of `matrix.csv`. NaN and infinities are the strings `"nan"`, `"inf"`, `"-inf"`.
"""

from __future__ import annotations

import csv
import io
import json
import math
import xml.etree.ElementTree as ET
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cleaning import one_line
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.records.matrix_outcome import MatrixIree, MatrixOutcome, matrix_outcome
from iree_gauntlet.reports.junit import junit_document, schema_document
from iree_gauntlet.reports.matrix_changes import changes, mean_ratios, ratio
from iree_gauntlet.reports.matrix_document import matrix_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.report_files import Reports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.records.matrix_cells import MatrixCell


MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.html", "matrix.json", "matrix.csv")
_COUNTS = ("tests", "failures", "errors")
SCHEMA = 1
_RATIOS = ("compile_seconds", "compile_peak_bytes", "time_ms", "dispatch_count", "binary_size_bytes")
_FORMULA = ("=", "+", "-", "@")


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


def matrix_json(matrix: MatrixOutcome) -> str:
    """The document as text, ASCII only, ending with a newline."""
    document = {
        "schema": SCHEMA,
        "matrix": matrix.name,
        "suite": matrix.suite,
        "version": matrix.version,
        "command": matrix.command,
        "cwd": matrix.cwd,
        "started": matrix.started,
        "state": matrix.state,
        "remarks": list(matrix.remarks),
        "exit_code": int(matrix.exit_code),
        "exit_meaning": matrix.exit_code.meaning,
        "seconds": matrix.seconds,
        "base": matrix.base,
        "machine": matrix.machine,
        "irees": [_iree(iree) for iree in matrix.irees],
        "chains": [
            {
                "id": row.chain,
                "model": row.model,
                "submodel": row.submodel,
                "target": row.target,
                "irees": {label: _cell(cell, row.cells.get(matrix.base)) for label, cell in row.cells.items()},
            }
            for row in matrix.rows
        ],
        "changes": [asdict(change) for change in changes(matrix)],
        "geometric_means": [asdict(mean) for mean in mean_ratios(matrix)],
    }
    return json.dumps(_strict(document), indent=1, allow_nan=False) + "\n"


def matrix_csv(matrix: MatrixOutcome) -> str:
    """The table as RFC 4180 has it, with a header; lines end with a newline alone."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    header: list[str] = []
    for row in matrix.rows:
        for label, cell in row.cells.items():
            figures = _cell(cell, row.cells.get(matrix.base))
            ratios = figures.pop("ratios")
            del figures["reason"]
            flat = {"chain": row.chain, "iree": label, **figures, "stages": " ".join(cell.stages)}
            flat |= {f"{name}_ratio": value for name, value in ratios.items()}
            if not header:
                header = list(flat)
                writer.writerow(header)
            writer.writerow([_field(_strict(value)) for value in flat.values()])
    return stream.getvalue()


def _iree(iree: MatrixIree) -> dict[str, Any]:
    outcome = iree.outcome
    return {
        "label": iree.label,
        "iree": iree.text,
        "folder": iree.folder,
        "exit_code": None if iree.exit_code is None else int(iree.exit_code),
        "problem": iree.problem,
        "hint": iree.hint,
        "toolchain": iree.toolchain,
        "counts": None if outcome is None else {str(verdict): count for verdict, count in outcome.counts.items()},
    }


def _cell(cell: MatrixCell, base: MatrixCell | None) -> dict[str, Any]:
    ratios = {name: ratio(getattr(cell, name), getattr(base, name) if base else None) for name in _RATIOS}
    return {**asdict(cell), "verdict": str(cell.verdict), "ratios": ratios}


def _field(value: Any) -> Any:
    """A field of the CSV: a spreadsheet runs a text that begins like a formula, so it is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) and value != "-inf" else value


def _strict(value: Any) -> Any:
    """The same document in what JSON can say."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"{value}"
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value
