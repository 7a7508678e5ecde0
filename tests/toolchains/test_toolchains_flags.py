from __future__ import annotations

import json
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.flag_words import split_flags
from iree_gauntlet.toolchains.flags import (
    FLAG_RELEASES,
    FLAG_RENAMES,
    FlagSet,
    parse_compiler_help,
    parse_runtime_help,
    read_flag_releases,
    read_known_flags,
    translate,
)
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain
from tests.support.command_line import with_fields
from tests.support.compiler_complaints import list_flag_errors
from tests.support.places import CORPUS, DATA

if TYPE_CHECKING:
    from pathlib import Path

_DATA = DATA / "toolchains"
# 3.13.0 still takes these under the old name.
_BOTH = {"iree-opt-export-parameters", "iree-opt-splat-parameters"}
_OLD = parse_compiler_help((_DATA / "iree-compile-3.9.0.txt").read_text(encoding="utf-8"))
_OLD_BENCHMARK = parse_runtime_help((_DATA / "iree-benchmark-module-3.9.0.txt").read_text(encoding="utf-8"))
_PREFETCH = "--iree-llvmgpu-enable-prefetch"
_STAGES = "--iree-llvmgpu-prefetch-num-stages"
_TO_BF16 = "--iree-global-opt-enable-demote-contraction-inputs-to-bf16"
_TYPE = "--iree-global-opt-demote-contraction-inputs-type"
_OPERATIONS = "--iree-global-opt-demote-contraction-inputs-operations"
_NEW = FlagSet(
    frozenset(rename.new for rename in FLAG_RENAMES)
    | {"iree-global-opt-demote-contraction-inputs-type", "iree-opt-const-eval", "verify"},
    frozenset({"iree-rocm-target", "iree-rocm-target-features", "iree-rocm-waves-per-eu"}),
)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_installed()


@pytest.fixture(scope="module")
def known(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FlagSet]:
    return read_known_flags(toolchain, tmp_path_factory.mktemp("cache"))


def test_compiler_help_of_an_older_release() -> None:
    flags = parse_compiler_help((_DATA / "iree-compile-3.9.0.txt").read_text(encoding="utf-8"))
    assert {"o", "h", "debug-counter", "arm-default-it", "amdgpu-use-native", "verify"} <= flags.names
    assert {"iree-hip-target", "iree-opt-level", "o", "iree-opt-splat-parameters"} <= flags.value_flags
    # Switches, and flags whose value must be attached, leave the next argument alone.
    assert not {"iree-llvmgpu-enable-prefetch", "amdgpu-use-native", "verify"} & flags.value_flags
    # Values, headings and continued descriptions are no flags.
    assert not {"none", "auto", "conv", "At", "IT", "x"} & flags.names


def test_runtime_help_of_an_older_release() -> None:
    flags = parse_runtime_help((_DATA / "iree-benchmark-module-3.9.0.txt").read_text(encoding="utf-8"))
    assert {"help", "module", "device_profiling_file", "benchmark_repetitions", "v"} <= flags.names
    assert {"module", "hip_dylib_path", "benchmark_min_time", "function", "batch_size"} <= flags.value_flags
    assert not {"cuda_use_streams", "help", "print_statistics", "benchmark_list_tests"} & flags.value_flags
    # Named in a sentence only, at the start of a line.
    assert "task_topology_max_group_count" not in flags.names


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    for flags in (parse_compiler_help(text), parse_runtime_help(text)):
        assert flags.value_flags <= flags.names


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
    assert flags.find_nearest("iree-rcm-target") == "iree-rocm-target"
    assert flags.find_nearest("verfy") == "verify"
    assert not flags.find_nearest("something-else")


