"""What went wrong in a run as annotations of GitHub Actions: shown at the spec's lines in a pull request.

Source: docs.github.com, "Workflow commands for GitHub Actions", setting an error message.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.json_text import find_line, find_path, without_comments
from iree_gauntlet.formatting import one_line
from iree_gauntlet.reports.details import list_unapplied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.cases import Origin
    from iree_gauntlet.records.outcome import StepOutcome


# GitHub shows ten errors and ten warnings of a step, and drops the rest.
_MOST = 10
# The fields of expected outputs, of sharktank's specs and of torch's.
_EXPECTED = "outputs expected_outputs"
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_ESCAPES_OF_PROPERTIES = _ESCAPES | str.maketrans({":": "%3A", ",": "%2C"})


def format_error_commands(steps: Iterable[StepOutcome], environ: Mapping[str, str]) -> Sequence[str]:
    """The workflow commands for steps that are not as expected, and for goldens that were not applied.

    None outside of GitHub Actions.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return ()
    workspace = environ.get("GITHUB_WORKSPACE", "")
    found: dict[str, list[str]] = {"error": [], "warning": []}

    def add(level: str, origin: Origin, title: str, text: str) -> None:
        properties = {**_locate(origin, workspace), "title": one_line(title)}
        words = ",".join(f"{name}={value.translate(_ESCAPES_OF_PROPERTIES)}" for name, value in properties.items())
        found[level].append(f"::{level} {words}::{one_line(text).translate(_ESCAPES)}")

    for step in steps:
        if step.verdict.is_bad:
            level = "warning" if step.verdict.is_doubtful else "error"
            add(level, _find_origin(step), f"{step.title} {step.verdict}", step.reason or step.verdict)
            continue
        for origin, text in list_unapplied(step):
            add("warning", origin, f"{step.title} golden", text)
    return [line for lines in found.values() for line in lines[:_MOST]]


def format_error_command(text: str, environ: Mapping[str, str]) -> str:
    """The workflow command for what kept a command from doing anything; empty outside of GitHub Actions."""
    return f"::error::{text.translate(_ESCAPES)}\n" if environ.get("GITHUB_ACTIONS") == "true" else ""


def _find_origin(step: StepOutcome) -> Origin:
    """Where what failed is written: of a figure, its golden."""
    broken = {check.metric for check in step.checks if check.passed is False}
    broken = broken or {str(golden.metric) for golden in step.unapplied_goldens}
    goldens = (
        golden.origin
        for golden in (*step.goldens, *step.idle_goldens)
        if golden.metric in broken and golden.origin.field
    )
    found = next(goldens, step.origin)
    # Of wrong numbers, where the right ones are named.
    return replace(found, field=_EXPECTED) if step.stage.row.checks_numbers and not found.field else found


def _locate(origin: Origin, workspace: str) -> dict[str, str]:
    """File and line of where a case is written, as GitHub names them: from the checkout."""
    from iree_gauntlet.dialects.spec_file import load_json  # noqa: PLC0415 - it brings pydantic

    if not origin.file:
        return {}
    path = Path(origin.file).absolute()
    inside = bool(workspace) and path.is_relative_to(workspace)
    place = {"file": path.relative_to(workspace).as_posix() if inside else origin.file}
    document, text, _ = load_json(path, origin.file, without_comments)
    if document is None:
        # A flagfile or YAML, or gone since: the file is a place too.
        return place
    fields = [name for name in _EXPECTED.split() if name in document] if origin.field == _EXPECTED else [origin.field]
    try:
        return place | {"line": str(find_line(text, find_path(document, next(iter(fields), ""))))}
    except KeyError:
        # Not there any more.
        return place
