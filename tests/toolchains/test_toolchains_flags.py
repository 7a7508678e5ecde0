from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.flags import (
    FlagSet,
    KnownFlags,
    parse_compiler_help,
    parse_runtime_help,
    read_known_flags,
    split_flags,
)
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain
from tests.support.command_line import with_fields
from tests.support.compiler_complaints import flag_complaints
from tests.support.places import DATA

if TYPE_CHECKING:
    from pathlib import Path

_DATA = DATA / "toolchains"


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_installed()


@pytest.fixture(scope="module")
def known(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> KnownFlags:
    return read_known_flags(toolchain, tmp_path_factory.mktemp("cache"))


def test_compiler_help_of_an_older_release() -> None:
    flags = parse_compiler_help((_DATA / "iree-compile-3.9.0.txt").read_text(encoding="utf-8"))
    assert {"o", "h", "debug-counter", "arm-default-it", "amdgpu-use-native", "verify"} <= flags.names
    assert {"iree-hip-target", "iree-opt-level", "o", "iree-opt-splat-parameters"} <= flags.valued
    # Switches, and flags whose value must be attached, leave the next argument alone.
    assert not {"iree-llvmgpu-enable-prefetch", "amdgpu-use-native", "verify"} & flags.valued
    # Values, headings and continued descriptions are no flags.
    assert not {"none", "auto", "conv", "At", "IT", "x"} & flags.names


def test_runtime_help_of_an_older_release() -> None:
    flags = parse_runtime_help((_DATA / "iree-benchmark-module-3.9.0.txt").read_text(encoding="utf-8"))
    assert {"help", "module", "device_profiling_file", "benchmark_repetitions", "v"} <= flags.names
    assert {"module", "hip_dylib_path", "benchmark_min_time", "function", "batch_size"} <= flags.valued
    assert not {"cuda_use_streams", "help", "print_statistics", "benchmark_list_tests"} & flags.valued
    # Named in a sentence only, at the start of a line.
    assert "task_topology_max_group_count" not in flags.names


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    for flags in (parse_compiler_help(text), parse_runtime_help(text)):
        assert flags.valued <= flags.names


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True),
        st.sampled_from(["", "=<value>", "[=<value>]"]),
        min_size=1,
    )
)
def test_every_flag_of_a_compilers_help_is_found(options: dict[str, str]) -> None:
    lines = [f"  --{name}{value}".ljust(40) + "- What --it does" for name, value in options.items()]
    flags = parse_compiler_help("OPTIONS:\n" + "\n    =none      -   No\n".join(lines))
    assert flags == FlagSet(frozenset(options), frozenset(n for n, v in options.items() if v == "=<value>"))


def test_flags_are_told_from_their_values() -> None:
    words = ["-a", "--b=1", "--v", "-1", "in.mlir", "-", "-v=", "--v", "--", "--b=2"]
    split = [(flag.name, flag.value, flag.words) for flag in split_flags(words, frozenset({"v"}))]
    assert split == [
        ("a", None, ("-a",)),
        ("b", "1", ("--b=1",)),
        ("v", "-1", ("--v", "-1")),
        ("", None, ("in.mlir",)),
        ("", None, ("-",)),
        ("v", "", ("-v=",)),
        ("v", "--", ("--v", "--")),
        ("b", "2", ("--b=2",)),
    ]
    assert [f.words for f in split_flags(["--", "--b", "x"], frozenset())] == [("--", "--b", "x")]
    assert [f.words for f in split_flags(["--v"], frozenset({"v"}))] == [("--v",)]


@given(st.lists(st.text()), st.sets(st.text()))
def test_splitting_loses_no_word(words: list[str], valued: set[str]) -> None:
    assert [w for flag in split_flags(words, frozenset(valued)) for w in flag.words] == words


def test_the_nearest_name_of_an_iree_flag_is_one_of_irees() -> None:
    flags = FlagSet(frozenset({"iree-rocm-target", "tree-rocm-target", "verify"}))
    assert flags.nearest("iree-rcm-target") == "iree-rocm-target"
    assert flags.nearest("verfy") == "verify"
    assert not flags.nearest("something-else")


