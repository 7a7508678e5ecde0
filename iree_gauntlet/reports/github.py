"""Format a run's failures as GitHub Actions annotations, which pull requests show at the spec's lines.

Source: docs.github.com, "Workflow commands for GitHub Actions", setting an error message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Origin
from iree_gauntlet.dialects.json_text import find_line, find_path, without_comments
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.reports.details import list_unapplied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.records.outcome import StepOutcome


# GitHub shows at most ten errors and ten warnings of a CI step, and drops the others.
_MAX_ANNOTATIONS = 10
# Expected outputs are in the field `outputs` of sharktank's specs, and in `expected_outputs` of torch's.
_OUTPUTS = "outputs expected_outputs"
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY_ESCAPES = _ESCAPES | str.maketrans({":": "%3A", ",": "%2C"})


def format_error_commands(
    steps: Iterable[StepOutcome], environ: Mapping[str, str], warnings: Iterable[str] = ()
) -> Sequence[str]:
    """Return the workflow commands for steps with unexpected results, goldens that were not applied, and warnings.

    Return none outside of GitHub Actions.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return ()
    workspace = environ.get("GITHUB_WORKSPACE", "")
    lines_by_level: dict[str, list[str]] = {"error": [], "warning": []}

    def add(level: str, origin: Origin, title: str, text: str) -> None:
        properties = {**_format_location(origin, workspace), "title": join_lines(title)}
        property_text = ",".join(f"{name}={value.translate(_PROPERTY_ESCAPES)}" for name, value in properties.items())
        lines_by_level[level].append(f"::{level} {property_text}::{join_lines(text).translate(_ESCAPES)}")

    for text in warnings:
        add("warning", Origin(""), "selection", text)
    for step in steps:
        if step.verdict.is_bad:
            # A flaky step has passed in the end.
            level = "error" if step.verdict.ends_early else "warning"
            add(level, _find_origin(step), f"{step.title} {step.verdict}", step.reason or step.verdict)
            continue
        for origin, text in list_unapplied(step):
            add("warning", origin, f"{step.title} golden", text)
    return [line for lines in lines_by_level.values() for line in lines[:_MAX_ANNOTATIONS]]


def format_error_command(text: str, environ: Mapping[str, str]) -> str:
    """Return the workflow command for an error before a command's start; empty outside of GitHub Actions."""
    return f"::error::{text.translate(_ESCAPES)}\n" if environ.get("GITHUB_ACTIONS") == "true" else ""


def _find_origin(step: StepOutcome) -> Origin:
    """Return the origin of a failure; if a metric failed, this is the golden's origin."""
    failed_metrics = {check.metric for check in step.checks if check.passed is False}
    failed_metrics = failed_metrics or {str(golden.metric) for golden in step.unapplied_goldens}
    goldens = (
        golden.origin
        for golden in (*step.goldens, *step.idle_goldens)
        if golden.metric in failed_metrics and golden.origin.field
    )
    origin = next(goldens, step.origin)
    # For wrong numbers, the origin is the field of the expected outputs.
    return replace(origin, field=_OUTPUTS) if step.stage.row.checks_numbers and not origin.field else origin


def _format_location(origin: Origin, workspace: str) -> dict[str, str]:
    """Return file and line of an origin, with the file relative to the checkout, as GitHub requires."""
    from iree_gauntlet.dialects.spec_file import load_json  # noqa: PLC0415 - `spec_file` imports pydantic

    if not origin.file:
        return {}
    path = Path(origin.file).absolute()
    is_in_workspace = bool(workspace) and path.is_relative_to(workspace)
    location = {"file": path.relative_to(workspace).as_posix() if is_in_workspace else origin.file}
    document, text, _ = load_json(path, origin.file, without_comments)
    if document is None:
        # The file is a flagfile or YAML, or was removed: return only its name, without a line.
        return location
    fields = [name for name in _OUTPUTS.split() if name in document] if origin.field == _OUTPUTS else [origin.field]
    try:
        return location | {"line": str(find_line(text, find_path(document, next(iter(fields), ""))))}
    except KeyError:
        # The field was removed, so there is no line.
        return location
