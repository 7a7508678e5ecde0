"""Torch operators: arguments with NumPy's values, outputs by NumPy's rule, and mistakes with their places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.cases import Allclose, Argument
from iree_gauntlet.dialects.op_suites import ELEMENT_TYPES
from iree_gauntlet.measuring.numerics.arrays import Tensor, TensorError, read_npy
from iree_gauntlet.measuring.numerics.comparison import compare_allclose
from iree_gauntlet.stages import Kind, Stage
from tests.support.op_trees import COMPILE_FLAGS, add_onnx, add_torch, list_op_problems, load_ops, write_config
from tests.support.spec_trees import find_argv, find_step, plan, write_tree
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RUN = (Stage.COMPILE, Stage.THRESHOLD, Stage.BENCHMARK)
_NUMBERS = st.integers(-9, 9) | st.floats(-1e3, 1e3)
_FORMULAS = st.fixed_dictionaries(
    {
        "shape": st.lists(st.integers(0, 5), max_size=3),
        "dtype": st.sampled_from(sorted(ELEMENT_TYPES)),
        "coeff": _NUMBERS,
        "offset": _NUMBERS,
    }
)


def test_the_arguments_of_a_case_are_numpys(tmp_path: Path) -> None:
    folder = add_torch(tmp_path)
    write_config(tmp_path)
    path = folder / "run_module_io.json"
    document = json.loads(path.read_text())

    @given(st.lists(_FORMULAS, max_size=4), st.integers(0, 2**32 - 1))
    def check(formulas: list[dict[str, Any]], seed: int) -> None:
        path.write_text(json.dumps(document | {"flat_args": [{"Formula": item} for item in formulas], "seed": seed}))
        (case,) = load_ops(tmp_path).cases
        np.random.seed(seed)  # noqa: NPY002 - what the suite's own program draws from
        for formula, argument in zip(formulas, case.inputs, strict=True):
            with np.errstate(all="ignore"):
                drawn = np.asarray(np.random.rand(*formula["shape"]))  # noqa: NPY002
                expected = (formula["coeff"] * drawn + formula["offset"]).astype(np.dtype(formula["dtype"]))
            made = parse_seeded(argument.url)
            assert made.generate().tobytes() == expected.tobytes()
            assert made.shape == expected.shape
            assert made.element_type == ELEMENT_TYPES[formula["dtype"]]

    check()


def test_large_arguments_are_drawn_in_pieces() -> None:
    count = (1 << 20) + 5
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand(2 * count)[count:].astype(np.float16)  # noqa: NPY002
    made = parse_seeded(f"random://formula/{count}xf16?seed=3&skip={count}").generate()
    assert np.array_equal(made, expected)


def test_what_a_case_means(tmp_path: Path) -> None:
    folder = add_torch(tmp_path, rtol=1e-3)
    write_config(tmp_path, expected_run_failures=["AB/small"], golden_times_ms={"AB/small": 3})
    quality, benchmark = load_ops(tmp_path).cases
    url = "random://formula/4x2xf16?seed=7&skip={}&coeff=2.0&offset=-1.0"
    scalars = (Argument("i64=3"), Argument("i1=1"), Argument("f64=1.5"))
    assert quality.inputs == (Argument(url=url.format(0)), Argument(url=url.format(8)), *scalars)
    assert quality.expected_outputs == (Argument("@e.npy"),)
    assert quality.allclose == Allclose(1e-3, 1e-8, equal_nan=False)
    assert (quality.model, quality.submodel) == ("generated/AB", "small")
    assert (benchmark.kind, benchmark.goldens[0].limit) == (Kind.BENCHMARK, 3.0)
    # Wrong numbers can be measured.
    assert [item.stage for item in benchmark.expectations] == [Stage.THRESHOLD]
    made = plan(load_ops(tmp_path), (*RUN, Stage.FETCH), artifact_path=lambda url: folder / url[-6:])
    chain = "generated/AB/small@cpu"
    assert [step.id for step in made.steps] == [
        f"{chain}:{stage}" for stage in ("fetch", "compile", "threshold", "benchmark")
    ]
    step = find_step(made, f"{chain}:threshold")
    assert step.allclose == quality.allclose
    assert step.expect_failure.startswith("in expected_run_failures")
    assert "--expected_output=@e.npy" in find_argv(made, step.id)
    assert find_argv(made, step.id)[-2:] == ["--function=main", "--device=local-sync"]
    # What is fetched is what is synthetic: the program and the outputs lie in the folder.
    assert [item.role for item in find_step(made, f"{chain}:fetch").inputs] == ["input", "input"]


def test_expected_outputs_that_are_no_files_of_the_folder(tmp_path: Path) -> None:
    meta = {"dtype": "bfloat16", "shape": [16, 2]}
    add_torch(
        tmp_path,
        expected_output=[
            {"url": "https://host/e.bin", "value": None, "meta": meta},
            {"url": "e.bin", "meta": meta},
            {"url": "https://host/e.npy"},
            {"value": 2.5},
            {"value": 2, "meta": {"dtype": "float32", "shape": [3]}},
            {"value": True},
            {"value": 7},
            {"value": "e.npy", "url": None},
            {"value": "e.bin", "meta": meta},
        ],
    )
    (tmp_path / "generated" / "AB" / "small" / "e.bin").write_bytes(bytes(64))
    write_config(tmp_path)
    (case,) = load_ops(tmp_path).cases
    assert case.expected_outputs == (
        Argument("16x2xbf16", "https://host/e.bin"),
        Argument("16x2xbf16=@e.bin"),
        Argument(url="https://host/e.npy"),
        Argument("f64=2.5"),
        Argument("3xf32=2"),
        Argument("i1=1"),
        Argument("i64=7"),
        Argument("@e.npy"),
        Argument("16x2xbf16=@e.bin"),
    )


def test_a_case_that_is_only_measured(tmp_path: Path) -> None:
    add_torch(tmp_path, mode="benchmark", expected_output=None, function_name="f-1")
    write_config(tmp_path, skip_run_tests=["generated/AB/small"])
    (case,) = load_ops(tmp_path).cases
    assert (case.kind, case.goldens, case.allclose) == (Kind.BENCHMARK, (), None)
    made = plan(load_ops(tmp_path), (*RUN, Stage.FETCH))
    assert [(step.stage, bool(step.skip)) for step in made.steps] == [(Stage.COMPILE, False), (Stage.BENCHMARK, True)]
    assert "--function=f-1" in find_argv(made, "generated/AB/small@cpu:benchmark")


def test_a_case_is_named_by_its_last_two_folders(tmp_path: Path) -> None:
    """Wherever it lies, as `qualified_name` of upstream's torch_ops/common.py."""
    add_torch(tmp_path, "generated/gemm/AB/small")
    add_torch(tmp_path, "AB/large")
    write_config(tmp_path, skip_run_tests=["AB/small"], expected_run_failures=["AB/large", "generated/gemm/AB/small"])
    cases = load_ops(tmp_path)
    assert not cases.unmatched_entries
    assert [(case.chain, bool(case.skips), bool(case.expectations)) for case in cases.cases] == [
        ("AB/large@cpu", False, True),
        ("generated/gemm/AB/small@cpu", True, True),
    ]
    outside = write_config(tmp_path / "elsewhere", skip_run_tests=["AB/small"])
    (tmp_path / "configs" / "cpu.json").unlink()
    skips = {case.submodel: bool(case.skips) for case in load_ops(tmp_path, configs=(outside,)).cases}
    assert skips == {"large": False, "small": True}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "f8e4m3fn", "f8E4M3FN"])
