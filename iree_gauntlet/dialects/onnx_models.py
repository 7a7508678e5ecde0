"""The suite of ONNX models: each test a model that is fetched, imported, compiled, and compared with onnxruntime.

Facts about its configs: iree-test-suites, `onnx_models/conftest.py`.

Read are module constants, `pytest.mark.parametrize` over one name, marks, and the `model_url` that a test hands to
`compare_between_iree_and_onnxruntime`; `conftest.py` says where relative URLs begin.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field

from iree_gauntlet.cases import MAIN, ArgumentOrder, Case, Expectation, Module, OnnxImport, Origin, Program
from iree_gauntlet.dialects.configured_suites import (
    Config,
    ConfiguredBuilder,
    ConfiguredSpec,
    ConfiguredSuite,
    SuiteDocument,
    find_same_names,
    has_word,
    read_config,
    read_markers,
    with_own_names,
)
from iree_gauntlet.dialects.fields import one_of
from iree_gauntlet.dialects.json_text import find_line
from iree_gauntlet.dialects.locations import BRACKETS_HINT, devices_of_flags, is_url, outside, unreadable
from iree_gauntlet.dialects.spec import SourceFields
from iree_gauntlet.dialects.spec_file import did_you_mean, problem_at
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import read_file, resolve_links
from iree_gauntlet.stages import Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_FIXTURE = "compare_between_iree_and_onnxruntime"
_BASES = {
    "GitHubLFSRepositoryCacheScope": "https://github.com/{}/raw/main/",
    "HuggingFaceCacheScope": "https://huggingface.co/{}/resolve/main/",
}
# That of the newest suite.
_DEFAULT_BASE = _BASES["HuggingFaceCacheScope"].format("onnxmodelzoo/legacy_models")
_RAISED = {
    "IreeImportOnnxException": Stage.IMPORT,
    "IreeCompileException": Stage.COMPILE,
    "IreeRunException": Stage.THRESHOLD,
}
_HINT = "What is read is described in docs/reference/onnx-models.md."
_MODELS_FOLDER = "onnx_models"
# Upstream's `ONNX_CONVERTER_OUTPUT_MIN_VERSION`.
_LEAST_OPSET = 17
_CONFIGS = "configs"
# A test's name, from which the model's path follows where the suite's own files are not at hand.
_NAME = re.compile(r"tests/(?:model_zoo/)?(.+?)_models_test\.py::test_models\[(.+\.onnx)\]")
# What comes before a file's path in the URLs of GitHub and Hugging Face.
_BEFORE_PATH = re.compile(r"/[^/]+/[^/]+/(?:raw|resolve)/[^/]+/")
OUTCOMES = "tests_and_expected_outcomes"
_FAILURES = {"fail-import": Stage.IMPORT, "fail-compile": Stage.COMPILE, "fail-run": Stage.THRESHOLD}


class OutcomesDocument(SuiteDocument):
    """How a suite of ONNX models is compiled and run, and what comes of each test."""

    tests_and_expected_outcomes: dict[str, Annotated[str, one_of("outcome", ("pass", *_FAILURES, "skip"))]] = Field(
        description="What comes of each test, and of all others as default."
    )


@dataclass(frozen=True, slots=True, eq=False)
class ModelsConfig(Config):
    """A config of the ONNX models' suite, read."""

    document: OutcomesDocument | None = None

    @property
    def outcomes(self) -> Mapping[str, str]:
        """What is expected of each test that it names, and of all others as `default`."""
        return self.document.tests_and_expected_outcomes if self.document else {}

    @property
    def tests(self) -> list[str]:
        """The tests that it names."""
        return [test for test in self.outcomes if test != "default"]

    def skip_of(self, test: str) -> str:
        """Why a test is skipped; empty where it runs. Upstream's default is to skip."""
        if self.outcomes.get(test, self.outcomes.get("default", "skip")) != "skip":
            return ""
        why = self._find_comment(test) or "skip" if test in self.outcomes else "not listed"
        return f"{why} ({self.name})"

    def expectations_of(self, test: str) -> tuple[Expectation, ...]:
        """The failure that is expected of a test."""
        entry = test if test in self.outcomes else "default"
        outcome = self.outcomes.get(entry, "")
        if outcome not in _FAILURES:
            return ()
        origin = Origin(self.name, f"{OUTCOMES}.{entry}")
        return (Expectation(_FAILURES[outcome], self._find_comment(entry) or outcome, origin),)

    def _find_comment(self, entry: str) -> str:
        return self.comments.get(find_line(self.text, [OUTCOMES, entry]), "") if self.comments else ""


