"""JSON Schemas of hand-written files, made from the models that read them."""

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
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.settings import format_path
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.configuration import MicroConfigFile as RecipesFile

if TYPE_CHECKING:
    from iree_gauntlet.dialects.fields import StrictDocument
    from iree_gauntlet.upkeep.upkeep_requests import SchemaRequest


# The newest draft that editors' language servers support completely.
_DRAFT = "http://json-schema.org/draft-07/schema#"
_NULL = {"type": "null"}
_SCHEMA_FIELD = {"description": "Schema of this file for editors; nothing else reads it.", "type": "string"}


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files, with the paths of such files."""

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


def print_schemas(request: SchemaRequest) -> ExitCode:
    """Print a schema, write all of them into a folder, or list them."""
    if request.output_dir:
        folder = Path(request.output_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in FORMATS:
                write_atomic(folder / f"{name}.json", format_schema(name))
        except OSError as error:
            message = f"--output-dir {folder}: {error.strerror}"
            raise UsageError(message, "Name a writable folder.") from error
        sys.stdout.write(f"wrote {pluralize(len(FORMATS), 'schema')} into {format_path(folder.absolute())}\n")
    elif request.name:
        if request.name not in FORMATS:
            closest_name = next(iter(get_close_matches(request.name, FORMATS, n=1)), "")
            suggestion = f"Did you mean {closest_name}? " if closest_name else ""
            raise UsageError(f"no such schema: {request.name!r}", f"{suggestion}Available: {', '.join(FORMATS)}.")
        sys.stdout.write(format_schema(request.name))
    else:
        width = max(map(len, FORMATS))
        sys.stdout.write("".join(f"{name:{width}}  {file_format.files}\n" for name, file_format in FORMATS.items()))
    return ExitCode.OK


def format_schema(name: str) -> str:
    """Format a schema as its file's text."""
    return json.dumps(make_schema(name), indent=2, ensure_ascii=False) + "\n"


def make_schema(name: str) -> dict[str, Any]:
    """Make the schema of a format."""
    file_format = FORMATS[name]
    document = _simplify(file_format.model.model_json_schema(schema_generator=_Generator))
    if file_format.files.endswith(".toml"):
        document = _without_null(document)
    if file_format.growing:
        document["additionalProperties"] = True
    document["properties"] = {"$schema": _SCHEMA_FIELD, **document["properties"]}
    return {"$schema": _DRAFT, "title": f"IREE Gauntlet: {name} ({file_format.files})", **document}


class _Generator(GenerateJsonSchema):
    """A generator without the titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


def _simplify(node: Any) -> Any:
    """Remove the names of our classes from a schema, and shorten descriptions to what editors show."""
    if isinstance(node, list):
        return list(map(_simplify, node))
    if not isinstance(node, dict):
        return node
    result = {key: _simplify(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if node.get("type") == "object" and "properties" in node:
        # A field's description comes first, its examples last.
        result["properties"] = {
            name: dict(sorted(value.items(), key=lambda pair: (pair[0] != "description", pair[0] == "examples")))
            for name, value in result["properties"].items()
        }
    if isinstance(result.get("pattern"), str):
        # `\Z` is Python's; JSON Schema's `$` means the same.
        result["pattern"] = result["pattern"].replace(r"\Z", "")
    if isinstance(result.get("description"), str):
        result["description"] = result["description"].split("\n\n")[0].replace("\n", " ").replace(" (*ours*)", "")
    return result


def _without_null(node: Any) -> Any:
    """Remove null, which TOML lacks, from a schema, so that editors report the real problems of optional fields."""
    if isinstance(node, list):
        return [_without_null(child) for child in node]
    if not isinstance(node, dict):
        return node
    result = {key: _without_null(value) for key, value in node.items() if key != "default" or value is not None}
    variants = result.get("anyOf")
    if variants and _NULL in variants:
        rest = [variant for variant in variants if variant != _NULL]
        del result["anyOf"]
        # Readers ignore keys next to a `$ref`, so it is wrapped in an `allOf`.
        is_single = len(rest) == 1
        result |= rest[0] if is_single and "$ref" not in rest[0] else {"allOf" if is_single else "anyOf": rest}
    return result
