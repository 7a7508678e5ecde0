"""Suites of operators: their cases, and configs with flags, skipped cases and expected failures.

A case is a folder with `run_module_io_flags.txt` (ONNX operators) or `run_module_io.json` (torch operators). A case's
root is the nearest folder above the case that has configs: JSON files in a folder `configs`. An entry of a config's
lists names a case relative to the root; the comment on the entry's line is the reason in reports.

The sources of facts are `onnx_ops/conftest.py` and `torch_ops/common.py` in iree-test-suites.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from iree_gauntlet.cases import Expectation, Origin
from iree_gauntlet.dialects.configured_suites import (
    Config,
    ConfigSpec,
    ConfigSuite,
    SuiteDocument,
    find_name_conflicts,
    make_names_unique,
    read_config,
)
from iree_gauntlet.dialects.fields import (
    Count,
    Positive,
    StrictDocument,
    Text,
    about,
    make_list,
    make_schema_config,
    one_of,
    require_fields,
)
from iree_gauntlet.dialects.json_text import find_item_lines
from iree_gauntlet.dialects.locations import CASE_FOLDER, find_unknown_variables, read_flag_variables
from iree_gauntlet.dialects.spec import OP_TESTS
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError, find_nearest, make_problem_at
from iree_gauntlet.dialects.spec_folders import CASE_FILES, CONFIGS, TORCH_FILE, CaseFolder, has_word
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.stages import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


# The keys are NumPy's names of element types, the values IREE's.
ELEMENT_TYPES = {
    "bool": "i1",
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
    "float16": "f16",
    "bfloat16": "bf16",
    **{f"float{bits}": f"f{bits}" for bits in (32, 64)},
    **{f"float8_{name}": f"f8{name.upper()}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
}
# Instead of long names, such as of `f8E4M3FN`, IREE's names are accepted, also in lower case (`f8e4m3fn`).
_NAMES_BY_ALIAS = {iree.lower(): name for name, iree in ELEMENT_TYPES.items() if iree.startswith("f8")}
_ALIASES = (*(iree for iree in ELEMENT_TYPES.values() if iree.startswith("f8")), *_NAMES_BY_ALIAS)
_EXAMPLE = """{
  "config_name": "cpu_llvm_sync",
  "iree_compile_flags": ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"],
  "iree_run_module_flags": ["--device=local-sync"]
}"""
_RUN_STAGES = tuple(stage for stage in Stage if stage.row.runs_modules and not stage.row.accompanies)
# The stages that each list's entries skip; and the stages at which each list's entries are expected to fail, with the
# kinds of failure.
_SKIP_LISTS: dict[str, tuple[Stage, ...]] = {
    "skip_compile_tests": (Stage.COMPILE, *_RUN_STAGES),
    "skip_run_tests": _RUN_STAGES,
}
_CRASH_KINDS = (FailureKind.CRASHES,)
_OTHER_FAILURE_KINDS = tuple(kind for kind in FailureKind if kind is not FailureKind.CRASHES)
_FAILURE_LISTS: dict[str, tuple[tuple[Stage, ...], tuple[FailureKind, ...]]] = {
    "expected_compile_crashes": ((Stage.COMPILE,), _CRASH_KINDS),
    "expected_compile_failures": ((Stage.COMPILE,), _OTHER_FAILURE_KINDS),
    "expected_run_crashes": (_RUN_STAGES, _CRASH_KINDS),
    "expected_run_failures": (_RUN_STAGES, _OTHER_FAILURE_KINDS),
}
_CASE_LISTS = (*_SKIP_LISTS, *_FAILURE_LISTS)
# Suggestions are limited, because it is slow to find the nearest of thousands of names.
_MAX_SUGGESTIONS = 10
_NUMBER_OR_FILE: dict[str, Any] = {
    "anyOf": [{"type": ["number", "boolean", "null"]}, {"type": "string", "pattern": r"\.(npy|bin)$"}]
}
# The folder of the torch variant's cases, below the root; the torch variant's configs omit it.
_GENERATED_PREFIX = "generated/"


@dataclass(frozen=True, slots=True, eq=False)
class SuiteConfig(Config):
    """A parsed config of an operator suite."""

    document: OpConfig | None = None
    skips: Mapping[str, tuple[tuple[Stage, str], ...]] = field(default_factory=dict)
    expectations: Mapping[str, tuple[Expectation, ...]] = field(default_factory=dict)


def _read_op_config(path: Path, name: str) -> SuiteConfig:
    config = read_config(path, name, OpConfig, SuiteConfig)
    document, text = config.document, config.text
    if document is None:
        return config
    variables = {CASE_FOLDER: "", **read_flag_variables()}
    problems = [
        make_problem_at(name, text, ["iree_compile_flags", index], message, hint)
        for index, flag in enumerate(document.iree_compile_flags)
        for message, hint in find_unknown_variables(flag, variables)
    ]
    if problems:
        return SuiteConfig(path, name, problems=tuple(problems))
    lines = {list_name: find_item_lines(text, [list_name]) if config.comments else [] for list_name in _CASE_LISTS}

    def make_reason(list_name: str, index: int) -> str:
        """Return the comment on an entry's line, or the list's name."""
        return (config.comments.get(lines[list_name][index]) if config.comments else "") or f"in {list_name}"

    skips: dict[str, tuple[tuple[Stage, str], ...]] = {}
    for list_name, stages in _SKIP_LISTS.items():
        for index, entry in enumerate(getattr(document, list_name)):
            skip_reason = f"{make_reason(list_name, index)} ({name})"
            skips.setdefault(entry, tuple((stage, skip_reason) for stage in stages))
    expectations: dict[str, tuple[Expectation, ...]] = {}
    for list_name, (stages, kinds) in _FAILURE_LISTS.items():
        for index, entry in enumerate(getattr(document, list_name)):
            previous = expectations.get(entry, ())
            origin = Origin(name, f"{list_name}[{index}]")
            # The list of crashes comes first, and has priority.
            if all(expectation.stage is not stages[0] for expectation in previous):
                additions = (Expectation(stage, make_reason(list_name, index), origin, kinds) for stage in stages)
                expectations[entry] = (*previous, *additions)
    warnings = (*config.warnings, *_find_useless_entries(name, text, document))
    return replace(config, skips=skips, expectations=expectations, warnings=warnings)


def _find_useless_entries(name: str, text: str, document: OpConfig) -> Iterator[Problem]:
    """Find useless entries: duplicates in a list, or expected failures of a skipped stage."""
    skipped_entries = {skip: frozenset(getattr(document, skip)) for skip in _SKIP_LISTS}
    for list_name in _CASE_LISTS:
        first_indices: dict[str, int] = {}
        stage = _FAILURE_LISTS[list_name][0][0] if list_name in _FAILURE_LISTS else None
        for index, entry in enumerate(getattr(document, list_name)):
            if first_indices.setdefault(entry, index) != index:
                message = f"{entry!r} is already in this list ([{first_indices[entry]}])"
                yield make_problem_at(name, text, [list_name, index], message, "Remove one of the two.")
                continue
            skip = next(
                (skip for skip, stages in _SKIP_LISTS.items() if stage in stages and entry in skipped_entries[skip]), ""
            )
            if skip:
                message = f"{entry!r} is also in {skip}, and is skipped: what does not run cannot fail"
                yield make_problem_at(name, text, [list_name, index], message, "Remove it from one of the two.")


def _find_unmatched(config: SuiteConfig, case_names: Collection[str], roots: Sequence[str]) -> Iterator[Problem]:
    """Find entries that name no case: misspelt, outdated, or of a part of the suite that is not present."""

    def is_case(entry: str) -> bool:
        """Return whether an entry is a case's folder, which may be outside of the spec folder."""
        if entry in case_names or entry.startswith("/") or ".." in entry.split("/"):
            return entry in case_names
        paths = [f"{root}/{folder}{entry}" for root in roots for folder in ("", _GENERATED_PREFIX)]
        return any(os.path.isfile(f"{path}/{file}") for path in paths for file in CASE_FILES)  # noqa: PTH113 - of thousands

    entries_by_list = {
        key: [(index, entry) for index, entry in enumerate(getattr(config.document, key, ())) if not is_case(entry)]
        for key in (*_CASE_LISTS, "golden_times_ms")
    }
    # If there are more unmatched entries, a part of the suite is missing: suggestions would be slow and useless.
    suggests = sum(map(len, entries_by_list.values())) <= _MAX_SUGGESTIONS
    for key, entries in entries_by_list.items():
        lines = find_item_lines(config.text, [key]) if entries else []
        for index, entry in entries:
            suggestion = _suggest_case(entry, case_names) if suggests else ""
            message = f"{entry!r} is not a case" + (f"; did you mean {suggestion!r}?" if suggestion else "")
            hint = "Write the case's folder relative to the suite's root, or remove the entry."
            if key == "golden_times_ms":
                yield make_problem_at(config.name, config.text, [key, entry], message, hint)
            else:
                yield Problem(config.name, lines[index], f"{key}[{index}]", message, hint)


