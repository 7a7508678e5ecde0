"""uv: making environments, installing into them, and listing versions.

uv is started as the user would start it, so its own settings apply: indexes, mirrors, credentials, proxies. If uv's
variables name no index, pip's variables are used.
"""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import ProcessOutput, format_last_lines, run_short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from packaging.specifiers import SpecifierSet


_RESOLVE_SECONDS = 180.0
_TAIL_LINES = 12
_WHEEL_PLATFORM = re.compile(r"(manylinux_\d+_\d+)_(\w+)")
_RESOLVE_FAILED_MESSAGE = "uv cannot list the versions of {}"
_NETWORK_HINT = "Check the network and uv's index settings."
# An error message of uv with a path and the number of the operating system's error.
_OS_ERROR = re.compile(r"`([^`\n]+)`: [^`\n]*\(os error (\d+)\)")
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_EXPLAINED_ERRNOS = (*_DISK_FULL_ERRNOS, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
# uv's names for pip's variables.
_PIP_VARIABLES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of packages, in addition to the user's own settings, such as a page with links to wheels.

    Attributes:
        platform: the platform of wheels for another architecture, `manylinux_2_28_aarch64`; empty for this machine's.
    """

    find_links: str = ""
    only_links: bool = False
    pre: bool = False
    platform: str = ""

    def make_flags(self) -> list[str]:
        """Return the sources as uv's flags."""
        links = ["--find-links", self.find_links] if self.find_links else []
        prerelease = ["--prerelease=allow"] if self.pre else []
        match = _WHEEL_PLATFORM.fullmatch(self.platform)
        # What wheels of another architecture require is not needed, since no Python runs there.
        other = ["--no-deps", "--only-binary=:all:", f"--python-platform={match[2]}-{match[1]}"] if match else []
        return [*links, *(["--no-index"] if self.only_links else []), *prerelease, *other]


@dataclass(frozen=True, slots=True)
class Installer:
    """uv: by default the one that is installed with this toolkit."""

    program: str = ""

    def make_environment(self, folder: Path, lock_fd: int, news: Callable[[str], None]) -> None:
        """Make an empty virtual environment of this Python in a folder that does not exist.

        The program inherits `lock_fd`, so the lock is held while the program runs.
        """
        argv = ["venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
        self._run(argv, lock_fd, news, f"cannot make a virtual environment in {folder}")

    def install(
        self, python: Path, requirements: Sequence[str], sources: Sources, lock_fd: int, news: Callable[[str], None]
    ) -> None:
        """Install into an environment that `make_environment` has made; errors end with the program's output.

        Wheels of another architecture, which are never imported, are checked by the hashes that the index gives.
        """
        message, common = (
            f"uv cannot install {' '.join(requirements)}",
            ("--python", str(python), *sources.make_flags()),
        )
        packages: Sequence[str] = requirements
        if sources.platform:
            message += f" for {sources.platform}"
            names, pins = (python.parents[1] / f"requirements.{suffix}" for suffix in ("in", "txt"))
            names.write_text("\n".join(requirements), encoding="utf-8")
            compiling = ("pip", "compile", "--quiet", "--generate-hashes", str(names), "-o", str(pins))
            self._run((*compiling, *common), lock_fd, news, message)
            packages = ("-r", str(pins))
        self._run(("pip", "install", *common, *packages), lock_fd, news, message)

    def list_versions(self, distribution: str, specifiers: SpecifierSet, sources: Sources) -> list[Version]:
        """Return the lowest and the highest version in a range that fit this Python; empty if there are none."""
        # uv resolves to one version at a time.
        ends = [self._resolve(f"{distribution}{specifiers}", sources, mode) for mode in ("lowest-direct", "highest")]
        return sorted({version for version in ends if version is not None})

    def _resolve(self, requirement: str, sources: Sources, mode: str) -> Version | None:
        argv = ["pip", "compile", "--color=never", "--no-header", "--no-annotate", "--no-deps"]
        argv += ["--python", sys.executable, "--resolution", mode, *sources.make_flags(), "-"]
        try:
            result = self._run_uv(argv, timeout=_RESOLVE_SECONDS, stdin=requirement)
        except subprocess.TimeoutExpired as error:
            hint = "Check the network and its index settings."
            raise ToolchainError(f"uv did not answer within {_RESOLVE_SECONDS:g} s", hint) from error
        if result.exit_code != 0:
            if "No solution found" in result.text and "network" not in result.text.lower():
                return None
            raise _make_uv_error(_RESOLVE_FAILED_MESSAGE.format(requirement), result, _NETWORK_HINT)
        from packaging.requirements import Requirement  # noqa: PLC0415 - its parser is only for this

        for line in result.text.splitlines():
            if line.startswith(Requirement(requirement).name + "=="):
                return Version(line.partition("==")[2])
        raise _make_uv_error(_RESOLVE_FAILED_MESSAGE.format(requirement), result, _NETWORK_HINT)

    def _run(self, argv: Sequence[str], lock_fd: int, news: Callable[[str], None], message: str) -> None:
        # The program inherits the lock's descriptor: if this process is killed, the lock is held as long as uv still
        # writes.
        result = self._run_uv(
            argv,
            timeout=math.inf,
            grace=5.0,
            inherited_fds=(lock_fd,),
            news=lambda seconds: news(f"uv is running ({seconds:.0f} s so far)"),
        )
        if result.exit_code != 0:
            raise _make_uv_error(message, result)

    def _run_uv(self, argv: Sequence[str], **options: Any) -> ProcessOutput:
        env = dict(os.environ)
        # With COLUMNS, uv would wrap its lines, which are parsed for paths and numbers.
        env.pop("COLUMNS", None)
        # pip's indexes are used if none of uv's variables names an index.
        if not any(env.get(name) for name in (*_PIP_VARIABLES.values(), "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")):
            pip_values = {name: env[pip].split() for pip, name in _PIP_VARIABLES.items() if env.get(pip)}
            env |= {name: ("," if name == "UV_FIND_LINKS" else " ").join(values) for name, values in pip_values.items()}
            # pip takes the best version of all indexes. uv's default is the first index that has any version.
            if "UV_INDEX" in pip_values:
                env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
        try:
            from uv import find_uv_bin  # noqa: PLC0415 - large, and a machine without a network may lack it

            return run_short([self.program or find_uv_bin(), *argv], environment=env, **options)
        except OSError as error:
            hint = f"Reinstall it: {sys.executable} -m pip install uv"
            raise ToolchainError(f"uv cannot be started: {error}", hint) from error


def _make_uv_error(message: str, result: ProcessOutput, hint: str = "") -> ToolchainError:
    """Make the error of a failed uv run from the operating system's error and its path, or else from uv's output."""
    os_error = next((match for match in _OS_ERROR.finditer(result.text) if int(match[2]) in _EXPLAINED_ERRNOS), None)
    cause = f" (exit code {result.exit_code})"
    if os_error is not None:
        number = int(os_error[2])
        cause = f": {os_error[1]}: {'disk full' if number in _DISK_FULL_ERRNOS else os.strerror(number)}"
        hint = "Free disk space there" if number in _DISK_FULL_ERRNOS else "Grant write permission there"
        hint += f", or name other folders: uv's with $UV_CACHE_DIR, that of IREEs with ${TOOLCHAINS_VARIABLE}."
    elif any(os.strerror(number) in result.text for number in _DISK_FULL_ERRNOS):
        cause, hint = ": disk full", "Free disk space."
    return ToolchainError(f"{message}{cause}", f"{hint}\n{format_last_lines('uv', result.text, _TAIL_LINES)}".strip())
