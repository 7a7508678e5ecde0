"""What archives of synthetic parameters are called, and the version of their making; known without a program."""

from __future__ import annotations

import hashlib
import re

# A new number disowns every archive that was made before: values of a seed, or the layout, have changed.
PARAMETERS_FORMAT = 1

_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def archive_name(scope: str) -> str:
    """A safe file name for the archive of a scope, different for each; it depends on the scope alone."""
    if _PLAIN_SCOPE.fullmatch(scope):
        return f"{scope}.irpa"
    digest = hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"scope.{digest}.irpa"  # no plain scope has a dot
