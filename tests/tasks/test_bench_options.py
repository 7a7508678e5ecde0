"""The benchmarks' options: the same in both commands, with helpful messages about mistakes, and with their meaning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser

from iree_gauntlet.errors import ToolchainError, UsageError
from iree_gauntlet.tasks.experiment_commands import bench_task
from iree_gauntlet.tasks.task_options import TOOLCHAIN
from iree_gauntlet.toolchains.flags import FlagSet, parse_compiler_help
from iree_gauntlet.torch_models.bench_options import (
    OPTIONS,
    BenchOptions,
    build_parser,
    expand_option_names,
    find_closest_option,
    parse,
    read_options,
)
from iree_gauntlet.torch_models.formats import DataFormat
from iree_gauntlet.torch_models.torch_chain import find_fidelity_flags, find_opt_level_flags
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The usage of the document, its first line and the choices.
DOCUMENT = """
[-h] [-m MODEL] [-c CONFIG] [-t] [-df {Fp32,Fp16,Fp16_b,Bfp8,Bfp8_b,Bfp4,Bfp4_b}] [-mf {LoFi,HiFi2,HiFi3,HiFi4}]
[--loop_count LOOP_COUNT] [--chips CHIPS] [--layers LAYERS] [--trace {none,light,verbose}] [-l] [-o OUTPUT]
"""


@cache
def invoke_parser() -> Parser:
    return Parser(contexts=[ParserContext(name="bench", args=bench_task.get_arguments())])


def as_task(words: Sequence[str]) -> BenchOptions:
    """Reads a command line as the Invoke task would."""
    (context,) = invoke_parser().parse_argv(["bench", *expand_option_names(words, dashes=True)])
    return read_options(context.as_kwargs)


def outcome(front: Any, words: Sequence[str]) -> BenchOptions | tuple[str, str]:
    try:
        read: BenchOptions = front(words)
    except UsageError as error:
        return error.message, error.hint
    return read


text = st.from_regex(r"[A-Za-z0-9_./][A-Za-z0-9_./:+-]{0,12}", fullmatch=True)
environment = st.lists(st.from_regex(r"[A-Z_]{1,4}(=[a-z0-9]{0,4})?", fullmatch=True), min_size=1, max_size=3)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Options in any order and spelling; most of them fit together.

    Those that take one value are given once: of two argparse takes the last, and Invoke refuses them.
    """
    words: list[str] = []
    once = draw(st.lists(st.sampled_from(OPTIONS), max_size=8, unique_by=lambda option: option.name))
    lists = st.sampled_from([option for option in OPTIONS if option.default == []])
    for option in draw(st.permutations([*once, *draw(st.lists(lists, max_size=3))])):
        names = [f"--{option.name}", f"--{option.name.replace('_', '-')}"]
        names += [f"-{option.short}"] if option.short else []
        name = draw(st.sampled_from(names))
        if option.default is False:
            words.append(name)
            continue
        if option.choices:
            value = draw(st.sampled_from(option.choices))
        elif option.minimum is not None:
            value = str(draw(st.integers(0, 12)))
        elif option.name == "env":
            value = " ".join(draw(environment))
        else:
            value = draw(text)
        words += [f"{name}={value}"] if draw(st.booleans()) and name.startswith("--") else [name, value]
    return words


@settings(deadline=None)
@given(command_lines())
def test_both_fronts_read_a_command_line_alike(words: list[str]) -> None:
    assert outcome(parse, words) == outcome(as_task, words)


@pytest.mark.parametrize(
    "line",
    [
        "-m bert -c tiny -df Fp16 -mf HiFi4 -opt 3 --loop_count 50 -o perf.json",
        "--model bert -c tiny -df Fp16 --math-fidelity HiFi4 --backend_opt_level=3 --loop-count 50 --output perf.json",
        "-mbert -c=tiny -df=Fp16 --mf HiFi4 --opt 3 --loop_count=50 -o=perf.json",
    ],
)
def test_the_documents_command_line(line: str) -> None:
    expected = BenchOptions(
        model="bert",
        config="tiny",
        dataformat=DataFormat.FP16,
        math_fidelity="HiFi4",
        backend_opt_level=3,
        loop_count=50,
        output="perf.json",
    )
    assert parse(shlex.split(line)) == expected
    assert as_task(shlex.split(line)) == expected


