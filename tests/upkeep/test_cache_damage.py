"""One flipped bit in any file of a cache: verdicts stay the same, and `cache.verify` names the file.

Real runs made the cache: of a model with seeded inputs, an expected output from a wheel and a splat archive; of a suite
of ONNX models; of a model with generated parameters; of operators, compiled together and alone, one of them rejected.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import pytest

from iree_gauntlet.artifacts import pypi
from iree_gauntlet.artifacts.seeded import parse_seeded
from tests.support.artifact_server import make_responder, run_server
from tests.support.onnx_suite import TEST_FILE, ZOO_URL, make_test_file, write_config, write_models
from tests.support.operator_suite import OperatorSuite
from tests.support.spec_trees import write_tree
from tests.support.torch_project import TorchProject
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.command_line import CommandResult

pytestmark = pytest.mark.iree

# Of each kind that a verdict depends on, where a bit is flipped: in shares of the file. One is enough where the whole
# content is held against a hash that is kept elsewhere.
EVERYWHERE = (0.0, 0.5, 1.0)
KINDS = {
    "artifacts/https": (0.5,),
    "artifacts/pypi": (0.0,),
    "artifacts/random": EVERYWHERE,
    # In a value, and in what makes it JSON.
    "modules/entry.json": (0.5, 1.0),
    "modules/code": (0.5,),
    "modules/module": (0.5,),
    "modules/module0": (0.0,),
    "modules/parameters": (1.0,),
    "modules/program": (1.0,),
    "modules/reference": (0.5,),
    "modules/splat": (1.0,),
    "modules/statistics": (0.0,),
    "toolchains": EVERYWHERE,
    "verified": EVERYWHERE,
    # At its end are lengths of comments.
    "wheels": (0.0, 0.5),
}
# What `cache.verify` has nothing to say of: each has its own checksum, which is looked at whenever it is read.
CHECKED_WHENEVER_READ = {"toolchains", "verified"}
EXEMPT = {
    "leases": "which process uses what: it is read while the process lives",
    "locks": "empty",
    "modules/by-name": "explains why a module is not in the cache; no verdict depends on it",
    "registry.lock.txt": "what all others are held against: a test of its own",
}

INPUTS = (
    "random://normal/4xf32?seed=1",
    "random://uniform/4xf32?seed=1",
    "random://integers/4xi32?seed=1&low=0&high=9",
    "random://formula/4xf32?seed=1",
    "random://text/1x1x32x128xf32?seed=1",
    "random://zeros/4xbf16",
)
# It gives back its inputs.
PROGRAM = """func.func @abs(
    %0: tensor<4xf32>, %1: tensor<4xf32>, %2: tensor<4xi32>, %3: tensor<4xf32>, %4: tensor<1x1x32x128xf32>,
    %5: tensor<4xbf16>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>, tensor<1x1x32x128xf32>) {
  return %0, %1, %2, %3, %4
      : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>, tensor<1x1x32x128xf32>
}
"""


@dataclass
class Kept:
    """A project whose cache is full, and which run has made each of its files."""

    project: Project
    runs: dict[str, tuple[str, ...]]
    verdicts: dict[str, dict[str, str]] = field(default_factory=dict)
    made_by: dict[Path, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.project.folder / "cache"

    def files(self, kind: str = "") -> list[Path]:
        found = [path for path in sorted(self.cache.rglob("*")) if path.is_file()]
        return [path for path in found if not kind or kind_of(path.relative_to(self.cache)) == kind]

    def run(self, name: str) -> CommandResult:
        return self.project.gauntlet("run", "--stages", "threshold", *self.runs[name])

    def seen(self) -> dict[str, str]:
        results = self.project.journal.results
        # Which operators are compiled together depends on what is in the cache.
        return {step: str(result.verdict) for step, result in results.items() if not step.startswith("batch/")}

    def verify(self) -> CommandResult:
        return self.project.gauntlet("cache.verify", "--check-only", "--offline")


def kind_of(path: Path) -> str:
    """What a file of a cache is, by its path in it: what stands for a name, a key or a hash left out."""
    top, *rest = path.parts
    if top == "modules":
        return f"{top}/{rest[0] if len(rest) == 2 else rest[2]}"
    return f"{top}/{rest[0]}" if top == "artifacts" else top


def name_of(kept: Kept, path: Path) -> str:
    """What `cache.verify` calls a file, or the entry that it is in."""
    relative = path.relative_to(kept.cache)
    if relative.parts[0] != "modules":
        return "/".join(relative.parts[1:]) if relative.parts[0] == "artifacts" else path.name
    entry = path.with_name("entry.json")
    try:
        return str(json.loads(entry.read_bytes())["entry"]["name"])
    except (ValueError, KeyError):
        return relative.parts[2][:12]


def flip(path: Path, share: float) -> None:
    """Flips a bit; the file's time tells it, and nothing else."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[round(share * (len(data) - 1))] ^= 4
    # In place: the other names of the file, in folders of runs, are flipped with it, as on a disk.
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    project = Project(tmp_path_factory.mktemp("kept") / "project", cache="empty")
    folder = project.folder
    add_seeded(project)
    write_models(folder / "zoo")
    write_tree(folder / "onnx_models", {TEST_FILE: make_test_file('"mnist/model/two.onnx"')})
    write_config(folder / "onnx_models")
    TorchProject(folder, "torch").fill()
    operators = OperatorSuite(project)
    for name in ("abs", "same"):
        operators.add_unary(name)
    operators.add_misspelt("misspelt")
    kept = Kept(
        project,
        {
            "seeded": (),
            "onnx": ("--spec-dir", "onnx_models"),
            "torch": ("--spec-dir", "torch", "--external-file-directory", "files"),
            "operators": ("--spec-dir", "ops", "--batch", "2", "--submodel", "[!m]*"),
            "refused": ("--spec-dir", "ops", "--submodel", "misspelt"),
        },
    )
    # In place of pip and its index.
    copying = f'while [ "$1" != --dest ]; do shift; done; cp "{folder}"/index/*.whl "$2"'
    with (
        run_server() as server,
        mock.patch.object(pypi, "find_pip_command", return_value=("/bin/sh", "-c", copying, "pip")),
    ):
        for path in (folder / "zoo").rglob("*.onnx"):
            server.url(f"/{path.relative_to(folder / 'zoo')}", make_responder(path.read_bytes()))
        mirror = f'[[mirrors]]\nprefix = "{ZOO_URL}"\nto = ["{server.base}/"]\nonly = true\n'
        (folder / "gauntlet.toml").write_text(mirror)
        for name in kept.runs:
            done = kept.run(name)
            assert done.code == (1 if name == "refused" else 0), done.text
            kept.verdicts[name] = kept.seen()
            for path in kept.files():
                kept.made_by.setdefault(path, name)
        yield kept


