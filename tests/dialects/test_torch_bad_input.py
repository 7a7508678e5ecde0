"""Every mistake in a file of torch models is named, and none is taken for something else."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.cases import Case, Stage
from iree_gauntlet.dialects.torch_schema import (
    ArgumentSpec,
    BenchmarkTest,
    CompstatTest,
    ModuleDefinition,
    OutputSpec,
    QualityTest,
    Weight,
)
from tests.support.budgets import part_of_the_examples
from tests.support.spec_trees import plan, write_tree
from tests.support.torch_trees import BENCHMARK, COMPSTAT, MODULE, QUALITY, load_torch, without

if TYPE_CHECKING:
    from pydantic import BaseModel

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem

ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
URL_WEIGHT = {"type": "url", "url": "https://h/w.irpa", "scope": "model"}
RANDOM_WEIGHT = {"type": "random", "module": "m/modules/a", "seed": 42, "scope": ""}
SPLAT_WEIGHT = {"type": "splat", "module": "m/modules/a", "value": 0.5, "scope": "other"}
PIPELINE = {"pipeline_mlir": "https://h/p.mlir", "pipeline_compiler_flags": ["--x"]}
# A document of each type with every field that it may have.
DOCUMENTS: dict[str, dict[str, Any]] = {
    "m/modules/a.json": MODULE
    | {
        "type": "azure",
        "mlir": "https://h/model.onnx",
        "onnx_import": {"opset": 17, "shapes": {"x": [1, 2]}},
        "description": "a module",
        "timeouts": {"compile": 60},
        "targets": {},
    },
    "m/quality.json": QUALITY
    | {
        "weights": [URL_WEIGHT, RANDOM_WEIGHT, SPLAT_WEIGHT],
        "outputs": [{"value": "@out.npy"}],
        **PIPELINE,
        "description": "a test",
        "timeouts": {"threshold": 60},
    },
    "m/bench.json": BENCHMARK
    | {
        **PIPELINE,
        "golden_time": 12.5,
        "tolerance_factor": 1.25,
        "sku": "epyc",
        "description": "a test",
        "timeouts": {"benchmark": 60},
    },
    "m/stat.json": COMPSTAT | {"golden_compiler": "3.13.0", "description": "a test", "timeouts": {"compstat": 60}},
}
MODELS: dict[str, type[ModuleDefinition | QualityTest | BenchmarkTest | CompstatTest]] = {
    "m/modules/a.json": ModuleDefinition,
    "m/quality.json": QualityTest,
    "m/bench.json": BenchmarkTest,
    "m/stat.json": CompstatTest,
}
MODULE_FILE, QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE = MODELS


def read(folder: Path, name: str, content: Any) -> CaseSet:
    files = {f"torch_models/{path}": document for path, document in (DOCUMENTS | {name: content}).items()}
    return load_torch(write_tree(folder, files))


def only(cases: CaseSet) -> Problem:
    assert len(cases.problems) == 1, cases.problems
    return cases.problems[0]


def line_of_text(document: Any, text: str) -> int:
    """The first line that holds a text, in the file that `write_tree` makes of a document."""
    return next(i for i, line in enumerate(json.dumps(document, indent=2).splitlines(), 1) if text in line)


def test_the_documents_are_valid_and_have_every_field(tmp_path: Path) -> None:
    cases = read(tmp_path, QUALITY_FILE, DOCUMENTS[QUALITY_FILE])
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
    ("type", "zzz", "", "unknown type 'zzz' of a test; types are quality, benchmark, compstat"),
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
    ("weights", [without(RANDOM_WEIGHT, "type")], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"type": "uri"}], "[0].type", "'url', 'random' or 'splat'"),
    ("weights", [URL_WEIGHT | {"type": None}], "[0].type", "'url', 'random' or 'splat'"),
    ("weights", [without(URL_WEIGHT, "scope")], "[0].scope", "is missing"),
    ("weights", [URL_WEIGHT | {"scope": None}], "[0].scope", "expected a string"),
    ("weights", [URL_WEIGHT | {"scope": "a=b"}], "[0].scope", "pattern"),
    ("weights", [URL_WEIGHT | {"scope": "a\0"}], "[0].scope", "pattern"),
    ("weights", [without(URL_WEIGHT, "url")], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"url": None}], "[0].url", "weights of type 'url' need it"),
    ("weights", [URL_WEIGHT | {"url": " "}], "[0].url", "non-empty string"),
    ("weights", [URL_WEIGHT | {"url": "../w.irpa"}], "[0].url", "leaves the external files folder"),
    ("weights", [URL_WEIGHT | {"seed": 1}], "[0].seed", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"module": "m/modules/a"}], "[0].module", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"value": 0}], "[0].value", "no meaning for weights of type 'url'"),
    ("weights", [URL_WEIGHT | {"scop": "x"}], "[0].scop", "did you mean 'scope'?"),
    ("weights", [URL_WEIGHT, without(RANDOM_WEIGHT, "seed")], "[1].seed", "weights of type 'random' need it"),
    ("weights", [without(RANDOM_WEIGHT, "module")], "[0].module", "weights of type 'random' need it"),
    ("weights", [RANDOM_WEIGHT | {"value": 1}], "[0].value", "no meaning for weights of type 'random'"),
    ("weights", [RANDOM_WEIGHT | {"seed": -1}], "[0].seed", "-1"),
    ("weights", [RANDOM_WEIGHT | {"seed": 1.5}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": "42"}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": True}], "[0].seed", "expected a whole number"),
    ("weights", [RANDOM_WEIGHT | {"seed": int(BIG)}], "[0].seed", "less than"),
    ("weights", [RANDOM_WEIGHT | {"seed": 1 << 63}], "[0].seed", "less than"),
    *(("weights", [RANDOM_WEIGHT | {"module": name}], "[0].module", says) for name, says in NAME_ERRORS[1:]),
    ("weights", [without(SPLAT_WEIGHT, "value")], "[0].value", "weights of type 'splat' need it"),
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
    ("inputs", [{"value": "1xf32", "url": "random://normal/1xf32"}], "[0].value", "its URL says the type"),
    ("inputs", [{"source": "https://h/x.bin"}], "[0].source", "unknown field"),
    ("run_args", 5, "", "expected an array"),
    *(("run_args", *error) for error in FLAG_ERRORS),
    ("pipeline_mlir", "", "", "non-empty string"),
    *(("pipeline_compiler_flags", *error) for error in FLAG_ERRORS),
    ("run_args", ["--benchmark_format=console"], "[0]", "keep the results from being read"),
    ("run_args", ["-x", "-benchmark_out=f"], "[1]", "keep the results from being read"),
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
        ("mlir", "a.mlir\0", "", "non-empty string"),
        ("mlir", "../a.onnx", "", "leaves the external files folder"),
        *(("mlir", value, "", f"expected a string, found {found}") for value, found in TEXT_ERRORS),
        *(("compiler_flags", *error) for error in FLAG_ERRORS),
        ("targets", [], "", "expected an object"),
        ("targets", {"vulkan": []}, ".vulkan", "expected an object"),
        ("targets", {"vulcan": {}}, ".vulcan", "did you mean 'vulkan'?"),
        ("targets", {"cpu": {}}, ".cpu", "is what the file is for anyway"),
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
        ("expected_outputs", [{"url": "/x"}], "[0].url", "leaves the external files folder"),
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
    problem = only(read(tmp_path, name, document))
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
    cases = read(tmp_path, name, without(DOCUMENTS[name], field))
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
    found = {problem.field: problem for problem in read(tmp_path, name, document).problems}
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
    problem = only(read(tmp_path, name, raw))
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
    cases = read(tmp_path, "m/x.json", content)
    problems = [*cases.problems, *cases.left_out]
    assert {problem.file for problem in problems} == {str(tmp_path / "torch_models/m/x.json")}
    assert {problem.line for problem in problems} == {line}
    assert any(says in problem.message for problem in problems)


@pytest.mark.parametrize("content", [{}, {"name": "x"}, {"inputs": [], "markers": []}, {"url": "https://h"}])
def test_files_of_others_are_left_alone(tmp_path: Path, content: Any) -> None:
    cases = read(tmp_path, "m/x.json", content)
    assert not cases.problems
    assert len(cases.cases) == 3


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    changes = {"markers": 1, "modules": [5], "input": 0, "inputs": [{"value": 1}], "weights": [{"type": "url"}]}
    fields = {problem.field for problem in read(tmp_path, QUALITY_FILE, QUALITY | changes).problems}
    assert fields == {"markers", "modules[0]", "input", "inputs[0].value", "weights[0].scope"}


@pytest.mark.parametrize("name", [QUALITY_FILE, MODULE_FILE])
def test_fields_that_nobody_knows_are_warnings(tmp_path: Path, name: str) -> None:
    cases = read(tmp_path, name, DOCUMENTS[name] | {"comment": "for the nightly", "owner": ["ci"]})
    assert not cases.problems
    assert cases.cases
    assert [(item.field, item.message) for item in cases.warnings] == [
        (field, "unknown field, which is passed over") for field in ("comment", "owner")
    ]
    assert all(item.line > 1 for item in cases.warnings)
    # So are those of what it names.
    changes = {"modules": ["m/no"], "inputs": [{"url": "../x"}], "weights": [RANDOM_WEIGHT | {"module": "m/nor"}]}
    fields = {problem.field for problem in read(tmp_path, QUALITY_FILE, QUALITY | changes).problems}
    assert fields == {"modules[0]", "inputs[0].url", "weights[0].module"}


# Property tests: a valid document, spoiled somewhere.

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        [
            *("https://h/x", "../x", "/x", "C:/x", ".", "a/" * 3000, "1x2xf32", "--x", "@x", "-", "skip", "xfail"),
            *("quality", "benchmark", "compstat", "url", "random", "splat", "git-lfs", "m/modules/a", "m/stat"),
            *("and", "\x1b[0m"),
        ]
    ),
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
FIELDS = {field for model in MODELS.values() for field in model.model_fields}
names = st.sampled_from(sorted(DOCUMENTS))
quick = settings(max_examples=part_of_the_examples(0.4), derandomize=True)
Path_ = tuple[str | int, ...]


def check(name: str, content: Any) -> tuple[list[Problem], CaseSet]:
    """Problems of a tree in which one file has other content; where there are none, it can be planned."""
    with TemporaryDirectory() as folder:
        cases = read(Path(folder), name, content)
        for problem in cases.problems:
            assert problem.message
            assert problem.file
            assert str(problem).encode()
        if not cases.problems:
            json.dumps([step.id for step in plan(cases, ALL).steps]).encode()
        # What is wrong with a definition is reported for its own file, also to the tests that load it.
        return [problem for problem in cases.problems if problem.file.endswith(name)], cases


def paths_in(value: Any, prefix: Path_ = ()) -> list[Path_]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, child in children for path in [(*prefix, key), *paths_in(child, (*prefix, key))]]


def dotted(path: Path_) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def at(document: Any, path: Path_) -> Any:
    for part in path:
        document = document[part]
    return document


def kind_of(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


@quick
@given(name=names, key=st.text(min_size=1, max_size=12), value=JSON)
def test_an_unknown_key_is_always_reported_by_its_name(name: str, key: str, value: Any) -> None:
    if key not in FIELDS:
        problems, cases = check(name, DOCUMENTS[name] | {key: value})
        # One that looks like a known field is misspelt; others may be newer than this toolkit.
        found = problems or cases.warnings
        assert [problem.field for problem in found] == [key]
        assert found[0].message.startswith("unknown field; did you mean" if problems else "unknown field, which is")
        assert found[0].line > 1


@quick
@given(name=names, data=st.data())
def test_a_renamed_key_is_always_reported(name: str, data: st.DataObject) -> None:
    document = deepcopy(DOCUMENTS[name])
    inside = [path for path in paths_in(document) if isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(inside))
    key = str(path[-1])
    renamed = key[:2] + data.draw(st.text("abcxyz_", min_size=1, max_size=3)) + key[2:]
    parent = at(document, path[:-1])
    parent[renamed] = parent.pop(key)
    if path[:-1] == ("onnx_import", "shapes"):
        return  # names of inputs, which may be any
    problems, _ = check(name, document)
    fields = {problem.field for problem in problems}
    reported = any(repr(renamed) in problem.message for problem in problems)  # an unknown stage
    assert dotted((*path[:-1], renamed)) in fields or reported or fields == {"type"}


@quick
@given(name=names, data=st.data())
def test_a_value_of_another_type_is_always_reported_with_its_field(name: str, data: st.DataObject) -> None:
    document = deepcopy(DOCUMENTS[name])
    path = data.draw(st.sampled_from(paths_in(document)))
    old, value = at(document, path), data.draw(JSON)
    # Optional fields take null for being absent.
    if kind_of(old) == kind_of(value) or value is None:
        return
    if path == ("module",) and value == [old]:
        return  # the one other way to write it
    at(document, path[:-1])[path[-1]] = value
    problems, _ = check(name, document)
    fields = {problem.field for problem in problems}
    assert any(field == dotted(path) or field.startswith((f"{dotted(path)}.", f"{dotted(path)}[")) for field in fields)
    assert all(problem.line >= 1 for problem in problems)


def same_except(first: Case, second: Case, *fields: str) -> bool:
    """Whether two cases are one but for some fields."""
    blank: dict[str, Any] = dict.fromkeys(fields)
    return replace(first, **blank) == replace(second, **blank)


# What a field of a test may change of its case, and nothing else.
CHANGES: dict[str, tuple[str, ...]] = {
    "markers": ("markers", "skip_reason", "expectations"),
    "description": (),
    "timeouts": ("timeouts",),
    "weights": ("parameters",),
    "inputs": ("inputs",),
    "outputs": ("outputs",),
    "expected_outputs": ("expected_outputs",),
    "run_args": ("run_flags", "device"),
    "pipeline_mlir": ("notes",),
    "golden_time": ("goldens", "notes"),
    "golden_time_ms": ("goldens",),
    "tolerance_factor": ("goldens",),
    "sku": ("goldens", "golden_keys"),
    "golden_dispatch_count": ("goldens",),
    "golden_binary_size": ("goldens",),
    "golden_compiler": ("goldens",),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return by_file(read(tmp_path_factory.mktemp("tree"), QUALITY_FILE, DOCUMENTS[QUALITY_FILE]))


def by_file(cases: CaseSet) -> dict[str, Case]:
    """Cases by their file's place in the tree, free of where the tree lies."""
    found = {}
    for case in cases.cases:
        text = case.origin.file
        folder = text[: text.index("/torch_models/")]
        found[text.partition("/torch_models/")[2]] = relocated(case, folder)
    return found