def _suggest_case(entry: str, case_names: Collection[str]) -> str:
    """Suggest the case that is spelled most like an entry; if the entry's folder has cases, only one of these."""
    folder, _, name = entry.rpartition("/")
    siblings = {case.rpartition("/")[2]: case for case in case_names if case.rpartition("/")[0] == folder}
    return siblings.get(find_nearest(name, siblings), "") if siblings else find_nearest(entry, case_names)


def _check_number(value: object) -> object:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, true or false, found {value!r}")
    return value


def _check_number_or_file(value: object) -> object:
    if isinstance(value, str) and value.endswith((".npy", ".bin")):
        return value
    return None if value is None else _check_number(value)


def _unquote(value: object) -> object:
    """Convert a numeric string to its number; return anything else unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _choose_branch(value: object) -> str:
    return f"{BRANCH}object" if isinstance(value, dict) else f"{BRANCH}plain"


ElementType = Annotated[
    str,
    AfterValidator(lambda text: _NAMES_BY_ALIAS.get(text.lower(), text)),
    one_of("element type", ELEMENT_TYPES, _ALIASES),
]
Number = Annotated[Any, AfterValidator(_check_number), WithJsonSchema({"type": ["number", "boolean"]})]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A number, which may be in quotes.
Factor = Annotated[
    Positive,
    BeforeValidator(_unquote),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "[0-9]"}]}),
]


def _make_case_list_field(meaning: str) -> Any:
    return Field(default_factory=make_list, description=f"Case folders, relative to the suite's root: {meaning}.")


class OpConfig(SuiteDocument):
    """How the cases of a suite are compiled and run, and what is expected of them.

    The lists name case folders, relative to the suite's root.
    """

    skip_compile_tests: list[Text] = _make_case_list_field("neither compiled nor run")
    skip_run_tests: list[Text] = _make_case_list_field("compiled only")
    expected_compile_failures: list[Text] = _make_case_list_field("the compile is expected to fail")
    expected_run_failures: list[Text] = _make_case_list_field("the run is expected to fail or give other values")
    expected_compile_crashes: list[Text] = _make_case_list_field("the compiler is expected to be killed by a signal")
    expected_run_crashes: list[Text] = _make_case_list_field("the run is expected to be killed by a signal")
    golden_times_ms: dict[Text, Factor] = Field(
        default_factory=dict, description="Milliseconds by case; these are measured too."
    )
    tolerance_factor: Factor = about(1.0, "Limit as a multiple of the golden time.")


class FormulaFields(StrictDocument):
    """`(coeff * numpy.random.rand(*shape) + offset).astype(dtype)`."""

    shape: list[Count] = Field(description="Sizes.")
    dtype: ElementType = about("float32", "Element type, as NumPy calls it.")
    coeff: _Finite = about(1.0, "Factor of the random values.")
    offset: _Finite = about(0.0, "Added to the product.")


class FormulaArgument(StrictDocument):
    """A synthetic argument."""

    Formula: FormulaFields = Field(description="(coeff * numpy.random.rand(*shape) + offset).astype(dtype).")


class TensorMeta(StrictDocument):
    """The content of a raw file."""

    dtype: ElementType = Field(description="Element type, as NumPy calls it.")
    shape: list[Count] = Field(description="Sizes.")


class ExpectedOutput(StrictDocument):
    """An expected output: a URL or file, or one value; a file name may be given in either."""

    model_config = make_schema_config(oneOf=[require_fields("url"), require_fields("value")])

    url: Text | None = about(None, "Where it comes from: a file, or a URL.")
    value: Annotated[Any, AfterValidator(_check_number_or_file), WithJsonSchema(_NUMBER_OR_FILE)] = about(
        None, "A number, or the name of a file."
    )
    meta: TensorMeta | None = about(None, "Type and sizes of raw bytes.")

    @model_validator(mode="after")
    def _check_source(self) -> ExpectedOutput:
        if (self.url is None) == (self.value is None):
            raise FieldError("url", "expected one of 'url' and 'value'")
        if self.file.split("?")[0].endswith(".bin") and self.meta is None:
            raise FieldError("meta", "is missing: a .bin file does not contain its shape and type")
        return self

    @property
    def file(self) -> str:
        """The URL or name of the file; empty for one value."""
        return self.url or (self.value if isinstance(self.value, str) else "")


_FlatArgument = Annotated[
    Annotated[FormulaArgument, Tag(f"{BRANCH}object")] | Annotated[Number, Tag(f"{BRANCH}plain")],
    Discriminator(_choose_branch),
]
Expected = Annotated[
    Annotated[ExpectedOutput, Tag(f"{BRANCH}object")] | Annotated[Text, Tag(f"{BRANCH}plain")],
    Discriminator(_choose_branch),
]


class TorchOp(StrictDocument):
    """`run_module_io.json`."""

    model_config = make_schema_config(
        **{
            "if": {"required": ["mode"], "properties": {"mode": {"const": "benchmark"}}},
            "else": {
                "required": ["expected_output"],
                "properties": {"expected_output": {"minItems": 1, "type": "array"}},
            },
        }
    )

    function_name: Text = about("main", "Function to run.")
    flat_args: list[_FlatArgument] = Field(
        default_factory=make_list, description="Arguments in order: numbers, and formulas."
    )
    seed: Annotated[int, Field(ge=0, le=(1 << 32) - 1)] = about(0, "Seed of the generated values.")
    rtol: Tolerance = about(1e-05, "Relative tolerance, as in numpy.allclose.")
    atol: Tolerance = about(1e-08, "Absolute tolerance, as in numpy.allclose.")
    equal_nan: bool = about(False, "Whether two NaN values are equal.")
    mode: Literal["compare", "quality", "benchmark"] = about(
        "compare", "compare (or quality), or benchmark: measured, but not compared."
    )
    file_name: Text = about("test.mlir", "The program.")
    vmfb_name: Text = about("out.vmfb", "Accepted, and ignored.")
    expected_output: list[Expected] | None = about(
        None, "What outputs are compared with: files, or objects with url or value."
    )
    azure_blob: bool = about(True, "Accepted, and ignored.")

    @model_validator(mode="after")
    def _check_expected(self) -> TorchOp:
        if self.mode != "benchmark" and not self.expected_output:
            raise FieldError("expected_output", "is missing: a case that compares needs expected outputs")
        return self


def format_tensor_type(shape: list[int], dtype: str) -> str:
    """Format IREE's name of a tensor type: `64x64xbf16`."""
    return "x".join((*map(str, shape), ELEMENT_TYPES[dtype]))


