"""Seeds of the coins that choose the order of rounds: one for each model and kind of block, from one of a session."""

from __future__ import annotations

import hashlib

__all__ = ["seed_of"]


def seed_of(seed: int, chain: str, kind: str) -> int:
    """The same for the same session, model and kind; unrelated for others, so that their coins are independent."""
    digest = hashlib.sha256(f"{seed}\0{chain}\0{kind}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
