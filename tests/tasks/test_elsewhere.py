"""`tools/elsewhere.py`: it first names missing requirements, and its machines differ from this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import elsewhere
import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_place_that_there_is_not_is_named_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert elsewhere.main(["mars"]) == 2
    assert capsys.readouterr().err == "error: no such place: mars\n  There are: v3, v2, v4, zen, intel\n"


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "6", "1", "x86_64")))
    assert elsewhere.main([]) == 2
    assert "needs root" in capsys.readouterr().err


def test_one_place_runs_all_tests_and_each_has_what_no_other_has() -> None:
    places = elsewhere.MACHINES
    assert [place.name for place in places if not place.pytest] == [places[0].name]
    for field in ("name", "cpu", "zone", "locale", "umask"):
        assert len({getattr(place, field) for place in places}) == len(places), field


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt install gcc")
@pytest.mark.parametrize(
    ("words", "resolved"),
    [
        ("a.mlir --iree-llvmcpu-target-cpu=host -o b", "a.mlir --iree-llvmcpu-target-cpu=znver4 -o b"),
        ("-iree-llvmcpu-target-cpu-features=host -O3", "--iree-llvmcpu-target-cpu=znver4 -O3"),
        ("--iree-llvmcpu-target-cpu host x", "--iree-llvmcpu-target-cpu=znver4 x"),
        ("--iree-llvmcpu-target-cpu=host --iree-llvmcpu-target-cpu-features=host", "--iree-llvmcpu-target-cpu=znver4"),
        ("--iree-llvmcpu-target-cpu=generic host --device=host", None),
    ],
)
def test_host_in_flags_is_the_cpu_of_the_place(tmp_path: Path, words: str, resolved: str | None) -> None:
    main = """
        #include <stdio.h>
        int main(int count, const char **words) {
          words = resolve(&count, words);
          for (int i = 1; i < count; ++i) puts(words[i]);
        }
    """
    (tmp_path / "main.c").write_text(f'#include "{ROOT}/tools/host_cpu.c"\n{main}')
    program = tmp_path / "main"
    subprocess.run(["cc", '-DHOST_CPU="znver4"', tmp_path / "main.c", "-o", program, "-ldl"], check=True)
    done = subprocess.run([program, *words.split()], capture_output=True, text=True, check=True)
    assert re.split(r"\s+", done.stdout.strip()) == (resolved or words).split()