@pytest.mark.iree
def test_the_real_tools_flags(known: dict[str, FlagSet]) -> None:
    assert len(known[COMPILE].names) > 1500
    assert {"o", "iree-hal-target-device", "mlir-disable-threading"} <= known[COMPILE].names
    assert {"iree-rocm-target", "iree-llvmcpu-target-cpu", "o"} <= known[COMPILE].value_flags
    assert {"module", "device", "expected_output", "list_devices"} <= known[RUN_MODULE].names
    assert {"benchmark_repetitions", "device_allocator", "module"} <= known[BENCHMARK_MODULE].names


# Each flag that a level sets changes this program's module, but for those of assertions, fusion and transposes.
_PROGRAM = """func.func @main(%a: tensor<16x32xf32>, %b: tensor<32x16xf32>) -> (tensor<16xf32>, tensor<16x32xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16x16xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x16xf32>) -> tensor<16x16xf32>
  %product = linalg.matmul ins(%a, %b : tensor<16x32xf32>, tensor<32x16xf32>) outs(%zeros : tensor<16x16xf32>)
      -> tensor<16x16xf32>
  %turned = linalg.transpose ins(%product : tensor<16x16xf32>) outs(%empty : tensor<16x16xf32>) permutation = [1, 0]
  %short = tensor.empty() : tensor<16xf32>
  %none = linalg.fill ins(%zero : f32) outs(%short : tensor<16xf32>) -> tensor<16xf32>
  %sum = linalg.reduce { arith.addf } ins(%turned : tensor<16x16xf32>) outs(%none : tensor<16xf32>) dimensions = [1]
  %both = tensor.concat dim(1) %product, %turned : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x32xf32>
  return %sum, %both : tensor<16xf32>, tensor<16x32xf32>
}
"""


