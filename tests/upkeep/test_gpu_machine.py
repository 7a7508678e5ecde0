"""`tools/gpu_machine.py`: the packed files for a machine without a network, and the parts that run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_machine
import pytest
from gpu_machine import CHECKOUT, Parts

from tests.support.processes import find_processes, wait_until


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = CHECKOUT / "tools" / "gpu_machine.py"
    return subprocess.run(
        [sys.executable, program, "run", *map(str, words)], check=False, capture_output=True, text=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose environment has a Python that runs nothing."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    (tmp_path / gpu_machine.MODELS).write_text(json.dumps(["dtln/*", "magika/standard"]))
    return tmp_path


def test_a_package_that_the_machine_has_is_left_out_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("big/__init__.py", "big-1.0.dist-info/RECORD", "bin/big", "other/__init__.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    (tmp_path / "outside").touch()
    record = "big/__init__.py,,\nbig-1.0.dist-info/RECORD,,\n../../bin/big,,\n../outside,,\n../../outside,,\n"
    (site / "big-1.0.dist-info" / "RECORD").write_text(record)
    gpu_machine._remove_package(site, "Big")
    assert [path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()] == ["other/__init__.py"]
    assert (tmp_path / "outside").exists()
    with pytest.raises(SystemExit, match="--without bigger: nothing that is packed needs it"):
        gpu_machine._remove_package(site, "bigger")


def test_what_a_machine_lacks_is_named() -> None:
    wanted = ("pydantic>=2", "No_Such.Package[x]>=1", "no-such-package-of-windows; platform_system == 'Windows'")
    asked = (sys.executable, "-c", gpu_machine._MISSING_PROGRAM, *wanted)
    found = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    assert found == ["no-such.package"]


def test_words_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    assert "has no packages.tar.xz: was it made by `pack`" in run(tmp_path, tmp_path / "out").stderr
    wrong = run(tmp_path, tmp_path / "out", "--target", "gfx942")
    assert (wrong.returncode, "expected a chip of CUDA such as sm_89" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("target", ["sm_89", "cpu"])
def test_each_part_is_done_and_kept(target: str, folder: Path, tmp_path: Path) -> None:
    (folder / "operators").mkdir()
    output = tmp_path / "out"
    output.mkdir()
    parts = Parts(folder, output, target, "h100")
    names = [part.name for part in parts.list_parts()]
    assert names[:4] == ["devices", "files", "models", "operators"]
    assert ("vulkan" in names) == (target != "cpu")
    assert parts.run(["devices", "models", "operators"]) == 0
    assert [part["part"] for part in json.loads((output / "parts.json").read_text())] == names[:1] + names[2:4]
    flags = json.loads(next(output.glob("*cpu.json" if target == "cpu" else "gpu_cuda.json")).read_text())
    assert ("--iree-cuda-target=sm_89" in flags["iree_compile_flags"]) == (target != "cpu")
    console = (output / "console.txt").read_text()
    assert f"run --suite {folder / 'cuda.toml'} --target {target} --offline --sku h100" in console
    assert console.count("xfail.update --write") == 1


def test_a_part_that_takes_too_long_is_ended_with_all_that_it_started(folder: Path, tmp_path: Path) -> None:
    (folder / "env" / "bin" / "python").write_text(f"#!/bin/sh\nsh -c 'tail -f /dev/null; :' '{tmp_path}' &\nwait\n")
    parts = Parts(folder, tmp_path, "cpu", "")
    assert parts.run_command(1.0, (parts.python,)) == 124
    wait_until(lambda: not find_processes(str(tmp_path)))


def test_the_suite_names_the_packed_models(folder: Path) -> None:
    suite = Path(gpu_machine.write_suite(folder))
    asked = (sys.executable, "-m", "iree_gauntlet", "list", "--suite", str(suite))
    environment = {**os.environ, "PYTHONPATH": ""}
    listed = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=CHECKOUT, env=environment).stdout
    assert {line.split()[0] for line in listed.splitlines()[1:-1]} == {"dtln", "magika"}
