"""Wheels through pip, so that its index settings (mirrors, credentials, proxies, find-links) are used.

Which pip: the one of this Python (nox and venv environments have it); else a `pip` on the PATH, or pip run
by `uv tool run`, each with `--python` to work for this Python (uv's environments have no pip, and uv
itself cannot download). Requires-Python is ignored: only data is taken out of a wheel, nothing is run.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from uv import find_uv_bin

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.system.short_process import run_short

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["download_wheel", "pip_command"]

_GRACE_SECONDS = 3.0
_TAIL_LINES = 15
_VERSIONS_SHOWN = 12

_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NETWORK = re.compile(
    r"connection broken|NewConnectionError|Could not fetch URL|Max retries exceeded|timed out|SSLError"
    r"|Temporary failure in name resolution|Name or service not known|Connection (?:refused|reset)"
    r"|ProxyError|HTTP error \d|IncompleteRead",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")


def pip_command() -> tuple[str, ...]:
    """Argument vector of a pip that works for this Python."""
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if pip := shutil.which("pip"):
        return (pip, "--python", sys.executable)
    return (find_uv_bin(), "tool", "run", "pip", "--python", sys.executable)


def download_wheel(url: str, distribution: str, version: str, folder: Path, *, timeout: float) -> Path:
    """Download one wheel, without its dependencies, into a folder that has no wheel yet.

    Args:
        url: the artifact that it is for, for messages.
        distribution: its name.
        version: its exact version.
        folder: where it goes; exists.
        timeout: seconds for all of pip's work, its own retries included.

    Raises:
        ArtifactError: if there is no such wheel, or pip fails or takes too long.
    """
    requirement = f"{distribution}=={version}"
    command = [
        *pip_command(),
        "download",
        *("--no-deps", "--only-binary=:all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--disable-pip-version-check", "--progress-bar=off"),
        *("--dest", str(folder), requirement),
    ]
    try:
        answer = run_short(command, timeout=timeout, grace=_GRACE_SECONDS)
    except subprocess.TimeoutExpired as error:
        what = f"pip took longer than {timeout:g} s for {requirement}, needed for {url}"
        raise ArtifactError(url, what, f"Check the network and pip's index settings.\n{_tail(error.output)}") from None
    if answer.exit_code != 0:
        raise _explained(url, requirement, answer.text)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        what = f"pip left {len(wheels)} wheels instead of one for {requirement} ({names}), needed for {url}"
        raise ArtifactError(url, what, _tail(answer.text))
    return wheels[0]


def _explained(url: str, requirement: str, output: str) -> ArtifactError:
    tail = _tail(output)
    if _NO_SPACE.search(output):
        what = f"disk full while pip downloaded {requirement}, needed for {url}"
        return ArtifactError(url, what, f"Free disk space in the cache and in {tempfile.gettempdir()}.\n{tail}")
    match = _VERSIONS.search(output)
    versions = [version.strip() for version in match[1].split(",")] if match else []
    if versions and versions != ["none"]:
        shown = ", ".join(versions[-_VERSIONS_SHOWN:])
        left_out = len(versions) - _VERSIONS_SHOWN
        more = f" ({left_out} older ones left out)" if left_out > 0 else ""
        what = f"no wheel of {requirement} for this Python and platform, needed for {url}"
        return ArtifactError(url, what, f"pip found these versions: {shown}{more}")
    if _NETWORK.search(output):
        what = f"network failure while pip looked for {requirement}, needed for {url}"
        return ArtifactError(url, what, f"Check the network and pip's index settings, and run again.\n{tail}")
    if versions:
        what = f"no index that pip knows has a wheel of {requirement.partition('==')[0]}, needed for {url}"
        return ArtifactError(url, what, f"Check the spelling, pip's index settings and the network.\n{tail}")
    return ArtifactError(url, f"pip failed to download {requirement}, needed for {url}", tail)


def _tail(output: str) -> str:
    lines = ["".join(character for character in line if character.isprintable()) for line in output.splitlines()]
    return "\n  ".join(("pip said:", *(f"  {line}" for line in lines[-_TAIL_LINES:] if line.strip())))