@pytest.mark.iree
@pytest.mark.parametrize(
    ("levels", "different"),
    [(("O0", "O3"), 2), pytest.param(("O0", "O1", "O2", "O3"), 3, marks=pytest.mark.stress)],
    ids=["ends", "all"],
)
def test_the_flags_of_a_level_give_the_module_of_the_level(
    toolchain: Toolchain, known: dict[str, FlagSet], levels: tuple[str, ...], different: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.mlir"
    program.write_text(_PROGRAM)

    def build(*flags: str) -> bytes:
        target = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
        module = tmp_path / "module.vmfb"
        argv = [toolchain.compiler.compile, str(program), *target, "--iree-llvmcpu-target-cpu=generic", *flags]
        subprocess.run([*argv, "-o", str(module)], check=True, capture_output=True)
        return module.read_bytes()

    modules = {level: build(f"--iree-opt-level={level}") for level in levels}
    assert len({*modules.values()}) >= different
    for level, module in modules.items():
        flags = known[COMPILE].list_level_flags(level)
        assert len(flags) >= 5
        assert build(*flags) == module
    # Nothing else of a level is left without them.
    assert build("--iree-opt-level=O3", *known[COMPILE].list_level_flags("O0")) == modules["O0"]


def test_the_flags_of_levels_in_an_older_release() -> None:
    fusion, concat = "--iree-dispatch-creation-enable-aggressive-fusion", "--iree-opt-outer-dim-concat"
    assert {f"{fusion}=false", f"{concat}=false"} < {*_OLD.list_level_flags("O0")}
    assert {f"{fusion}=false", f"{concat}=true"} < {*_OLD.list_level_flags("O1")}
    assert {f"{fusion}=true", f"{concat}=true"} < {*_OLD.list_level_flags("O3")}
    assert not _OLD.list_level_flags("Os")


@pytest.mark.iree
def test_the_compiler_knows_all_that_its_help_lists(toolchain: Toolchain, known: dict[str, FlagSet]) -> None:
    iree = sorted(name for name in known[COMPILE].names - known[COMPILE].value_flags if name.startswith("iree-"))
    # The flags that end the program when they are met.
    switches = tuple(f"--{name}" for name in iree if "-list-" not in name)
    assert not list_flag_errors(toolchain, switches)


@pytest.mark.iree
@pytest.mark.parametrize("name", ["iree-rocm-target", "iree-opt-level", "o", "iree-opt-const-eval", "verify"])
def test_the_compiler_agrees_on_what_takes_the_next_word(
    toolchain: Toolchain, known: dict[str, FlagSet], name: str
) -> None:
    # A flag that takes the next word takes --version, which is then not obeyed.
    argv = [toolchain.compiler.compile, f"--{name}", "--version", "/nowhere.mlir"]
    obeyed = "LLVM version" in subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert (name in known[COMPILE].value_flags) == (not obeyed)


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
    assert "module" in read_known_flags(toolchain, tmp_path)[RUN_MODULE].names


@pytest.mark.iree
def test_a_tool_that_lists_no_flags(toolchain: Toolchain, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="did not list its flags"):
        read_known_flags(with_fields(toolchain, {"compile": "/bin/false", "identity": "x"}), tmp_path)
    assert not (tmp_path / "toolchains").exists()


@pytest.mark.iree
def test_the_compilers_own_complaints(toolchain: Toolchain) -> None:
    flags = ("--iree-rocm-waves-per-eu=abc", "--no-such-flag", "--iree-opt-level=O9", "--iree-rocm-target=gfx942")
    complaints = list_flag_errors(toolchain, flags)
    assert len(complaints) == 3
    assert "value invalid" in complaints[0]
    assert "no-such-flag" in complaints[1]
    assert "O9" in complaints[2]


@pytest.mark.iree
def test_the_tables_agree_with_the_installed_tools(known: dict[str, FlagSet]) -> None:
    for rename in FLAG_RENAMES:
        for tool in rename.tools:
            assert rename.new in known[tool].names, rename
            assert (rename.old in known[tool].names) == (rename.old in _BOTH), rename
            if rename.companion is not None:
                assert rename.companion[0] in known[tool].names


def test_the_tables_agree_with_an_older_release() -> None:
    seen_old = {rename.old for rename in FLAG_RENAMES if rename.last_old == "3.9.0" and COMPILE in rename.tools}
    assert seen_old <= _OLD.names
    assert not {rename.new for rename in FLAG_RENAMES if rename.first_new == "3.12.0"} & _OLD.names
    assert "device_profiling_file" in _OLD_BENCHMARK.names


@pytest.mark.parametrize(("tool", "flags"), [(COMPILE, _OLD), (BENCHMARK_MODULE, _OLD_BENCHMARK)])
def test_what_an_older_release_has_not(tool: str, flags: FlagSet) -> None:
    # The kept help is an excerpt: it proves what is missing from the tables, not what is missing from the release.
    having = read_flag_releases().releases_by_flag[tool]
    assert all("3.9.0" in having[name] for name in having.keys() & flags.names)


@pytest.mark.iree
def test_what_the_installed_release_has_and_has_not(known: dict[str, FlagSet]) -> None:
    release = find_installed().compiler.release
    if release not in read_flag_releases().releases:
        pytest.skip("an IREE that was not compared")
    for tool, having in read_flag_releases().releases_by_flag.items():
        names = known[tool].names
        assert [name for name, releases in having.items() if (name in names) != (release in releases)] == []


def test_no_flag_is_in_two_rows() -> None:
    document = tomllib.loads(FLAG_RELEASES.read_text(encoding="utf-8"))
    rows = {
        name: [flag for flags in document[name].values() for flag in flags] for name in document.keys() - {"compared"}
    }
    for flags in (rows["compile"], rows["runtime"] + rows["benchmark"]):
        assert len(flags) == len(set(flags)) > 1
    assert read_flag_releases().with_flag(BENCHMARK_MODULE, "expected_output") == ("3.12.0", "3.13.0")
    assert read_flag_releases().with_flag(RUN_MODULE, "expected_output") == ()


def test_the_table_knows_every_rename() -> None:
    for rename in FLAG_RENAMES:
        for tool in rename.tools:
            releases_with = read_flag_releases().with_flag
            assert rename.last_old in releases_with(tool, rename.old) or rename.old in _BOTH
            assert rename.first_new in releases_with(tool, rename.new)
            assert rename.last_old not in releases_with(tool, rename.new)


def test_no_name_means_two_things() -> None:
    olds = [rename.old for rename in FLAG_RENAMES]
    assert len(olds) == len(set(olds))
    assert not set(olds) & {rename.new for rename in FLAG_RENAMES}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--iree-hip-target=gfx942"], ["--iree-rocm-target=gfx942"]),
        (["-iree-hip-target=gfx942"], ["--iree-rocm-target=gfx942"]),
        (["--iree-hip-target", "gfx942", "in.mlir"], ["--iree-rocm-target=gfx942", "in.mlir"]),
        (["--iree-hip-target-features", "-xnack"], ["--iree-rocm-target-features=-xnack"]),
        ([_PREFETCH], [f"{_STAGES}=2"]),
        ([f"{_PREFETCH}=true"], [f"{_STAGES}=2"]),
        ([f"{_PREFETCH}=False"], [f"{_STAGES}=0"]),
        (["--iree-hip-emit-debug-info"], ["--iree-rocm-emit-debug-info"]),
        ([f"{_TO_BF16}=conv"], [f"{_OPERATIONS}=conv", f"{_TYPE}=bf16"]),
        ([f"{_TO_BF16}=conv", f"{_TYPE}=bf16"], [f"{_OPERATIONS}=conv", f"{_TYPE}=bf16"]),
        (["--iree-llvmcpu-general-matmul-tile-bytes=64"], ["--iree-llvmcpu-matmul-tile-bytes=64"]),
        (
            ["--iree-llvmcpu-general-matmul-tile-bytes=64", "--iree-llvmcpu-narrow-matmul-tile-bytes=64"],
            ["--iree-llvmcpu-matmul-tile-bytes=64"],
        ),
        # A flag that may be given often.
        (
            ["--iree-opt-import-parameters=a", "--iree-opt-import-parameters=b"],
            ["--iree-parameter-import=a", "--iree-parameter-import=b"],
        ),
    ],
)
def test_old_names_for_a_new_compiler(old: list[str], new: list[str]) -> None:
    translation = translate(old, _NEW, COMPILE)
    assert list(translation.flags) == new
    assert not translation.unknown
    assert len(translation.notes) == sum(f.startswith("-") and f not in new for f in old) - ("-xnack" in old)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (["--iree-rocm-target=gfx942"], ["--iree-hip-target=gfx942"]),
        (["--iree-rocm-target", "gfx942"], ["--iree-hip-target=gfx942"]),
        ([f"{_STAGES}=2"], [f"{_PREFETCH}=true"]),
        ([f"{_STAGES}=0"], [f"{_PREFETCH}=false"]),
        ([f"{_TYPE}=bf16", "--verify", f"{_OPERATIONS}=matmul"], ["--verify", f"{_TO_BF16}=matmul"]),
        (["--iree-parameter-splat=x.irpa"], ["--iree-opt-splat-parameters=x.irpa"]),
        (
            ["--iree-llvmcpu-matmul-tile-bytes=64"],
            ["--iree-llvmcpu-general-matmul-tile-bytes=64", "--iree-llvmcpu-narrow-matmul-tile-bytes=64"],
        ),
    ],
)
def test_new_names_for_an_old_compiler(new: list[str], old: list[str]) -> None:
    translation = translate(new, _OLD, COMPILE)
    assert list(translation.flags) == old
    assert not translation.unknown
    assert translation.notes


