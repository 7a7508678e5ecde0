"""Suites (of operators, and of ONNX models) whose cases are compiled and run once for each config."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from iree_gauntlet.dialects.fields import Flag, StrictDocument, expect, read_tolerant
from iree_gauntlet.dialects.json_text import list_comments, read_plain_json
from iree_gauntlet.dialects.locations import find_target
from iree_gauntlet.dialects.spec import Builder, Collector
from iree_gauntlet.dialects.spec_file import make_problem_at
from iree_gauntlet.targets import Target, compose_chip_flags, omit_processor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.selection import Include
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.stages import Kind


_CONFIG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_ConfigName = Annotated[str, expect("a name of letters, digits, '_', '-', '+' and '.'", _CONFIG_NAME.fullmatch)]


class SuiteDocument(StrictDocument):
    """A config: the flags that compile and run a suite's cases."""

    config_name: _ConfigName
    iree_compile_flags: list[Flag] = Field(description="Flags of iree-compile.")
    iree_run_module_flags: list[Flag] = Field(description="Flags of iree-run-module.")


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """A parsed config, with comments by line; without a document if it is invalid."""

    path: Path
    name: str
    text: str = ""
    document: SuiteDocument | None = None
    target: Target = field(default_factory=lambda: Target("cpu"))
    comments: Mapping[int, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    unmatched_entries: tuple[Problem, ...] = ()


_Config = TypeVar("_Config", bound=Config)


@dataclass(frozen=True, slots=True, eq=False)
class ConfigSuite(Generic[_Config]):
    """The configs of cases with a common root."""

    configs: tuple[_Config, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ConfigSpec:
    """A spec that is compiled and run by the configs of its suite."""

    dialect: ClassVar[str]

    suite: ConfigSuite[Any]
    name: str
    model: str
    stem: str
    problems: tuple[Problem, ...] = field(default=(), kw_only=True)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of targets of its configs."""
        return tuple(dict.fromkeys(config.target.family for config in self.suite.configs if config.document))

    @property
    def is_test(self) -> bool:
        """True, because such a spec is always compiled and run."""
        return True


_Spec = TypeVar("_Spec", bound=ConfigSpec)


class ConfigBuilder(Builder[_Spec]):
    """A builder for specs that are compiled and run themselves, such as an operator's folder."""

    def __init__(self, specs: Sequence[_Spec], collector: Collector) -> None:
        super().__init__(specs, collector)
        self._suites: set[tuple[ConfigSuite[Any], bool]] = set()

    def build(self, spec: _Spec) -> Iterable[Case]:
        """Yield the cases of a spec for the requested targets; cases with problems are blocked."""
        raise NotImplementedError

    def select_configs(self, suite: ConfigSuite[_Config]) -> list[tuple[_Config, Target]]:
        """Return the configs whose targets are requested, with these targets; record the other configs' targets."""
        configs: list[tuple[_Config, Target]] = []
        for config in suite.configs:
            configs += [
                _convert_config(config, target)
                for target in self.collector.targets
                if target.architecture and config.document and config.target.kind.is_cpu and not config.target.chip
            ]
            match = next((target for target in self.collector.targets if target.covers(config.target)), None)
            if config.document is None:
                continue
            if match is None:
                self.collector.other_targets.add(replace(config.target, config_name="").name)
            else:
                configs.append((config, _complete_target(config.target, match)))
        return configs

    def add(self, spec: _Spec, includes: Sequence[Include]) -> None:
        """Add the cases of a spec, and, only once, the problems of its suite."""
        suite, problems = spec.suite, self.collector.problems if includes else self.collector.unselected_problems
        if (suite, bool(includes)) not in self._suites:
            self._suites.add((suite, bool(includes)))
            problems.update(suite.problems, *(config.problems for config in suite.configs))
            self.collector.warnings.update(*(config.warnings for config in suite.configs if includes))
            self.collector.unmatched_entries.update(*(config.unmatched_entries for config in suite.configs if includes))
        problems.update(spec.problems)
        if not includes:
            return
        for case in self.build(spec):
            self.collector.add(case, includes)


def read_config(path: Path, name: str, model: type[SuiteDocument], config_class: type[_Config]) -> _Config:
    """Read a config."""
    comments: dict[int, str] = {}

    def convert(text: str) -> str:
        comments.update(list_comments(text))
        return read_plain_json(text)

    document, text, problems, warnings = read_tolerant(model, path, name, convert)
    if document is None:
        return config_class(path, name, problems=tuple(problems), warnings=tuple(warnings))
    target = replace(find_target(document.iree_compile_flags), config_name=document.config_name)
    return config_class(path, name, text, document, target, comments, warnings=tuple(warnings))


@lru_cache(maxsize=64)
def _complete_target(target: Target, request: Target) -> Target:
    return target.complete_with(request)


@lru_cache(maxsize=64)
def _convert_config(config: _Config, target: Target) -> tuple[_Config, Target]:
    """Return a config of the CPU for a processor of another architecture, and that target."""
    document, name = config.document, f"{config.target.config_name}-{target.chip}"
    flags = document.iree_compile_flags if document else ()
    flags = [*omit_processor(target, flags), *compose_chip_flags(target)]
    changed_document = document and document.model_copy(update={"iree_compile_flags": flags})
    return replace(config, document=changed_document), replace(target, config_name=name)


@lru_cache(maxsize=64)
def make_markers(target: Target, kind: Kind) -> frozenset[str]:
    """Make the markers of a case whose spec has no markers."""
    return frozenset({kind.value, target.family, *filter(None, [target.chip])})


def make_names_unique(configs: Sequence[_Config]) -> list[_Config]:
    """Return the configs; those that share a name, as IREE's O0 and O2 do, are named by their files."""
    names = Counter(config.target.config_name for config in configs if config.document)

    def rename(config: _Config) -> _Config:
        stem = PurePosixPath(config.name).stem
        is_shared = names[config.target.config_name] > 1 and _CONFIG_NAME.fullmatch(stem)
        return replace(config, target=replace(config.target, config_name=stem)) if is_shared else config

    return list(map(rename, configs))


def find_name_conflicts(config: Config, configs: Iterable[Config]) -> Iterator[Problem]:
    """Find the problems of a config if other configs have the same name."""
    for file in sorted({file.name for file in configs} - {config.name}):
        message = f"{config.target.config_name!r} is also the name of {file}"
        yield make_problem_at(config.name, config.text, ["config_name"], message, "Give each one its own name.")
