"""The checks of `lint`: probable mistakes of a case, and problems of a project besides its specs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.sources import describe_missing_file
from iree_gauntlet.device_kinds import DRIVERS, split_device
from iree_gauntlet.dialects.configuration_file import MARKS_FILE, read_configuration, read_marks
from iree_gauntlet.dialects.load import list_urls
from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.dialects.spec_file import did_you_mean, make_field_problem, with_lines
from iree_gauntlet.engine.commands import format_shape
from iree_gauntlet.engine.judging import NUMPY_ADVICE
from iree_gauntlet.engine.workspace import list_project_suites, select
from iree_gauntlet.errors import NothingSelectedError, Problem, SpecError, UsageError
from iree_gauntlet.figures import SHARKTANK_GOLDENS
from iree_gauntlet.formatting import list_first
from iree_gauntlet.measuring.numerics.arrays import TensorError, explain_refusal
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import find_project_folder, format_path
from iree_gauntlet.stages import Kind
from iree_gauntlet.targets import FAMILIES, Target, parse_target
from iree_gauntlet.upkeep.recording import check_recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.variants import FlagVariant


# The type is at the beginning of a value, or after the kind of a `random://` source: `1x64xf32`.
_TYPE = re.compile(r"(?:random://[\w-]+/|\A)((?:\d+x)*)[a-z]+\d+(?![\w.])")


# A function of MLIR text that others can call.
_FUNCTION = re.compile(rb'^\s*(?:func\.func|util\.func)\s+(?:public\s+)?@"?([\w.$-]+)', re.MULTILINE)
# These goldens have keys: SKUs, or targets.
_KEYED_GOLDENS = ("golden_time_tolerance_multiplier", *SHARKTANK_GOLDENS)


def list_case_warnings(case: Case, store: ArtifactStore) -> Iterator[Problem]:
    """Report expected outputs of other models, devices that no IREE has, and sizes that do not match each other."""
    is_torch = case.dialect.startswith("torch")
    if case.kind is Kind.QUALITY and case.expected_outputs:
        hint = f"`gauntlet golden.record --model {case.model}` records its outputs again."
        field = "expected_outputs" if is_torch else "outputs"
        yield from (
            make_field_problem(case.origin.file, field, change, hint) for change in check_recording(case, store)
        )
    if case.allclose is not None and case.allclose.rtol >= 1:
        message = f"{case.allclose.rtol:g}: with such a large tolerance zeros pass, whatever is expected"
        yield make_field_problem(
            case.origin.file, "rtol", message, "Give the allowed difference of the outputs, such as 1e-3."
        )
    yield from _list_missing_functions(case)
    driver, _ = split_device(case.device)
    if driver and driver not in DRIVERS:
        message = f"IREE has no driver {driver!r}{did_you_mean(driver, DRIVERS)}"
        hint = "Ignore this if a plugin provides it."
        yield make_field_problem(case.origin.file, "run_args" if is_torch else "device", message, hint)
    # Inputs must have the sizes with which an ONNX program is imported. Only types that the spec names are checked;
    # types of files are unknown.
    options = case.modules[0].program.onnx if len(case.modules) == 1 else None
    types = [_TYPE.match(item.value or item.url) for item in case.inputs]
    shapes = [tuple(map(int, type_match[1].split("x")[:-1])) for type_match in types if type_match]
    for name, shape in options.shapes if options is not None and shapes and len(shapes) == len(types) else ():
        if tuple(shape) not in shapes:
            message = f"none is {format_shape(shape)}, which onnx_import.shapes says of {name}"
            yield make_field_problem(case.origin.file, "inputs", message, "Use the same sizes in both.")


def _list_missing_functions(case: Case) -> Iterator[Problem]:
    """Report called functions that a program of MLIR text does not have; other programs are not searched."""
    program = (case.pipeline_modules or case.modules)[-1].program
    path = Path(get_url_path(program.url))
    if case.kind not in (Kind.QUALITY, Kind.BENCHMARK) or path.suffix != ".mlir" or not path.is_file():
        return
    functions = sorted({name.decode() for name in _FUNCTION.findall(path.read_bytes())})
    for call in case.calls:
        if functions and call.function and call.function not in functions:
            message = f"{path.name} has no function {call.function!r}{did_you_mean(call.function, functions)}"
            field = "function_run" if case.kind is Kind.BENCHMARK else "run_function"
            field = f"{call.field}function" if call.field else field
            yield make_field_problem(case.origin.file, field, message, f"Functions: {list_first(functions, 8)}.")


def list_unreadable_arrays(case: Case) -> Iterator[Problem]:
    """Report the .npy files of a case that IREE's tool cannot read (or NumPy, if NumPy compares the outputs)."""
    by_numpy = {item.url for item in case.expected_outputs} if case.allclose is not None else set()
    for field, url in list_urls(case):
        path = Path(get_url_path(url))
        if path.suffix == ".npy" and path.is_file():
            try:
                reason = explain_refusal(path)
            except TensorError as error:
                yield make_field_problem(
                    case.origin.file, field, error.message, error.hint or "Record or fetch it again."
                )
            else:
                if reason and url not in by_numpy:
                    yield make_field_problem(case.origin.file, field, f"{path}: {reason}", f"S{NUMPY_ADVICE[1:]}.")


