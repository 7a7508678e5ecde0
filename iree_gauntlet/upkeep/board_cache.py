"""`cache.list` and `cache.gc` on a board: the files that were copied there, and the removal of those long unused."""

from __future__ import annotations

import json
import shlex
import sys
import time
from contextlib import closing
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.inventory import CacheItem, CacheItemKind
from iree_gauntlet.engine.processes.boards import Board
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import format_bytes, pluralize
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.targets import split_board
from iree_gauntlet.upkeep.cache_cleaning import CacheLimits, plan_collection
from iree_gauntlet.upkeep.cache_list import format_age

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.upkeep.upkeep_requests import CollectRequest


def list_board_cache(board: str, match: str, *, as_json: bool) -> ExitCode:
    """Print the files in a board's cache, the largest first.

    Raises:
        UsageError: `board` names no board.
        BoardError: the board cannot be reached.
    """
    with closing(_open_board(board)) as device:
        items = [item for item in _list_items(device) if not match or fnmatchcase(item.name, match)]
        items.sort(key=lambda item: (-item.bytes, item.path))
        if as_json:
            sys.stdout.write(json.dumps({"board": device.host, "items": list(map(asdict, items))}, indent=1) + "\n")
        else:
            _print_items(items)
            size = format_bytes(sum(item.bytes for item in items))
            sys.stdout.write(f"{pluralize(len(items), 'file')}, {size} on {device.host}\n")
    return ExitCode.OK


def collect_board_garbage(request: CollectRequest) -> ExitCode:
    """Print the files above the limits, and delete them with `--delete`; errors as in `list_board_cache`."""
    limits, delete = CacheLimits.of(request), request.delete
    with closing(_open_board(request.board)) as device:
        plan = plan_collection(_list_items(device), limits, time.time(), lambda _: False)
        if delete and plan.removable_items:
            device.remove([item.path for item in plan.removable_items])
        _print_items(plan.removable_items)
        size = format_bytes(sum(item.bytes for item in plan.removable_items))
        count = pluralize(len(plan.removable_items), "file")
        sys.stdout.write(f"{'deleted' if delete else 'would go'}: {count}, {size} on {device.host}\n")
        if plan.removable_items and not delete:
            sys.stdout.write("nothing was deleted: add --delete to delete these files\n")
    return ExitCode.OK


def _open_board(board: str) -> Board:
    words, rest = split_board(shlex.split(board))
    if not words or rest:
        raise UsageError(f"--board {board}: it names no board", "Such as --board 'ssh HOST', as the target's `runner`.")
    return Board(words)


def _list_items(board: Board) -> list[CacheItem]:
    files = board.list_files()
    names = (file.name.partition("/")[2] for file in files)
    return [
        CacheItem(CacheItemKind.ARTIFACT, file.name, name, file.bytes, file.last_use)
        for file, name in zip(files, names, strict=True)
    ]


def _print_items(items: Sequence[CacheItem]) -> None:
    if items:
        now = time.time()
        rows = [(format_bytes(item.bytes), format_age(now - item.last_use), item.name) for item in items]
        print_table([("SIZE", "LAST USE", "NAME"), *rows])