def test_types_of_8_bits(tmp_path: Path, dtype: str) -> None:
    formula = {"Formula": {"shape": [2], "dtype": dtype}}
    output = {"url": "https://host/e.bin", "meta": {"dtype": dtype, "shape": [2]}}
    add_torch(tmp_path, flat_args=[formula], expected_output=[output])
    write_config(tmp_path)
    (case,) = load_ops(tmp_path).cases
    assert parse_seeded(case.inputs[0].url).element_type == case.expected_outputs[0].value[2:] == "f8E4M3FN"


def test_cases_of_an_earlier_form_are_refused_each_by_itself(tmp_path: Path) -> None:
    write_tree(tmp_path / "test_a_b", {"run_module_io_flags.json": {"inputs": ["a.npy"]}, "test.mlir": "module {}\n"})
    add_torch(tmp_path)
    write_config(tmp_path)
    (problem,) = list_op_problems(tmp_path)
    assert problem.startswith("test_a_b/run_module_io_flags.json: is in a format older than run_module_io.json")
    assert not load_ops(tmp_path).problems


def test_fields_that_are_new_are_passed_over(tmp_path: Path) -> None:
    add_torch(tmp_path, dynamic_shapes=None, **{"$schema": "https://host/case.json"})
    write_config(tmp_path)
    cases = load_ops(tmp_path)
    assert (cases.problems, cases.operator_case_problems) == ((), ())
    assert [(item.field, item.message) for item in cases.warnings] == [
        ("dynamic_shapes", "unknown field, which is ignored")
    ]
    assert [case.submodel for case in cases.cases] == ["small"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"seeds": 1}, "seeds: unknown field; did you mean 'seed'?"),
        ({"seed": -1}, "seed: expected a value greater than or equal to 0"),
        ({"mode": "check"}, "mode: expected a value 'compare', 'quality' or 'benchmark'"),
        ({"rtol": -1.0}, "rtol: expected a value greater than or equal to 0"),
        ({"flat_args": ["x"]}, "flat_args[0]: expected a finite number, true or false, found 'x'"),
        (
            {"flat_args": [{"Formula": {"shape": [2], "dtype": "float61"}}]},
            "flat_args[0].Formula.dtype: unknown element type",
        ),
        ({"flat_args": [{"Formula": {"shape": [2], "size": 1}}]}, "flat_args[0].Formula.size: unknown field"),
        ({"flat_args": [{"Formula": {"shape": [-2]}}]}, "flat_args[0].Formula.shape[0]: expected a value greater"),
        ({"file_name": "none.mlir"}, "file_name: the file none.mlir is missing"),
        ({"file_name": "../small/test.mlir"}, "file_name: '../small/test.mlir' is outside of the case's folder"),
        ({"expected_output": None}, "expected_output: is missing"),
        ({"expected_output": ["none.npy"]}, "expected_output[0]: the file none.npy is missing"),
        ({"expected_output": ["/e.npy"]}, "expected_output[0]: '/e.npy' is outside of the case's folder"),
        (
            {"expected_output": [{"url": "../e.npy"}]},
            "expected_output[0].url: '../e.npy' is outside of the case's folder",
        ),
        ({"expected_output": [{"url": "x.bin"}]}, "expected_output[0].meta: is missing"),
        ({"expected_output": [{"value": "x.bin"}]}, "expected_output[0].meta: is missing"),
        ({"expected_output": [{"value": "no.npy"}]}, "expected_output[0].value: the file no.npy is missing"),
        ({"expected_output": [{"value": "../e.npy"}]}, "expected_output[0].value: '../e.npy' is outside of the case's"),
        ({"expected_output": [{}]}, "expected_output[0].url: expected one of 'url' and 'value'"),
    ],
)
def test_mistakes_name_their_field_and_line(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    add_torch(tmp_path, **fields)
    write_config(tmp_path)
    (problem,) = list_op_problems(tmp_path)
    place, _, message = problem.partition(": ")
    assert message.startswith(expected)
    file, _, line = place.rpartition(":")
    assert file == "generated/AB/small/run_module_io.json"
    assert 0 < int(line) < 50
    # The program is valid, unless it is what is missing.
    blocked = [step.stage for step in plan(load_ops(tmp_path), (Stage.COMPILE, Stage.THRESHOLD)).steps if step.blocked]
    assert blocked == [Stage.COMPILE if "file_name" in fields else Stage.THRESHOLD]


_VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-10, 1000.0, 1e-9, np.inf, -np.inf, np.nan]) | st.floats(width=16)


