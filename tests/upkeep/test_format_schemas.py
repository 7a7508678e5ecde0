"""JSON Schemas: they agree with the models that read the files, for complete files and every mutation of them."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel, ValidationError

from iree_gauntlet.dialects.json_text import read_plain_json
from iree_gauntlet.errors import SpecError
from iree_gauntlet.torch_models.configuration import ConfigurationContext
from iree_gauntlet.torch_models.plugins import load_registry
from iree_gauntlet.upkeep.format_schemas import FORMATS, format_schema, make_schema
from tests.support.command_line import run_in_process
from tests.support.places import CORPUS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.torch_models.plugins import PluginRegistry

# What pydantic says of a field that is not known, is not there, has another type, or is none of a closed list.
_STRUCTURE = ("missing", "extra_forbidden", "literal_error", "union_tag_invalid", "union_tag_not_found")
_SAID = ("unknown ", "is missing", "expected a finite number, true or false", "expected one module")
# Values of each type; none is a right one by chance.
_OTHERS: tuple[Any, ...] = (7, 7.5, "text", True, None, [], {})


@cache
def validator(name: str) -> Draft7Validator:
    schema = make_schema(name)
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def files() -> list[Path]:
    """All that people wrote: of this project and of others."""
    places = [ROOT / "specs", ROOT / "suites", *([CORPUS] if CORPUS.is_dir() else [])]
    found = [path for place in places for path in place.rglob("*") if path.suffix in {".json", ".toml", ".yml"}]
    template = ROOT / "iree_gauntlet" / "upkeep" / "new_project"
    found += [*template.rglob("*.toml"), *template.rglob("*.json")]
    return [
        path
        for path in sorted(found)
        if path.name not in {"provenance.json", "settings.json", "architecture.json", ".taplo.toml"}
    ]


def content_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return yaml.safe_load(text) if path.suffix == ".yml" else json.loads(read_plain_json(text))


@cache
def registry() -> PluginRegistry:
    return load_registry()


def complaints(name: str, content: Any) -> list[str]:
    """What the model of a format refuses in a file's structure, and `other` for what else it refuses."""
    model: type[BaseModel] = FORMATS[name].model
    context = ConfigurationContext(registry(), ROOT / "specs" / "recipes") if name == "recipes" else None
    content = copy.deepcopy(content)
    if isinstance(content, dict) and FORMATS[name].growing:
        content = {key: value for key, value in content.items() if key in model.model_fields}
    try:
        model.model_validate(content, context=context)
    except ValidationError as error:
        return [
            item["type"]
            if item["type"] in _STRUCTURE or item["type"].endswith("_type")
            else "said"
            if item["type"] == "value_error" and item["msg"].removeprefix("Value error, ").startswith(_SAID)
            else "other"
            for item in error.errors()
        ]
    except SpecError:
        return ["other"]
    return []


@cache
def examples() -> tuple[tuple[str, Path], ...]:
    """Formats and files of them."""
    found = [(name, path) for path in files() for name in FORMATS if fits(name, path)]
    return tuple(found)


def fits(name: str, path: Path) -> bool:
    suffix = {"suite": ".toml", "settings": ".toml", "history-marks": ".toml", "recipes": ".yml"}.get(name, ".json")
    return path.suffix == suffix and complaints(name, content_of(path)) == []


def mutations(content: Any, others: Sequence[Any]) -> Iterator[Any]:
    """The same with one thing changed: a field too many or too few, or a value of another type."""
    for path, value in nodes(content):
        if isinstance(value, dict):
            yield changed(content, path, {**value, "strange": 1})
            for key in value:
                yield changed(content, path, {name: item for name, item in value.items() if name != key})
                yield changed(
                    content, path, {f"{name}x" if name == key else name: item for name, item in value.items()}
                )
        for other in others:
            if type(other) is not type(value):
                yield changed(content, path, other)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    # Of a long list, what its first two items show.
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield from nodes(item, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(content)
    parent = made
    for part in path[:-1]:
        parent = parent[part]
    parent[path[-1]] = value
    return made


def test_the_committed_schemas_are_current() -> None:
    """`gauntlet schema --output-dir docs/schemas` writes them."""
    there = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "schemas").glob("*.json")}
    assert there == {name: format_schema(name) for name in FORMATS}