def list_project_problems() -> tuple[list[Problem], list[Problem]]:
    """List the problems that make files of the project unusable, and entries of these files without effect."""
    project = format_path(find_project_folder())
    problems: list[Problem] = []
    doubtful: list[Problem] = []
    for read in (partial(read_configuration, project, os.environ), partial(read_marks, project / MARKS_FILE)):
        try:
            read()
        except SpecError as error:
            problems += error.problems
    for path in map(str, sorted((project / "suites").glob("*.toml"))):
        try:
            cases = select(SelectionRequest(suite=path), Defaults(targets=FAMILIES), allow_only_problems=True).cases
            suite_problems = [problem for problem in cases.problems if problem.file == path]
            problems += suite_problems
            if not suite_problems:
                # Entries of a valid suite may match nothing.
                doubtful += [doubt for doubt in (*cases.warnings, *cases.unmatched_entries) if doubt.file == path]
        except SpecError as error:
            problems += error.problems
        except NothingSelectedError as error:
            problems.append(Problem(str(path), 0, "include", "selects nothing", error.message))
        except UsageError as error:
            # A suite's folders of specs may be outside of the project.
            doubtful.append(Problem(str(path), 0, "", f"its selection was not checked: {error.message}", error.hint))
    return problems + _list_missing_tuning_specs(), doubtful


def _list_variants(suite_variants: Iterable[FlagVariant]) -> list[FlagVariant]:
    """Return the variants of suites and of the settings; unreadable settings are reported elsewhere."""
    variants = [*suite_variants]
    with suppress(SpecError):
        variants += read_configuration(find_project_folder(), os.environ).variants
    return variants


def _list_missing_tuning_specs() -> list[Problem]:
    problems: list[Problem] = []
    for variant in _list_variants(entry for suite in list_project_suites()[0] for entry in suite.variants):
        path = Path(get_url_path(variant.tuning_spec) or variant.origin)
        if not path.is_file():
            problem = Problem(variant.origin, 0, f"variants.{variant.name}.tuning_spec", *describe_missing_file(path))
            problems += with_lines([problem], Path(variant.origin).read_text(encoding="utf-8"))
    return problems


def find_unused_golden_keys(specs: Sequence[Spec], cases: Iterable[Case], sku: str) -> list[Problem]:
    """Find keys of goldens that match no target of their spec, no variant, and no SKU.

    SKUs are those of suites and golden times, and `sku`.
    """
    families: dict[str, set[str]] = {}
    for case in cases:
        families.setdefault(case.origin.file, set()).update({case.target.family, case.target.golden_names[0]})
    suites = list_project_suites()[0]
    skus = (sku, *(target.sku for suite in suites for target in suite.targets))
    variants = {entry.name for entry in _list_variants(entry for suite in suites for entry in suite.variants)}
    documents = [(spec, spec.document) for spec in specs if isinstance(spec.document, Benchmark)]
    times = {spec.name: {*document.golden_time, *document.golden_time_ms} for spec, document in documents}
    known_skus = {*skus, *(key for keys in times.values() for key in keys)} - {""}
    problems = []
    for spec, document in documents:
        if spec.name not in families:
            # The spec is not selected.
            continue
        for name in document.variants:
            if unknown := next((part for part in name.split("+") if part not in variants), ""):
                text = f"no suite and no settings define variant {unknown!r}{did_you_mean(unknown, variants)}"
                hint = "Its goldens apply only to runs that define a variant of this name on the command line."
                problems.append(make_field_problem(spec.name, f"variants.{name}", text, hint))
        other_families = families[spec.name].difference(spec.families)
        targets = {*spec.families, *other_families}
        for field in _KEYED_GOLDENS:
            keys = times[spec.name] if field == "golden_time_tolerance_multiplier" else {*targets, *known_skus}
            for key in getattr(document, field):
                family, _, sku = key.partition("-")
                chip = parse_target(key)
                is_chip = keys is not times[spec.name] and chip in {Target(name, key) for name in targets}
                if key in keys or is_chip or (family in other_families and sku in known_skus):
                    continue
                text = f"{key!r} is neither a target or chip of this spec nor a SKU of a suite or a golden time"
                if keys is times[spec.name]:
                    text = f"{key!r} has no golden time"
                hint = "No measured figure is compared with it."
                problems.append(
                    make_field_problem(spec.name, f"{field}.{key}", f"{text}{did_you_mean(key, keys)}", hint)
                )
    return problems
