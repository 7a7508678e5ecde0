"""Configs of operator suites and folders of their cases: their content, and mistakes with their places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.dialects.json_text import find_item_lines, find_line, list_comments, read_plain_json
from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import SelectionRequest, parse_request
from iree_gauntlet.stages import Stage
from iree_gauntlet.tasks.inspect import lint
from tests.support.op_trees import add_onnx, list_op_problems, load_ops, write_config
from tests.support.spec_trees import plan

if TYPE_CHECKING:
    from pathlib import Path

# Text that a comment or a string may hold, and that could be taken for something else.
_TEXT = st.text('ab/*",[]{}:#\\ ', max_size=8)
_VALUES = st.recursive(
    st.integers(-9, 9) | _TEXT | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)
_COMMENT = st.sampled_from(["", " ", "\n", '// a " ] } , b\n', '/* [ , " */', "/* a\n * b // */ "])


def _with_comments(value: Any, draw: Any) -> str:
    """JSON with comments and trailing commas between all of its parts."""
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}{draw(_COMMENT)}:{_with_comments(item, draw)}" for key, item in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list):
        parts = [_with_comments(item, draw) for item in value]
        opening, closing = "[]"
    else:
        return f"{draw(_COMMENT)}{json.dumps(value)}{draw(_COMMENT)}"
    last = draw(st.sampled_from(["", ","])) if parts else ""
    return f"{draw(_COMMENT)}{opening}{','.join(parts)}{last}{draw(_COMMENT)}{closing}{draw(_COMMENT)}"


@given(_VALUES, st.data())
def test_comments_and_trailing_commas_change_no_value_and_no_place(value: Any, data: st.DataObject) -> None:
    text = _with_comments(value, data.draw)
    plain = read_plain_json(text)
    assert json.loads(plain) == value
    assert len(plain) == len(text)
    assert [a for a, b in zip(text, plain, strict=True) if b not in {" ", a}] == []
    assert plain.count("\n") == text.count("\n")


@given(_VALUES)
def test_plain_json_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert read_plain_json(text) == text


@given(st.text('"a/*,[]{}\n\\ ', max_size=30))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    assert len(read_plain_json(text)) == len(text)
    assert all(0 < line <= text.count("\n") + 1 for line in list_comments(text))


@pytest.mark.parametrize("text", ["[,]", "[1,,]", "{,}", "[1,,2]", '{"a":,}', "[1 /* ] ", "[1, // ]"])
def test_json5_is_no_licence(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(read_plain_json(text))


@given(st.lists(_TEXT, max_size=6), st.integers(0, 3))
def test_lines_of_items(items: list[str], indent: int) -> None:
    text = json.dumps({"x": 1, "list": items}, indent=indent)
    assert find_item_lines(text, ["list"]) == [find_line(text, ["list", index]) for index in range(len(items))]
    assert find_item_lines(text, ["x"]) == find_item_lines(text, ["nothing"]) == []


def test_comments_are_reasons(tmp_path: Path) -> None:
    text = """{ // how the CPU does
  "config_name": "cpu",
  "iree_compile_flags": ["--iree-hal-target-backends=llvm-cpu"],
  "iree_run_module_flags": [],
  /* upstream's own list */
  "expected_compile_failures": [
    // not this one
    "node/test_a", // failed to legalize onnx.If
    "node/test_b", /* shapes, #123 */
    "node/test_c",
  ],
}
"""
    for name in "abc":
        add_onnx(tmp_path, f"node/test_{name}")
    write_config(tmp_path, text=text)
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert [case.expectations[0].reason for case in cases.cases] == [
        "failed to legalize onnx.If",
        "shapes, #123",
        "in expected_compile_failures",
    ]
    assert cases.cases[1].expectations[0].origin.field == "expected_compile_failures[1]"


def test_an_entry_that_stands_twice_is_warned_of(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    lists = ["node/test_a", "node/test_a"]
    write_config(tmp_path, expected_run_failures=lists, expected_compile_crashes=lists)
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert [(item.line, item.field) for item in cases.warnings] == [
        (12, "expected_run_failures[1]"),
        (16, "expected_compile_crashes[1]"),
    ]
    assert "is already in this list ([0])" in cases.warnings[0].message


def test_what_is_skipped_may_be_expected_to_fail_too(tmp_path: Path) -> None:
    """As in IREE's own configs, whose runner looks at `skip_compile_tests` first."""
    for name in ("compile", "run", "half"):
        add_onnx(tmp_path, f"node/{name}")
    write_config(
        tmp_path,
        skip_compile_tests=["node/compile"],
        skip_run_tests=["node/run", "node/half"],
        expected_compile_failures=["node/compile", "node/half"],
        expected_run_failures=["node/run"],
    )
    cases = load_ops(tmp_path)
    assert not cases.problems
    why = "and is skipped: what does not run cannot fail"
    assert [(item.line, item.field, item.message) for item in cases.warnings] == [
        (18, "expected_compile_failures[0]", f"'node/compile' is also in skip_compile_tests, {why}"),
        (22, "expected_run_failures[0]", f"'node/run' is also in skip_run_tests, {why}"),
    ]
    made = plan(cases, (Stage.COMPILE, Stage.THRESHOLD))
    assert [step.id.replace("node/", "") for step in made.steps if not step.skip] == [
        "half@cpu:compile",
        "run@cpu:compile",
    ]


