"""A second host: a network namespace at the other end of a cable, with file systems of its own in place of ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["HERE", "THERE", "OtherHost", "needs_hosts", "other_host"]

HERE, THERE = "10.77.0.1", "10.77.0.2"
needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
    reason="makes network namespaces: root, iproute2 and util-linux",
)


@dataclass(frozen=True)
class OtherHost:
    """The other host."""

    namespace: str
    cable: str

    def words(self, argv: Sequence[str], hidden: Sequence[Path]) -> list[str]:
        """An argument vector that runs there, where some of our folders are empty."""
        mounts = " && ".join(f"mount -t tmpfs none '{folder}'" for folder in hidden)
        script = f'{mounts} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "sh", "-c", script, "sh", *argv]

    def cut(self) -> None:
        """Pulls the cable."""
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        """Puts it back."""
        _ip("link", "set", self.cable, "up")


@contextlib.contextmanager
def other_host() -> Iterator[OtherHost]:
    """A host at the other end of a cable, until this is left; it has no other way out."""
    host = OtherHost(f"gauntlet-{os.getpid()}", f"gh{os.getpid()}"[:15])
    far = f"gt{os.getpid()}"[:15]
    _ip("netns", "add", host.namespace)
    try:
        _ip("link", "add", host.cable, "type", "veth", "peer", "name", far, "netns", host.namespace)
        _ip("addr", "add", f"{HERE}/24", "dev", host.cable)
        _ip("link", "set", host.cable, "up")
        for words in (
            ("addr", "add", f"{THERE}/24", "dev", far),
            ("link", "set", far, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", host.namespace, *words)
        yield host
    finally:
        _ip("netns", "del", host.namespace)
        subprocess.run(["ip", "link", "del", host.cable], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
