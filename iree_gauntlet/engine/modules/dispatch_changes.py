"""Why a module has more dispatches than its golden allows: those that an earlier module of the cache has not."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.modules.module_entry import ENTRY_FILE, DamageError, open_sealed
from iree_gauntlet.measuring.profiles.dispatch_names import dispatch_names, new_and_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.results import Check
    from iree_gauntlet.steps import Step


_MODULE = "module"
# Parts of a module that hold weights.
_CONSTANTS = "_const"


def describe_dispatch_changes(cache: ModuleCache, step: Step, check: Check) -> str:
    """The dispatches that are new and gone against the newest module in the cache that kept the golden.

    Args:
        cache: where modules of earlier compiles are.
        step: holds the module against its goldens.
        check: of the dispatch count, which is above its limit.

    Returns:
        One line; empty where there is no such module.
    """
    assert check.limit is not None, "a broken golden has a limit"
    kept = (entry for entry in _compiled(cache, step) if _count(entry) <= check.limit)
    newest = max(kept, key=lambda entry: str(entry["created"]), default=None)
    found = cache.lookup(newest["key"]).entry if newest else None
    if newest is None or found is None:
        return ""
    module = step.input(_MODULE).path
    before, after = _names(found.files[_MODULE]), _names(module)
    if not (before and after):
        return ""
    new, gone = new_and_gone(before, after)
    changes = "; ".join(f"{what}: {', '.join(names)}" for what, names in (("new", new), ("gone", gone)) if names)
    count, day = _count(newest), str(newest["created"])[:16].replace("T", " ")
    dispatches = f"{count} dispatch" + ("" if count == 1 else "es")
    return f"against the newest module with {dispatches} (of {day} UTC): {changes or 'the same names'}"


def _count(entry: dict[str, Any]) -> int:
    return int(entry["metadata"]["statistics"]["dispatch_count"])


def _compiled(cache: ModuleCache, step: Step) -> Iterator[dict[str, Any]]:
    """Entries of the cache for the module that a step looks at, whatever compiled them."""
    for path in cache.folder.glob(f"modules/??/*/{ENTRY_FILE}"):
        try:
            entry = open_sealed(path.read_bytes(), path.parent.name)
        except (OSError, DamageError):
            # Removed meanwhile; or damaged, which `cache.verify` reports.
            continue
        statistics = entry["metadata"].get("statistics") or {}
        if entry["name"] in step.needs and _MODULE in entry["files"] and statistics.get("dispatch_count") is not None:
            yield entry


def _names(module: Path | str) -> list[str]:
    """Names of its dispatches; none where it is not an archive, as which the compiler writes modules."""
    if not zipfile.is_zipfile(module):
        return []
    with zipfile.ZipFile(module) as archive:
        parts = (item for item in archive.infolist() if not item.filename.startswith(_CONSTANTS))
        return dispatch_names(map(archive.read, parts))
