"""The export step: a model made by torch, out of the cache where it was made before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.bench.build_folder import BUILD_FILE, read_build
from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step

__all__ = ["Exporter", "unshare_weights"]

_TOOL = "the export"
_EXIT_USAGE = 2
_LOGS = ("stdout.txt", "stderr.txt", "plan.json")


class Exporter:
    """Performs export steps.

    Args:
        session: what it runs in.
        workbench: the caches.
        plan: what the builder is told, but for the folder.
    """

    def __init__(
        self, session: Session[Any], workbench: Workbench, plan: Callable[[str], Mapping[str, object]]
    ) -> None:
        self._cache = workbench.modules
        self._processes = session.processes
        self._plan = plan
        self._cancelled = session.cancelled

    def perform(self, step: Step) -> Result:
        """Fills the step's folder; `statistics.hashes` of the result has the SHA-256 of each program and its weights.

        Raises:
            GauntletError: what was made cannot be read.
        """
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        found = self._looked_up(step, key)
        if found is not None:
            return found
        with self._cache.making(key, self._cancelled):
            found = self._looked_up(step, key)
            return self._made(step, key) if found is None else found

    def _looked_up(self, step: Step, key: str) -> Result | None:
        entry = self._cache.lookup(key).entry
        if entry is None:
            return None
        try:
            for role in entry.files:
                entry.materialise(role, Path(step.folder) / role)
        except EntryGoneError:
            return None
        return Result(
            Verdict.PASSED,
            command=self._processes.typed(step),
            cache=CacheUse(True, key, "in the cache"),
            statistics={**entry.metadata["statistics"], "hashes": entry.metadata["hashes"]},
            notes=step.notes,
        )

    def _made(self, step: Step, key: str) -> Result:
        folder = Path(step.folder)
        ingredients = dict(step.cache.ingredients)
        write_atomic(folder / "plan.json", json.dumps(dict(self._plan(step.folder)), indent=1))
        cache = CacheUse(False, key, self._cache.explain_miss(step.id, ingredients))
        outcome = self._processes.run(step)
        if outcome.exit_code != 0:
            return self._processes.complete(step, outcome, replace(self._failed(step, outcome), cache=cache))
        if not (folder / BUILD_FILE).is_file():
            what = "the builder ended without a result, and with exit code 0: does the model end the process?"
            ended = Result(Verdict.ERROR, what, cache=cache, tail=tuple(outcome.tail))
            return self._processes.complete(step, outcome, ended)
        # What cannot be read is not kept.
        build = read_build(folder)
        files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in _LOGS}
        statistics = {
            "tool_seconds": outcome.seconds,
            "peak_rss_bytes": outcome.peak_rss_bytes,
            "parameter_count": build.parameter_count,
        }
        hashes = {name: hash_file(path) for name, path in files.items() if ".onnx" in name}
        published = self._cache.publish(
            files,
            name=step.id,
            ingredients=ingredients,
            metadata={"statistics": statistics, "hashes": hashes, "command": self._processes.typed(step)},
            created=datetime.now(UTC),
        )
        notes = (*step.notes, published.note) if published.note else step.notes
        result = Result(Verdict.PASSED, cache=cache, statistics={**statistics, "hashes": hashes}, notes=notes)
        return self._processes.complete(step, outcome, result)

    def _failed(self, step: Step, outcome: Any) -> Result:
        """A model that is written wrong, or cannot be exported: torch's side, so an error and no failure of IREE's."""
        lines = [line for line in self._processes.error_lines(step) if line.strip()]
        if outcome.exit_code in (1, _EXIT_USAGE) and lines and not outcome.signal:
            told = next((line for line in lines if line.startswith("error: ")), lines[-1]).removeprefix("error: ")
            return Result(Verdict.ERROR, shorten(told), tail=tuple(outcome.tail))
        return replace(after_process(step, outcome, lines, tool=_TOOL, reason=""), verdict=Verdict.ERROR)


def unshare_weights(folder: Path) -> None:
    """Gives each file of weights a copy of its own in place of a hard link into the cache.

    The onnx package refuses to read weights that have a second name: it takes that for an attack.
    """
    for path in folder.glob("*.onnx.data"):
        if path.stat().st_nlink > 1:
            copy = path.with_name(f"{path.name}.copy")
            shutil.copyfile(path, copy)
            copy.replace(path)