def test_fields_that_are_new_are_passed_over_and_misspelt_ones_are_not(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    new: dict[str, Any] = {"$schema": "https://host/config.json", "owner": "x"}
    write_config(tmp_path, **new, expected_compile_failure=[])
    (problem,) = list_op_problems(tmp_path)
    assert "expected_compile_failure: unknown field; did you mean 'expected_compile_failures'?" in problem
    write_config(tmp_path, **new)
    cases = load_ops(tmp_path)
    (warning,) = cases.warnings
    assert (warning.field, warning.message, warning.line) == ("owner", "unknown field, which is ignored", 11)
    assert [case.chain for case in cases.cases] == ["node/test_a@cpu"]
    assert not cases.problems


def test_golden_times_may_stand_in_quotes(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, golden_times_ms={"node/test_a": "12.5"}, tolerance_factor="1.2")
    (_, benchmark) = load_ops(tmp_path).cases
    assert benchmark.goldens[0].limit == 15.0
    write_config(tmp_path, golden_times_ms={"node/test_a": "fast"})
    assert 'golden_times_ms.node/test_a: expected a number, found the string "fast"' in list_op_problems(tmp_path)[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"expected_compile_failure": []},
            "expected_compile_failure: unknown field; did you mean 'expected_compile_failures'?",
        ),
        ({"skip_run_tests": "x"}, 'skip_run_tests: expected an array, found the string "x"'),
        (
            {"iree_compile_flags": ["local"]},
            "iree_compile_flags[0]: expected a flag that starts with '-', found 'local'",
        ),
        ({"tolerance_factor": 0}, "tolerance_factor: expected a value greater than 0, found the number 0"),
        ({"golden_times_ms": {"node/test_a": -1}}, "golden_times_ms.node/test_a: expected a value greater than 0"),
        ({"config_name": "a@b"}, "config_name: expected a name of letters"),
    ],
)
def test_a_field_that_cannot_be_read(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, **fields)
    (problem,) = list_op_problems(tmp_path)
    assert expected in problem
    assert problem.startswith("configs/cpu.json:")


def test_missing_fields_and_broken_text(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, text='{"config_name": "cpu" "x"}')
    assert "is not JSON" in list_op_problems(tmp_path)[0]
    write_config(tmp_path, text='{"config_name": "cpu"}')
    assert [problem.split(": ")[1] for problem in list_op_problems(tmp_path)] == [
        "iree_compile_flags",
        "iree_run_module_flags",
    ]


def test_entries_that_name_no_case_are_warned_of(tmp_path: Path) -> None:
    add_onnx(tmp_path, "node/test_abs")
    path = write_config(
        tmp_path,
        expected_run_failures=["node/test_abs", "node/test_asb"],
        golden_times_ms={"node/none": 1.0},
        expected_run_crashes=["../x", "/node/test_abs"],
    )
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert not cases.warnings
    assert [(problem.field, problem.line) for problem in cases.unmatched_entries] == [
        ("expected_run_failures[1]", 12),
        ("golden_times_ms.node/none", 15),
        ("expected_run_crashes[0]", 18),
        ("expected_run_crashes[1]", 19),
    ]
    assert "did you mean 'node/test_abs'?" in cases.unmatched_entries[0].message
    # One that is outside of the spec folder is a case all the same.
    add_onnx(tmp_path, "other/test_asb")
    path.write_text(path.read_text().replace("node/test_asb", "other/test_asb"))
    assert len(load_ops(tmp_path / "node").unmatched_entries) == 3


