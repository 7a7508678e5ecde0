"""What people read while a run is under way: lines of runs, steps and downloads, as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.formatting import byte_size, counted, duration, one_line, percent, signed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.progress import Task

    from iree_gauntlet.journal_events import RunEvent
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


# An arrival that took less is not worth a line of its own.
_WORTH_SECONDS = 5.0
# Seconds of waiting for locks that are shown.
_WORTH_WAITING = 1.0
_STALLED_SECONDS = 10.0


class StepsLeft:
    """How long the steps of a run will take yet, by the seconds that they took in an earlier one, by their ids."""

    def __init__(self, ids: Sequence[str], earlier: Mapping[str, float]) -> None:
        known = [earlier[step] for step in ids if step in earlier]
        # Where most steps are new, the earlier ones say nothing.
        usual = sum(known) / len(known) if len(known) > len(ids) / 2 else 0.0
        # Of a step that took no time it may take some now.
        self._weights = {step: max(earlier.get(step, usual), usual / 20) for step in ids} if usual else {}
        self._all = sum(self._weights.values())

    def finished(self, step: str) -> None:
        """A step is done."""
        self._weights.pop(step, None)

    def seconds(self, elapsed: float) -> float | None:
        """Seconds that are left after so many; None where nothing can be said."""
        left = sum(self._weights.values())
        done = self._all - left
        return elapsed * left / done if done > self._all / 20 else None


def format_step_title(step: Step) -> str:
    """What people read of a planned step: `ocr/classifier@cpu threshold`."""
    return one_line(f"{step.chain} {step.name}")


def format_started(run: RunEvent, count: int) -> str:
    """The line at the start of a run."""
    what = "resuming run" if run.resumed else "run"
    compiler = f", IREE {run.toolchain.compiler}" if run.toolchain.compiler else ""
    return one_line(f"{what} {run.run}: {counted(count, 'step')}{compiler}")


def format_finished(step: Step, result: Result, place: str) -> str:
    """The line of a finished step: `[ 3/24] ✓ passed  ocr/cls@cpu compile  8.21 s (cached)`."""
    cached = " (cached)" if result.cache and result.cache.hit else ""
    waited = f" (waited {duration(result.waited_seconds)})" if result.waited_seconds >= _WORTH_WAITING else ""
    took = f"  {duration(result.seconds)}{cached}{waited}" if result.verdict is not Verdict.SKIPPED else ""
    reason = f": {one_line(result.full_reason)}" if result.reason else ""
    verdict = signed(f"{result.verdict:<7}", result.verdict)
    return f"{place} {verdict} {format_step_title(step)}{took}{reason}"


def list_details(result: Result) -> list[str]:
    """How a step came to its result: its command, what the cache had, its notes and where its output is."""
    cache = result.cache
    parts = (
        ("$", result.command),
        ("cache:", f"{cache.reason} (key {cache.key[:12]})" if cache and cache.key else cache.reason if cache else ""),
        *(("note:", note) for note in result.notes),
        ("log:", result.log),
    )
    return [f"    {word} {one_line(text, 4000)}" for word, text in parts if text]


def format_pace(counts: Mapping[str, int], seconds: float, left: float | None) -> str:
    """`3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`."""
    worst_first = sorted(counts.items(), key=lambda item: (not Verdict(item[0]).is_bad, item[0]))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in worst_first)
    times = duration(seconds) + (f", about {duration(left)} left" if left else "")
    return f"{verdicts}; {times}" if verdicts else times


def shorten_name(url: str, urls: Iterable[str]) -> str:
    """The last component of a URL, with as many before it as distinguish it from every other URL."""
    parts = one_line(url, 1000).split("/")
    tails = ("/".join(parts[-count:]) for count in range(1, len(parts)))
    others = [f"/{other}" for other in urls if other != url]
    return next((tail for tail in tails if tail and not any(other.endswith(f"/{tail}") for other in others)), url)


def format_progress_bytes(done: float, total: float | None) -> str:
    """`3.2 of 16.1 GB`, `12.0 MB of 16.1 GB`, `12.0 MB`."""
    if not total:
        return byte_size(done)
    there, all_of_it = byte_size(done), byte_size(total)
    number, _, unit = there.partition(" ")
    return f"{number if all_of_it.endswith(f' {unit}') else there} of {all_of_it}"


def format_beginning(url: str, done: int, total: int | None, *, resumed: bool) -> str:
    """`downloading URL (16.1 GB)`, `resuming URL at 3.2 of 16.1 GB`."""
    if resumed:
        return f"resuming {one_line(url)} at {format_progress_bytes(done, total)}"
    return f"downloading {one_line(url)}{f' ({byte_size(total)})' if total else ''}"


def format_arrived(name: str, total: float, arrived: float, seconds: float) -> str:
    """`downloaded x (16.1 GB in 3 min 20 s, 80.1 MB/s)`; empty where it was too quick to wait for."""
    if seconds < _WORTH_SECONDS:
        return ""
    missing = f", the missing {byte_size(arrived)}" if arrived < total else ""
    return f"downloaded {name} ({byte_size(total)}{missing} in {duration(seconds)}, {byte_size(arrived / seconds)}/s)"


def format_file(task: Task, name: str) -> str:
    """`downloading x: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left`."""
    what = f"{task.description} {name}".strip()
    return _format_sentence(what, task.completed, task.total, format_speed(task), format_left(task))


def format_speed(task: Task) -> str:
    """`80.1 MB/s`; empty where nothing can be said, or nothing comes any more."""
    return f"{byte_size(_compute_speed(task))}/s" if _compute_speed(task) else ""


def format_left(task: Task) -> str:
    """`2 min 41 s left`; `nothing for 34 s` where it stands still; empty where it is not known."""
    if task.finished:
        return ""
    silence = _compute_silence(task)
    if silence >= _STALLED_SECONDS:
        return f"nothing for {_format_whole_seconds(silence)}"
    return "" if task.time_remaining is None else f"{_format_whole_seconds(task.time_remaining)} left"


def format_together(tasks: Sequence[Task]) -> str:
    """All downloads in one line, those that have arrived included: `downloading 3 files: 3.2 of 16.1 GB (…), …`."""
    under_way = [task for task in tasks if not task.finished]
    totals = [task.total for task in tasks if task.total is not None]
    lefts = [task.time_remaining for task in under_way if task.time_remaining is not None]
    speed = sum(map(_compute_speed, under_way))
    return _format_sentence(
        f"downloading {len(under_way)} files",
        sum(task.completed for task in tasks),
        sum(totals) if len(totals) == len(tasks) else None,
        f"{byte_size(speed)}/s" if speed else "",
        f"{_format_whole_seconds(max(lefts))} left" if lefts else "",
    )


def _format_sentence(what: str, done: float, total: float | None, speed: str, left: str) -> str:
    share = f" ({percent(done, total)})" if total else ""
    return f"{what}: {', '.join(filter(None, (f'{format_progress_bytes(done, total)}{share}', speed, left)))}"


def _compute_speed(task: Task) -> float:
    return 0.0 if task.finished or _compute_silence(task) >= _STALLED_SECONDS else task.speed or 0.0


def _compute_silence(task: Task) -> float:
    return task.get_time() - float(task.fields["last"])


def _format_whole_seconds(seconds: float) -> str:
    """Rounded up, as nothing is there before it is."""
    return f"{math.ceil(seconds)} s" if seconds < 120 else duration(seconds)