@dataclass(frozen=True, slots=True, eq=False)
class OpSpec(ConfigSpec):
    """The folder of a case, which is read only if the case is selected.

    Problems of a case block no other case. They are found when cases are built, so the spec does not have them.
    `model` is the parent folder's path, relative to the suite's root; `stem` is the folder's name.
    """

    dialect = OP_TESTS

    suite: ConfigSuite[SuiteConfig]
    folder: CaseFolder
    keys: tuple[str, ...]

    @property
    def submodel(self) -> str:
        """The name that `--submodel` selects."""
        return self.stem

    @property
    def document(self) -> None:
        """None: a case is read only when it is selected."""


def read_op_specs(
    folders: Sequence[CaseFolder], with_configs: Iterable[str], overrides: Sequence[Path], working_folder: str
) -> list[OpSpec]:
    """Return the cases of operator suites, in a stable order; UsageError if a requested config does not exist.

    The requested configs, `overrides`, replace the configs of each root.
    """
    candidates = {path for path in with_configs if _find_configs(path)}
    roots_by_parent: dict[str, str] = {}
    roots: dict[str, list[CaseFolder]] = {}
    for folder in folders:
        parent = folder.path.rpartition("/")[0]
        if parent not in roots_by_parent:
            roots_by_parent[parent] = _find_root(folder, candidates)
        roots.setdefault(roots_by_parent[parent], []).append(folder)
    prefix = f"{working_folder.rstrip('/')}/"
    if overrides:
        # A missing or unreadable config is reported when it is used.
        op_configs = [_read_op_config(path, str(path).removeprefix(prefix)) for path in overrides if path.is_file()]
        entries = [
            (*config.skips, *config.expectations, *config.document.golden_times_ms)
            for config in op_configs
            if config.document
        ]
        roots = _choose_roots_by_entries(roots, candidates, frozenset().union(*entries))
    keys = {folder.path: _list_case_keys(folder, root) for root, group in roots.items() for folder in group}
    # A requested config in the `configs` folder of one root does not apply to other roots.
    config_folders = {root: resolve_links(Path(root, CONFIGS)) for root in roots}
    by_root: dict[str, tuple[Path, ...]] = {}
    for root in roots:
        other_folders = [config_folders[other_root] for other_root in roots if other_root != root]
        by_root[root] = tuple(
            path for path in overrides if resolve_links(path).parent not in other_folders
        ) or _find_configs(root)
    configs = _read_configs(by_root, {root: [keys[folder.path] for folder in roots[root]] for root in roots}, prefix)
    specs = []
    for root, group in roots.items():
        files = (next(name for name in CASE_FILES if name in folder.files) for folder in group)
        names = [f"{folder.path}/{file}".removeprefix(prefix) for folder, file in zip(group, files, strict=True)]
        display_root = root.removeprefix(prefix)
        hint = f"Write {display_root}/{CONFIGS}/NAME.json, or give one as --config:\n{_EXAMPLE}"
        problem = Problem(names[0], 0, "", f"its operator suite {display_root} has no config", hint)
        suite = ConfigSuite(tuple(configs[path] for path in by_root[root]), () if by_root[root] else (problem,))
        for folder, name in zip(group, names, strict=True):
            model, _, stem = keys[folder.path][0].rpartition("/")
            specs.append(OpSpec(suite, name, model or Path(root).name, stem, folder, keys[folder.path]))
    return specs


