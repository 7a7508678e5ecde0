"""Suites of operators: their cases, and the configs by which these are compiled and run, skipped, expected to fail.

A case is a folder with `run_module_io_flags.txt` (ONNX operators) or `run_module_io.json` (torch operators). Its root
is the nearest folder at or above it that holds configs: JSON files in a folder `configs`. An entry of their lists names
a case from that root; the comment on its line is the reason that reports give.

Facts: iree-test-suites, `onnx_ops/conftest.py` and `torch_ops/common.py`.
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
    ConfiguredSpec,
    ConfiguredSuite,
    SuiteDocument,
    find_same_names,
    has_word,
    read_config,
    with_own_names,
)
from iree_gauntlet.dialects.fields import Count, Positive, StrictDocument, Text, about, in_schema, one_of, present
from iree_gauntlet.dialects.json_text import find_item_lines
from iree_gauntlet.dialects.locations import CASE_FOLDER, flag_variables, strange_variables
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError, find_nearest, problem_at
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.stages import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


DIALECT = "op_tests"
# NumPy's names of element types, and IREE's.
ELEMENT_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
}
# `f8E4M3FN` and `f8e4m3fn`, which are written for the long names.
_SHORT_NAMES = {iree.lower(): name for name, iree in ELEMENT_TYPES.items() if iree.startswith("f8")}
_SHORT_SPELLINGS = (*(iree for iree in ELEMENT_TYPES.values() if iree.startswith("f8")), *_SHORT_NAMES)
_EXAMPLE = """{
  "config_name": "cpu_llvm_sync",
  "iree_compile_flags": ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"],
  "iree_run_module_flags": ["--device=local-sync"]
}"""
_RUNS = tuple(stage for stage in Stage if stage.row.runs_modules)
# The stages that the entries of a list do without, and those at which they are expected to fail, and how.
_SKIPS: dict[str, tuple[Stage, ...]] = {"skip_compile_tests": (Stage.COMPILE, *_RUNS), "skip_run_tests": _RUNS}
_CRASH = (FailureKind.CRASHES,)
_NO_CRASH = tuple(kind for kind in FailureKind if kind is not FailureKind.CRASHES)
_FAILURES: dict[str, tuple[tuple[Stage, ...], tuple[FailureKind, ...]]] = {
    "expected_compile_crashes": ((Stage.COMPILE,), _CRASH),
    "expected_compile_failures": ((Stage.COMPILE,), _NO_CRASH),
    "expected_run_crashes": (_RUNS, _CRASH),
    "expected_run_failures": (_RUNS, _NO_CRASH),
}
_LISTS = (*_SKIPS, *_FAILURES)
# Looking for the nearest of thousands of names takes a while.
_MOST_GUESSES = 10
_NUMBER_OR_FILE: dict[str, Any] = {
    "anyOf": [{"type": ["number", "boolean", "null"]}, {"type": "string", "pattern": r"\.(npy|bin)$"}]
}
FLAGFILE = "run_module_io_flags.txt"
TORCH_FILE = "run_module_io.json"
CONFIGS = "configs"
# The last is what the suites of torch operators had before it.
_CASE_FILES = (FLAGFILE, TORCH_FILE, "run_module_io_flags.json")
# The torch variant's cases lie in this folder of the root, and its configs leave it out.
_GENERATED = "generated/"


@dataclass(frozen=True, slots=True, eq=False)
class SuiteConfig(Config):
    """A config of an operator suite, read."""

    document: OpConfig | None = None
    skips: Mapping[str, tuple[tuple[Stage, str], ...]] = field(default_factory=dict)
    expected: Mapping[str, tuple[Expectation, ...]] = field(default_factory=dict)


def _read_op_config(path: Path, name: str) -> SuiteConfig:
    config = read_config(path, name, OpConfig, SuiteConfig)
    document, text = config.document, config.text
    if document is None:
        return config
    known = {CASE_FOLDER: "", **flag_variables()}
    strange = [
        problem_at(name, text, ["iree_compile_flags", index], what, hint)
        for index, flag in enumerate(document.iree_compile_flags)
        for what, hint in strange_variables(flag, known)
    ]
    if strange:
        return SuiteConfig(path, name, problems=tuple(strange))
    lines = {where: find_item_lines(text, [where]) if config.comments else [] for where in _LISTS}

    def reason(where: str, index: int) -> str:
        """What the comment on an entry's line says."""
        return (config.comments.get(lines[where][index]) if config.comments else "") or f"in {where}"

    skips: dict[str, tuple[tuple[Stage, str], ...]] = {}
    for where, stages in _SKIPS.items():
        for index, entry in enumerate(getattr(document, where)):
            why = f"{reason(where, index)} ({name})"
            skips.setdefault(entry, tuple((stage, why) for stage in stages))
    expected: dict[str, tuple[Expectation, ...]] = {}
    for where, (stages, kinds) in _FAILURES.items():
        for index, entry in enumerate(getattr(document, where)):
            before = expected.get(entry, ())
            origin = Origin(name, f"{where}[{index}]")
            # The list of crashes comes first, and counts.
            if all(item.stage is not stages[0] for item in before):
                found_here = (Expectation(stage, reason(where, index), origin, kinds) for stage in stages)
                expected[entry] = (*before, *found_here)
    warnings = (*config.warnings, *_find_idle(name, text, document))
    return replace(config, skips=skips, expected=expected, warnings=warnings)


