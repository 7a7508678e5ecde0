"""uv: making environments, installing into them, and asking for versions.

It is started as the user would start it, so its own settings apply: indexes, mirrors, credentials, proxies. Where
its variables name no index, pip's do.
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

from packaging.requirements import Requirement
from packaging.version import Version

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import Answer, run_short, show_last_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from packaging.specifiers import SpecifierSet


_ASK_SECONDS = 180.0
_TAIL_LINES = 12
_UNANSWERED = "uv cannot say what there is of {}"
_CHECK = "Check the network and uv's index settings."
# A path, and the system's number of what it refused.
_REFUSED = re.compile(r"`([^`\n]+)`: [^`\n]*\(os error (\d+)\)")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSALS = (*_FULL, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
# What pip's variables are called by uv.
_PIP_VARIABLES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages come from, in addition to the user's own settings, such as a page with links to wheels."""

    find_links: str = ""
    only_links: bool = False
    pre: bool = False

    def flags(self) -> list[str]:
        """As uv spells them."""
        links = ["--find-links", self.find_links] if self.find_links else []
        pre = ["--prerelease=allow"] if self.pre else []
        return [*links, *(["--no-index"] if self.only_links else []), *pre]


@dataclass(frozen=True, slots=True)
class Installer:
    """uv: by default the one that is installed with this toolkit."""

    program: str = ""

    def make_environment(self, folder: Path, held: int, news: Callable[[str], None]) -> None:
        """Make an empty virtual environment of this Python in a folder that does not exist.

        The lock whose descriptor is `held` is held for as long as the program lives.
        """
        argv = ["venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)]
        self._run(argv, held, news, f"cannot make a virtual environment in {folder}")

    def install(
        self, python: Path, requirements: Sequence[str], sources: Sources, held: int, news: Callable[[str], None]
    ) -> None:
        """Install into an environment that `make_environment` has made; errors hint at what the program said."""
        argv = ["pip", "install", "--python", str(python), *sources.flags(), *requirements]
        self._run(argv, held, news, f"uv cannot install {' '.join(requirements)}")

    def versions(self, distribution: str, wanted: SpecifierSet, sources: Sources) -> list[Version]:
        """Versions in a range that fit this Python, in order: at least the lowest and the highest; none for none."""
        # It answers with one version at a time, and with no list when there is none.
        found = [self._resolve(f"{distribution}{wanted}", sources, way) for way in ("lowest-direct", "highest")]
        return sorted({version for version in found if version is not None})

    def _resolve(self, requirement: str, sources: Sources, way: str) -> Version | None:
        argv = ["pip", "compile", "--color=never", "--no-header", "--no-annotate", "--no-deps"]
        argv += ["--python", sys.executable, "--resolution", way, *sources.flags(), "-"]
        try:
            answer = self._run_uv(argv, timeout=_ASK_SECONDS, stdin=requirement)
        except subprocess.TimeoutExpired as error:
            hint = "Check the network and its index settings."
            raise ToolchainError(f"uv did not answer within {_ASK_SECONDS:g} s", hint) from error
        if answer.exit_code != 0:
            if "No solution found" in answer.text and "network" not in answer.text.lower():
                return None
            raise _explain_failure(_UNANSWERED.format(requirement), answer, _CHECK)
        for line in answer.text.splitlines():
            if line.startswith(Requirement(requirement).name + "=="):
                return Version(line.partition("==")[2])
        raise _explain_failure(_UNANSWERED.format(requirement), answer, _CHECK)

    def _run(self, argv: Sequence[str], held: int, news: Callable[[str], None], what: str) -> None:
        # With the lock's descriptor: if we are killed, no other process begins again while this still writes.
        answer = self._run_uv(
            argv,
            timeout=math.inf,
            grace=5.0,
            held=(held,),
            news=lambda seconds: news(f"uv is at work ({seconds:.0f} s so far)"),
        )
        if answer.exit_code != 0:
            raise _explain_failure(what, answer)

    def _run_uv(self, argv: Sequence[str], **how: Any) -> Answer:
        ours = dict(os.environ)
        # It would break its lines there, and the paths and numbers in them are read.
        ours.pop("COLUMNS", None)
        # The indexes of pip's variables, where no variable of uv's own names any.
        if not any(ours.get(name) for name in (*_PIP_VARIABLES.values(), "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")):
            of_pip = {name: ours[pip].split() for pip, name in _PIP_VARIABLES.items() if ours.get(pip)}
            ours |= {name: ("," if name == "UV_FIND_LINKS" else " ").join(values) for name, values in of_pip.items()}
            # pip takes the best version of all indexes; uv by itself that of the first index that has any.
            if "UV_INDEX" in of_pip:
                ours.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
        try:
            from uv import find_uv_bin  # noqa: PLC0415 - large, and a machine without a network may lack it

            return run_short([self.program or find_uv_bin(), *argv], environment=ours, **how)
        except OSError as error:
            hint = f"Reinstall it: {sys.executable} -m pip install uv"
            raise ToolchainError(f"uv cannot be started: {error}", hint) from error


def _explain_failure(what: str, answer: Answer, hint: str = "") -> ToolchainError:
    """Why uv ended badly: what the system refused, and where, or else what it said."""
    refused = next((found for found in _REFUSED.finditer(answer.text) if int(found[2]) in _REFUSALS), None)
    how = f" (exit code {answer.exit_code})"
    if refused is not None:
        number = int(refused[2])
        how = f": {refused[1]}: {'disk full' if number in _FULL else os.strerror(number)}"
        hint = "Free disk space there" if number in _FULL else "Give the right to write there"
        hint += f", or name other folders: $UV_CACHE_DIR is uv's own, ${TOOLCHAINS_VARIABLE} that of IREEs."
    elif any(os.strerror(number) in answer.text for number in _FULL):
        how, hint = ": disk full", "Free disk space."
    return ToolchainError(f"{what}{how}", f"{hint}\n{show_last_words('uv', answer.text, _TAIL_LINES)}".strip())
