"""A second host: a network namespace at the other end of a virtual cable; directories can be hidden there."""

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

__all__ = ["LOCAL_ADDRESS", "REMOTE_ADDRESS", "OtherHost", "needs_hosts", "other_host"]

LOCAL_ADDRESS, REMOTE_ADDRESS = "10.77.0.1", "10.77.0.2"
needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
    reason="makes network namespaces: root, iproute2 and util-linux",
)


@dataclass(frozen=True)
class OtherHost:
    """The second host, and the name of our end of its cable."""

    namespace: str
    cable: str

    def make_argv(self, argv: Sequence[str], hidden_folders: Sequence[Path]) -> list[str]:
        """Return an argument vector that runs a command there; hidden folders appear as empty directories."""
        mounts = " && ".join(f"mount -t tmpfs none '{folder}'" for folder in hidden_folders)
        script = f'{mounts} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "sh", "-c", script, "sh", *argv]

    def disconnect(self) -> None:
        """Take the connection down."""
        _run_ip("link", "set", self.cable, "down")

    def reconnect(self) -> None:
        """Bring the connection up."""
        _run_ip("link", "set", self.cable, "up")


@contextlib.contextmanager
def other_host() -> Iterator[OtherHost]:
    """Create a host at the other end of a cable, its only connection; remove it at the end of the block."""
    host = OtherHost(f"gauntlet-{os.getpid()}", f"gh{os.getpid()}"[:15])
    remote_cable = f"gt{os.getpid()}"[:15]
    _run_ip("netns", "add", host.namespace)
    try:
        _run_ip("link", "add", host.cable, "type", "veth", "peer", "name", remote_cable, "netns", host.namespace)
        _run_ip("addr", "add", f"{LOCAL_ADDRESS}/24", "dev", host.cable)
        _run_ip("link", "set", host.cable, "up")
        for arguments in (
            ("addr", "add", f"{REMOTE_ADDRESS}/24", "dev", remote_cable),
            ("link", "set", remote_cable, "up"),
            ("link", "set", "lo", "up"),
        ):
            _run_ip("-n", host.namespace, *arguments)
        yield host
    finally:
        _run_ip("netns", "del", host.namespace)
        subprocess.run(["ip", "link", "del", host.cable], check=False, capture_output=True)


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
