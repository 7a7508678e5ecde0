"""Make JUnit XML: a testsuite for each chain, a testcase for each step.

For a run with more than 200 chains (an operator suite), expected results have no metrics and commands here, only in
`summary.json`; and only the first testsuite has the properties that are common to the run.

Times are rewritten, because the junit-xml package writes exponents, which the schema rejects.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import junit_xml

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import clean_text, format_bytes, join_lines, pluralize, take_last_lines
from iree_gauntlet.reports.details import (
    format_devices,
    format_explanation,
    list_findings,
    list_measured,
    list_unapplied,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.records.outcome import ChainOutcome, RunOutcome, StepOutcome


_MAX_CHARS = 1 << 16
# This limit is for each failed step of a large run, because CI systems drop reports that are too big.
_LEAN_MAX_CHARS = 3000
# The schema `junit-10.xsd` of Jenkins' xunit plugin allows only these; the junit-xml package writes a few others too.
_ALLOWED_ATTRIBUTES = {
    "testsuites": frozenset({"name", "time", "tests", "failures", "errors"}),
    "testsuite": frozenset(
        {
            *("name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname"),
            *("id", "package", "file", "log", "url"),
        }
    ),
    "testcase": frozenset({"name", "time", "classname", "group"}),
}


def format_run_junit(outcome: RunOutcome) -> str:
    """Return the complete document, with its XML declaration; encode it as UTF-8."""
    title = f"iree-gauntlet {outcome.suite or outcome.run}"
    return format_junit(title, list_suites(outcome), sum(step.seconds for step in outcome.steps))


def format_junit(title: str, suites: Sequence[ET.Element], seconds: float | None = None) -> str:
    """Return a document of suites that is valid by the schema, with XML declaration; encode it as UTF-8."""
    root = ET.Element("testsuites", {"name": clean_text(title)})
    root.extend(suites)
    for index, suite in enumerate(suites):
        suite.set("id", str(index))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    if seconds is not None:
        root.set("time", f"{seconds:.3f}")
    for element in root.iter():
        allowed_names = _ALLOWED_ATTRIBUTES.get(element.tag)
        attributes = element.attrib
        for name in list(attributes):
            if allowed_names is not None and name not in allowed_names:
                del attributes[name]
            else:
                attributes[name] = clean_text(attributes[name])
        element.text = clean_text(element.text) or None if element.text else None
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def make_suite(
    name: str, cases: Sequence[junit_xml.TestCase], properties: Mapping[str, str], **attributes: str
) -> ET.Element:
    """Return a suite; the suite has a time if its cases have times."""
    properties = {join_lines(key): join_lines(value, 4096) for key, value in properties.items()}
    suite = junit_xml.TestSuite(name=join_lines(name), test_cases=cases, properties=properties, id="0", **attributes)
    element: ET.Element = suite.build_xml_doc()
    times = [case.elapsed_sec for case in cases]
    total = None if None in times else sum(times)
    for node, seconds in zip((element, *element.findall("testcase")), (total, *times), strict=True):
        if seconds is None:
            node.attrib.pop("time", None)
        else:
            node.set("time", f"{seconds:.3f}")
    return element


def list_suites(outcome: RunOutcome, label: str = "") -> list[ET.Element]:
    """Return the suites of a run, one for each chain; with several IREEs, `label` names the run's IREE."""
    suites = []
    for index, chain in enumerate(outcome.chains):
        start_time = min((step.started for step in chain.steps if step.started), default=outcome.started)
        files = dict.fromkeys(step.origin.file for step in chain.steps if step.origin.file)
        suite = make_suite(
            f"{label}/{chain.id}" if label else chain.id,
            [_make_case(step, outcome, f"{label}." if label else "") for step in chain.steps],
            dict(_list_properties(chain, outcome, first=index == 0)),
            hostname=join_lines(outcome.machine.host),
            timestamp=join_lines(start_time),
            file=join_lines(next(iter(files), "")),
        )
        for step, case in zip(chain.steps, suite.iter("testcase"), strict=True):
            case.extend([*_list_attempts(step, outcome)])
        suites.append(suite)
    return suites