@pytest.mark.parametrize(
    ("flags", "known", "hint"),
    [
        (
            ["--iree-codegen-llvmgpu-use-wmma"],
            _NEW,
            "3.5.0 and 3.9.0 have it, 3.12.0 and 3.13.0 have not: it has no replacement",
        ),
        (
            ["--iree-rocm-use-spirv"],
            _OLD,
            "3.12.0 and 3.13.0 have it, 3.5.0 and 3.9.0 have not: use a release that has it",
        ),
        (["--iree-rocm-targt=gfx942"], _NEW, "did you mean --iree-rocm-target?"),
        (["--nothing-like-it"], _NEW, "see all flags: iree-compile --help-list-hidden"),
        (["--iree-hip-target=gfx942"], FlagSet(frozenset({"verify"})), "--iree-rocm-target, is not known either"),
        ([f"{_STAGES}=3"], _OLD, f"{_PREFETCH}, which can express only {_STAGES}=0, 1, 2"),
        ([f"{_PREFETCH}=maybe"], _NEW, "can express only --iree-llvmgpu-enable-prefetch=true, 1, false, 0"),
        ([f"{_OPERATIONS}=all"], _OLD, f"together with {_TYPE}=bf16: the spec must give both"),
        ([f"{_TYPE}=bf16"], _OLD, "the spec must give both"),
        ([f"{_TYPE}=f16", f"{_OPERATIONS}=all"], _OLD, "the spec must give both"),
        ([f"{_TO_BF16}=all", f"{_TYPE}=f16"], _NEW, f"{_TYPE}=f16 also sets"),
        (
            ["--iree-llvmcpu-general-matmul-tile-bytes=64", "--iree-llvmcpu-narrow-matmul-tile-bytes=32"],
            _NEW,
            "--iree-llvmcpu-narrow-matmul-tile-bytes=32 also sets: keep one of them",
        ),
    ],
)
def test_what_cannot_be_said_is_reported_and_kept(flags: list[str], known: FlagSet, hint: str) -> None:
    translation = translate(flags, known, COMPILE)
    assert list(translation.flags) == flags
    assert not translation.notes
    assert translation.unknown[0].flag in flags
    assert translation.unknown[0].message == f"iree-compile does not know {translation.unknown[0].flag}"
    assert hint in translation.unknown[0].hint


