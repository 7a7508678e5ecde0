"""Small wheels with the names and layout of IREE's, for tests of what installs and finds them."""

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

__all__ = ["found_in", "release_wheels", "write_wheel"]

_FILES = {
    "compiler": ("iree/compiler/version.py", ["iree/compiler/_mlir_libs/iree-compile"]),
    "runtime": (
        "iree/_runtime_libs/version.py",
        ["iree/_runtime_libs/iree-run-module", "iree/_runtime_libs/iree-benchmark-module"],
    ),
}


def write_wheel(folder: Path, noun: str, version: str, content: str = "") -> Path:
    """A wheel for any Python, with tools that are scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"iree_base_{noun}"
    version_file, tools = _FILES[noun]
    commit = hashlib.sha1(version.encode(), usedforsecurity=False).hexdigest()
    files = {version_file: f'VERSION = "{version}"\nREVISIONS = {{"IREE": "{commit}"}}\n'}
    files |= {tool: f"#!/bin/sh\necho {tool} {version} {content}\n" for tool in tools}
    info = f"{name}-{version}.dist-info"
    extra = "Provides-Extra: onnx\n" if noun == "compiler" else ""
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: iree-base-{noun}\nVersion: {version}\n{extra}"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (stat.S_IFREG | (0o755 if path in tools else 0o644)) << 16
            archive.writestr(entry, text)
    return wheel


def release_wheels(folder: Path, *versions: str) -> Path:
    """Both wheels of several versions."""
    for version in versions:
        for noun in _FILES:
            write_wheel(folder, noun, version)
    return folder


def found_in(python: Path) -> Toolchain:
    """The wheels in the virtual environment of an interpreter."""
    return find_wheels_on([str(folder) for folder in find_site_packages(python)], str(python))
