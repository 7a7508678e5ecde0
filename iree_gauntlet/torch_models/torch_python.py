"""The Python that builds models: the one that has torch, which need not be the toolkit's own."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.torch_models.declarations import INSTALL_HINT

if TYPE_CHECKING:
    from collections.abc import Mapping


_PROCESS = Path(__file__).with_name("torch_process.py")
# Nothing is imported: torch takes seconds.
_PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
found = {}
for name in ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
places = dict.fromkeys(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
print(json.dumps({"python": list(sys.version_info[:3]), "versions": found, "paths": list(places)}))
"""


@dataclass(frozen=True, slots=True)
class TorchPython:
    """A Python that has torch.

    Attributes:
        paths: its folders of packages, for a Python of the same version that lacks torch.
    """

    path: str
    python: str
    versions: Mapping[str, str]
    paths: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Changes where what it builds may change."""
        return " ".join(
            [f"python {self.python}", *(f"{name} {found}" for name, found in sorted(self.versions.items()))]
        )


def running(python: str, module: str) -> tuple[str, ...]:
    """The words that run a module of this package in a Python (see `torch_process.py`), but for its plan."""
    return (python, "-B", str(_PROCESS), module)


def find_torch_python(named: str) -> TorchPython:
    """The Python of `--torch-python`, or the toolkit's own where it has torch.

    `named`: the option; empty where it is not given.

    Raises:
        UsageError: what is named is no Python.
        GauntletError: it has no torch, or lacks what exports with it.
    """
    path = shutil.which(named) if named else sys.executable
    if path is None:
        raise UsageError(
            f"--torch_python {named}: there is no such program", "Give the path of a Python that has torch."
        )
    if not named and importlib.util.find_spec("torch") is None:
        raise GauntletError(f"models are built with torch, and {path} has none", f"{INSTALL_HINT} with --torch_python.")
    answer = ask([path, "-c", _PROBE], timeout=60.0)
    try:
        found = json.loads(answer.stdout)
        python = ".".join(map(str, found["python"]))
        result = TorchPython(path, python, dict(found["versions"]), tuple(found["paths"]))
    except (ValueError, KeyError, TypeError):
        said = next(iter(answer.stderr.strip().splitlines()), f"exit code {answer.exit_code}")
        raise UsageError(f"--torch_python {named}: no Python answers there: {said[:80]}") from None
    missing = [name for name in ("torch", "onnxscript", "onnx") if name not in result.versions]
    if missing:
        raise GauntletError(f"{path} lacks {', '.join(missing)}, which models are built with", f"{INSTALL_HINT}.")
    return result
