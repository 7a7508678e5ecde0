"""JSON Schemas of the files that people write, made from the models that read them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from iree_gauntlet.dialects.configuration_file import MarksFile, SettingsFile
from iree_gauntlet.dialects.onnx_models import OutcomesDocument
from iree_gauntlet.dialects.op_suites import OpConfig, TorchOp
from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.dialects.suite import SuiteTable
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, ModuleDefinition, QualityTest
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.settings import shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.configuration import File as RecipesFile

if TYPE_CHECKING:
    from iree_gauntlet.dialects.fields import StrictDocument
    from iree_gauntlet.upkeep.upkeep_requests import SchemaRequest


# Which editors' language servers know as a whole.
_DRAFT = "http://json-schema.org/draft-07/schema#"
_NULL = {"type": "null"}
_SCHEMA_FIELD = {"description": "Where editors find what the fields mean; nothing else reads it.", "type": "string"}


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files, which lie in such places."""

    model: type[StrictDocument]
    files: str
    growing: bool = False


FORMATS = {
    "regression": Format(RegressionV2, "specs/regression_tests/*/*.json"),
    "regression-v1": Format(RegressionV1, "specs/regression_tests/*/*.json of the first generation"),
    "benchmark": Format(Benchmark, "specs/benchmarks/*/*.json"),
    "torch-module": Format(ModuleDefinition, "specs/torch_models/*/modules/*.json"),
    "torch-quality": Format(QualityTest, "specs/torch_models/*/*.json of type quality"),
    "torch-benchmark": Format(BenchmarkTest, "specs/torch_models/*/*.json of type benchmark"),
    "torch-compstat": Format(CompstatTest, "specs/torch_models/*/*.json of type compstat"),
    "op-config": Format(OpConfig, "configs of suites of operators", growing=True),
    "op-test": Format(TorchOp, "run_module_io.json of torch's operators", growing=True),
    "onnx-models-config": Format(OutcomesDocument, "configs of suites of ONNX models", growing=True),
    "suite": Format(SuiteTable, "suites/*.toml"),
    "settings": Format(SettingsFile, "gauntlet.toml"),
    "history-marks": Format(MarksFile, "history_marks.toml"),
    "recipes": Format(RecipesFile, "specs/recipes/*.yml"),
}


def schema(asked: SchemaRequest) -> ExitCode:
    """Prints a schema, writes all of them into a folder, or lists them."""
    if asked.output_dir:
        folder = Path(asked.output_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in FORMATS:
                write_atomic(folder / f"{name}.json", format_schema(name))
        except OSError as error:
            what = f"--output-dir {folder}: {error.strerror}"
            raise UsageError(what, "Name a folder that can be written to.") from error
        sys.stdout.write(f"wrote {counted(len(FORMATS), 'schema')} into {shown(folder.absolute())}\n")
    elif asked.name:
        if asked.name not in FORMATS:
            near = next(iter(get_close_matches(asked.name, FORMATS, n=1)), "")
            meant = f"Did you mean {near}? " if near else ""
            raise UsageError(f"there is no schema {asked.name!r}", f"{meant}There are: {', '.join(FORMATS)}.")
        sys.stdout.write(format_schema(asked.name))
    else:
        width = max(map(len, FORMATS))
        sys.stdout.write("".join(f"{name:{width}}  {item.files}\n" for name, item in FORMATS.items()))
    return ExitCode.OK


def format_schema(name: str) -> str:
    """A schema, as its file has it."""
    return json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n"


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a format."""
    item = FORMATS[name]
    made = _simplify(item.model.model_json_schema(schema_generator=_Generator))
    if item.files.endswith(".toml"):
        made = _without_null(made)
    if item.growing:
        made["additionalProperties"] = True
    made["properties"] = {"$schema": _SCHEMA_FIELD, **made["properties"]}
    return {"$schema": _DRAFT, "title": f"IREE Gauntlet: {name} ({item.files})", **made}


class _Generator(GenerateJsonSchema):
    """Without the titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


def _simplify(node: Any) -> Any:
    """A schema without the names of our classes, and with what editors show of a docstring."""
    if isinstance(node, list):
        return list(map(_simplify, node))
    if not isinstance(node, dict):
        return node
    found = {key: _simplify(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if node.get("type") == "object" and "properties" in node:
        # What a person reads of a field first, examples last.
        found["properties"] = {
            name: dict(sorted(value.items(), key=lambda item: (item[0] != "description", item[0] == "examples")))
            for name, value in found["properties"].items()
        }
    if isinstance(found.get("pattern"), str):
        # Python's own, and JSON Schema's `$` means the same.
        found["pattern"] = found["pattern"].replace(r"\Z", "")
    if isinstance(found.get("description"), str):
        found["description"] = found["description"].split("\n\n")[0].replace("\n", " ").replace(" (*ours*)", "")
    return found


def _without_null(node: Any) -> Any:
    """A schema of TOML, which has no null: of a field that may be left out, editors then say what is wrong with it."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _without_null(value) for key, value in node.items() if key != "default" or value is not None}
    kinds = found.get("anyOf")
    if kinds and _NULL in kinds:
        others = [kind for kind in kinds if kind != _NULL]
        del found["anyOf"]
        # What stands beside a `$ref` is not read.
        alone = len(others) == 1
        found |= others[0] if alone and "$ref" not in others[0] else {"allOf" if alone else "anyOf": others}
    return found