@pytest.mark.iree
def test_the_real_tools_flags(known: KnownFlags) -> None:
    assert len(known.compile.names) > 1500
    assert {"o", "iree-hal-target-device", "mlir-disable-threading"} <= known.compile.names
    assert {"iree-rocm-target", "iree-llvmcpu-target-cpu", "o"} <= known.compile.valued
    assert {"module", "device", "expected_output", "list_devices"} <= known.run_module.names
    assert {"benchmark_repetitions", "device_allocator", "module"} <= known.benchmark_module.names
    assert known.of(COMPILE) is known.compile
    assert known.of(RUN_MODULE) is known.run_module
    assert known.of(BENCHMARK_MODULE) is known.benchmark_module


@pytest.mark.iree
def test_the_compiler_knows_all_that_its_help_lists(toolchain: Toolchain, known: KnownFlags) -> None:
    iree = sorted(name for name in known.compile.names - known.compile.valued if name.startswith("iree-"))
    # The flags that end the program when they are met.
    switches = tuple(f"--{name}" for name in iree if "-list-" not in name)
    assert not flag_complaints(toolchain, switches)


@pytest.mark.iree
@pytest.mark.parametrize("name", ["iree-rocm-target", "iree-opt-level", "o", "iree-opt-const-eval", "verify"])
def test_the_compiler_agrees_on_what_takes_the_next_word(toolchain: Toolchain, known: KnownFlags, name: str) -> None:
    # A flag that takes the next word takes --version, which is then not obeyed.
    argv = [toolchain.compiler.compile, f"--{name}", "--version", "/nowhere.mlir"]
    obeyed = "LLVM version" in subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert (name in known.compile.valued) == (not obeyed)


@pytest.mark.iree
def test_flags_are_asked_once_of_each_identity(toolchain: Toolchain, tmp_path: Path) -> None:
    first = read_known_flags(toolchain, tmp_path)
    kept = sorted(path.name for path in (tmp_path / "toolchains").iterdir())
    assert kept == sorted([f"{toolchain.compiler.identity}.json", f"{toolchain.runtime.identity}.json"])
    # Tools that do not exist show that nothing is asked a second time.
    gone = with_fields(toolchain, dict.fromkeys(("compile", "run_module", "benchmark_module"), "/nowhere"))
    assert read_known_flags(gone, tmp_path) == first
    with pytest.raises(ToolchainError, match="/nowhere cannot be started"):
        read_known_flags(with_fields(gone, {"identity": "another"}), tmp_path)


@pytest.mark.iree
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}', "names", "format"])
def test_a_damaged_file_is_made_again(toolchain: Toolchain, tmp_path: Path, damage: str) -> None:
    first = read_known_flags(toolchain, tmp_path)
    path = tmp_path / "toolchains" / f"{toolchain.runtime.identity}.json"
    whole = path.read_text(encoding="utf-8")
    if damage == "names":
        damage = whole.replace('"module"', '"modula"')
    elif damage == "format":
        damage = json.dumps({**json.loads(whole), "format": 0})
    path.write_text(damage, encoding="utf-8")
    assert read_known_flags(toolchain, tmp_path) == first
    assert path.read_text(encoding="utf-8") == whole


@pytest.mark.iree
def test_a_cache_that_cannot_be_written_is_no_obstacle(toolchain: Toolchain, tmp_path: Path) -> None:
    # A file in the folder's place is refused to root too, unlike a folder's mode.
    (tmp_path / "toolchains").touch()
    assert "module" in read_known_flags(toolchain, tmp_path).run_module.names


@pytest.mark.iree
def test_a_tool_that_lists_no_flags(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="did not list its flags"):
        read_known_flags(with_fields(toolchain, {"compile": "/bin/false", "identity": "x"}), tmp_path)
    assert not (tmp_path / "toolchains").exists()


@pytest.mark.iree
def test_the_compilers_own_complaints(toolchain: Toolchain) -> None:
    flags = ("--iree-rocm-waves-per-eu=abc", "--no-such-flag", "--iree-opt-level=O9", "--iree-rocm-target=gfx942")
    complaints = flag_complaints(toolchain, flags)
    assert len(complaints) == 3
    assert "value invalid" in complaints[0]
    assert "no-such-flag" in complaints[1]
    assert "O9" in complaints[2]
