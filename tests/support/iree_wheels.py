"""Small wheels with the names and layout of IREE's, for tests of installing and finding them."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from typing import TYPE_CHECKING

from iree_gauntlet.toolchains.installed import find_site_packages, find_wheels_on

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["find_wheels_of", "write_release_wheels", "write_wheel"]

_FILES = {
    "compiler": ("iree/compiler/version.py", ["iree/compiler/_mlir_libs/iree-compile"]),
    "runtime": (
        "iree/_runtime_libs/version.py",
        ["iree/_runtime_libs/iree-run-module", "iree/_runtime_libs/iree-benchmark-module"],
    ),
}


def write_wheel(folder: Path, component: str, version: str, content: str = "") -> Path:
    """Write a wheel for any Python, with scripts as its tools; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"iree_base_{component}"
    version_file, tools = _FILES[component]
    commit = hashlib.sha1(version.encode(), usedforsecurity=False).hexdigest()
    files = {version_file: f'VERSION = "{version}"\nREVISIONS = {{"IREE": "{commit}"}}\n'}
    files |= {tool: f"#!/bin/sh\necho {tool} {version} {content}\n" for tool in tools}
    info = f"{name}-{version}.dist-info"
    extra = "Provides-Extra: onnx\n" if component == "compiler" else ""
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: iree-base-{component}\nVersion: {version}\n{extra}"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record_lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record_lines.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*record_lines, f"{info}/RECORD,,"]) + "\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (stat.S_IFREG | (0o755 if path in tools else 0o644)) << 16
            archive.writestr(entry, text)
    return wheel


def write_release_wheels(folder: Path, *versions: str) -> Path:
    """Write both wheels of several versions into a directory; return it."""
    for version in versions:
        for component in _FILES:
            write_wheel(folder, component, version)
    return folder


def find_wheels_of(python: Path) -> Toolchain:
    """Find the wheels in the virtual environment of an interpreter."""
    return find_wheels_on([str(folder) for folder in find_site_packages(python)], str(python))
