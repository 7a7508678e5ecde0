"""Mistakes in files of torch models: each has a message, and no wrong file is taken for something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.torch_schema import ArgumentSpec, OutputSpec, Weight
from tests.support.spec_trees import write_tree
from tests.support.torch_documents import (
    BENCHMARK_FILE,
    COMPSTAT_FILE,
    DOCUMENTS,
    MODELS,
    MODULE_FILE,
    QUALITY_FILE,
    RANDOM_WEIGHT,
    SPLAT_WEIGHT,
    URL_WEIGHT,
    load_changed,
)
from tests.support.torch_trees import MODULE, QUALITY, load_torch, remove_fields

if TYPE_CHECKING:
    from pydantic import BaseModel

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem


def only(cases: CaseSet) -> Problem:
    assert len(cases.problems) == 1, cases.problems
    return cases.problems[0]


def line_of_text(document: Any, text: str) -> int:
    """The first line that holds a text, in the file that `write_tree` makes of a document."""
    return next(i for i, line in enumerate(json.dumps(document, indent=2).splitlines(), 1) if text in line)


def test_the_documents_are_valid_and_have_every_field(tmp_path: Path) -> None:
    cases = load_changed(tmp_path, QUALITY_FILE, DOCUMENTS[QUALITY_FILE])
    assert not cases.problems
    assert len(cases.cases) == 3
    for name, model in MODELS.items():
        assert set(model.model_fields) == set(DOCUMENTS[name])


# One bad value, or more, for each field of each document. Of each row: field, value, where it is written (its
# first line that holds the text), and what is said.

BIG = "9" * 400
TEXT_ERRORS: list[tuple[Any, str]] = [
    (None, "null"),
    (5, "the number 5"),
    ([], "an array"),
    ({}, "an object"),
    (True, "true"),
]
FLAG_ERRORS: list[tuple[Any, str, str]] = [
    ("x", "", "expected an array"),
    (None, "", "expected an array"),
    ({}, "", "expected an array"),
    ([1], "[0]", "expected a string"),
    ([None], "[0]", "expected a string"),
    (["x"], "[0]", "starts with '-'"),
    (["--a", ""], "[1]", "starts with '-'"),
    (["--a\nb"], "[0]", "line break"),
    (["--a\0b"], "[0]", "NUL"),
    ([["--x"]], "[0]", "expected a string"),
]
COMMON_ERRORS: list[tuple[str, Any, str, str]] = [
    *(("description", value, "", f"expected a string, found {found}") for value, found in TEXT_ERRORS),
    ("timeouts", [], "", "expected an object"),
    ("timeouts", None, "", "expected an object"),
    ("timeouts", {"fetch": 0}, ".fetch", "greater than 0"),
    ("timeouts", {"fetch": -1}, ".fetch", "greater than 0"),
    ("timeouts", {"fetch": "5"}, ".fetch", "expected a number"),
    ("timeouts", {"fetch": True}, ".fetch", "expected a number"),
    ("timeouts", {"fetc": 5}, "", "unknown stage 'fetc'"),
]
TEST_ERRORS: list[tuple[str, Any, str, str]] = [
    *COMMON_ERRORS,
    ("type", "Quality", "", "did you mean 'quality'?"),
    ("type", "", "", "unknown type ''"),
    ("type", "zzz", "", "unknown type 'zzz' of a test; known: quality, benchmark, compstat"),
    *(
        ("type", value, "", "expected the type of a test (quality, benchmark, compstat)")
        for value in (None, 1, ["quality"])
    ),
    ("markers", None, "", "expected an array"),
    ("markers", "cpu", "", "expected an array"),
    ("markers", [1], "[0]", "expected a string"),
    ("markers", ["a b"], "[0]", "one word"),
    ("markers", [""], "[0]", "one word"),
    ("markers", ["not"], "[0]", "one word"),
    ("markers", ["cpu", "a=1"], "[1]", "one word"),
    ("markers", ["-x"], "[0]", "one word"),
    *(
        ("markers", [word], "[0]", f"{word!r} means something else to pytest")
        for word in ("parametrize", "usefixtures", "filterwarnings", "skipif", "timeout")
    ),
    *(("timeouts", {stage: 5}, "", f"{stage!r} is a stage of module definitions") for stage in ("import", "compile")),
]
NAME_ERRORS: list[tuple[Any, str]] = [
    (None, "expected a string"),
    (5, "expected a string"),
    ("", "non-empty string"),
    ("../a", "below the module folder"),
    ("/a", "below the module folder"),
    ("a\\b", "below the module folder"),
    ("m/modules/b", "no module definition m/modules/b.json"),
    ("m/bench", "not a module definition"),
]
RUN_ERRORS: list[tuple[str, Any, str, str]] = [
    *TEST_ERRORS,
    ("modules", None, "", "expected an array"),
    ("modules", "m/modules/a", "", "expected an array"),
    ("modules", [], "", "at least 1 item"),
    ("modules", ["m/modules/a", "m/modules/a"], "", "names 'm/modules/a' twice"),
    ("modules", ["m/modules/a", "m/modules/a.json"], "", "names 'm/modules/a' twice"),
    *(("modules", [name], "[0]", says) for name, says in NAME_ERRORS),
    ("weights", None, "", "expected an array"),
    ("weights", URL_WEIGHT, "", "expected an array"),
    ("weights", ["https://h/w.irpa"], "[0]", "expected an object"),
    ("weights", [remove_fields(RANDOM_WEIGHT, "type")], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"type": "uri"}], "[0].type", "'url', 'random' or 'splat'"),
    ("weights", [URL_WEIGHT | {"type": None}], "[0].type", "'url', 'random' or 'splat'"),
    ("weights", [remove_fields(URL_WEIGHT, "scope")], "[0].scope", "is missing"),
    ("weights", [URL_WEIGHT | {"scope": None}], "[0].scope", "expected a string"),
    ("weights", [URL_WEIGHT | {"scope": "a=b"}], "[0].scope", "pattern"),
    ("weights", [URL_WEIGHT | {"scope": "a\0"}], "[0].scope", "pattern"),
    ("weights", [remove_fields(URL_WEIGHT, "url")], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"url": None}], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"url": " "}], "[0].url", "non-empty string"),
    ("weights", [URL_WEIGHT | {"url": "../w.irpa"}], "[0].url", "is outside of the external files folder"),
    ("weights", [URL_WEIGHT | {"seed": 1}], "[0].seed", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"module": "m/modules/a"}], "[0].module", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"value": 0}], "[0].value", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"scop": "x"}], "[0].scop", "did you mean 'scope'?"),
    ("weights", [URL_WEIGHT, remove_fields(RANDOM_WEIGHT, "seed")], "[1].seed", "weights of type 'random' need it"),
    ("weights", [remove_fields(RANDOM_WEIGHT, "module")], "[0].module", "weights of type 'random' need it"),
    ("weights", [RANDOM_WEIGHT | {"value": 1}], "[0].value", "no meaning for weights of type 'random'"),
    ("weights", [RANDOM_WEIGHT | {"seed": -1}], "[0].seed", "-1"),
    ("weights", [RANDOM_WEIGHT | {"seed": 1.5}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": "42"}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": True}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": int(BIG)}], "[0].seed", "less than"),
    ("weights", [RANDOM_WEIGHT | {"seed": 1 << 63}], "[0].seed", "less than"),
    *(("weights", [RANDOM_WEIGHT | {"module": name}], "[0].module", says) for name, says in NAME_ERRORS[1:]),
    ("weights", [remove_fields(SPLAT_WEIGHT, "value")], "[0].value", "weights of type 'splat' need it"),
    ("weights", [SPLAT_WEIGHT | {"seed": 0}], "[0].seed", "no meaning for weights of type 'splat'"),
    ("weights", [SPLAT_WEIGHT | {"value": "0"}], "[0].value", "expected a number"),
    ("weights", [SPLAT_WEIGHT | {"value": False}], "[0].value", "expected a number"),
    ("weights", [SPLAT_WEIGHT | {"value": int(BIG)}], "[0].value", "expected a"),
    ("inputs", None, "", "expected an array"),
    ("inputs", {"value": "1xf32"}, "", "expected an array"),
    ("inputs", ["1xf32"], "[0]", "expected an object"),
    ("inputs", [{}], "[0]", "has neither 'value' nor 'url'"),
    ("inputs", [{"value": None, "url": None}], "[0]", "has neither 'value' nor 'url'"),
    ("inputs", [{"value": "1xq32"}], "[0].value", "expected an input"),
    ("inputs", [{"value": ""}], "[0].value", "expected an input"),
    ("inputs", [{"value": 1}], "[0].value", "expected a string"),
    ("inputs", [{"value": "1xf32\0"}], "[0].value", "expected an input"),
    ("inputs", [{"url": ""}], "[0].url", "non-empty string"),
    ("inputs", [{"url": 1}], "[0].url", "expected a string"),
    ("inputs", [{"value": "1xf32=3", "url": "https://h/x.bin"}], "[0].value", "expected a tensor type with 'url'"),
    ("inputs", [{"value": "1xf32", "url": "https://h/x.npy"}], "[0].value", "'1xf32' with an .npy file"),
    ("inputs", [{"value": "1xf32", "url": "random://normal/1xf32"}], "[0].value", "its URL has the type"),
    ("inputs", [{"source": "https://h/x.bin"}], "[0].source", "unknown field"),
    ("run_args", 5, "", "expected an array"),
    *(("run_args", *error) for error in FLAG_ERRORS),
    ("pipeline_mlir", "", "", "non-empty string"),
    *(("pipeline_compiler_flags", *error) for error in FLAG_ERRORS),
    ("run_args", ["--benchmark_format=console"], "[0]", "prevent the results from being read"),
    ("run_args", ["-x", "-benchmark_out=f"], "[1]", "prevent the results from being read"),
]
NUMBER_ERRORS: list[tuple[Any, str]] = [
    ("5", "expected a number"),
    (True, "expected a number"),
    ([5], "expected a number"),
    ({"cpu": 5}, "expected a number"),
    (-1, "greater than"),
]
ERRORS: dict[str, list[tuple[str, Any, str, str]]] = {
    MODULE_FILE: [
        *COMMON_ERRORS,
        ("type", "gitlfs", "", "'azure' or 'git-lfs'"),
        ("type", 5, "", "'azure' or 'git-lfs'"),
        ("mlir", "", "", "non-empty string"),
        ("mlir", "a.mlir\0", "", "without NUL"),
        ("mlir", "../a.onnx", "", "is outside of the external files folder"),
        *(("mlir", value, "", f"expected a string, found {found}") for value, found in TEXT_ERRORS),
        *(("compiler_flags", *error) for error in FLAG_ERRORS),
        ("targets", [], "", "expected an object"),
        ("targets", {"vulkan": []}, ".vulkan", "expected an object"),
        ("targets", {"vulcan": {}}, ".vulcan", "did you mean 'vulkan'?"),
        ("targets", {"cpu": {}}, ".cpu", "is already the file's own target"),
        ("targets", {"cuda": {"threshold_args": []}}, ".cuda.threshold_args", "unknown field"),
        *(("targets", {"cuda": {"device": value}}, ".cuda.device", found) for value, found in TEXT_ERRORS[1:4]),
        ("onnx_import", [], "", "expected an object"),
        ("onnx_import", {"opset": 0}, ".opset", "greater than or equal to 1"),
        ("onnx_import", {"opset": "17"}, ".opset", "expected a whole number"),
        ("onnx_import", {"shape": {}}, ".shape", "did you mean 'shapes'?"),
        ("onnx_import", {"shapes": {"x": [-1]}}, ".shapes.x[0]", "greater than or equal to 0"),
        *(
            ("timeouts", {stage: 5}, "", f"{stage!r} is not a stage of a module definition")
            for stage in ("parameters", "threshold", "compstat", "benchmark")
        ),
    ],
    QUALITY_FILE: [
        *RUN_ERRORS,
        ("expected_outputs", None, "", "expected an array"),
        ("expected_outputs", [{}], "[0]", "has neither 'value' nor 'url'"),
        ("expected_outputs", [{"valeu": "1xf32"}], "[0].valeu", "did you mean 'value'?"),
        ("expected_outputs", [{"url": "/x"}], "[0].url", "is outside of the external files folder"),
        ("outputs", None, "", "expected an array"),
        ("outputs", ["@x.npy"], "[0]", "expected an object"),
        ("outputs", [{}], "[0].value", "is missing"),
        ("outputs", [{"value": "x.npy"}], "[0].value", "@file, +file, or -"),
        ("outputs", [{"value": "@"}], "[0].value", "without folders"),
        ("outputs", [{"value": "@../x"}], "[0].value", "without folders"),
        ("outputs", [{"value": "+/x"}], "[0].value", "without folders"),
        ("outputs", [{"value": "@.."}], "[0].value", "without folders"),
        ("outputs", [{"value": "-", "url": "https://h/x"}], "[0].url", "unknown field"),
    ],
    BENCHMARK_FILE: [
        *RUN_ERRORS,
        *(("golden_time_ms", value, "", says) for value, says in NUMBER_ERRORS),
        ("golden_time_ms", 0, "", "greater than 0"),
        ("golden_time_ms", int(BIG), "", "expected a"),
        *(("golden_time", value, "", says) for value, says in NUMBER_ERRORS),
        *(("tolerance_factor", value, "", says) for value, says in NUMBER_ERRORS),
        ("tolerance_factor", None, "", "expected a number"),
        ("tolerance_factor", 0, "", "greater than 0"),
        ("sku", "", "", "one word"),
        ("sku", "mi 300", "", "one word"),
        ("sku", 300, "", "expected a string"),
        ("expected_outputs", [], "", "unknown field"),
    ],
    COMPSTAT_FILE: [
        *TEST_ERRORS,
        *(("module", name, "", says) for name, says in NAME_ERRORS),
        ("module", [], "", "expected one module, found 0"),
        ("module", ["m/modules/a", "m/modules/a"], "", "expected one module, found 2"),
        ("module", [5], "", "expected a string"),
        *(("golden_dispatch_count", value, "", says) for value, says in NUMBER_ERRORS),
        *(("golden_binary_size", value, "", says) for value, says in NUMBER_ERRORS),
        ("golden_binary_size", int(BIG), "", "expected a"),
        ("golden_compiler", "", "", "expected a release such as 3.13.0, or a range such as >=3.13"),
        (
            "golden_compiler",
            ">=three",
            "",
            "expected a release such as 3.13.0, or a range such as >=3.13, found '>=three'",
        ),
        ("golden_compiler", 3.13, "", "expected a string"),
        ("modules", [], "", "did you mean 'module'?"),
        ("weights", [], "", "unknown field"),
    ],
}


@pytest.mark.parametrize(
    ("name", "field", "value", "within", "says"),
    [(name, *row) for name, rows in ERRORS.items() for row in rows],
    ids=lambda value: str(value)[:30].encode("ascii", "backslashreplace").decode().replace("\0", "0"),
)
def test_mistakes(tmp_path: Path, name: str, field: str, value: Any, within: str, says: str) -> None:
    document = DOCUMENTS[name] | {field: value}
    problem = only(load_changed(tmp_path, name, document))
    assert problem.file == str(tmp_path / "torch_models" / name)
    assert problem.field == field + within
    assert says in problem.message
    # A field's own line; of what is missing in an object, or lies deeper, one within the field.
    start = line_of_text(document, f'"{field}"')
    lines = len(json.dumps({field: value}, indent=2).splitlines()) - 2
    assert start <= problem.line < start + lines
    if not within:
        assert problem.line == start


def test_the_table_has_every_field() -> None:
    for name, model in MODELS.items():
        assert {row[0] for row in ERRORS[name]} >= set(model.model_fields)
    nested = {f"{row[0]}{row[2]}" for rows in ERRORS.values() for row in rows}
    parts: tuple[tuple[type[BaseModel], str], ...] = (
        (Weight, "weights[0]."),
        (ArgumentSpec, "inputs[0]."),
        (OutputSpec, "outputs[0]."),
    )
    for part, place in parts:
        assert {field for field in part.model_fields if f"{place}{field}" in nested} == set(part.model_fields)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in DOCUMENTS.items() for field in fields])
def test_a_field_that_is_missing(tmp_path: Path, name: str, field: str) -> None:
    cases = load_changed(tmp_path, name, remove_fields(DOCUMENTS[name], field))
    if field == "type" and name != MODULE_FILE:
        problem = only(cases)
        assert problem.field == "type"
        assert "is missing: a test is of type quality, benchmark, compstat" in problem.message
    elif MODELS[name].model_fields[field].is_required():
        problem = only(cases)
        assert (problem.field, problem.line) == (field, 1)
        assert "is missing: the field is required" in problem.message
    else:
        assert not cases.problems


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in DOCUMENTS.items() for field in fields])
def test_a_field_that_is_misspelt(tmp_path: Path, name: str, field: str) -> None:
    misspelt = field[:-1]
    document = {misspelt if key == field else key: value for key, value in DOCUMENTS[name].items()}
    found = {problem.field: problem for problem in load_changed(tmp_path, name, document).problems}
    if field == "type" and name != MODULE_FILE:
        assert set(found) == {"type"}
        return
    assert found[misspelt].line == line_of_text(document, f'"{misspelt}"')
    assert f"unknown field; did you mean {field!r}?" in found[misspelt].message
    assert set(found) <= {misspelt, field}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", BIG * 20])
def test_numbers_that_are_none(tmp_path: Path, name: str, number: str) -> None:
    raw = json.dumps(DOCUMENTS[name] | {"timeouts": {"fetch": 12345}}, indent=2).replace("12345", number)
    problem = only(load_changed(tmp_path, name, raw))
    assert problem.file.endswith(name)
    assert problem.line == (0 if len(number) > 99 else raw[: raw.index(number)].count("\n") + 1)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ('{"type": "quality",\n}', 1, "trailing comma"),
        ('{\n"type": "quality"\n"markers": []}', 2, "a comma is missing at the end of this line"),
        ('{"type":', 1, "ends in the middle"),
        ("", 0, "is empty"),
        ('"quality"', 1, "expected a JSON object"),
        (b'{\n"type": "\xff"}', 2, "is not UTF-8"),
        ('{"type": "quality",\n "markers": [], "type": "quality"}', 2, "appears twice"),
        ('{"type": ' + "[" * 2000, 0, "nested too deeply"),
        ('{"type": "\\ud800"}', 0, "surrogate"),
        ({"type": "quality"}, 1, "is missing"),
        ({"type": "git-lfs"}, 1, "is missing"),
        ({"type": "module"}, 2, "unknown type 'module'"),
        ({"modules": []}, 1, "is missing: a test is of type"),
        ({"golden_time_ms": 5}, 1, "is missing: a test is of type"),
        ({"golden_time": 5}, 1, "is missing: a test is of type"),
        ({"compiler_flags": []}, 1, "is missing"),
    ],
)
def test_files_that_are_neither(tmp_path: Path, content: Any, line: int, says: str) -> None:
    cases = load_changed(tmp_path, "m/x.json", content)
    problems = [*cases.problems, *cases.unselected_problems]
    assert {problem.file for problem in problems} == {str(tmp_path / "torch_models/m/x.json")}
    assert {problem.line for problem in problems} == {line}
    assert any(says in problem.message for problem in problems)


@pytest.mark.parametrize("content", [{}, {"name": "x"}, {"inputs": [], "markers": []}, {"url": "https://h"}])
def test_files_of_others_are_left_alone(tmp_path: Path, content: Any) -> None:
    cases = load_changed(tmp_path, "m/x.json", content)
    assert not cases.problems
    assert len(cases.cases) == 3


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    changes = {"markers": 1, "modules": [5], "input": 0, "inputs": [{"value": 1}], "weights": [{"type": "url"}]}
    fields = {problem.field for problem in load_changed(tmp_path, QUALITY_FILE, QUALITY | changes).problems}
    assert fields == {"markers", "modules[0]", "input", "inputs[0].value", "weights[0].scope"}


@pytest.mark.parametrize("name", [QUALITY_FILE, MODULE_FILE])
def test_fields_that_nobody_knows_are_warnings(tmp_path: Path, name: str) -> None:
    cases = load_changed(tmp_path, name, DOCUMENTS[name] | {"comment": "for the nightly", "owner": ["ci"]})
    assert not cases.problems
    assert cases.cases
    assert [(item.field, item.message) for item in cases.warnings] == [
        (field, "unknown field, which is ignored") for field in ("comment", "owner")
    ]
    assert all(item.line > 1 for item in cases.warnings)
    # So are those of what it names.
    changes = {"modules": ["m/no"], "inputs": [{"url": "../x"}], "weights": [RANDOM_WEIGHT | {"module": "m/nor"}]}
    fields = {problem.field for problem in load_changed(tmp_path, QUALITY_FILE, QUALITY | changes).problems}
    assert fields == {"modules[0]", "inputs[0].url", "weights[0].module"}


def test_so_are_those_of_a_definition_in_a_folder_of_its_own(tmp_path: Path) -> None:
    files = {"suite/q.json": QUALITY | {"modules": ["a"]}, "defs/a.json": MODULE | {"comment": "for the nightly"}}
    cases = load_torch(write_tree(tmp_path, files) / "suite", modules=tmp_path / "defs")
    assert not cases.problems
    assert [(Path(item.file).name, item.field) for item in cases.warnings] == [("a.json", "comment")]
