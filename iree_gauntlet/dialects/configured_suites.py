"""Suites whose cases are compiled and run once for each config, as it says: operators, and ONNX models."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from iree_gauntlet.dialects.fields import Flag, StrictDocument, expecting, read_tolerant
from iree_gauntlet.dialects.json_text import list_comments, read_plain_json
from iree_gauntlet.dialects.locations import target_of_flags
from iree_gauntlet.dialects.spec import Builder, Loaded
from iree_gauntlet.dialects.spec_file import problem_at
from iree_gauntlet.settings import read_file
from iree_gauntlet.targets import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.selection import Include
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.stages import Kind


_CONFIG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_ConfigName = Annotated[str, expecting("a name of letters, digits, '_', '-', '+' and '.'", _CONFIG_NAME.fullmatch)]


class SuiteDocument(StrictDocument):
    """How what a suite holds is compiled and run."""

    config_name: _ConfigName
    iree_compile_flags: list[Flag] = Field(description="Flags of iree-compile.")
    iree_run_module_flags: list[Flag] = Field(description="Flags of iree-run-module.")


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """A config, read, with comments by line; without a document where it cannot be understood."""

    path: Path
    name: str
    text: str = ""
    document: SuiteDocument | None = None
    target: Target = field(default_factory=lambda: Target("cpu"))
    comments: Mapping[int, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    unmatched: tuple[Problem, ...] = ()


_Config = TypeVar("_Config", bound=Config)


@dataclass(frozen=True, slots=True, eq=False)
class ConfiguredSuite(Generic[_Config]):
    """Cases with one root."""

    configs: tuple[_Config, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ConfiguredSpec:
    """What is compiled and run by the configs of its suite."""

    dialect: ClassVar[str]

    suite: ConfiguredSuite[Any]
    name: str
    model: str
    stem: str
    problems: tuple[Problem, ...] = field(default=(), kw_only=True)

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that its configs are for."""
        return tuple(dict.fromkeys(config.target.family for config in self.suite.configs if config.document))

    @property
    def is_test(self) -> bool:
        """Always: it is compiled and run."""
        return True


_Spec = TypeVar("_Spec", bound=ConfiguredSpec)


class ConfiguredBuilder(Builder[_Spec]):
    """Specs that stand for themselves, such as an operator's folder."""

    def __init__(self, specs: Sequence[_Spec], loaded: Loaded) -> None:
        super().__init__(specs, loaded)
        self._suites: set[tuple[ConfiguredSuite[Any], bool]] = set()

    def build(self, spec: _Spec) -> Iterable[Case]:
        """The cases of a spec for the targets that are asked for, blocked where it has problems."""
        raise NotImplementedError

    def ask_configs(self, suite: ConfiguredSuite[_Config]) -> list[tuple[_Config, Target]]:
        """The configs whose targets are asked for, with the targets as asked; the others' are elsewhere."""
        chosen: list[tuple[_Config, Target]] = []
        for config in suite.configs:
            asked = next((target for target in self.loaded.targets if target.covers(config.target)), None)
            if config.document is None:
                continue
            if asked is None:
                self.loaded.elsewhere.add(replace(config.target, config="").name)
            else:
                chosen.append((config, _with_sku(config.target, asked.sku)))
        return chosen

    def add(self, spec: _Spec, chosen: Sequence[Include]) -> None:
        """Adds the cases of a spec, and once what is wrong with its suite."""
        suite, problems = spec.suite, self.loaded.problems if chosen else self.loaded.left_out
        if (suite, bool(chosen)) not in self._suites:
            self._suites.add((suite, bool(chosen)))
            problems.update(suite.problems, *(config.problems for config in suite.configs))
            self.loaded.warnings.update(*(config.warnings for config in suite.configs if chosen))
            self.loaded.unmatched.update(*(config.unmatched for config in suite.configs if chosen))
        problems.update(spec.problems)
        if not chosen:
            return
        for case in self.build(spec):
            self.loaded.add(case, chosen)


def read_config(path: Path, name: str, model: type[SuiteDocument], kind: type[_Config]) -> _Config:
    """Reads a config."""
    comments: dict[int, str] = {}

    def plain(text: str) -> str:
        comments.update(list_comments(text))
        return read_plain_json(text)

    document, text, problems, warnings = read_tolerant(model, path, name, plain)
    if document is None:
        return kind(path, name, problems=tuple(problems), warnings=tuple(warnings))
    target = replace(target_of_flags(document.iree_compile_flags), config=document.config_name)
    return kind(path, name, text, document, target, comments, warnings=tuple(warnings))


def has_word(path: Path, *words: str) -> bool:
    """Whether a file has a word in it, by which a suite's files are known; one that cannot be read may."""
    try:
        content = read_file(path)
    except FileNotFoundError:
        return False
    except OSError:
        # What is wrong with it is said when it is read.
        return True
    return any(word.encode() in content for word in words)


@lru_cache(maxsize=64)
def _with_sku(target: Target, sku: str) -> Target:
    return replace(target, sku=sku)


@lru_cache(maxsize=64)
def read_markers(target: Target, kind: Kind) -> frozenset[str]:
    """The markers of a case that has none of its own."""
    return frozenset({kind.value, target.family, *filter(None, [target.chip])})


def with_own_names(configs: Sequence[_Config]) -> list[_Config]:
    """The same configs; those that share a name, as IREE's O0 and O2 do, are called by their files."""
    names = Counter(config.target.config for config in configs if config.document)

    def named(config: _Config) -> _Config:
        stem = PurePosixPath(config.name).stem
        shared = names[config.target.config] > 1 and _CONFIG_NAME.fullmatch(stem)
        return replace(config, target=replace(config.target, config=stem)) if shared else config

    return list(map(named, configs))


def find_same_names(config: Config, others: Iterable[Config]) -> Iterator[Problem]:
    """Problems of a config whose name is that of others, too."""
    for other in sorted({other.name for other in others} - {config.name}):
        message = f"{config.target.config!r} is the name of {other} too"
        yield problem_at(config.name, config.text, ["config_name"], message, "Give each its own name.")