def _find_configs(root: str) -> tuple[Path, ...]:
    """Find the configs of a folder; other JSON files in it are ignored."""
    # A file with any of the required fields is a config; misspelt fields and broken links are reported on reading.
    paths = sorted(Path(root, CONFIGS).glob("*.json"))
    return tuple(path for path in paths if has_word(path, *SuiteDocument.model_fields) or not path.exists())


def _find_root(folder: CaseFolder, candidates: set[str]) -> str:
    """Return the nearest folder above a case that has configs; the spec folder if there is none."""
    is_inside = folder.path.startswith(f"{folder.spec_folder}/")
    # Start above the case's folder, because that folder contains no configs of a suite.
    path = folder.path.rpartition("/")[0]
    while path:
        if path in candidates:
            return path
        if path == folder.spec_folder:
            is_inside = False
        if not is_inside and _find_configs(path):
            return path
        path = path.rpartition("/")[0]
    return folder.spec_folder if folder.path != folder.spec_folder else folder.path.rpartition("/")[0]


def _choose_roots_by_entries(
    roots: Mapping[str, Sequence[CaseFolder]], candidates: Collection[str], entries: Collection[str]
) -> dict[str, list[CaseFolder]]:
    """Replace each root without configs by the folder relative to which most entries name its cases."""
    new_roots: dict[str, list[CaseFolder]] = {}
    for root, case_folders in roots.items():
        votes: Counter[str] = Counter()
        if root not in candidates and not _find_configs(root):
            for folder in case_folders:
                parts = folder.path.split("/")
                votes.update(
                    "/".join(parts[:depth]) for depth in range(1, len(parts)) if "/".join(parts[depth:]) in entries
                )
        best_root = votes.most_common(1)[0][0] if votes else root
        # Drop `generated`, which entries of the torch variant omit.
        best_root = best_root.removesuffix(f"/{_GENERATED_PREFIX[:-1]}")
        # Cases outside of the new root keep their old root.
        for folder in case_folders:
            is_below = folder.path.startswith(f"{best_root}/")
            new_roots.setdefault(best_root if is_below else root, []).append(folder)
    return new_roots


