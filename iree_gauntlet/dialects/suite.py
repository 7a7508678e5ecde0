"""Suites: a TOML file that names a selection of specs, a target, and the expected failures."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from iree_gauntlet.cases import Case, Expectation, Origin, Quarantine, read_quarantine_end
from iree_gauntlet.dialects.fields import (
    ForPeople,
    StrictDocument,
    TargetName,
    about,
    expect,
    make_list,
    make_schema_config,
    one_of,
    read_table,
    require_fields,
)
from iree_gauntlet.dialects.load import CaseSet, adjust_case
from iree_gauntlet.dialects.selection import Include, MarkerExpression, find_unmatched
from iree_gauntlet.dialects.spec_file import FieldError
from iree_gauntlet.dialects.variant_table import WithVariants, make_variants
from iree_gauntlet.errors import Problem, SpecError, UsageError
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.stages import DEFAULT_STAGES, SPEC_STAGES, FailureKind, Stage
from iree_gauntlet.targets import FAMILIES, Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.dialects.load import AnySpec
    from iree_gauntlet.variants import FlagVariant


# A suite's name is a part of the names of runs.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


def _check_reason(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a reason: explain why this fails, with a link if there is one")
    return text


def _parse_targets(names: Iterable[str], sku: str = "") -> tuple[Target, ...]:
    """Parse names of targets, which were checked."""
    return tuple(target for name in names if (target := parse_target(name, sku=sku)))


_Stage = Annotated[str, one_of("stage", [stage.value for stage in SPEC_STAGES])]
_Kind = Annotated[str, one_of("kind", [kind.value for kind in FailureKind])]


class _IncludeTable(StrictDocument):
    model: str = about("*", "Glob of models.")
    submodel: str = about("*", "Glob of submodels.")
    filename: str = about("*", "Glob of spec files, without .json.")
    markers: str = about("", "Marker expression: small and not audio.")


class _ExpectTable(StrictDocument):
    case: str = Field(description="Glob of model/submodel.")
    stage: _Stage = Field(description="The stage that fails.")
    reason: Annotated[str, AfterValidator(_check_reason)] = Field(description="Why, with a link if there is one.")
    kind: _Kind | None = about(None, "How it fails: any other failure is reported. Without it, any kind is expected.")
    targets: list[TargetName] = Field(
        default_factory=make_list, description="Where it fails; without any, on all targets."
    )
    match: str = about("", "A text that the failure's reason or the tool's output contains.")

    @model_validator(mode="after")
    def _check_kind(self) -> _ExpectTable:
        valid_kinds = Stage(self.stage).row.failures
        if self.kind is not None and self.kind not in valid_kinds:
            message = f"{self.kind!r} cannot result from the stage {self.stage!r}"
            raise FieldError("kind", f"{message}: expected {', '.join(valid_kinds) or 'no kind'}")
        return self


class _QuarantineTable(StrictDocument):
    case: str = Field(description="Glob of model/submodel.")
    reason: Annotated[str, AfterValidator(_check_reason)] = Field(description="Why, with a link if there is one.")
    until: Annotated[str, BeforeValidator(read_quarantine_end)] = Field(
        description="The first day on which failures count again, 2026-12-31, or the URL of an issue."
    )
    stage: _Stage | None = about(None, "The stage that fails; without it, all stages.")
    targets: list[TargetName] = Field(
        default_factory=make_list, description="Where it fails; without any, on all targets."
    )


class SuiteTable(WithVariants):
    """A suite: what is run, where, and what is expected to fail."""

    model_config = make_schema_config(oneOf=[require_fields("target"), require_fields("targets")])

    name: Annotated[str, expect("letters, digits, '_', '-' and '.', starting with a letter or digit", _NAME.fullmatch)]
    description: ForPeople
    target: TargetName | None = about(
        None, f"{', '.join(FAMILIES)}, or a chip such as gfx942 or aarch64; the command line can select another."
    )
    targets: list[TargetName] = Field(default_factory=make_list, description="Several targets, in place of target.")
    sku: str = about("", "Machine to which golden times belong.")
    device_optional: bool = about(False, "If there is no such device, only compile, without an error.")
    stages: list[_Stage] = Field(
        default_factory=lambda: [stage.value for stage in DEFAULT_STAGES],
        min_length=1,
        description="What is run, including the stages that these need.",
    )
    spec_dirs: list[str] = Field(
        default_factory=lambda: ["../specs"], description="Folders of specs, relative to this file."
    )
    configs: list[str] = Field(
        default_factory=make_list, description="Configs of operator suites and of ONNX models, relative to this file."
    )
    include: list[_IncludeTable] = Field(
        default_factory=lambda: [_IncludeTable()],
        description="What is selected; without one, everything. All given fields must match.",
    )
    expect_failure: list[_ExpectTable] = Field(
        default_factory=make_list, description="What is known to fail: an unexpected pass is reported."
    )
    quarantine: list[_QuarantineTable] = Field(
        default_factory=make_list, description="What sometimes fails: it runs, and its failures do not fail the run."
    )

    @model_validator(mode="after")
    def _check_targets(self) -> SuiteTable:
        if "targets" in self.model_fields_set and not self.targets:
            raise FieldError("targets", "expected at least one target")
        if not (self.target or self.targets):
            raise FieldError("target", f"missing: expected one of {', '.join(FAMILIES)}, or a chip such as gfx942")
        if self.target and self.targets:
            raise FieldError("targets", "target is there as well: keep one of the two")
        for one, other in itertools.combinations(_parse_targets(self.targets), 2):
            if one == other:
                raise FieldError("targets", f"{one.name} is named twice")
            if one.overlaps(other):
                raise FieldError("targets", f"{one.name} and {other.name} overlap: name each chip, or only the family")
        return self


@dataclass(frozen=True, slots=True)
class Suite:
    """A parsed suite; its fields are `SuiteTable`'s."""

    path: Path
    name: str
    targets: tuple[Target, ...]
    device_optional: bool
    stages: tuple[Stage, ...]
    spec_dirs: tuple[Path, ...]
    configs: tuple[Path, ...]
    includes: tuple[Include, ...]
    expected_failures: tuple[Expectation, ...]
    quarantines: tuple[Quarantine, ...]
    variants: tuple[FlagVariant, ...]


