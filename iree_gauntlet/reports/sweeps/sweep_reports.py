"""The files of results of `micro`: tables, plots, a page, and the records of a dashboard's database."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import TypeAdapter, ValidationError

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.profiles.memory_profile import MEMORY_FILE, MEMORY_ROLE, written_memory_profile
from iree_gauntlet.records.outcome import state_of
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.sweeps.oss_database import oss_json
from iree_gauntlet.reports.sweeps.sweep_document import NOT_MEASURED, UNREACHED, sweep_document
from iree_gauntlet.reports.sweeps.sweep_plots import draw_plots, memory_plot
from iree_gauntlet.reports.sweeps.sweep_rows import read_rows, results_csv
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import step_id
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord


_TARGETS = TypeAdapter(dict[str, dict[str, float]])
_NO_PLOTS = "no plots: matplotlib is not installed (pip install 'iree-gauntlet[plots]')"


def write_micro_reports(record: JournalRecord, run_dir: Path, stream: TextIO) -> None:
    """Writes everything into `results/` of the run's folder, and where the run was asked to write it; prints the rest.

    Raises:
        GauntletError: a file cannot be written, or a record is none.
    """
    asked = record.runs[-1]["micro"]
    records = _records(record, asked["points"])
    rows = read_rows(records)
    header = _header(record) | {"missing": _missing(record, asked)}
    targets = read_targets(asked["targets"])
    oss = oss_json(rows, header, targets=targets)
    plots = draw_plots(rows) if importlib.util.find_spec("matplotlib") else ()
    document = sweep_document(rows, header, plots)
    folder = run_dir / "results"
    files: dict[str, str | bytes] = {
        "results.csv": results_csv(rows, header),
        "results.md": markdown(document),
        "results.json": json.dumps({"header": header, "points": records}, indent=1) + "\n",
        "results.html": html_page(document),
        "benchmark_results.json": oss,
        **{f"{plot.name}.svg": plot.svg for plot in plots},
        **{f"{plot.name}.png": plot.png for plot in plots},
    }
    _write(folder, files)
    _draw_memory(record, run_dir)
    names = ", ".join(name for name in files if name.startswith("results."))
    print_document(document, stream, f"{shown(folder)}: {names}", environ=os.environ)
    if not plots and any(row.speedup for row in rows):
        stream.write(f"{_NO_PLOTS}\n")
    here = Path(record.runs[-1]["cwd"])
    if asked["output_dir"]:
        _write(here / asked["output_dir"] / run_dir.name, files)
        stream.write(f"the same in {asked['output_dir']}/{run_dir.name}\n")
    if asked["output"]:
        output = here / Path(asked["output"]).expanduser()
        _write(output.parent, {output.name: oss})
        stream.write(f"records for a benchmark database: {asked['output']}\n")


def check_output(name: str) -> None:
    """Makes sure that `--output` can be written, before anything is measured.

    Raises:
        UsageError: it cannot.
    """
    if not name:
        return
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        raise UsageError(f"--output {name}: it is a folder", "Name a file, such as benchmark_results.json.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {name}: {path.parent}: {error.strerror}", "Name a file where you may write."
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--output {name}: {path.parent} cannot be written", "Name a file where you may write.")


def read_targets(name: str) -> Mapping[str, Mapping[str, float]]:
    """The file of `--targets`: `{metric: {recipe or recipe@shape: value}}`; nothing for an empty name.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    if not name:
        return {}
    try:
        return _TARGETS.validate_python(json.loads(Path(name).expanduser().read_text(encoding="utf-8")), strict=True)
    except OSError as error:
        raise UsageError(f"--targets {name}: {error.strerror}", "Name a JSON file.") from error
    except ValidationError as error:
        raise UsageError(
            f"--targets {name}: expected an object of objects of numbers",
            'Such as {"Fwd Speedup (x)": {"int8wo": 1.2, "int8wo@1-4096-4096": 1.5}}.',
        ) from error
    except ValueError as error:
        raise UsageError(f"--targets {name}: no JSON: {error}", "See docs/reference/micro.md.") from error


def _records(record: JournalRecord, points: Sequence[str]) -> list[dict[str, Any]]:
    """Of all points that finished, in the order of the configuration."""
    results = [record.results.get(step_id(chain, Stage.BENCHMARK)) for chain in points]
    return [result.statistics["micro"] for result in results if result is not None and "micro" in result.statistics]


def _draw_memory(record: JournalRecord, run_dir: Path) -> None:
    """Draws each profile of memory next to its file; without matplotlib, the profile's step has said so."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    for step in record.steps:
        result = record.results.get(step["id"])
        if result is None or "memory" not in result.statistics:
            continue
        path = (run_dir / result.log).with_name(MEMORY_FILE)
        profile = written_memory_profile(path)
        if profile is not None:
            label = step["id"].removeprefix(step_id(step["chain"], Stage.BENCHMARK, MEMORY_ROLE))
            svg, png = memory_plot(profile, f"{_name(step['chain'])}: {label}")
            _write(path.parent, {path.with_suffix(".svg").name: svg, path.with_suffix(".png").name: png})


def _missing(record: JournalRecord, asked: Mapping[str, Any]) -> list[dict[str, str]]:
    """The points without a record: what became of each, and why."""
    # Journals of older versions have none that were refused.
    refused = asked.get("refused") or {}
    found = [{"point": name, "status": "skipped", "reason": reason} for name, reason in refused.items()]
    for chain in asked["points"]:
        result = record.results.get(step_id(chain, Stage.BENCHMARK))
        if result is None:
            found.append({"point": _name(chain), "status": NOT_MEASURED, "reason": UNREACHED[state_of(record)]})
        elif "micro" not in result.statistics:
            found.append({"point": _name(chain), "status": str(result.verdict), "reason": result.reason})
    return found


def _name(chain: str) -> str:
    """Of a point, which its chain has a target behind."""
    return chain.rpartition("@")[0]


def _header(record: JournalRecord) -> dict[str, Any]:
    run = record.runs[-1]
    return {
        "run": run["run"],
        "state": state_of(record),
        "started": record.runs[0].get("time", ""),
        "config": Path(run["micro"]["config"]).name,
        "toolchain": run["toolchain"],
        "machine": run["machine"],
        "command": record.runs[0].get("command", ""),
        **{name: run.get(name, "") for name in ("cwd", "version")},
        "lock_folder": run.get("lock_folder", ""),
        "gpus": run["gpus"],
        "versions": run["micro"]["versions"],
    }


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise GauntletError(
            f"{folder}: results cannot be written: {error.strerror or error}",
            "Mend that, and `report` writes them again from the journal.",
        ) from error