def _tensor(array: NDArray[Any], element_type: str) -> Tensor:
    return Tensor(element_type, array.shape, array)


@given(st.data(), st.sampled_from(["f16", "bf16", "f32", "f64", "i32"]), st.booleans())
def test_the_verdict_is_numpys(data: st.DataObject, element_type: str, equal_nan: bool) -> None:
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i32": np.int32}
    shape = data.draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    elements = st.integers(-9, 10**6) if element_type == "i32" else _VALUES
    first, second = (
        data.draw(arrays(np.float64, shape, elements=elements)).astype(np.dtype(kinds[element_type])) for _ in range(2)
    )
    if data.draw(st.booleans()):
        second = first.copy()
    rule = Allclose(
        data.draw(st.sampled_from([0.0, 1e-5, 0.1])), data.draw(st.sampled_from([0.0, 1e-8, 1.0])), equal_nan
    )
    (found,) = compare_allclose([_tensor(first, element_type)], [_tensor(second, element_type)], rule)
    with np.errstate(all="ignore"):
        assert found.passed == np.allclose(first, second, rtol=rule.rtol, atol=rule.atol, equal_nan=equal_nan)
    assert found.passed == (found.mismatches == 0)
    assert found.message


def test_other_shapes_and_counts_fail() -> None:
    one, two = _tensor(np.zeros((1,), np.float32), "f32"), _tensor(np.zeros((2,), np.float32), "f32")
    rule = Allclose(1e-5, 1e-8, equal_nan=False)
    assert not compare_allclose([one], [two], rule)[0].passed
    assert [item.passed for item in compare_allclose([one, two], [one], rule)] == [True, False]
    assert [item.passed for item in compare_allclose([one], [one, two], rule)] == [True, False]
    # An integer .npy has a sign, and a module's integers have none.
    assert compare_allclose([_tensor(np.ones(1, np.int64), "i64")], [_tensor(np.ones(1, np.int64), "si64")], rule)[
        0
    ].passed


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_numpy_saves_without_a_type(tmp_path: Path, dtype: str) -> None:
    array = np.array([1.0, 2.0]).astype(np.dtype(dtype))
    np.save(tmp_path / "e.npy", array)
    read = read_npy(tmp_path / "e.npy")
    if dtype == "bfloat16":
        rule = Allclose(1e-3, 0.0, equal_nan=False)
        assert compare_allclose([_tensor(array, "bf16")], [read.with_known_type()], rule)[0].passed
        return
    with pytest.raises(TensorError, match="the type of its 1-byte values is not given") as error:
        read.with_known_type()
    assert '"meta"' in error.value.hint