_Suite = ConfiguredSuite[ModelsConfig]


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec(ConfiguredSpec):
    """A test of a model, with its whole URL; or a file that holds none that could be read, without a document.

    Its model is the file of tests, and the folder of the model as its name has it; its stem the model's file.
    """

    dialect = "onnx_models"

    suite: _Suite
    document: OnnxModelTest | None
    submodel: str


def is_models_suite(folder: Path, *, named: bool) -> bool:
    """Whether a folder is the suite, or IREE's folder of configs for it."""
    if folder.name == _MODELS_FOLDER:
        return bool(_find_configs(folder) or _test_files(folder))
    return named and bool(_find_configs(folder))


def read_model_specs(
    roots: Sequence[Path], asked: Sequence[Path], model_root: str, working_folder: str
) -> list[ModelSpec]:
    """The tests of suites of ONNX models, in a stable order; UsageError where the folder of models does not exist.

    Configs that are asked for, and a folder or URL of all models, take the place of the suites' own.
    """
    prefix = f"{working_folder.rstrip('/')}/"
    other_base = _parse_base(model_root)
    specs: list[ModelSpec] = []
    for root in dict.fromkeys(roots):
        paths = asked or _find_configs(root)
        configs = [read_config(path, str(path).removeprefix(prefix), OutcomesDocument, ModelsConfig) for path in paths]
        files = [(path, str(path).removeprefix(prefix)) for path in _test_files(root)]
        read = [(name, *_read_test_file(path, name, path.relative_to(root).as_posix())) for path, name in files]
        known = {test.name for _, tests, _ in read for test in tests}
        configs = _check_names(with_own_names(configs), known)
        base = _read_base(root / "conftest.py") if read else _DEFAULT_BASE
        read = read or [(config.name, *_read_named_tests(config)) for config in configs]
        hint = f"Give one as --config, or write {_CONFIGS}/NAME.json there (docs/reference/onnx-models.md)."
        without = Problem(str(root).removeprefix(prefix), 0, "", "this suite of ONNX models has no config", hint)
        suite = ConfiguredSuite(tuple(configs), () if paths else (without,))
        seen: set[str] = set()
        for name, tests, problems in read:
            if problems:
                stem = PurePosixPath(name).stem
                specs.append(ModelSpec(suite, name, _name_kind(name), stem, None, stem, problems=tuple(problems)))
            for test in tests:
                if test.name not in seen:
                    seen.add(test.name)
                    specs.append(_make_spec(suite, name, test, base, other_base))
    return specs


class OnnxModels(ConfiguredBuilder[ModelSpec]):
    """A case for each config whose target is asked for."""

    sources: ClassVar = {ModelSpec.dialect: SourceFields()}

    def build(self, spec: ModelSpec) -> Iterator[Case]:
        """The cases of a test."""
        test = spec.document
        for config, target in self.ask_configs(spec.suite) if test else ():
            if test is None or config.document is None:
                continue
            origin, flags_origin = Origin(spec.name, test.name.partition("::")[2]), Origin(config.name)
            program = Program(test.url, OnnxImport(least_opset=_LEAST_OPSET))
            name, flags = f"{spec.model}/{spec.submodel}", tuple(config.document.iree_compile_flags)
            run_flags = tuple(config.document.iree_run_module_flags)
            marked = (Expectation(test.fails, test.reason, origin),) if test.fails else ()
            skip = test.skip and f"{test.skip} ({spec.name})"
            yield Case(
                dialect=spec.dialect,
                model=spec.model,
                submodel=spec.submodel,
                stem=spec.stem,
                kind=Kind.QUALITY,
                target=target,
                modules=(Module(name, MAIN, target, program, flags, origin, flags_origin=flags_origin),),
                origin=origin,
                device=devices_of_flags(run_flags),
                run_flags=run_flags,
                order=ArgumentOrder.MODULES_FIRST,
                # Of several marks that expect a failure pytest takes the first, which is the file's own.
                expectations=marked or config.expectations_of(test.name),
                markers=read_markers(target, Kind.QUALITY) | test.markers,
                skip_reason=skip or config.skip_of(test.name),
                flags_origin=flags_origin,
                reference=True,
            )