def _list_case_keys(folder: CaseFolder, root: str) -> tuple[str, ...]:
    """List a case's names: its path from the root; for the torch variant, also without `generated/`, and its end."""
    # torch_ops/common.py names a case by its last two folders, independently of the root.
    path = folder.path[len(root) :].lstrip("/")
    if TORCH_FILE not in folder.files:
        return (path,)
    return tuple(dict.fromkeys((path, path.removeprefix(_GENERATED_PREFIX), "/".join(folder.path.split("/")[-2:]))))


def _read_configs(
    paths_by_root: Mapping[str, tuple[Path, ...]], keys: Mapping[str, Sequence[tuple[str, ...]]], prefix: str
) -> dict[Path, SuiteConfig]:
    """Read each config once, and check it against the cases of all roots that use it."""
    roots_of: dict[Path, list[str]] = {}
    renames: dict[Path, SuiteConfig] = {}
    for root, paths in paths_by_root.items():
        for path in paths:
            roots_of.setdefault(path, []).append(root)
    for path in roots_of:
        if not path.is_file():
            raise UsageError(f"config {path} does not exist", f"A config is a JSON file, for example:\n{_EXAMPLE}")
    by_path = {path: _read_op_config(path, str(path).removeprefix(prefix)) for path in roots_of}
    for paths in paths_by_root.values():
        # A config is named by its file if any of its roots has another config with the same name.
        unique = make_names_unique([by_path[path] for path in paths])
        renames |= {path: config for path, config in zip(paths, unique, strict=True) if config is not by_path[path]}
    by_path |= renames
    first_configs: dict[tuple[str, str], SuiteConfig] = {}
    configs: dict[Path, SuiteConfig] = {}
    for path, roots in roots_of.items():
        config = by_path[path]
        case_names = {key for root in roots for names in keys[root] for key in names}
        name = config.target.config_name
        configs_of_name = [first_configs.setdefault((root, name), config) for root in roots] if config.document else []
        problems = (*config.problems, *find_name_conflicts(config, configs_of_name))
        unmatched_entries = tuple(_find_unmatched(config, case_names, roots))
        configs[path] = replace(config, problems=problems, unmatched_entries=unmatched_entries)
    return configs