@pytest.mark.parametrize(
    ("tool", "flags", "listing"),
    [
        (RUN_MODULE, ["--help", "--help=short", "--list_devices", "--list_devices=local-sync"], True),
        (RUN_MODULE, ["--list_drivers", "--dump_devices", "--dump_task_topologies", "--agents_md"], True),
        (RUN_MODULE, ["--agents_md=false"], False),
        (BENCHMARK_MODULE, ["--help", "--benchmark_list_tests", "--benchmark_list_tests=true"], True),
        (BENCHMARK_MODULE, ["--benchmark_list_tests=false"], False),
        (COMPILE, ["-h", "--help", "-help-list", "--help-list-hidden", "--help-hidden", "--version"], True),
        (COMPILE, ["--iree-list-plugins", "--iree-llvmcpu-list-targets", "--iree-hal-list-target-backends"], True),
        (COMPILE, ["--iree-print-plugin-info"], False),
    ],
)
def test_flags_with_which_a_tool_does_not_do_its_work(
    known: dict[str, FlagSet], tool: str, flags: list[str], *, listing: bool
) -> None:
    translation = translate(flags, known[tool], tool)
    assert list(translation.flags) == flags
    assert [item.flag for item in translation.unknown] == (flags if listing else [])
    assert {item.message for item in translation.unknown} == {
        f"with {item.flag} {tool} only prints something and exits" for item in translation.unknown
    }


def test_a_note_says_what_when() -> None:
    note = translate(["--iree-hip-target=gfx942"], _NEW, COMPILE).notes[0]
    expected = "--iree-hip-target=gfx942 was written as --iree-rocm-target=gfx942"
    assert note == f"{expected} (renamed between 3.9.0 and 3.12.0)"