def _find_idle(name: str, text: str, document: OpConfig) -> Iterator[Problem]:
    """Entries that say nothing: they stand twice in a list, or expect a failure of a stage that is skipped."""
    skipped = {skip: frozenset(getattr(document, skip)) for skip in _SKIPS}
    for where in _LISTS:
        before: dict[str, int] = {}
        stage = _FAILURES[where][0][0] if where in _FAILURES else None
        for index, entry in enumerate(getattr(document, where)):
            if before.setdefault(entry, index) != index:
                message = f"{entry!r} stands in this list before ([{before[entry]}])"
                yield problem_at(name, text, [where, index], message, "Remove one of the two.")
                continue
            skip = next((skip for skip, stages in _SKIPS.items() if stage in stages and entry in skipped[skip]), "")
            if skip:
                message = f"{entry!r} stands in {skip} too, and is skipped: what does not run cannot fail"
                yield problem_at(name, text, [where, index], message, "Remove it from one of the two.")


def _find_unmatched(config: SuiteConfig, known: Collection[str], roots: Sequence[str]) -> Iterator[Problem]:
    """Entries that name no case: misspelt, left behind, or of a part of the suite that is not here."""

    def is_case(entry: str) -> bool:
        """Whether an entry is the folder of a case, also one outside of the spec folder."""
        if entry in known or entry.startswith("/") or ".." in entry.split("/"):
            return entry in known
        paths = [f"{root}/{folder}{entry}" for root in roots for folder in ("", _GENERATED)]
        return any(os.path.isfile(f"{path}/{file}") for path in paths for file in _CASE_FILES)  # noqa: PTH113

    unmatched = {
        where: [(index, entry) for index, entry in enumerate(getattr(config.document, where, ())) if not is_case(entry)]
        for where in (*_LISTS, "golden_times_ms")
    }
    # So many are no slips: a part of the suite is not here. A guess takes its time.
    guesses = sum(map(len, unmatched.values())) <= _MOST_GUESSES
    for where, lost in unmatched.items():
        lines = find_item_lines(config.text, [where]) if lost else []
        for index, entry in lost:
            near = _find_nearest(entry, known) if guesses else ""
            message = f"{entry!r} names no case" + (f"; did you mean {near!r}?" if near else "")
            hint = "Write the case's folder from the suite's root, or remove the entry."
            if where == "golden_times_ms":
                yield problem_at(config.name, config.text, [where, entry], message, hint)
            else:
                yield Problem(config.name, lines[index], f"{where}[{index}]", message, hint)


def _find_nearest(entry: str, known: Collection[str]) -> str:
    """The case that is spelled most like an entry: of the same folder where there are any."""
    folder, _, name = entry.rpartition("/")
    siblings = {other.rpartition("/")[2]: other for other in known if other.rpartition("/")[0] == folder}
    return siblings.get(find_nearest(name, siblings), "") if siblings else find_nearest(entry, known)


def _check_number(value: object) -> object:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, true or false, found {value!r}")
    return value