def read_suite(path: Path) -> Suite:
    """Read a suite; UsageError if there is no such file, SpecError with all of its problems."""
    name = str(path)
    if path.is_dir():
        raise UsageError(
            f"suite {name} is a folder", "Name a suite's file, or a suite in suites/; see docs/reference/suites.md."
        )
    if not path.is_file():
        files = sorted(str(file) for file in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"Available: {', '.join(files)}." if files else "Suites are TOML files; see docs/reference/suites.md."
        raise UsageError(f"suite {name} does not exist", hint)
    _, table = read_table(path, SuiteTable)
    includes = tuple(Include(entry.model, entry.submodel, entry.filename, entry.markers) for entry in table.include)
    for index, include in enumerate(includes):
        try:
            MarkerExpression(include.markers)
        except UsageError as error:
            raise SpecError([Problem(name, 0, f"include[{index}].markers", error.message, error.hint)]) from error
    return Suite(
        path=path,
        name=table.name,
        targets=_parse_targets(table.targets or filter(None, [table.target]), table.sku),
        device_optional=table.device_optional,
        stages=tuple(Stage(stage) for stage in table.stages),
        spec_dirs=tuple(path.parent / folder for folder in table.spec_dirs),
        configs=tuple(path.parent / config for config in table.configs),
        includes=includes,
        expected_failures=tuple(
            Expectation(
                Stage(item.stage),
                item.reason,
                Origin(name, f"expect_failure[{index}]"),
                (FailureKind(item.kind),) if item.kind else tuple(FailureKind),
                item.match,
                item.case,
                _parse_targets(item.targets),
            )
            for index, item in enumerate(table.expect_failure)
        ),
        quarantines=tuple(
            Quarantine(
                item.reason,
                item.until,
                Origin(name, f"quarantine[{index}]"),
                item.case,
                Stage(item.stage) if item.stage else None,
                _parse_targets(item.targets),
            )
            for index, item in enumerate(table.quarantine)
        ),
        variants=make_variants(table, path),
    )


def find_useless_includes(suite: Suite, specs: Iterable[AnySpec]) -> list[Problem]:
    """Find a suite's includes that match no spec of its folders: misspelt, or outdated."""
    tests = [spec for spec in specs if spec.is_test]
    problems: list[Problem] = []
    if not tests:
        folders = ", ".join(map(str, suite.spec_dirs))
        hint = "Name folders of specs, relative to the suite's file."
        return [Problem(str(suite.path), 0, "spec_dirs", f"there is no spec in {folders}", hint)]
    for index, include in enumerate(suite.includes):
        if not any(include.matches_spec(spec) for spec in tests):
            reason = find_unmatched(include, tests) or "No spec matches all of its globs."
            hint = "Fix the entry, or remove it; `list` shows every model and submodel."
            problems.append(
                Problem(str(suite.path), 0, f"include[{index}]", f"no match: {reason[0].lower()}{reason[1:]}", hint)
            )
    return problems


def add_expected_failures(suites: Sequence[Suite], cases: CaseSet) -> tuple[CaseSet, list[str]]:
    """Add suites' expected failures and quarantines to the cases of their folders.

    Also return a line for each suite that applies.
    """
    new_cases: dict[str, Case] = {}
    notes = []
    for suite in suites:
        folders = [resolve_links(folder) for folder in suite.spec_dirs]
        applied_failures: dict[str, None] = {}
        quarantined_names: dict[str, None] = {}
        for case in (*cases.cases, *cases.needed_cases):
            current_case = new_cases.get(case.id, case)
            name, stages = f"{case.model}/{case.submodel}", {failure.stage for failure in current_case.expectations}
            failures = [
                failure
                for failure in suite.expected_failures
                if failure.applies_to(case) and failure.stage not in stages
            ]
            quarantines = [entry for entry in suite.quarantines if entry.applies_to(case)]
            is_there = (failures or quarantines) and any(
                folder in resolve_links(Path(case.origin.file)).parents for folder in folders
            )
            if is_there and any(target.covers(case.target) for target in suite.targets):
                new_cases[case.id] = adjust_case(current_case, failures, quarantines=quarantines)
                quarantined_names |= {name: None} if quarantines else {}
                applied_failures.update({f"{name} {failure.stage}": None for failure in failures})
        if applied_failures:
            notes.append(f"expected to fail, according to {suite.path}: {', '.join(applied_failures)}")
        if quarantined_names:
            notes.append(f"in quarantine, according to {suite.path}: {', '.join(quarantined_names)}")
    return replace(
        cases,
        cases=tuple(new_cases.get(case.id, case) for case in cases.cases),
        needed_cases=tuple(new_cases.get(case.id, case) for case in cases.needed_cases),
    ), notes


def find_unselected_failures(suite: Suite, cases: CaseSet) -> list[Problem]:
    """Find a suite's expected failures and quarantines that have no effect, because they match no selected case."""
    all_cases = (*cases.cases, *cases.needed_cases)
    entries: tuple[Expectation | Quarantine, ...] = (*suite.expected_failures, *suite.quarantines)
    useless = [entry for entry in entries if not any(map(entry.applies_to, all_cases))]
    message, hint = "is a case that no [[include]] selects", "Add an include that selects it, or remove the entry."
    return [
        Problem(entry.origin.file, 0, f"{entry.origin.field}.case", f"{entry.cases!r} {message}", hint)
        for entry in useless
    ]