@pytest.mark.parametrize("name", FORMATS)
def test_every_field_has_a_line_for_editors(name: str) -> None:
    schema = make_schema(name)
    objects = [schema, *schema.get("$defs", {}).values()]
    bare = [field for item in objects for field, said in item["properties"].items() if not said.get("description")]
    assert bare == []


def test_every_file_is_of_some_format() -> None:
    known = {path for _, path in examples()}
    # Operators' entries of other names, and what is broken on purpose, are not configs.
    assert [path for path in files() if path not in known] == []


def test_what_is_read_validates() -> None:
    assert len(examples()) > (100 if CORPUS.is_dir() else 80)
    for name, path in examples():
        errors = [error.message for error in validator(name).iter_errors(content_of(path))]
        assert errors == [], (name, path)


@pytest.mark.parametrize("name", FORMATS)
def test_no_mutation_of_the_structure_validates(name: str) -> None:
    contents = [content_of(path) for format_name, path in examples() if format_name == name] + WRITTEN.get(name, [])
    assert contents, f"there is no file of the format {name}"
    # Alike ones say no more.
    different = {json.dumps(sorted(map(str, content)), default=str): content for content in contents}
    refused = 0
    for content in different.values():
        assert validator(name).is_valid(content), content
        # TOML has no null.
        others = [other for other in _OTHERS if other is not None or not FORMATS[name].files.endswith(".toml")]
        for mutation in mutations(content, others):
            found = complaints(name, mutation)
            if set(found) - {"other"}:
                refused += 1
                assert not validator(name).is_valid(mutation), (name, found, mutation)
            elif not found:
                assert validator(name).is_valid(mutation), (name, mutation)
    assert refused > 10


# Of formats of which there are few files, or none with all fields.
WRITTEN: dict[str, list[dict[str, Any]]] = {
    "settings": [
        {
            "mirrors": [{"prefix": "https://a.example", "to": ["https://b.example", "/folder"], "only": True}],
            "stores": {"s3://bucket": {"region": "x", "skip_signature": True}},
            "modules": {"url": "s3://bucket/modules", "write": True},
            "downloads": {"connections": 2, "retries": 0},
            "toolchains": {"nightly_links": "https://a.example/links"},
            "history": {"store": "history", "add": True, "least_time": 0.02, "least_other": 0.1, "least_size": 0.0},
        }
    ],
    "regression-v1": [
        {
            "inputs": [{"source": "https://a.example/input.bin", "value": "1x64xi64"}],
            "outputs": [{"source": "output.npy", "value": "2x64xf16"}],
            "real_weights": "https://a.example/weights.irpa",
            "mlir": "model.mlir",
            "cpu_compiler_flags": ["--a"],
            "cpu_threshold_args": ["--expected_f16_threshold=1.0f"],
            "run_cpu_function": "main",
        }
    ],
    "history-marks": [{"mark": [{"series": "a", "iree": "3.8", "mark": "moved", "reason": "why", "to": "3.9"}]}],
    "op-test": [
        {"expected_output": ["a.npy", {"url": "b.npy"}, {"value": 1.5}], "flat_args": [1, {"Formula": {"shape": [2]}}]},
        {"mode": "benchmark", "function_name": "f", "seed": 3, "rtol": 0.1},
    ],
    "op-config": [
        {
            "config_name": "cpu",
            "iree_compile_flags": ["--a"],
            "iree_run_module_flags": ["--b"],
            "skip_run_tests": ["x"],
            "golden_times_ms": {"x": 1.5, "y": "2.5"},
            "tolerance_factor": "1.1",
        }
    ],
    "onnx-models-config": [
        {
            "config_name": "cpu",
            "iree_compile_flags": ["--a"],
            "iree_run_module_flags": [],
            "tests_and_expected_outcomes": {"default": "skip", "x": "fail-compile"},
        }
    ],
    "suite": [
        {
            "name": "s",
            "target": "cpu",
            "stages": ["compile"],
            "include": [{"model": "a", "markers": "b"}],
            "expect_failure": [{"case": "a/b", "stage": "compile", "reason": "why"}],
        }
    ],
    "regression": [
        {
            "mlir": "a.mlir",
            "device": "local-task",
            "calls": [
                {"function": "init", "inputs": [{"value": "4xf32"}], "outputs": [{"source": "y.npy"}]},
                {"inputs": ["@0.0", "@0.input0"], "changes": ["@0.0"]},
            ],
        },
        {
            "mlir": "a.onnx",
            "onnx_import": {"opset": 17, "shapes": {"x": [1, 2]}},
            "inputs": [{"source": "x.bin", "value": "1xf32"}],
            "device": "hip",
            "timeouts": {"compile": 3.5},
            "targets": {"vulkan": {"compiler_flags": ["--x"], "threshold_args": None}},
            "add_pipeline_module": "True",
            "pipeline_mlir": "p.mlir",
            "tuner_file": {"gfx942": "t"},
        },
        {"mlir": "a.mlir", "compile_only": True},
    ],
    "torch-quality": [
        {
            "type": "quality",
            "markers": ["cpu"],
            "modules": ["a"],
            "weights": [
                {"type": "splat", "scope": "m", "module": "a", "value": 0.5},
                {"type": "random", "scope": "", "module": "a", "seed": 1},
                {"scope": "w", "url": "w.irpa"},
            ],
            "expected_outputs": [{"value": "1xf32=1"}, {"url": "a.npy"}],
            "outputs": [{"value": "@a.npy"}],
        }
    ],
}