def _check_number_or_file(value: object) -> object:
    if isinstance(value, str) and value.endswith((".npy", ".bin")):
        return value
    return None if value is None else _check_number(value)


def _unquote(value: object) -> object:
    """The number of a string that is one; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_object(value: object) -> str:
    return f"{BRANCH}object" if isinstance(value, dict) else f"{BRANCH}plain"


ElementType = Annotated[
    str,
    AfterValidator(lambda text: _SHORT_NAMES.get(text.lower(), text)),
    one_of("element type", ELEMENT_TYPES, _SHORT_SPELLINGS),
]
Number = Annotated[Any, AfterValidator(_check_number), WithJsonSchema({"type": ["number", "boolean"]})]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A number, also in quotes.
Factor = Annotated[
    Positive,
    BeforeValidator(_unquote),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "[0-9]"}]}),
]


def _list_of_cases(what: str) -> Any:
    return Field(default_factory=list, description=f"Case folders, relative to the suite's root: {what}.")


class OpConfig(SuiteDocument):
    """How the cases of a suite are compiled and run, and what is expected of them.

    The lists name case folders, relative to the suite's root.
    """

    skip_compile_tests: list[Text] = _list_of_cases("not compiled, and not run")
    skip_run_tests: list[Text] = _list_of_cases("compiled only")
    expected_compile_failures: list[Text] = _list_of_cases("the compile is expected to fail")
    expected_run_failures: list[Text] = _list_of_cases("the run is expected to fail, or to give other values")
    expected_compile_crashes: list[Text] = _list_of_cases("the compiler is expected to die by a signal")
    expected_run_crashes: list[Text] = _list_of_cases("the run is expected to die by a signal")
    golden_times_ms: dict[Text, Factor] = Field(
        default_factory=dict, description="Milliseconds by case; these are measured too."
    )
    tolerance_factor: Factor = about(1.0, "How many times the golden time may be exceeded.")


class FormulaFields(StrictDocument):
    """`(coeff * numpy.random.rand(*shape) + offset).astype(dtype)`."""

    shape: list[Count] = Field(description="Sizes.")
    dtype: ElementType = about("float32", "Element type, as NumPy calls it.")
    coeff: _Finite = about(1.0, "Times what is random.")
    offset: _Finite = about(0.0, "Added to that.")


class FormulaArgument(StrictDocument):
    """A synthetic argument."""

    Formula: FormulaFields = Field(description="(coeff * numpy.random.rand(*shape) + offset).astype(dtype).")


class TensorMeta(StrictDocument):
    """What a raw file holds."""

    dtype: ElementType = Field(description="Element type, as NumPy calls it.")
    shape: list[Count] = Field(description="Sizes.")


class ExpectedOutput(StrictDocument):
    """An expected output: a URL or file, or one value; the name of a file may stand in either."""

    model_config = in_schema(oneOf=[present("url"), present("value")])

    url: Text | None = about(None, "Where it comes from: a file, or a URL.")
    value: Annotated[Any, AfterValidator(_check_number_or_file), WithJsonSchema(_NUMBER_OR_FILE)] = about(
        None, "A number, or the name of a file."
    )
    meta: TensorMeta | None = about(None, "What raw bytes hold.")

    @model_validator(mode="after")
    def _check_source(self) -> ExpectedOutput:
        if (self.url is None) == (self.value is None):
            raise FieldError("url", "expected one of 'url' and 'value'")
        if self.file.split("?")[0].endswith(".bin") and self.meta is None:
            raise FieldError("meta", "is missing: a .bin file does not say its shape and type")
        return self

    @property
    def file(self) -> str:
        """The URL or name of the file; empty for one value."""
        return self.url or (self.value if isinstance(self.value, str) else "")


_FlatArgument = Annotated[
    Annotated[FormulaArgument, Tag(f"{BRANCH}object")] | Annotated[Number, Tag(f"{BRANCH}plain")],
    Discriminator(_is_object),
]
Expected = Annotated[
    Annotated[ExpectedOutput, Tag(f"{BRANCH}object")] | Annotated[Text, Tag(f"{BRANCH}plain")],
    Discriminator(_is_object),
]


class TorchOp(StrictDocument):
    """`run_module_io.json`."""

    model_config = in_schema(
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
        default_factory=list, description="Arguments in order: numbers, and formulas."
    )
    seed: Annotated[int, Field(ge=0, le=(1 << 32) - 1)] = about(0, "Of the values that are made.")
    rtol: Tolerance = about(1e-05, "Relative tolerance, as of numpy.allclose.")
    atol: Tolerance = about(1e-08, "Absolute tolerance, as of numpy.allclose.")
    equal_nan: bool = about(False, "Whether two NaN are equal.")
    mode: Literal["compare", "quality", "benchmark"] = about(
        "compare", "compare (or quality), or benchmark: measured, and not compared."
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
            raise FieldError("expected_output", "is missing: a case that compares needs what is expected")
        return self


def tensor_of(shape: list[int], dtype: str) -> str:
    """IREE's name of a tensor type: `64x64xbf16`."""
    return "x".join((*map(str, shape), ELEMENT_TYPES[dtype]))