def _list_attempts(step: StepOutcome, outcome: RunOutcome) -> Iterator[ET.Element]:
    """Yield an element for each failed attempt besides the one that gave the verdict, as Maven Surefire writes them."""
    passed = step.attempts[-1:] and step.attempts[-1].verdict.counts_as_pass
    others = step.attempts[:-1] if passed else step.attempts[0 if step.unfinished else 1 :]
    for attempt in others:
        kind = "Error" if attempt.verdict.is_error else "Failure"
        message = join_lines(attempt.reason) or str(attempt.verdict)
        shown_step = step.select_attempt(attempt)
        name = f"{'flaky' if passed else 'rerun'}{kind}"
        element = ET.Element(name, {"message": message, "type": _find_type(shown_step)})
        ET.SubElement(element, "stackTrace").text = _format_detail(shown_step, outcome)
        yield element


def make_toolchain_suite(label: str, problem: str, hint: str, left_out: bool) -> ET.Element:
    """Return a suite of one test for an IREE with a problem: skipped if the IREE was left out, otherwise an error."""
    case = junit_xml.TestCase("toolchain", join_lines(f"{label}.iree"), 0.0)
    if left_out:
        case.add_skipped_info(join_lines(problem), hint)
    else:
        case.add_error_info(join_lines(problem), hint, "error")
    return make_suite(f"{label}/toolchain", [case], {})


def _make_case(step: StepOutcome, outcome: RunOutcome, prefix: str) -> junit_xml.TestCase:
    case = junit_xml.TestCase(
        name=join_lines(step.name),
        classname=join_lines(f"{prefix}{step.dialect}.{step.model}.{step.submodel}@{step.target}"),
        elapsed_sec=step.seconds,
        stdout=_truncate(_format_system_out(step, lean=outcome.has_many_chains), _MAX_CHARS),
    )
    verdict, message = step.verdict, join_lines(step.reason) or str(step.verdict)
    if verdict is Verdict.FLAKY:
        # Readers of Surefire's files count it as passed: the attempts say what happened.
        pass
    elif verdict.is_bad:
        failure_type = _find_type(step)
        if not verdict.is_error and verdict is not Verdict.FAILED:
            message = f"{verdict.noun}: {message}"
        add = case.add_failure_info if verdict.exit_code is ExitCode.FAILED else case.add_error_info
        add(message, _format_detail(step, outcome), failure_type)
    elif verdict in (Verdict.XFAILED, Verdict.QUARANTINED):
        detail = "" if outcome.has_many_chains else _format_detail(step, outcome)
        case.add_skipped_info(f"{verdict.noun}: {message}", detail)
    elif verdict is Verdict.SKIPPED:
        case.add_skipped_info(message)
    elif missing_goldens := [f"{origin}: {text}" for origin, text in list_unapplied(step)]:
        # The step passed, but its golden was not applied: reporting a pass would hide this.
        text = f"{pluralize(len(missing_goldens), 'golden')} not applied: {'; '.join(missing_goldens)}"
        case.add_skipped_info(join_lines(text))
    return case


def _find_type(step: StepOutcome) -> str:
    """Return the type of a failure: the verdict, or how an error came about."""
    if not step.verdict.is_error:
        return str(step.verdict)
    end_reason = join_lines(step.signal) or ("unfinished" if step.unfinished else str(step.verdict))
    return "timeout" if step.timed_out else end_reason