def test_lint_of_a_part_sums_up_the_entries_that_name_no_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("test_abs", "test_neg"):
        add_onnx(tmp_path, f"node/{name}")
    write_config(tmp_path, expected_run_failures=["node/a", "node/b"])

    def linted(**selection: list[str]) -> tuple[int, str]:
        lint(parse_request(SelectionRequest, {"spec_dir": [str(tmp_path)], **selection}), None)
        said = capsys.readouterr()
        return said.out.count("warning: "), said.err

    assert linted()[0] == 2
    count, summed = linted(submodel=["test_abs"])
    assert count == 0
    assert "2 entries name no existing case; `lint` of the whole suite lists them" in summed


def test_configs_of_one_name_are_called_by_their_files(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, "cpu_O0", config_name="cpu")
    write_config(tmp_path, "cpu_O2", config_name="cpu", expected_run_failures=["node/test_a"])
    write_config(tmp_path, "gpu")
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert [(case.chain, bool(case.expectations)) for case in cases.cases] == [
        ("node/test_a@cpu_O0", False),
        ("node/test_a@cpu_O2", True),
        ("node/test_a@gpu", False),
    ]
    # By itself, one keeps its own name.
    (alone,) = load_ops(tmp_path, configs=(tmp_path / "configs" / "cpu_O2.json",)).cases
    assert alone.chain == "node/test_a@cpu"


def test_two_configs_that_cannot_be_told_apart(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    named = (write_config(tmp_path), write_config(tmp_path / "elsewhere"))
    (problem,) = load_ops(tmp_path, configs=named).problems
    assert (
        str(problem)
        .replace(f"{tmp_path}/", "")
        .startswith("elsewhere/configs/cpu.json:2: config_name: 'cpu' is also the name of configs/cpu.json")
    )


def test_where_configs_are_found(tmp_path: Path) -> None:
    add_onnx(tmp_path, "onnx/node/test_a")
    (problem,) = load_ops(tmp_path).problems
    assert problem.file == str(tmp_path / "onnx/node/test_a/run_module_io_flags.txt")
    assert problem.message == f"its operator suite {tmp_path} has no config"
    assert '"config_name": "cpu_llvm_sync"' in problem.hint
    with pytest.raises(UsageError, match="does not exist"):
        load_ops(tmp_path, configs=(tmp_path / "none.json",))
    elsewhere = write_config(tmp_path / "elsewhere")
    given = load_ops(tmp_path / "onnx", configs=(elsewhere,))
    assert [case.chain for case in given.cases] == ["node/test_a@cpu"]
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "other.json").write_text("{}")
    write_config(tmp_path, "first")
    write_config(tmp_path, "second")
    chains = [case.chain for case in load_ops(tmp_path).cases]
    assert chains == ["onnx/node/test_a@first", "onnx/node/test_a@second"]
    for folder in ("onnx", "onnx/node", "onnx/node/test_a"):
        assert [case.chain for case in load_ops(tmp_path / folder).cases] == chains
    given = load_ops(tmp_path / "onnx", configs=(elsewhere, elsewhere))
    assert [case.chain for case in given.cases] == ["onnx/node/test_a@cpu"]
    with pytest.raises(UsageError, match="there is no operator suite"):
        load_ops(tmp_path / "configs", configs=(elsewhere,))