@dataclass(frozen=True, slots=True)
class CaseFolder:
    """A folder of a case, and the spec folder in which it was found; both paths are absolute."""

    path: str
    files: tuple[str, ...]
    found_from: str


@dataclass(frozen=True, slots=True, eq=False)
class OpSpec(ConfiguredSpec):
    """The folder of a case, which is read when it is selected.

    What is wrong with a case keeps no other from running, and is found when its cases are made: it is no problem of
    the spec. Its model is the path of the folder above it, from the suite's root, and its stem its own name.
    """

    dialect = DIALECT

    suite: ConfiguredSuite[SuiteConfig]
    folder: CaseFolder
    keys: tuple[str, ...]

    @property
    def submodel(self) -> str:
        """What `--submodel` selects."""
        return self.stem

    @property
    def document(self) -> None:
        """Nothing, until it is selected."""


def is_case_folder(files: Iterable[str]) -> bool:
    """Whether a folder with these files is one of a case."""
    return any(name in _CASE_FILES for name in files)


def read_op_specs(
    folders: Sequence[CaseFolder], with_configs: Iterable[str], asked: Sequence[Path], working_folder: str
) -> list[OpSpec]:
    """The cases of operator suites, in a stable order; UsageError where a config that was asked for does not exist.

    Configs that are asked for take the place of those in the `configs` of each root.
    """
    candidates = {path for path in with_configs if _find_configs(path)}
    above: dict[str, str] = {}
    roots: dict[str, list[CaseFolder]] = {}
    for folder in folders:
        parent = folder.path.rpartition("/")[0]
        if parent not in above:
            above[parent] = _find_root(folder, candidates)
        roots.setdefault(above[parent], []).append(folder)
    prefix = f"{working_folder.rstrip('/')}/"
    if asked:
        # One that is not there, or cannot be read, is reported when it is used.
        read = [_read_op_config(path, str(path).removeprefix(prefix)) for path in asked if path.is_file()]
        named = [(*item.skips, *item.expected, *item.document.golden_times_ms) for item in read if item.document]
        roots = _place_by_entries(roots, candidates, frozenset().union(*named))
    keys = {folder.path: _name_keys(folder, root) for root, inside in roots.items() for folder in inside}
    # What is asked for and lies in another root's own folder is not meant for a root.
    own = {root: resolve_links(Path(root, CONFIGS)) for root in roots}
    used: dict[str, tuple[Path, ...]] = {}
    for root in roots:
        others = [own[other] for other in roots if other != root]
        used[root] = tuple(path for path in asked if resolve_links(path).parent not in others) or _find_configs(root)
    configs = _read_configs(used, {root: [keys[item.path] for item in roots[root]] for root in roots}, prefix)
    specs = []
    for root, inside in roots.items():
        files = (next(name for name in _CASE_FILES if name in folder.files) for folder in inside)
        names = [f"{folder.path}/{file}".removeprefix(prefix) for folder, file in zip(inside, files, strict=True)]
        called = root.removeprefix(prefix)
        hint = f"Write {called}/{CONFIGS}/NAME.json, or give one as --config:\n{_EXAMPLE}"
        lacking = Problem(names[0], 0, "", f"its operator suite {called} has no config", hint)
        suite = ConfiguredSuite(tuple(configs[path] for path in used[root]), () if used[root] else (lacking,))
        for folder, name in zip(inside, names, strict=True):
            model, _, stem = keys[folder.path][0].rpartition("/")
            specs.append(OpSpec(suite, name, model or Path(root).name, stem, folder, keys[folder.path]))
    return specs


