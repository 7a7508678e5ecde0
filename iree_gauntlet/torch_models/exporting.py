"""The export step: a model made by torch, out of the cache where it was made before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.build_folder import BUILD_FILE, Build, read_build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.build_plan import Plan


PLAN_FILE = "plan.json"
_TOOL = "the export"
_EXIT_USAGE = 2
_LOGS = ("stdout.txt", "stderr.txt", PLAN_FILE)


class Exporter:
    """Performs export steps.

    Args:
        session: what it runs in.
        workbench: the caches.

    Attributes:
        builds: what was made, by role of its step.
        hashes: SHA-256 of each program and its weights, by file name, likewise.
    """

    def __init__(self, session: Session[Any], workbench: Workbench) -> None:
        self._cache = workbench.modules
        self._processes = session.processes
        self.builds: dict[str, Build] = {}
        self.hashes: dict[str, Mapping[str, str]] = {}
        self._folders: dict[str, Path] = {}
        self._cancelled = session.cancelled

    def perform(self, step: Step, plan: Plan) -> Result:
        """Fills the step's folder, and keeps what it finds there.

        Args:
            step: of the export.
            plan: what the builder is told, but for the folder.

        Raises:
            GauntletError: what was made cannot be read.
        """
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        result = self._looked_up(step, key)
        if result is None:
            with self._cache.making(key, self._cancelled):
                result = self._looked_up(step, key) or self._made(step, plan, key)
        if result.verdict is Verdict.PASSED:
            self.builds[step.role] = read_build(Path(step.folder))
            self.hashes[step.role] = result.statistics["hashes"]
            self._folders[step.id] = Path(step.folder)
        return result

    def unshare(self, steps: Iterable[Step]) -> None:
        """Gives weights that are about to be imported a copy of their own in place of a hard link into the cache.

        The onnx package refuses to read weights that have a second name: it takes that for an attack.

        Args:
            steps: what follows.
        """
        exports = {need for step in steps if step.stage is Stage.IMPORT and not step.cache.hit for need in step.needs}
        for folder in (self._folders[export] for export in exports):
            for path in folder.glob("*.onnx.data"):
                if path.stat().st_nlink > 1:
                    copy = path.with_name(f"{path.name}.copy")
                    shutil.copyfile(path, copy)
                    copy.replace(path)

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

    def _made(self, step: Step, plan: Plan, key: str) -> Result:
        folder = Path(step.folder)
        ingredients = dict(step.cache.ingredients)
        write_atomic(folder / PLAN_FILE, replace(plan, output=step.folder).to_json())
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