def relocated(value: Any, folder: str) -> Any:
    """A value whose strings, however deep, do not name the tree's folder."""
    if isinstance(value, str):
        return value.replace(folder, "")
    if isinstance(value, tuple):
        return tuple(relocated(item, folder) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        names_of_fields = value.__dataclass_fields__
        return replace(value, **{name: relocated(getattr(value, name), folder) for name in names_of_fields})
    return value


@settings(max_examples=part_of_the_examples(0.6), derandomize=True)
@given(
    name=st.sampled_from([QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE]),
    action=st.sampled_from(["drop", "replace", "insert"]),
    data=st.data(),
    junk=JSON,
)
def test_junk_is_reported_or_changes_what_it_says_and_nothing_else(
    originals: dict[str, Case], name: str, action: str, data: st.DataObject, junk: Any
) -> None:
    document = deepcopy(DOCUMENTS[name])
    path = data.draw(st.sampled_from(paths_in(document)))
    parent = at(document, path[:-1])
    if action == "drop":
        del parent[path[-1]]
    elif action == "replace":
        parent[path[-1]] = junk
    elif isinstance(parent, list):
        parent.insert(int(path[-1]), junk)
    else:
        parent[data.draw(st.text(max_size=5))] = junk
    problems, cases = check(name, document)
    found = by_file(cases)
    # The other files mean what they meant.
    assert all(found[other] == case for other, case in originals.items() if other != name)
    if problems:
        assert name not in found
    elif path[0] == "type" and document.get("type") != DOCUMENTS[name]["type"]:
        pytest.fail("a test of another type, without a word")
    elif path[0] in ("module", "modules"):
        assert found[name].modules == originals[name].modules
    else:
        assert same_except(found[name], originals[name], *CHANGES.get(str(path[0]), ()))


@quick
@given(action=st.sampled_from(["drop", "replace", "insert"]), data=st.data(), junk=JSON)
def test_junk_in_a_definition_is_reported_or_changes_the_module_alone(
    originals: dict[str, Case], action: str, data: st.DataObject, junk: Any
) -> None:
    document = deepcopy(DOCUMENTS[MODULE_FILE])
    path = data.draw(st.sampled_from(paths_in(document)))
    parent = at(document, path[:-1])
    if action == "drop":
        del parent[path[-1]]
    elif action == "replace" or not isinstance(parent, list):
        parent[path[-1]] = junk
    else:
        parent.insert(int(path[-1]), junk)
    problems, cases = check(MODULE_FILE, document)
    if problems:
        assert not cases.cases
        return
    for name, case in by_file(cases).items():
        # The flags say the target, and the weights name the module.
        assert same_except(case, originals[name], "modules", "parameters", "target")
        (module,), (original,) = case.modules, originals[name].modules
        if path[0] not in ("mlir", "onnx_import"):
            assert module.program == original.program
        if path[0] != "compiler_flags":
            assert (module.flags, module.target) == (original.flags, original.target)


@quick
@given(name=names, data=st.data())
def test_damaged_text_never_is_a_traceback(name: str, data: st.DataObject) -> None:
    raw = json.dumps(DOCUMENTS[name], indent=1).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 20)))
    check(name, raw[:start] + data.draw(st.binary(max_size=4)) + raw[end:])


@quick
@given(name=names, content=JSON)
def test_any_json_never_is_a_traceback(name: str, content: Any) -> None:
    check(name, content)


@quick
@given(word=st.text(max_size=12), name=st.sampled_from([QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE]))
def test_any_marker_is_one_or_is_refused(word: str, name: str) -> None:
    problems, cases = check(name, DOCUMENTS[name] | {"markers": [word]})
    if problems:
        assert [problem.field for problem in problems] == ["markers[0]"]
    else:
        case = by_file(cases)[name]
        assert case.markers == {word, DOCUMENTS[name]["type"]}
        assert word.isascii()
        assert not any(char.isspace() for char in word)
