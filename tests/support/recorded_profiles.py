"""Profiles that the real tools wrote: `tests/data/profiles`, whose README describes them."""

from __future__ import annotations

import gzip

from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, parse_dispatch_events
from tests.support.places import DATA

__all__ = ["INVOCATIONS", "read_profile", "read_profile_lines"]

INVOCATIONS = 5
_FOLDER = DATA / "profiles"
_ELAPSED_NS = {
    "minilm-3.12.0": 16_552_000,
    "minilm-3.13.0": 18_147_000,
    "minilm-3.13.0-horizontal": 21_751_000,
    "dtln-3.13.0": 128_000,
    "dtln-3.13.0-vulkan": 39_940_000,
}


def read_profile_lines(name: str) -> list[str]:
    return gzip.decompress((_FOLDER / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()


def read_profile(name: str) -> DispatchProfile:
    return parse_dispatch_events(read_profile_lines(name), invocations=INVOCATIONS, elapsed_ns=_ELAPSED_NS[name])