def test_every_option_reaches_its_field() -> None:
    line = (
        "-m vit -c base -t -df Bfp8_b -mf LoFi -opt 4 --loop_count 8 -mb 2 --microbatch_count 4 --chips 0 --layers 3 "
        "--trace verbose -l -e 'A=1 B C=\"x y\" A=2' -o out --models-dir a --models_dir b --models-dir a "
        "--against torch --sensitivity --disturbed count --device local-sync --target sm_90 --torch-python /py "
        "--iree 3.12.0 --iree-compiler x --iree-runtime y --cache-dir z"
    )
    read = parse(shlex.split(line))
    assert read == as_task(shlex.split(line))
    assert read == BenchOptions(
        "vit",
        "base",
        True,
        DataFormat.BFP8_B,
        "LoFi",
        4,
        8,
        2,
        4,
        0,
        3,
        "verbose",
        True,
        (("A", "2"), ("B", "1"), ("C", "x y")),
        "out",
        ("a", "b"),
        ("torch",),
        True,
        "count",
        "local-sync",
        "sm_90",
        "/py",
        "3.12.0",
        "x",
        "y",
        "z",
    )
    assert [field.name for field in fields(BenchOptions)] == [option.name for option in OPTIONS]
    args = read.as_args()
    assert args["dataformat"] == "Bfp8_b"
    assert args["models_dir"] == ["a", "b"]
    assert parse(["-m", "x", "-e", args["env"]]).env == read.env


def test_defaults() -> None:
    assert parse(["-m", "bert"]) == BenchOptions(model="bert")
    assert parse(["--list"]) == BenchOptions(list=True)
    assert parse(["-m", "bert"]).loops(4) == 20
    assert parse(["-m", "bert", "--microbatch_count", "4"]).loops(1) == 8
    # A group for each chip.
    assert parse(["-m", "bert", "--microbatch_count", "8"]).loops(4) == 32
    assert parse(["-m", "bert", "--loop_count", "3"]).loops(4) == 3