def add_seeded(project: Project) -> None:
    """Makes `toy/abs` a model that gives back seeded inputs of each kind; one expected output comes out of a wheel."""
    (project.regressions / "abs.mlir").write_text(PROGRAM)
    outputs = []
    for number, url in enumerate(INPUTS[:-1]):
        np.save(project.regressions / f"output_{number}.npy", parse_seeded(url).generate())
        outputs.append({"source": f"output_{number}.npy"})
    outputs[0] = {"source": "pypi://toy-model==1.0/toy/output.npy"}
    (project.folder / "index").mkdir()
    with zipfile.ZipFile(project.folder / "index" / "toy_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(project.regressions / "output_0.npy", "toy/output.npy")
    project.regression("abs", inputs=[{"source": url} for url in INPUTS], outputs=outputs)


def test_every_kind_of_file_is_known(kept: Kept) -> None:
    found = {kind_of(path.relative_to(kept.cache)) for path in kept.files()}
    assert found == {*KINDS, *EXEMPT}, "a new kind of file: say here what a flipped bit in it does"


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_changes_no_verdict(kept: Kept, kind: str) -> None:
    for number, share in enumerate(KINDS[kind]):
        # By their names, which are the same on each machine: their keys depend on its CPU.
        files = sorted(kept.files(kind), key=lambda file: name_of(kept, file))
        path = files[number % len(files)]
        by, name = kept.made_by[path], name_of(kept, path)
        flip(path, share)
        if kind not in CHECKED_WHENEVER_READ:
            told = kept.verify()
            assert told.code == 3, told.text
            named = [line for line in told.out.splitlines() if line.startswith("damaged: ")]
            assert len(named) == 1, told.out
            assert name in named[0] or path.parent.name[:12] in named[0]
        if kind == "wheels":
            # It is read again when what came out of it is missing.
            shutil.rmtree(kept.cache / "artifacts" / "pypi")
        done = kept.run(by)
        assert kept.seen() == kept.verdicts[by], done.text
        if kind.startswith("modules/"):
            assert f"{name}: its cache entry is damaged: " in done.text
        sound = kept.verify()
        assert sound.code == 0, sound.text
        assert "without a record" not in sound.out


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("artifacts/")])
def test_nor_does_one_in_a_cache_that_was_moved(kept: Kept, kind: str) -> None:
    for number, share in enumerate(KINDS[kind]):
        # By their names, which are the same on each machine: their keys depend on its CPU.
        files = sorted(kept.files(kind), key=lambda file: name_of(kept, file))
        path = files[number % len(files)]
        content = path.read_bytes()
        flip(path, share)
        # Its stamps have the paths that files had before.
        shutil.rmtree(kept.cache / "verified")
        done = kept.run(kept.made_by[path])
        assert kept.seen() == kept.verdicts[kept.made_by[path]], done.text
        assert f"{path} has unexpected content (sha256 " in done.text
        assert path.read_bytes() == content


def test_a_flipped_bit_in_the_hashes_themselves_is_told(kept: Kept) -> None:
    file = kept.cache / "registry.lock.txt"
    text = file.read_text()
    place = text.index("sha256:", text.index("pypi/")) + len("sha256:")
    file.write_text(text[:place] + f"{int(text[place], 16) ^ 4:x}" + text[place + 1 :])
    try:
        done = kept.run("seeded")
        assert done.code == 3
        assert "registry.lock.txt requires" in done.text
    finally:
        file.write_text(text)