def test_forms_that_the_runtime_would_ignore() -> None:
    known = FlagSet(frozenset({"function", "trace_execution"}), frozenset({"function"}))
    translation = translate(["--function", "main", "-trace_execution", "x"], known, RUN_MODULE)
    assert translation.flags == ("--function=main", "--trace_execution", "x")
    assert translation.notes[0] == (
        "--function main was written as --function=main (iree-run-module accepts only this form)"
    )
    renamed = translate(["--device_profiling_output=x"], _OLD_BENCHMARK, BENCHMARK_MODULE)
    assert renamed.flags == ("--device_profiling_file=x",)
    # Tools do not share their flags' histories.
    assert translate(["--iree-hip-target=x"], known, RUN_MODULE).unknown


@given(st.lists(st.sampled_from(sorted(_OLD.names)).map(lambda name: f"--{name}=0")))
def test_known_flags_are_left_alone(flags: list[str]) -> None:
    translation = translate(flags, _OLD, COMPILE)
    assert (list(translation.flags), translation.notes, translation.unknown) == (flags, (), ())


@given(st.lists(st.text(), max_size=8))
def test_no_word_is_dropped_silently(words: list[str]) -> None:
    translation = translate(words, FlagSet(frozenset()), COMPILE)
    assert list(translation.flags) == words


@given(
    st.sampled_from([r for r in FLAG_RENAMES if COMPILE in r.tools and not r.new_values and not r.companion]), st.text()
)
def test_a_round_trip_says_the_same(rename: object, value: str) -> None:
    old, new = getattr(rename, "old", ""), getattr(rename, "new", "")
    forward = translate([f"--{old}={value}"], FlagSet(frozenset({new})), COMPILE)
    assert forward.flags == (f"--{new}={value}",)
    assert f"--{old}={value}" in translate(forward.flags, FlagSet(frozenset({old})), COMPILE).flags


def _flags_of(document: object, key: str = "") -> list[tuple[str, list[str]]]:
    """Lists of flags in a spec, and the field that each stands in."""
    if isinstance(document, dict):
        return [found for k, v in document.items() for found in _flags_of(v, k)]
    if isinstance(document, list) and document and all(isinstance(word, str) for word in document):
        return [(key, document)] if any(word.startswith("--") for word in document) else []
    return []


@pytest.mark.iree
@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the spec corpus is not next to this checkout")
def test_every_flag_of_the_sharktank_specs_is_known_or_translated(known: dict[str, FlagSet]) -> None:
    gone = "--iree-codegen-gpu-native-math-precision=true"
    specs = [path for name in ("sharktank_models", "sharktank_models_v1") for path in (CORPUS / name).rglob("*.json")]
    assert specs
    for spec in specs:
        for field, flags in _flags_of(json.loads(spec.read_text(encoding="utf-8"))):
            tool = COMPILE if "compile" in field else BENCHMARK_MODULE if "benchmark" in field else RUN_MODULE
            translation = translate(flags, known[tool], tool)
            assert {flag.flag for flag in translation.unknown} <= {gone}, (spec, translation.unknown)
            if "_v1" not in str(spec):
                assert not translation.notes
            if tool == COMPILE:
                wanted = tuple(flag for flag in translation.flags if flag != gone)
                assert not list_flag_errors(find_installed(), wanted)


@pytest.mark.parametrize(
    ("value", "left_out"), [("1e-05", True), ("0.00001", True), ("0", False), ("1e-4", False), ("x", False)]
)
def test_the_relative_tolerance_that_a_release_without_it_keeps_to_is_left_out(value: str, *, left_out: bool) -> None:
    flag = f"--expected_rtol={value}"
    old = translate([flag], FlagSet(frozenset({"expected_f32_threshold"})), RUN_MODULE)
    assert (old.flags == (), len(old.notes) == 1, old.unknown == ()) == (left_out, left_out, left_out)
    assert translate([flag], FlagSet(frozenset({"expected_rtol"})), RUN_MODULE).flags == (flag,)
    assert translate([flag], FlagSet(frozenset()), COMPILE).unknown
