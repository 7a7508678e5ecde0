"""A download of a published file, with a check; bundles contain this script to fetch files that are too large for them.

    python3 fetch_file.py FILE URL SHA256

The script needs only the standard library. Its exit code is 1 if the file cannot be fetched.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request


def fetch(name: str, url: str, sha256: str) -> str:
    """Fetch a file, unless it exists; return an error message, or an empty string."""
    if os.path.exists(name):  # noqa: PTH110 - as short as it can be
        return ""
    digest = hashlib.sha256()
    try:
        # The URL is from the bundle, and the file's hash is checked below.
        with urllib.request.urlopen(url) as source, open(f"{name}.part", "wb") as file:  # noqa: S310, PTH123
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
    except (OSError, ValueError) as error:
        return f"{url} cannot be fetched: {error}; put it in this folder as {name}"
    if digest.hexdigest() != sha256:
        return f"{url} has changed: its SHA-256 is {digest.hexdigest()}, expected {sha256}"
    os.replace(f"{name}.part", name)  # noqa: PTH105 - as short as it can be
    return ""


if __name__ == "__main__":
    sys.exit(fetch(*sys.argv[1:]) or 0)