def _format_detail(step: StepOutcome, outcome: RunOutcome) -> str:
    """Return the details, limited in size, that a person needs to act on a verdict."""
    parts = [join_lines(step.reason, 2000)]
    if step.explanation is not None:
        parts.append(format_explanation(step.explanation))
        parts += [f"bundle: {join_lines(step.explanation.bundle)}"] if step.explanation.bundle else []
    parts += list_findings(step)
    tail = take_last_lines(step.tail, count=8, width=200) if outcome.has_many_chains else take_last_lines(step.tail)
    if tail:
        parts += ["", f"last {len(tail)} lines of the output:" if len(tail) > 1 else "output:"]
        parts += [f"  {line}" for line in tail]
    if step.ran:
        parts += ["", "reproduce:", f"  {clean_text(step.command).strip()}"]
    if step.log:
        parts += ["", f"full log: {join_lines(step.log)} in the folder of run {join_lines(outcome.run)}"]
    if step.origin.file:
        parts += ["", f"defined in: {join_lines(str(step.origin))}"]
    return _truncate("\n" + "\n".join(parts) + "\n", _LEAN_MAX_CHARS if outcome.has_many_chains else _MAX_CHARS)


def _format_system_out(step: StepOutcome, *, lean: bool) -> str:
    lines = [f"note: {join_lines(note)}" for note in step.notes]
    if not lean:
        lines += list_findings(step) if step.verdict is Verdict.PASSED else []
        lines += list_measured(step)
        if step.command and step.verdict is Verdict.PASSED:
            lines.append(f"command: {clean_text(step.command).strip()}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _list_properties(chain: ChainOutcome, outcome: RunOutcome, *, first: bool) -> list[tuple[str, str]]:
    """Return versions, flags, device and measurements; names are stable, empty values are left out."""
    properties: list[tuple[str, object]] = []
    machine, toolchain, many = outcome.machine, outcome.toolchain, outcome.has_many_chains
    if first or not many:
        properties += [("run", outcome.run), ("run.suite", outcome.suite), ("run.state", outcome.state)]
        properties.append(("gauntlet.version", outcome.version))
        for tool in ("compiler", "runtime"):
            version, commit = getattr(toolchain, tool), getattr(toolchain, f"{tool}_commit")
            properties += [(f"{tool}.version", version), (f"{tool}.commit", commit)]
        properties += [(f"toolchain.{name}", getattr(toolchain, name)) for name in ("identity", "source")]
        properties += [(f"machine.{name}", getattr(machine, name) or None) for name in ("cpu", "cores", "os", "python")]
        properties.append(("machine.memory", format_bytes(machine.memory_bytes) if machine.memory_bytes else ""))
        properties.append(("machine.devices", format_devices(machine)))
        properties += [(f"remark.{index}", remark) for index, remark in enumerate(outcome.remarks, start=1)]
    if not many:
        properties += [(name, getattr(chain, name)) for name in ("dialect", "model", "submodel", "target", "sku")]
        properties.append(("device", ", ".join(dict.fromkeys(step.device for step in chain.steps if step.device))))
    for step in chain.steps:
        properties += [(f"{step.name}.{name}", value) for name, value in _list_step_properties(step, lean=many)]
    return [(name, str(value)) for name, value in properties if value not in (None, "")]


def _list_step_properties(step: StepOutcome, *, lean: bool) -> Iterator[tuple[str, object]]:
    """Yield the measurements of a step."""
    if not lean:
        yield "flags", " ".join(step.flags)
        for name, value in sorted(step.statistics.items()):
            # Format values with parts as JSON.
            yield name, json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
    if step.samples is not None and step.samples.real_time_ms:
        for name, number in step.samples.figures.items():
            yield name, None if number is None else f"{number:.6g}"
    yield "worker", step.worker
    if step.explanation is not None:
        yield "explained", step.explanation.answer
        yield "bundle", step.explanation.bundle
    for check in step.checks:
        yield check.metric, None if check.measured is None else f"{check.measured:.10g}"
        yield f"{check.metric}.limit", None if check.limit is None else f"{check.limit:.10g}"


def _truncate(text: str, limit: int) -> str:
    """Limit the number of characters, cutting at a line's end with a note: CI systems drop too large reports."""
    if len(text) <= limit:
        return text
    head = re.sub(r"[^\n]*\Z", "", text[:limit]) or text[:limit]
    return f"{head}\n… cut here: {len(text) - len(head):,} more characters\n"