def _check_names(configs: Sequence[ModelsConfig], known: set[str]) -> list[ModelsConfig]:
    """The configs with what is wrong with their names, and with the names of tests where the suite's are known."""
    first: dict[str, ModelsConfig] = {}
    checked, hint = [], "Correct or remove the entry."
    for config in configs:
        others = [first.setdefault(config.target.config, config)] if config.document else []
        problems = (*config.problems, *find_same_names(config, others))
        # Misspelt, left behind, or of an older suite.
        misnamed = [entry for entry in config.tests if known and entry not in known]
        unmatched = [
            problem_at(config.name, config.text, [OUTCOMES, entry], f"names no test{did_you_mean(entry, known)}", hint)
            for entry in misnamed
        ]
        checked.append(replace(config, problems=problems, unmatched=tuple(unmatched)))
    return checked


def _make_spec(suite: _Suite, name: str, test: OnnxModelTest, base: str, other_base: str) -> ModelSpec:
    """The spec of a test; `other_base` takes the place of the suite's base, and of that of a whole URL."""
    # `…/classification_models_test.py::test_models[mnist/model/mnist-12.onnx]` is the model
    # `classification/mnist/model` with the submodel `mnist-12`; `…::test_mnist` is `classification` with `mnist`.
    file, _, function = test.name.partition("::")
    kind = _name_kind(file)
    function, bracket, parameter = function.partition("[")
    path = parameter.removesuffix("]").removesuffix(".onnx") if bracket else function.removeprefix("test_")
    folder, _, submodel = path.rpartition("/")
    why, hint, stem = unreadable(test.url), BRACKETS_HINT, submodel
    if not why:
        stem = PurePosixPath(urlsplit(test.url).path).stem
        leaving = [item for item in (path, _find_path_in_zoo(test.url)) if outside(item) or not item.isprintable()]
        if leaving:
            why = f"{leaving[0]!r} is not a path inside the folder of models"
            hint = "A model's path has no '..' and no backslash, and begins at the suite's base."
    if why:
        return ModelSpec(suite, name, kind, stem, None, stem, problems=(Problem(name, 0, function, why, hint),))
    if other_base:
        test = replace(test, url=other_base + quote(_find_path_in_zoo(test.url)))
    elif not is_url(test.url):
        test = replace(test, url=base + quote(test.url))
    return ModelSpec(suite, name, f"{kind}/{folder}" if folder else kind, stem, test, submodel)


def _name_kind(file: str) -> str:
    """`classification` of `…/classification_models_test.py`."""
    return PurePosixPath(file).stem.removesuffix("_test").removesuffix("_models")


def _read_named_tests(config: ModelsConfig) -> tuple[list[OnnxModelTest], list[Problem]]:
    """The tests that a config names, where the suite's own files are not there."""
    named = {name: match for name in config.tests if (match := _NAME.fullmatch(name))}
    tests = [OnnxModelTest(name, f"{match[1]}/{match[2]}") for name, match in named.items()]
    unknown = [name for name in config.tests if name not in named]
    if not unknown:
        return tests, list(config.problems)
    more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    message = f"the test does not name its model{more}, and the suite's tests are not here"
    hint = f"Give the suite: --spec-dir iree-test-suites/{_MODELS_FOLDER} --config {config.name}."
    return tests, [problem_at(config.name, config.text, [OUTCOMES, unknown[0]], message, hint)]