def test_suites_with_configs_of_their_own(tmp_path: Path) -> None:
    for suite in ("onnx_ops", "torch_ops"):
        add_onnx(tmp_path / suite, f"{suite}_cases/test_a")
        write_config(tmp_path / suite, "cpu")
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert [case.chain for case in cases.cases] == ["onnx_ops_cases/test_a@cpu", "torch_ops_cases/test_a@cpu"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"run_module_io_flags.txt": "--input=2xf32=@none.bin"}, "1: input: the file none.bin is missing"),
        (
            {"run_module_io_flags.txt": "--input=2xf32=@../input_0.bin"},
            "1: input: '../input_0.bin' is outside of the case's folder",
        ),
        ({"run_module_io_flags.txt": "--expected_output=@/etc/x.npy"}, "1: expected_output: '/etc/x.npy' is outside"),
        (
            {"second.mlirbc": "x"},
            " expected one program next to it, *.mlir or *.mlirbc; found model.mlir and second.mlirbc",
        ),
        ({"run_module_io.json": "{}"}, " is next to a run_module_io.json: only one may be present"),
    ],
)
def test_mistakes_in_the_folder_of_a_case(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    add_onnx(tmp_path, "node/test_a", **files)
    add_onnx(tmp_path, "node/test_b")
    write_config(tmp_path)
    (problem,) = list_op_problems(tmp_path)
    assert problem.startswith(f"node/test_a/run_module_io_flags.txt:{expected}")
    # It is an error of this case alone.
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert [(case.submodel, bool(case.blocked_reason)) for case in cases.cases] == [("test_a", True), ("test_b", False)]
    steps = {step.id: step for step in plan(cases, (Stage.COMPILE, Stage.THRESHOLD)).steps}
    blocked = [name for name, step in steps.items() if step.blocked]
    at = "threshold" if "missing" in expected or "is outside" in expected else "compile"
    assert blocked == [f"node/test_a@cpu:{at}"]
    what, _, hint = problem.partition("\n")
    hint = hint.strip().removesuffix(".")
    hint = f" {hint}" if what.endswith("?") else f"; {hint[0].lower()}{hint[1:]}"
    assert steps[blocked[0]].blocked.removeprefix(f"{tmp_path}/") == what + hint
    assert at == "threshold" or "node/test_a@cpu:compile" in steps["node/test_a@cpu:threshold"].needs


def test_a_folder_without_a_program(tmp_path: Path) -> None:
    (add_onnx(tmp_path) / "model.mlir").unlink()
    write_config(tmp_path, golden_times_ms={"node/test_a": 1.0})
    assert "found none" in list_op_problems(tmp_path)[0]
    made = plan(load_ops(tmp_path), (Stage.COMPILE, Stage.THRESHOLD, Stage.BENCHMARK))
    assert [step.id for step in made.steps if step.blocked] == ["node/test_a@cpu:compile"]


def test_what_is_expected_by_stage(tmp_path: Path) -> None:
    for name in ("both", "compile", "run", "skipped", "unrun"):
        add_onnx(tmp_path, f"n/{name}")
    write_config(
        tmp_path,
        expected_compile_failures=["n/both", "n/compile"],
        expected_compile_crashes=["n/both"],
        expected_run_failures=["n/run", "n/both"],
        skip_compile_tests=["n/skipped"],
        skip_run_tests=["n/unrun", "n/compile"],
    )
    cases = load_ops(tmp_path)
    assert not cases.problems
    assert not cases.warnings
    found = {
        case.submodel: [(it.stage, it.possible_kinds) for it in case.expectations if it.stage is not Stage.BENCHMARK]
        for case in cases.cases
    }
    ordinary = ("does not run", "wrong numbers")
    assert found == {
        "both": [(Stage.COMPILE, ("crashes",)), (Stage.THRESHOLD, ordinary)],
        "compile": [(Stage.COMPILE, ("does not compile",))],
        "run": [(Stage.THRESHOLD, ordinary)],
        "skipped": [],
        "unrun": [],
    }
    skips = {case.submodel: [stage for stage, _ in case.skips] for case in cases.cases}
    assert skips["skipped"] == [Stage.COMPILE, Stage.THRESHOLD, Stage.BENCHMARK]
    assert skips["unrun"] == skips["compile"] == [Stage.THRESHOLD, Stage.BENCHMARK]


def test_a_misspelt_name_is_told_and_hides_no_config(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, text='{"config_nam": "cpu", "iree_compile_flags": [], "iree_run_module_flags": []}')
    (found,) = [line for line in list_op_problems(tmp_path) if "config_nam:" in line or "config_nam " in line]
    assert "configs/cpu.json" in found
    assert "config_name" in found
