"""What pip installs of the toolkit on another machine, by where it was installed from on this one (PEP 610)."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit, urlunsplit

from iree_gauntlet import __version__
from iree_gauntlet.system.short_process import run_short

_NAME = "iree-gauntlet[iree]"
_GIT_SECONDS = 10.0


def find_toolkit_source() -> str:
    """What pip installs: a release, or `NAME @ URL`, of a `file:` where no other machine is known to have it."""
    try:
        kept = json.loads(distribution("iree-gauntlet").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        kept = {}
    match kept:
        case {"url": url, "vcs_info": {"vcs": vcs, "commit_id": commit}}:
            return f"{_NAME} @ {vcs}+{_without_secrets(url)}@{commit}"
        case {"url": url, "dir_info": _}:
            return f"{_NAME} @ {_find_remote(unquote(urlsplit(url).path)) or url}"
        case {"url": url}:
            return f"{_NAME} @ {_without_secrets(url)}"
    return f"{_NAME}=={__version__}"


def _find_remote(checkout: str) -> str:
    """Where a checkout comes from, as pip takes it; empty where that is no URL, or it is no checkout."""
    try:
        answer = run_short(("git", "-C", checkout, "remote", "get-url", "origin"), timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    url = answer.stdout.strip() if answer.exit_code == 0 else ""
    return f"git+{_without_secrets(url)}" if url.startswith(("https://", "ssh://")) else ""


def _without_secrets(url: str) -> str:
    """A URL without a password or a token, which a clone in CI may have in it."""
    parts = urlsplit(url)
    user = "git@" if parts.scheme == "ssh" and parts.username == "git" else ""
    return urlunsplit(parts._replace(netloc=user + parts.netloc.rpartition("@")[2]))