def _find_configs(root: str) -> tuple[Path, ...]:
    """The configs of a folder; a JSON file of another kind next to them is none."""
    # By any of the required fields: one that is misspelt is reported when the file is read, as is a link to nothing.
    paths = sorted(Path(root, CONFIGS).glob("*.json"))
    return tuple(path for path in paths if has_word(path, *SuiteDocument.model_fields) or not path.exists())


def _find_root(folder: CaseFolder, candidates: set[str]) -> str:
    """The nearest folder above a case that holds configs; the spec folder where none does."""
    inside = folder.path.startswith(f"{folder.found_from}/")
    # Above the case: what lies in its own folder is of no suite.
    path = folder.path.rpartition("/")[0]
    while path:
        if path in candidates:
            return path
        if path == folder.found_from:
            inside = False
        if not inside and _find_configs(path):
            return path
        path = path.rpartition("/")[0]
    return folder.found_from if folder.path != folder.found_from else folder.path.rpartition("/")[0]


def _place_by_entries(
    roots: Mapping[str, Sequence[CaseFolder]], candidates: Collection[str], entries: Collection[str]
) -> dict[str, list[CaseFolder]]:
    """The same roots; where one is only the spec folder, the folder instead from which most entries name its cases."""
    found: dict[str, list[CaseFolder]] = {}
    for root, inside in roots.items():
        votes: Counter[str] = Counter()
        if root not in candidates and not _find_configs(root):
            for folder in inside:
                parts = folder.path.split("/")
                votes.update(
                    "/".join(parts[:place]) for place in range(1, len(parts)) if "/".join(parts[place:]) in entries
                )
        best = votes.most_common(1)[0][0] if votes else root
        # The torch variant's entries leave it out.
        best = best.removesuffix(f"/{_GENERATED[:-1]}")
        # Cases that do not lie below it keep what they had.
        for folder in inside:
            below = folder.path.startswith(f"{best}/")
            found.setdefault(best if below else root, []).append(folder)
    return found


def _name_keys(folder: CaseFolder, root: str) -> tuple[str, ...]:
    """Names of a case: its path from the root; of the torch variant also without `generated`, and its last folders."""
    # The last are what torch_ops/common.py calls a case by, wherever it lies.
    path = folder.path[len(root) :].lstrip("/")
    if TORCH_FILE not in folder.files:
        return (path,)
    return tuple(dict.fromkeys((path, path.removeprefix(_GENERATED), "/".join(folder.path.split("/")[-2:]))))


def _read_configs(
    used: Mapping[str, tuple[Path, ...]], keys: Mapping[str, Sequence[tuple[str, ...]]], prefix: str
) -> dict[Path, SuiteConfig]:
    """The configs that the roots use, each read once and held against the cases of all of them."""
    roots_of: dict[Path, list[str]] = {}
    called: dict[Path, SuiteConfig] = {}
    for root, paths in used.items():
        for path in paths:
            roots_of.setdefault(path, []).append(root)
    for path in roots_of:
        if not path.is_file():
            raise UsageError(f"config {path} does not exist", f"A config is a JSON file, for example:\n{_EXAMPLE}")
    read = {path: _read_op_config(path, str(path).removeprefix(prefix)) for path in roots_of}
    for paths in used.values():
        # A config of several roots is called by its file where one of them has another of its name.
        named = with_own_names([read[path] for path in paths])
        called |= {path: config for path, config in zip(paths, named, strict=True) if config is not read[path]}
    read |= called
    first: dict[tuple[str, str], SuiteConfig] = {}
    configs: dict[Path, SuiteConfig] = {}
    for path, roots in roots_of.items():
        config = read[path]
        known = {key for root in roots for names in keys[root] for key in names}
        name = config.target.config
        others = [first.setdefault((root, name), config) for root in roots] if config.document else []
        problems = (*config.problems, *find_same_names(config, others))
        unmatched = tuple(_find_unmatched(config, known, roots))
        configs[path] = replace(config, problems=problems, unmatched=unmatched)
    return configs