@pytest.mark.parametrize("name", ["spec.json", "suite.toml", "recipes.yml"])
def test_the_address_of_a_schema_is_accepted_everywhere(tmp_path: Path, name: str) -> None:
    from iree_gauntlet.dialects.spec_file import load_json, read_toml  # noqa: PLC0415
    from iree_gauntlet.dialects.yaml_file import read_yaml  # noqa: PLC0415

    path = tmp_path / name
    match path.suffix:
        case ".json":
            path.write_text('{"$schema": "../x.json", "mlir": "a.mlir"}')
            content: Any = load_json(path, name)[0]
        case ".toml":
            path.write_text('"$schema" = "../x.json"\nname = "s"\n')
            content = read_toml(path)[1]
        case _:
            path.write_text('$schema: "../x.json"\nbenchmark_mode: inference\n')
            content = read_yaml(path, "recipes", "x").content
    assert content
    assert "$schema" not in content


def test_schemas_are_listed_printed_and_written(tmp_path: Path) -> None:
    listed = run_in_process(("schema",), tmp_path, {}, {})
    assert [line.split()[0] for line in listed.out.splitlines()] == [*FORMATS]
    printed = run_in_process(("schema", "suite"), tmp_path, {}, {})
    assert json.loads(printed.out) == make_schema("suite")
    unknown = run_in_process(("schema", "suit"), tmp_path, {}, {})
    assert (unknown.code, "Did you mean suite?" in unknown.err) == (2, True)
    written = run_in_process(("schema", "--output-dir", "here/there"), tmp_path, {}, {})
    assert (written.code, len(list((tmp_path / "here" / "there").iterdir()))) == (0, len(FORMATS))
    for place in ("here/there/suite.json", "here/there/suite.json/below", "/proc/schemas"):
        refused = run_in_process(("schema", "--output-dir", place), tmp_path, {}, {})
        assert (refused.code, f"--output-dir {place}: " in refused.err) == (2, True)


def test_patterns_are_none_that_python_alone_has() -> None:
    # Of JavaScript, and of Rust, which editors' servers are written in.
    assert re.search(r"\\Z|\\A|\(\?P|\(\?<!", "".join(map(format_schema, FORMATS))) is None
