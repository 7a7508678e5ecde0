"""Requests to keep a history, and to ask it."""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.option import option
from iree_gauntlet.requests import CacheRequest


@dataclass(frozen=True, slots=True)
class HistoryRequest(CacheRequest):
    """Which history."""

    store: str = option(
        "",
        "The history: a folder, git:REPOSITORY#BRANCH, az://…, s3://… or gs://… (default: [history] of gauntlet.toml, "
        "else history/ of the project).",
    )


@dataclass(frozen=True, slots=True)
class AddRequest(HistoryRequest):
    """Which runs are added."""

    runs: str = option("", "Folders of runs, or their names in runs/ (default: the latest).")


@dataclass(frozen=True, slots=True)
class ImportRequest(HistoryRequest):
    """Which files of other tools are added, and what they do not say."""

    files: str = option("", "Files: job_summary.json, Google Benchmark's JSON, data.js, asv's results.")
    date: str = option("", "When the run was, where the file does not say: 2026-04-24T10:00:00Z.")
    commit: str = option("", "Commit of IREE, where the file does not say.")
    machine: str = option("", "CPU of the machine, where the file does not say.")
    sku: str = option("", "SKU of the device, such as mi325.")


@dataclass(frozen=True, slots=True)
class AskRequest(HistoryRequest):
    """Which series of a history are looked at."""

    series: str = option("", "Only series that fit this glob, such as 'dtln/*' or '* time_ms'.")
    sku: str = option("", "Only those of this device.")
    marks: str = option("", "File of marks (default: history_marks.toml of the project).")


@dataclass(frozen=True, slots=True)
class CheckRequest(AskRequest):
    """What a check of a history looks at."""

    since: str = option("", "Only changes that came with runs since this day: 2026-11-01.")


@dataclass(frozen=True, slots=True)
class ConfirmRequest(AskRequest):
    """Which step is confirmed, and for how long."""

    budget: float = option(30.0, "Minutes for the rounds.", unit="minutes")


@dataclass(frozen=True, slots=True)
class PageRequest(AskRequest):
    """Which series get a page, and where it goes."""

    output: str = option("", "File to write (default: history.html).")


@dataclass(frozen=True, slots=True)
class ExportRequest(HistoryRequest):
    """Where all figures of a history go."""

    output: str = option("", "CSV file to write (default: standard output).")
    series: str = option("", "Only series that fit this glob, such as 'dtln/*' or '* time_ms'.")


@dataclass(frozen=True, slots=True)
class PruneRequest(HistoryRequest):
    """What goes from a history."""

    before: str = option("", "Runs before this day: 2026-01-31.")
    delete: bool = option(False, "Delete them; without this, only show what would go.")
