"""Configs of the ONNX models' suite: how its tests are compiled and run, and what is expected of each.

Facts: iree-test-suites, `onnx_models/conftest.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from iree_gauntlet.cases import Expectation, Origin, Stage
from iree_gauntlet.dialects.configured_suites import Config, SuiteDocument, read_config
from iree_gauntlet.dialects.fields import one_of
from iree_gauntlet.dialects.json_text import line_of
from iree_gauntlet.dialects.spec_file import did_you_mean, problem_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.errors import Problem


OUTCOMES = "tests_and_expected_outcomes"
_FAILURES = {"fail-import": Stage.IMPORT, "fail-compile": Stage.COMPILE, "fail-run": Stage.THRESHOLD}
_KNOWN = ("pass", *_FAILURES, "skip")


class _Document(SuiteDocument):
    tests_and_expected_outcomes: dict[str, Annotated[str, one_of("outcome", _KNOWN)]]


@dataclass(frozen=True, slots=True, eq=False)
class ModelsConfig(Config):
    """A config of the ONNX models' suite, read.

    Attributes:
        comments: by line.
    """

    document: _Document | None = None
    comments: Mapping[int, str] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """The tests that it names."""
        outcomes = self.document.tests_and_expected_outcomes if self.document else ()
        return [test for test in outcomes if test != "default"]

    def skip_of(self, test: str) -> str:
        """Why a test is skipped; empty where it runs. Upstream's default is to skip."""
        assert self.document is not None, "only configs that were read are asked"
        outcomes = self.document.tests_and_expected_outcomes
        if outcomes.get(test, outcomes.get("default", "skip")) != "skip":
            return ""
        why = self._comment(test) or "skip" if test in outcomes else "not listed"
        return f"{why} ({self.name})"

    def expectations_of(self, test: str) -> tuple[Expectation, ...]:
        """The failure that is expected of a test."""
        assert self.document is not None, "only configs that were read are asked"
        outcomes = self.document.tests_and_expected_outcomes
        entry = test if test in outcomes else "default"
        outcome = outcomes.get(entry, "")
        if outcome not in _FAILURES:
            return ()
        origin = Origin(self.name, f"{OUTCOMES}.{entry}")
        return (Expectation(_FAILURES[outcome], self._comment(entry) or outcome, origin),)

    def _comment(self, entry: str) -> str:
        return self.comments.get(line_of(self.text, [OUTCOMES, entry]), "") if self.comments else ""


def has_word(path: Path, word: str) -> bool:
    """Whether a file has a word in it, by which the suite's files are known; one that cannot be read may."""
    try:
        return word.encode() in path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        # What is wrong with it is said when it is read.
        return True


def read_models_config(path: Path, name: str) -> ModelsConfig:
    """Reads a config.

    Args:
        path: the file.
        name: how the user names it, for messages.
    """
    config, comments = read_config(path, name, _Document, ModelsConfig)
    return replace(config, comments=comments)


def misnamed_tests(config: ModelsConfig, known: Iterable[str]) -> Iterator[Problem]:
    """Entries that name no test: misspelt, left behind, or of an older suite."""
    names = set(known)
    for entry in config.tests:
        if entry not in names:
            message = f"names no test{did_you_mean(entry, names)}"
            yield problem_at(config.name, config.text, [OUTCOMES, entry], message, "Correct or remove the entry.")
