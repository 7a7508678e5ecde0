"""`cache.gc`: what was not used for long, or does not fit, goes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.garbage import (
    Collection,
    Limits,
    Users,
    collect,
    leftovers,
    parse_age,
    parse_bytes,
    plan_collection,
    remove_leftovers,
)
from iree_gauntlet.artifacts.inventory import Item, take_inventory
from iree_gauntlet.artifacts.publishing import human_bytes
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.upkeep.cache_place import CachePlace, age_text, open_cache, refusals_explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.upkeep.upkeep_requests import CollectRequest


def collect_garbage(asked: CollectRequest) -> ExitCode:
    """Shows what would go, and deletes it with `--delete`.

    Raises:
        UsageError: no limit is given, or one that is none; the folder is no cache.
        GauntletError: something cannot be read or deleted.
    """
    age, size = asked.older_than, asked.max_size
    if not age and not size:
        raise UsageError("cache.gc needs to know what may stay", "Give --older-than 30d, --max-size 50GB, or both.")
    limits = Limits(parse_age(age, "--older-than") if age else None, parse_bytes(size, "--max-size") if size else None)
    place = open_cache(asked.cache_dir)
    place.require_cache()
    with refusals_explained(place.root):
        return _collect(place, limits, delete=asked.delete)


def _collect(place: CachePlace, limits: Limits, *, delete: bool) -> ExitCode:
    now = time.time()
    users = Users(place.root, place.leases, now)
    planned = plan_collection(take_inventory(place.root, place.pins), limits, now, users.uses)
    dead = leftovers(place.root, place.leases, now)
    if planned.goes:
        rows = [(human_bytes(item.bytes), age_text(now - item.last_use), item.kind, item.name) for item in planned.goes]
        print_table([("SIZE", "LAST USE", "KIND", "NAME"), *rows])
    if not delete:
        _summary("would go", planned.goes, planned)
        if dead:
            sys.stdout.write(f"and {_counted(dead)} of processes that have ended\n")
        if planned.goes or dead:
            sys.stdout.write("nothing was deleted: add --delete\n")
    else:
        sys.stdout.flush()
        gone = collect(place.root, planned.goes, place.leases)
        # Again: the stamps of what has gone are among them now.
        dead = leftovers(place.root, place.leases, now)
        remove_leftovers(dead)
        _summary("deleted", gone, planned)
        kept = len(planned.goes) - len(gone)
        if kept:
            sys.stdout.write(f"{kept} items stay: they have been used, or went otherwise, since this began\n")
        if dead:
            sys.stdout.write(f"and {_counted(dead)} of processes that have ended\n")
    if limits.bytes is not None and planned.after > limits.bytes:
        sys.stdout.write(
            f"note: {human_bytes(planned.after)} stay, more than {human_bytes(limits.bytes)}: "
            "the rest is in use, or is not what is collected\n"
        )
    return ExitCode.OK


def _summary(verb: str, goes: Sequence[Item], planned: Collection) -> None:
    size, linked = sum(item.bytes for item in goes), sum(item.shared_bytes for item in goes)
    count = f"{len(goes)} item{'' if len(goes) == 1 else 's'}"
    text = f"{verb}: {count}, {human_bytes(size)} of {human_bytes(planned.before)}"
    if linked:
        text += f" ({human_bytes(linked)} of it stay on the disk: folders of runs hold the same files)"
    sys.stdout.write(f"{text}\n")
    if planned.spared:
        size = sum(item.bytes for item in planned.spared)
        sys.stdout.write(f"in use by other processes, so they stay: {len(planned.spared)}, {human_bytes(size)}\n")


def _counted(dead: Sequence[object]) -> str:
    return f"{len(dead)} leftover{'' if len(dead) == 1 else 's'}"