def _find_path_in_zoo(url: str) -> str:
    """The path of a model from the top of its repository."""
    if not is_url(url):
        return url
    path = urlsplit(url).path
    match = _BEFORE_PATH.match(path)
    return unquote(path[match.end() :] if match else path.lstrip("/"))


def _parse_base(model_root: str) -> str:
    """The URL, with a slash at its end, that `--model-root` means."""
    if not model_root or is_url(model_root):
        return f"{model_root.rstrip('/')}/" if model_root else ""
    if not Path(model_root).is_dir():
        raise UsageError(
            f"--model-root {model_root} is not a folder", "Name the folder or URL that holds `validated/`."
        )
    return f"file://{quote(str(resolve_links(Path(model_root))))}/"


def _find_configs(root: Path) -> list[Path]:
    """The configs of a suite, or of IREE's folder for it."""
    return [
        path for folder in (root / _CONFIGS, root) for path in sorted(folder.glob("*.json")) if has_word(path, OUTCOMES)
    ]


def _test_files(root: Path) -> list[Path]:
    """Files of tests that compare models."""
    found: list[Path] = []
    for current, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(current, name) for name in sorted(files) if name.endswith("_test.py")]
        found += [path for path in paths if has_word(path, _FIXTURE)]
    return found


@dataclass(frozen=True, slots=True)
class OnnxModelTest:
    """A test of one model.

    Attributes:
        name: pytest's: `tests/…_test.py::test_models[mnist/model/mnist-12.onnx]`.
        skip: why it is skipped.
        fails: the stage at which it is expected to fail.
    """

    name: str
    url: str
    markers: frozenset[str] = frozenset()
    skip: str = ""
    fails: Stage | None = None
    reason: str = ""


class _UnreadableError(Exception):
    """What of a test cannot be read, and where."""

    def __init__(self, node: ast.expr | ast.FunctionDef, what: str) -> None:
        super().__init__(what)
        self.line = node.lineno


def _read_test_file(path: Path, name: str, inside: str) -> tuple[list[OnnxModelTest], list[Problem]]:
    """The tests of a file."""
    try:
        return _read_tests(ast.parse(read_file(path)), name, inside)
    except OSError as error:
        return [], [Problem(name, 0, "", f"cannot be read: {error.strerror}", "Check its rights.")]
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0) or 0
        return [], [Problem(name, line, "", f"is not Python: {error}", "Is the file cut off?")]


def _read_tests(tree: ast.Module, name: str, inside: str) -> tuple[list[OnnxModelTest], list[Problem]]:
    constants = {
        node.targets[0].id: text
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if (text := _read_text(node.value, {})) is not None
    }
    tests: list[OnnxModelTest] = []
    problems: list[Problem] = []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    for node in functions:
        try:
            tests += _read_tests_of(node, constants, inside)
        except _UnreadableError as error:
            problems.append(Problem(name, error.line, node.name, str(error), _HINT))
    known = {call for node in functions for call in _find_comparisons(node)}
    lost = [call for call in _find_comparisons(tree) if call not in known]
    problems += [Problem(name, call.lineno, "", "compares a model outside of a test function", _HINT) for call in lost]
    return tests, problems


def _find_comparisons(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _join_names(node.func) == _FIXTURE]


def _read_base(conftest: Path) -> str:
    """The URL that the suite's relative URLs begin at, as its `conftest.py` names the repository."""
    try:
        tree = ast.parse(read_file(conftest))
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Relative URLs came with the newest suite; what is wrong with a checkout is seen in its tests.
        return _DEFAULT_BASE
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _join_names(node.func) in _BASES:
            repository = _read_text(_find_keyword(node, "repository_name"), {})
            if repository:
                return _BASES[_join_names(node.func)].format(repository)
    return _DEFAULT_BASE