@pytest.mark.parametrize(
    ("line", "what", "hint"),
    [
        ("-c tiny", "--model: not given", "--list"),
        ("-m b -df fp16b", "--dataformat fp16b: unknown; did you mean Fp16_b?", "Known: Fp32, Fp16, Fp16_b, Bfp8,"),
        ("-m b -mf HiFi5", "--math_fidelity HiFi5: unknown; did you mean HiFi4?", "Known: LoFi, HiFi2, HiFi3, HiFi4."),
        ("-m b -mf lofi", "--math_fidelity lofi: unknown; did you mean LoFi?", "LoFi"),
        ("-m b -opt 5", "--backend_opt_level 5: unknown", "Known: 0, 1, 2, 3, 4."),
        ("-m b --trace verbos", "--trace verbos: unknown; did you mean verbose?", "none, light, verbose"),
        (
            "-m b --against onnx",
            "--against onnx: unknown; did you mean onnxruntime?",
            "torch, torch-eager, onnxruntime",
        ),
        ("-m b --loop_count 0", "--loop_count 0: expected an integer of at least 1", "5x"),
        ("-m b --chips 1.5", "--chips 1.5: expected an integer of at least 0", "0 to run on all"),
        ("-m b --layers ٣", "--layers ٣: expected an integer of at least 1", ""),
        ("-m b --microbatch 1_0", "--microbatch 1_0: expected an integer", ""),
        ("-m b --microbatch 9999999999", "--microbatch 9999999999: expected an integer", ""),
        ("-m ' '", "--model: empty", "Model to benchmark"),
        (
            "-m b --loop_count 5 --microbatch_count 2",
            "--loop_count 5: not a multiple of --microbatch_count 2",
            "2, 4, …",
        ),
        ("-m b -t --against onnxruntime", "--against onnxruntime: cannot be combined with --training", "inference"),
        ("-m b -e 1A=2", "--env 1A=2: '1A' is not a valid variable name", "A=1 B=2"),
        ("-m b -e '\"A=1'", '--env "A=1: No closing quotation', "two words"),
    ],
)
def test_mistakes_say_what_was_found_and_what_is_allowed(line: str, what: str, hint: str) -> None:
    for front in (parse, as_task):
        with pytest.raises(UsageError) as caught:
            front(shlex.split(line))
        assert caught.value.message.startswith(what)
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("-m b --loopcount 3", "--loopcount: no such option; did you mean --loop_count?"),
        ("-m b --data-format=Fp16", "--data-format=Fp16: no such option; did you mean --dataformat?"),
        ("-m b --mathfidelity LoFi", "--mathfidelity: no such option; did you mean --math_fidelity?"),
        ("-m b --zzzzzz", "--zzzzzz: no such option"),
        ("-m b stray", "stray: no such option"),
        ("-m b --loop", "--loop: no such option; did you mean --loop_count?"),
        ("-m", "argument -m/--model: expected one argument"),
    ],
)
def test_unknown_options_name_the_nearest(line: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(shlex.split(line))
    assert caught.value.message == what
    assert "--help" in caught.value.hint


def test_help_has_the_documents_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--help"])
    assert left.value.code == 0
    # Lines are broken at spaces and at dashes.
    shown = "".join(capsys.readouterr().out.split())
    for part in re.findall(r"\[[^]]*\]", DOCUMENT):
        assert part.replace(" ", "") in shown
    # The document has no 4, the program that it describes has.
    assert "[-opt{0,1,2,3,4}]" in shown
    for option in OPTIONS:
        assert "".join(option.help.split()) in shown
    assert build_parser("inv bench").format_usage().startswith("usage: inv bench ")


def test_what_the_other_commands_have_is_called_the_same() -> None:
    ours = {option.name: option for option in OPTIONS}
    for other in TOOLCHAIN:
        assert (ours[other.name].default, ours[other.name].help) == (other.default, other.help)


def test_names_are_each_one_option() -> None:
    names = [name for option in OPTIONS for name in (option.name, option.short) if name]
    assert len(names) == len({name.replace("_", "-") for name in names})
    assert expand_option_names(["-df", "Fp16", "--", "-df"], dashes=True) == ["--dataformat", "Fp16", "--", "-df"]
    assert expand_option_names(["bench", "--loop-count=2", "-x"], dashes=False) == ["bench", "--loop_count=2", "-x"]
    assert find_closest_option("--outputs=x") == "--output"
    assert find_closest_option("-dff") == "-df"
    assert find_closest_option("--iree-comp") == "--iree_compiler"


def test_reading_options_is_light() -> None:
    program = (
        "import sys; from iree_gauntlet.torch_models.bench_options import parse; parse(['-m', 'bert'])\n"
        "print({n.partition('.')[0] for n in sys.modules} & {'numpy', 'torch', 'pydantic', 'invoke'})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def compiler(*names: str) -> FlagSet:
    return FlagSet(frozenset(names))


BOTH = ("iree-global-opt-demote-contraction-inputs-type", "iree-global-opt-demote-contraction-inputs-operations")
OLD = "iree-global-opt-enable-demote-contraction-inputs-to-bf16"


def test_levels_are_the_compilers() -> None:
    known = compiler("iree-opt-level")
    assert find_opt_level_flags(None, compiler()).flags == ()
    assert [find_opt_level_flags(level, known).flags for level in range(5)] == [
        (f"--iree-opt-level=O{level}",) for level in (0, 1, 2, 3, 3)
    ]
    assert not find_opt_level_flags(3, known).notes
    assert "4 is O3" in find_opt_level_flags(4, known).notes[0]
    with pytest.raises(ToolchainError, match="--backend_opt_level 2: this compiler has no --iree-opt-level"):
        find_opt_level_flags(2, compiler())


def test_fidelities_narrow_down_the_ladder() -> None:
    types = [
        find_fidelity_flags(name, DataFormat.FP32, None, compiler(*BOTH)).contraction_type
        for name in ("HiFi4", "HiFi3", "HiFi2", "LoFi")
    ]
    assert types == ["", "f16", "bf16", "bf16"]
    lowest = find_fidelity_flags("LoFi", DataFormat.FP32, 3, compiler(*BOTH))
    assert lowest.flags == (f"--{BOTH[0]}=bf16", f"--{BOTH[1]}=all", "--iree-opt-generalize-matmul=false")
    assert any("LoFi is HiFi2" in note for note in lowest.notes)
    assert find_fidelity_flags("HiFi4", DataFormat.FP32, 3, compiler()).flags == ()


def test_older_compilers_narrow_to_bf16_only() -> None:
    known = compiler(OLD)
    assert find_fidelity_flags("LoFi", DataFormat.FP32, 1, known).flags == (f"--{OLD}=all",)
    between = find_fidelity_flags("HiFi3", DataFormat.FP32, None, known)
    assert (between.flags, between.contraction_type) == ((), "")
    assert "HiFi3 is HiFi4 here" in between.notes[0]
    with pytest.raises(ToolchainError, match="--math_fidelity LoFi: this compiler has no flag that narrows"):
        find_fidelity_flags("LoFi", DataFormat.FP32, None, compiler())


@pytest.mark.parametrize("form", [form for form in DataFormat if form is not DataFormat.FP32])
def test_what_is_narrow_already_stays(form: DataFormat) -> None:
    made = find_fidelity_flags("LoFi", form, 3, compiler(*BOTH))
    assert (made.flags, made.contraction_type) == ((), "")
    assert form.value in made.notes[0]
    assert not find_fidelity_flags("HiFi4", form, 3, compiler(*BOTH)).notes


PROGRAM = """
func.func @main(%a: tensor<32x256xf32>, %b: tensor<256x48xf32>) -> tensor<32x48xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x48xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x48xf32>) -> tensor<32x48xf32>
  %made = linalg.matmul ins(%a, %b : tensor<32x256xf32>, tensor<256x48xf32>)
    outs(%init : tensor<32x48xf32>) -> tensor<32x48xf32>
  return %made : tensor<32x48xf32>
}
"""


@pytest.fixture(scope="module")
def installed() -> tuple[str, FlagSet]:
    binaries = pytest.importorskip("iree.compiler.tools.binaries")
    tool = str(binaries.find_tool("iree-compile"))
    listed = subprocess.run([tool, "--help-list-hidden"], capture_output=True, text=True, check=True)
    return tool, parse_compiler_help(listed.stdout)


@pytest.mark.iree
@pytest.mark.parametrize("level", [*(pytest.param(level, marks=pytest.mark.stress) for level in (None, 0, 2)), 4])
def test_errors_of_a_real_product_grow_as_fidelity_falls(
    level: int | None, installed: tuple[str, FlagSet], tmp_path: Path
) -> None:
    runtime = pytest.importorskip("iree.runtime")
    tool, known = installed
    random = np.random.default_rng(5)
    first, second = (random.normal(size=shape).astype(np.float32) for shape in ((32, 256), (256, 48)))
    exact = first.astype(np.float64) @ second.astype(np.float64)
    (tmp_path / "product.mlir").write_text(PROGRAM, encoding="utf-8")
    levels = find_opt_level_flags(level, known).flags
    errors = {}
    for fidelity in ("HiFi4", "HiFi3", "HiFi2"):
        flags = (*levels, *find_fidelity_flags(fidelity, DataFormat.FP32, level, known).flags)
        subprocess.run(
            [
                *(tool, "product.mlir", "-o", f"{fidelity}.vmfb", "--iree-hal-target-device=local"),
                *("--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic", *flags),
            ],
            cwd=tmp_path,
            check=True,
        )
        module = runtime.load_vm_flatbuffer_file(str(tmp_path / f"{fidelity}.vmfb"), driver="local-sync")
        errors[fidelity] = float(np.sqrt(np.mean((module.main(first, second).to_host() - exact) ** 2)))
    # Each step is a real one, but for the lowest, which is the one above it.
    assert errors["HiFi3"] > 100 * errors["HiFi4"] > 0
    assert errors["HiFi2"] > 4 * errors["HiFi3"]
    assert find_fidelity_flags("LoFi", DataFormat.FP32, level, known).flags == flags[len(levels) :]


@pytest.mark.iree
def test_the_installed_compiler_takes_all_these_flags(installed: tuple[str, FlagSet]) -> None:
    tool, known = installed
    flags = {
        flag
        for level in range(5)
        for fidelity in ("HiFi3", "HiFi2", "LoFi")
        for made in (find_opt_level_flags(level, known), find_fidelity_flags(fidelity, DataFormat.FP32, level, known))
        for flag in made.flags
    }
    for flag in flags:
        subprocess.run([tool, flag, "--version"], capture_output=True, check=True)
    assert "--iree-opt-generalize-matmul=false" in flags
