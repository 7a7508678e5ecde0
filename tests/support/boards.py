"""A board on this machine: an sshd of one's own on loopback, with its keys and a home in a temporary folder."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRIVILEGE_FOLDER = Path("/run/sshd")


@dataclass(frozen=True)
class LoopbackBoard:
    """A running sshd; `words` are those of a runner."""

    folder: Path
    words: tuple[str, ...]
    server: subprocess.Popen[bytes]

    @property
    def cache(self) -> Path:
        """The board's cache, which is in a home of its own."""
        return self.folder / "home" / ".cache" / "iree-gauntlet-board"

    @property
    def cached_names(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("files/*/*"))

    @property
    def runs(self) -> list[Path]:
        """The folders of runs that are there now."""
        return list(self.cache.glob("runs/*"))

    def list_sessions(self) -> list[int]:
        """The processes of sshd that serve connections."""
        pid = self.server.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def run_board(folder: Path) -> Iterator[LoopbackBoard]:
    """Run a board; skip the test if this machine has no sshd."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if sshd is None or not Path("/proc/self/stat").exists():
        pytest.skip("needs sshd and /proc: apt install openssh-server")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        pytest.skip("ssh needs a user who has a name: an entry in /etc/passwd")
    if os.getuid() == 0:
        _PRIVILEGE_FOLDER.mkdir(exist_ok=True)
    (folder / "home").mkdir()
    for name in ("host", "user"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host_key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nMaxSessions 50\nSetEnv HOME={folder}/home\n"
    )
    log = (folder / "sshd.log").open("wb")
    with log, subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "config")], stdout=log, stderr=log) as server:
        try:
            wait_until(lambda: _answers(port) or server.poll() is not None)
            assert server.poll() is None, (folder / "sshd.log").read_text()
            yield LoopbackBoard(folder, _make_words(folder, port), server)
        finally:
            server.kill()


def _make_words(folder: Path, port: int) -> tuple[str, ...]:
    options = {
        "UserKnownHostsFile": str(folder / "known"),
        "GlobalKnownHostsFile": "/dev/null",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
    }
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    key = str(folder / "user")
    return ("ssh", "-F", "/dev/null", "-p", str(port), "-i", key, *flags, f"{getpass.getuser()}@127.0.0.1")


def _answers(port: int) -> bool:
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