def _read_tests_of(function: ast.FunctionDef, constants: Mapping[str, str], inside: str) -> Iterator[OnnxModelTest]:
    calls = _find_comparisons(function)
    if not calls:
        return
    if len(calls) > 1:
        raise _UnreadableError(calls[1], f"compares {len(calls)} models: expected one")
    url = _find_keyword(calls[0], "model_url") or (calls[0].args[0] if calls[0].args else None)
    marks = [node for node in function.decorator_list if _mark(node) != "parametrize"]
    over = [node for node in function.decorator_list if _mark(node) == "parametrize"]
    if len(over) > 1:
        raise _UnreadableError(over[1], "is parametrized twice: expected one list of models")
    for test, names, own in _read_parameters(over[0]) if over else [("", {}, [])]:
        found = _read_text(url, {**constants, **names})
        if found is None:
            raise _UnreadableError(calls[0], "its model_url is not text that can be read without running it")
        name = f"{inside}::{function.name}" + (f"[{test}]" if over else "")
        # In the order in which pytest keeps them.
        yield _apply_marks(OnnxModelTest(name, found), [*reversed(marks), *own])


def _read_parameters(decorator: ast.expr) -> Iterator[tuple[str, dict[str, str], list[ast.expr]]]:
    """(id, value by name, marks) of each parameter."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    name, values = (_read_text(arguments[0], {}), arguments[1]) if len(arguments) > 1 else (None, None)
    if name is None or not name.isidentifier() or not isinstance(values, ast.List | ast.Tuple):
        raise _UnreadableError(decorator, 'expected pytest.mark.parametrize("model", [pytest.param("….onnx"), …])')
    for item in values.elts:
        called = isinstance(item, ast.Call) and _join_names(item.func) == "pytest.param"
        given = item.args[0] if isinstance(item, ast.Call) and called and item.args else item
        value = _read_text(given, {})
        if value is None:
            raise _UnreadableError(item, "a parameter is not text: expected a model's path")
        marks = _find_keyword(item, "marks") if isinstance(item, ast.Call) else None
        own = list(marks.elts) if isinstance(marks, ast.List | ast.Tuple) else [marks] if marks else []
        named = _read_text(_find_keyword(item, "id"), {}) if isinstance(item, ast.Call) else None
        yield named or value, {name: value}, own


def _apply_marks(test: OnnxModelTest, marks: Sequence[ast.expr]) -> OnnxModelTest:
    """A test with what its marks mean; of several that expect a failure the first one counts, as for pytest."""
    markers: set[str] = set()
    skip, fails, why = test.skip, test.fails, ""
    for node in marks:
        word = _mark(node)
        call = node if isinstance(node, ast.Call) else None
        reason = (
            _read_text(_find_keyword(call, "reason") or (call.args[0] if call.args else None), {}) if call else ""
        ) or ""
        if word == "skip":
            skip = skip or f"skipped by the suite: {reason or 'no reason given'}"
        elif word == "xfail":
            raised = _join_names(_find_keyword(call, "raises")) if call else ""
            if not raised:
                raise _UnreadableError(node, "xfail does not say what is raised, and so at which stage it fails")
            if raised not in _RAISED:
                # The suite's own want, which comes before IREE is asked anything.
                skip = skip or f"the suite expects {raised}: it cannot test this model"
            elif fails is None:
                fails, why = _RAISED[raised], reason or f"xfail: {raised}"
        elif word in ("skipif", ""):
            raise _UnreadableError(node, "a mark whose meaning cannot be read without running it")
        else:
            markers.add(word)
    return OnnxModelTest(test.name, test.url, frozenset(markers), skip, fails, why)


def _mark(node: ast.expr) -> str:
    """The name of a mark; empty where it is none."""
    prefix, _, word = _join_names(node.func if isinstance(node, ast.Call) else node).rpartition(".")
    return word if prefix == "pytest.mark" else ""


def _join_names(node: ast.expr | None) -> str:
    """`pytest.mark.skip` of an expression of names and dots; empty for another."""
    if isinstance(node, ast.Attribute):
        before = _join_names(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _find_keyword(call: ast.Call | None, name: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == name), None) if call else None


def _read_text(node: ast.expr | None, names: Mapping[str, str]) -> str | None:
    """The text that an expression means: literals, names, and sums of them; None for another."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _read_text(left, names), _read_text(right, names)
            return None if first is None or second is None else first + second
        case _:
            return None
