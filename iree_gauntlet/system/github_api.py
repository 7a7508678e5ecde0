"""The parts of GitHub's REST API that several rooms use: the token, the headers, the description of an artifact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Mapping


# The token is in the first of these variables that is set.
TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
PAGE_SIZE = 100
_TOKEN = re.compile(r"[!-~]+")
_SHA256_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class CiArtifact(Recorded):
    """GitHub's description of an artifact of a CI run."""

    id: int
    name: str
    size_in_bytes: int = 0
    expired: bool = False
    digest: str = ""
    created_at: str = ""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the archive; empty if GitHub does not report it."""
        match = _SHA256_DIGEST.fullmatch(self.digest)
        return match[1] if match else ""


def find_github_token(environ: Mapping[str, str]) -> str:
    """Return the user's token; empty if there is none."""
    name = next((name for name in TOKEN_VARIABLES if environ.get(name)), "")
    token = environ.get(name, "").strip()
    if token and not _TOKEN.fullmatch(token):
        # No message may contain the token, and libraries print headers that they reject.
        raise UsageError(f"${name} is not a token: it contains blanks or other characters", "Copy the token again.")
    return token


def make_github_headers(token: str) -> dict[str, str]:
    """Return the headers of a request; requests drops the token if GitHub redirects to another host."""
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    return headers | ({"Authorization": f"Bearer {token}"} if token else {})