def test_bits_of_another_type_fail_with_both_types() -> None:
    bits = Tensor("*8", (4,), np.zeros(4, "V1"))
    (found,) = compare_allclose([bits], [_tensor(np.zeros(2, np.float32), "f32")], Allclose(1.0, 1.0, equal_nan=False))
    assert not found.passed
    assert "*8" in found.message


_ADD = """func.func @main(%a: tensor<4x4xbf16>, %b: tensor<4x4xbf16>) -> tensor<4x4xbf16> {
  %0 = arith.addf %a, %b : tensor<4x4xbf16>
  return %0 : tensor<4x4xbf16>
}
"""


_ADD_F32 = """func.func @main(%a: tensor<4x4xbf16>, %b: tensor<4x4xbf16>) -> tensor<4x4xf32> {
  %0 = arith.addf %a, %b : tensor<4x4xbf16>
  %1 = arith.extf %0 : tensor<4x4xbf16> to tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}
"""


@pytest.mark.iree
def test_a_run_compares_by_allclose(tmp_path: Path) -> None:
    project = Project(tmp_path)
    root = tmp_path / "ops"
    write_config(
        root, iree_compile_flags=[*COMPILE_FLAGS, "--iree-llvmcpu-target-cpu=host"], expected_run_failures=["AB/wrong"]
    )
    formula = {"Formula": {"shape": [4, 4], "dtype": "bfloat16", "coeff": 2, "offset": 0.5}}
    np.random.seed(5)  # noqa: NPY002
    first, second = ((2 * np.random.rand(4, 4) + 0.5).astype(ml_dtypes.bfloat16) for _ in range(2))  # noqa: NPY002
    near = ((first + second).astype(np.float32) * 1.1).astype(ml_dtypes.bfloat16)
    # As `numpy.save` writes them: without a type, and in other orders.
    saved = {
        "saved": first + second,
        "turned": np.asfortranarray((first + second).astype(">f4")),
        "unsaid": (first + second).astype(ml_dtypes.float8_e4m3fn),
    }
    for name, values in (("right", first + second), ("near", near), ("wrong", first - second), *saved.items()):
        output = {"url": "e.bin", "meta": {"dtype": "bfloat16", "shape": [4, 4]}}
        rtol = 0.2 if name == "near" else 0.01
        folder = add_torch(
            root,
            f"generated/AB/{name}",
            mode="quality",
            flat_args=[formula, formula],
            seed=5,
            expected_output=["e.npy"] if name in saved else [output],
            rtol=rtol,
        )
        (folder / "test.mlir").write_text(_ADD_F32 if name == "turned" else _ADD)
        (folder / "e.bin").write_bytes(values.tobytes())
        np.save(folder / "e.npy", values)
    done = project.gauntlet("run", "--spec-dir", "ops")
    assert done.code == 3, done.text
    verdicts = {
        name: project.result(f"generated/AB/{name}@cpu:threshold")["verdict"]
        for name in ("right", "near", "wrong", *saved)
    }
    assert verdicts == {
        "right": "passed",
        "near": "passed",
        "wrong": "xfailed",
        "saved": "passed",
        "turned": "passed",
        "unsaid": "error",
    }
    unsaid = project.result("generated/AB/unsaid@cpu:threshold")
    assert "values is not given" in unsaid["reason"]
    assert any('"meta"' in note for note in unsaid["notes"])
    wrong = project.result("generated/AB/wrong@cpu:threshold")
    assert wrong["reason"].startswith("output 0: 16 of 16 values (100 %) differ by more than 1e-08 + 0.01·|expected|")


def test_a_file_of_each_kind_in_one_tree(tmp_path: Path) -> None:
    add_torch(tmp_path)
    add_onnx(tmp_path, "generated/onnx/a")
    write_config(tmp_path, skip_run_tests=["AB/small", "generated/onnx/a"])
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert not cases.warnings
    assert [case.skips[0][0] for case in cases.cases] == [Stage.THRESHOLD] * 2
