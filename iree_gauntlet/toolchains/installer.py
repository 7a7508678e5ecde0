"""uv, or pip where there is no uv: making environments, installing into them, and asking for versions.

Each is started as the user would start it, so its own settings apply: indexes, mirrors, credentials, proxies.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.process_group import end_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from packaging.specifiers import SpecifierSet

__all__ = ["Installer", "Sources", "find_installer"]

_ASK_SECONDS = 180.0
_POLL_SECONDS = 0.05
# After the first of these many seconds an install says that it goes on, and then every so often.
_NEWS_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_TAIL_LINES = 12
_PIP_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
# No package has it: pip answers with the versions that there are.
_NO_VERSION = "==0.0.0.dev0"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages come from, beside the user's own settings.

    Attributes:
        find_links: a page or folder with links to wheels; empty for none.
        only_links: look nowhere else.
        pre: take pre-releases.
    """

    find_links: str = ""
    only_links: bool = False
    pre: bool = False

    def flags(self, pre: str) -> list[str]:
        """As both programs spell them, but for pre-releases."""
        links = ["--find-links", self.find_links] if self.find_links else []
        return [*links, *(["--no-index"] if self.only_links else []), *([pre] if self.pre else [])]


@dataclass(frozen=True, slots=True)
class Installer:
    """uv or pip.

    Attributes:
        name: `uv` or `pip`.
        program: what starts it; for pip without a pip of our own, that of the new environment is used.
    """

    name: str
    program: tuple[str, ...]

    def make_environment(self, folder: Path, held: int, news: Callable[[str], None]) -> None:
        """Make an empty virtual environment of this Python.

        Args:
            folder: must not exist.
            held: descriptor of a lock that is held for as long as the program lives.
            news: is told in a line what goes on.

        Raises:
            ToolchainError: it cannot be made.
        """
        if self.name == "uv":
            argv = [*self.program, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
        else:
            without = ["--without-pip"] if self.program else []
            argv = [sys.executable, "-m", "venv", *without, str(folder)]
        self._run(argv, held, news, f"cannot make a virtual environment in {folder}")

    def install(
        self, python: Path, requirements: Sequence[str], sources: Sources, held: int, news: Callable[[str], None]
    ) -> None:
        """Install into an environment that `make_environment` has made.

        Raises:
            ToolchainError: it does not go; the hint is what the program said.
        """
        if self.name == "uv":
            argv = [*self.program, "pip", "install", "--python", str(python), *sources.flags("--prerelease=allow")]
        else:
            pip = [*self.program, "--python", str(python)] if self.program else [str(python), "-m", "pip"]
            quiet = ("--no-input", "--no-color", "--disable-pip-version-check", "--progress-bar=off")
            argv = [*pip, "install", *quiet, *sources.flags("--pre")]
        self._run([*argv, *requirements], held, news, f"{self.name} cannot install {' '.join(requirements)}")

    def versions(self, distribution: str, wanted: SpecifierSet, sources: Sources) -> list[Version]:
        """Versions in a range that fit this Python, in order: at least the lowest and the highest; none for none.

        Raises:
            ToolchainError: the index does not answer.
        """
        if self.name == "uv":
            # It answers with one version at a time, and with no list when there is none.
            found = [self._resolved(f"{distribution}{wanted}", sources, way) for way in ("lowest-direct", "highest")]
            return sorted({version for version in found if version is not None})
        pip = self.program or (sys.executable, "-m", "pip")
        argv = [*pip, "install", "--dry-run", "--no-deps", "--no-input", "--disable-pip-version-check"]
        code, output = _asked([*argv, *sources.flags("--pre"), f"{distribution}{_NO_VERSION}"])
        listed = _PIP_VERSIONS.search(output)
        if listed is None or "WARNING: Retrying" in output:
            raise self._unanswered(distribution, code, output)
        versions = []
        for text in listed[1].split(","):
            with suppress(InvalidVersion):  # `none`
                versions.append(Version(text.strip()))
        return sorted(wanted.filter(versions, prereleases=sources.pre or None))

    def _resolved(self, requirement: str, sources: Sources, way: str) -> Version | None:
        argv = [*self.program, "pip", "compile", "--color=never", "--no-header", "--no-annotate", "--no-deps"]
        argv += ["--python", sys.executable, "--resolution", way, *sources.flags("--prerelease=allow"), "-"]
        code, output = _asked(argv, requirement)
        if code != 0:
            if "No solution found" in output and "network" not in output.lower():
                return None
            raise self._unanswered(requirement, code, output)
        for line in output.splitlines():
            if line.startswith(Requirement(requirement).name + "=="):
                return Version(line.partition("==")[2])
        raise self._unanswered(requirement, code, output)

    def _unanswered(self, requirement: str, code: int, output: str) -> ToolchainError:
        return ToolchainError(
            f"{self.name} cannot say what there is of {requirement} (exit code {code})",
            f"Check the network and {self.name}'s index settings.\n{_tail(self.name, output)}",
        )

    def _run(self, argv: Sequence[str], held: int, news: Callable[[str], None], what: str) -> None:
        started = time.monotonic()
        next_news = _NEWS_SECONDS
        with tempfile.TemporaryFile() as output:
            try:
                # With the lock's descriptor: should we be killed, nobody begins anew while this still writes.
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(held,),
                )
            except OSError as error:
                raise ToolchainError(f"{argv[0]} cannot be started: {error.strerror}", "Reinstall it.") from error
            try:
                while process.poll() is None:
                    time.sleep(_POLL_SECONDS)
                    seconds = time.monotonic() - started
                    if seconds > next_news:
                        news(f"{self.name} is at work ({seconds:.0f} s so far)")
                        next_news += _NEWS_SECONDS
            finally:
                if process.poll() is None:
                    end_group(process, _GRACE_SECONDS)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if process.returncode != 0:
            if "No space left on device" in text or "Disk quota exceeded" in text:
                raise ToolchainError(f"{what}: disk full", f"Free disk space.\n{_tail(self.name, text)}")
            raise ToolchainError(f"{what} (exit code {process.returncode})", _tail(self.name, text))


def find_installer(wanted: str = "") -> Installer:
    """What installs: uv where it is on the PATH or beside this Python, else pip.

    Args:
        wanted: `uv` or `pip` for that one alone.

    Raises:
        ToolchainError: uv is wanted and is not there.
    """
    if wanted != "pip":
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv:
            return Installer("uv", (uv,))
        if wanted == "uv":
            raise ToolchainError(
                "uv is wanted, and is neither on the PATH nor beside this Python",
                'Install it, or write installer = "pip" into gauntlet.toml: [toolchains].',
            )
    own = (sys.executable, "-m", "pip") if importlib.util.find_spec("pip") else ()
    return Installer("pip", own)


def _asked(argv: Sequence[str], stdin: str = "") -> tuple[int, str]:
    """Exit code and all that was printed."""
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(
            f"{argv[0]} did not answer within {_ASK_SECONDS:g} s", "Check the network and its index settings."
        ) from error
    except OSError as error:
        raise ToolchainError(f"{argv[0]} cannot be started: {error.strerror}", "Reinstall it.") from error
    return done.returncode, done.stdout


def _tail(name: str, output: str) -> str:
    lines = ["".join(letter for letter in line if letter.isprintable()) for line in output.splitlines()]
    # pip warns of every index that lacks the package: that is no cause.
    said = [line for line in lines if line.strip() and "is ignored: it is neither" not in line]
    return "\n  ".join((f"{name} said:", *(f"  {line}" for line in said[-_TAIL_LINES:])))
