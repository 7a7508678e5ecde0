"""The suite of ONNX models: each test fetches, imports, compiles and runs a model, and compares it with onnxruntime.

The source of facts about configs is `onnx_models/conftest.py` in iree-test-suites.

The reader supports module constants, `pytest.mark.parametrize` over one name, marks, and the `model_url` argument of
`compare_between_iree_and_onnxruntime`; `conftest.py` gives the base of relative URLs.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field

from iree_gauntlet.cases import MAIN, ArgumentOrder, Case, Expectation, Module, OnnxImport, Origin, Program
from iree_gauntlet.dialects.configured_suites import (
    Config,
    ConfigBuilder,
    ConfigSpec,
    ConfigSuite,
    SuiteDocument,
    find_name_conflicts,
    make_markers,
    make_names_unique,
    read_config,
)
from iree_gauntlet.dialects.fields import one_of
from iree_gauntlet.dialects.json_text import find_line
from iree_gauntlet.dialects.locations import BRACKETS_HINT, describe_url_error, find_devices, is_outside, is_url
from iree_gauntlet.dialects.spec import ONNX_MODELS
from iree_gauntlet.dialects.spec_file import did_you_mean, make_problem_at
from iree_gauntlet.dialects.spec_folders import (
    COMPARISON,
    CONFIGS,
    MODELS_FOLDER,
    OUTCOMES,
    find_model_configs,
    find_model_tests,
)
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import read_file, resolve_links
from iree_gauntlet.stages import Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_BASE_URLS = {
    "GitHubLFSRepositoryCacheScope": "https://github.com/{}/raw/main/",
    "HuggingFaceCacheScope": "https://huggingface.co/{}/resolve/main/",
}
# The newest suite uses this base.
_DEFAULT_BASE_URL = _BASE_URLS["HuggingFaceCacheScope"].format("onnxmodelzoo/legacy_models")
_STAGES_BY_EXCEPTION = {
    "IreeImportOnnxException": Stage.IMPORT,
    "IreeCompileException": Stage.COMPILE,
    "IreeRunException": Stage.THRESHOLD,
}
_HINT = "docs/reference/onnx-models.md describes what is read."
# Upstream's `ONNX_CONVERTER_OUTPUT_MIN_VERSION`.
_MIN_OPSET = 17
# If the suite's own files are not available, the model's path follows from the test's name.
_TEST_NAME = re.compile(r"tests/(?:model_zoo/)?(.+?)_models_test\.py::test_models\[(.+\.onnx)\]")
# The URLs of GitHub and Hugging Face have this prefix before a file's path.
_REPOSITORY_PREFIX = re.compile(r"/[^/]+/[^/]+/(?:raw|resolve)/[^/]+/")
_STAGES_BY_OUTCOME = {"fail-import": Stage.IMPORT, "fail-compile": Stage.COMPILE, "fail-run": Stage.THRESHOLD}


class OutcomesDocument(SuiteDocument):
    """How a suite of ONNX models is compiled and run, and the outcome of each test."""

    tests_and_expected_outcomes: dict[str, Annotated[str, one_of("outcome", ("pass", *_STAGES_BY_OUTCOME, "skip"))]] = (
        Field(description="Outcome of each test, and of all others as default.")
    )


@dataclass(frozen=True, slots=True, eq=False)
class ModelsConfig(Config):
    """A parsed config of the ONNX models' suite."""

    document: OutcomesDocument | None = None

    @property
    def outcomes(self) -> Mapping[str, str]:
        """The expected outcome of each listed test, and as `default` the outcome of all other tests."""
        return self.document.tests_and_expected_outcomes if self.document else {}

    @property
    def tests(self) -> list[str]:
        """The listed tests."""
        return [test for test in self.outcomes if test != "default"]

    def find_skip_reason(self, test: str) -> str:
        """Return why a test is skipped; empty if it runs. By default, tests are skipped, as upstream."""
        if self.outcomes.get(test, self.outcomes.get("default", "skip")) != "skip":
            return ""
        reason = self._find_comment(test) or "skip" if test in self.outcomes else "not listed"
        return f"{reason} ({self.name})"

    def find_expectations(self, test: str) -> tuple[Expectation, ...]:
        """Return the expected failure of a test, if any."""
        entry = test if test in self.outcomes else "default"
        outcome = self.outcomes.get(entry, "")
        if outcome not in _STAGES_BY_OUTCOME:
            return ()
        origin = Origin(self.name, f"{OUTCOMES}.{entry}")
        return (Expectation(_STAGES_BY_OUTCOME[outcome], self._find_comment(entry) or outcome, origin),)

    def _find_comment(self, entry: str) -> str:
        return self.comments.get(find_line(self.text, [OUTCOMES, entry]), "") if self.comments else ""


_ModelSuite = ConfigSuite[ModelsConfig]


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec(ConfigSpec):
    """A test of a model.

    `document` has the model's complete URL; it is None if the test or its file cannot be read. `model` is the model's
    category and folder (`classification/mnist/model`), `stem` the model's file name.
    """

    dialect = ONNX_MODELS

    suite: _ModelSuite
    document: OnnxModelTest | None
    submodel: str


def read_model_specs(
    roots: Sequence[Path], overrides: Sequence[Path], model_root: str, working_folder: str
) -> list[ModelSpec]:
    """Return the tests of suites of ONNX models, in a stable order; UsageError if the model folder does not exist.

    `overrides` replace the suites' configs. `model_root`, a folder or URL with all models, replaces the suites' URLs.
    """
    prefix = f"{working_folder.rstrip('/')}/"
    base_override = _parse_base(model_root)
    specs: list[ModelSpec] = []
    for root in dict.fromkeys(roots):
        paths = overrides or find_model_configs(root)
        configs = [read_config(path, str(path).removeprefix(prefix), OutcomesDocument, ModelsConfig) for path in paths]
        files = [(path, str(path).removeprefix(prefix)) for path in find_model_tests(root)]
        files_read = [(name, *_read_test_file(path, name, path.relative_to(root).as_posix())) for path, name in files]
        test_names = {test.name for _, tests, _ in files_read for test in tests}
        configs = _check_names(make_names_unique(configs), test_names)
        base = _read_base(root / "conftest.py") if files_read else _DEFAULT_BASE_URL
        files_read = files_read or [(config.name, *_read_named_tests(config)) for config in configs]
        hint = f"Give one as --config, or write {CONFIGS}/NAME.json there (docs/reference/onnx-models.md)."
        missing_config = Problem(str(root).removeprefix(prefix), 0, "", "this suite of ONNX models has no config", hint)
        suite = ConfigSuite(tuple(configs), () if paths else (missing_config,))
        used_names: set[str] = set()
        for name, tests, problems in files_read:
            if problems:
                stem = PurePosixPath(name).stem
                specs.append(ModelSpec(suite, name, _get_category(name), stem, None, stem, problems=tuple(problems)))
            for test in tests:
                if test.name not in used_names:
                    used_names.add(test.name)
                    specs.append(_make_spec(suite, name, test, base, base_override))
    return specs


class OnnxModels(ConfigBuilder[ModelSpec]):
    """The builder of a test's cases, one for each config whose target is requested."""

    def build(self, spec: ModelSpec) -> Iterator[Case]:
        """Yield the cases of a test."""
        test = spec.document
        for config, target in self.select_configs(spec.suite) if test else ():
            if test is None or config.document is None:
                continue
            origin, flags_origin = Origin(spec.name, test.name.partition("::")[2]), Origin(config.name)
            program = Program(test.url, OnnxImport(least_opset=_MIN_OPSET))
            name, flags = f"{spec.model}/{spec.submodel}", tuple(config.document.iree_compile_flags)
            run_flags = tuple(config.document.iree_run_module_flags)
            expectations = (Expectation(test.failing_stage, test.reason, origin),) if test.failing_stage else ()
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
                device=find_devices(run_flags),
                run_flags=run_flags,
                order=ArgumentOrder.MODULES_FIRST,
                # pytest applies the first mark that expects a failure: the file's marks precede the config's.
                expectations=expectations or config.find_expectations(test.name),
                markers=make_markers(target, Kind.QUALITY) | test.markers,
                skip_reason=skip or config.find_skip_reason(test.name),
                flags_origin=flags_origin,
                reference=True,
            )


def _check_names(configs: Sequence[ModelsConfig], test_names: set[str]) -> list[ModelsConfig]:
    """Add problems of configs: names that conflict and, if the suite's tests are known, unknown tests."""
    first_configs: dict[str, ModelsConfig] = {}
    results, hint = [], "Correct or remove the entry."
    for config in configs:
        configs_of_name = [first_configs.setdefault(config.target.config_name, config)] if config.document else []
        problems = (*config.problems, *find_name_conflicts(config, configs_of_name))
        # An unknown name is misspelt, outdated, or of an older suite.
        unknown_tests = [entry for entry in config.tests if test_names and entry not in test_names]
        unmatched_entries = [
            make_problem_at(
                config.name, config.text, [OUTCOMES, entry], f"is not a test{did_you_mean(entry, test_names)}", hint
            )
            for entry in unknown_tests
        ]
        results.append(replace(config, problems=problems, unmatched_entries=tuple(unmatched_entries)))
    return results


def _make_spec(suite: _ModelSuite, name: str, test: OnnxModelTest, base: str, base_override: str) -> ModelSpec:
    """Make a test's spec; `base_override` replaces the suite's base URL, and the repository in a complete URL."""
    # `…/classification_models_test.py::test_models[mnist/model/mnist-12.onnx]` is the model
    # `classification/mnist/model` with the submodel `mnist-12`; `…::test_mnist` is `classification` with `mnist`.
    file, _, function = test.name.partition("::")
    category = _get_category(file)
    function, bracket, parameter = function.partition("[")
    path = parameter.removesuffix("]").removesuffix(".onnx") if bracket else function.removeprefix("test_")
    folder, _, submodel = path.rpartition("/")
    message, hint, stem = describe_url_error(test.url), BRACKETS_HINT, submodel
    if not message:
        stem = PurePosixPath(urlsplit(test.url).path).stem
        paths = [part for part in (path, _find_path_in_zoo(test.url)) if is_outside(part) or not part.isprintable()]
        if paths:
            message = f"{paths[0]!r} is not a path inside the folder of models"
            hint = "A model's path has no '..' and no backslash, and is relative to the suite's base."
    if message:
        return ModelSpec(suite, name, category, stem, None, stem, problems=(Problem(name, 0, function, message, hint),))
    if base_override:
        test = replace(test, url=base_override + quote(_find_path_in_zoo(test.url)))
    elif not is_url(test.url):
        test = replace(test, url=base + quote(test.url))
    return ModelSpec(suite, name, f"{category}/{folder}" if folder else category, stem, test, submodel)


def _get_category(file: str) -> str:
    """Return `classification` for `…/classification_models_test.py`."""
    return PurePosixPath(file).stem.removesuffix("_test").removesuffix("_models")


def _read_named_tests(config: ModelsConfig) -> tuple[list[OnnxModelTest], list[Problem]]:
    """Return the tests that a config names, and problems, for configs without the suite's own files."""
    matches = {name: match for name in config.tests if (match := _TEST_NAME.fullmatch(name))}
    tests = [OnnxModelTest(name, f"{match[1]}/{match[2]}") for name, match in matches.items()]
    unknown_tests = [name for name in config.tests if name not in matches]
    if not unknown_tests:
        return tests, list(config.problems)
    count_note = f" (and {len(unknown_tests) - 1} more)" if len(unknown_tests) > 1 else ""
    message = f"the test does not name its model{count_note}, and the suite's tests are not available"
    hint = f"Give the suite: --spec-dir iree-test-suites/{MODELS_FOLDER} --config {config.name}."
    return tests, [make_problem_at(config.name, config.text, [OUTCOMES, unknown_tests[0]], message, hint)]


def _find_path_in_zoo(url: str) -> str:
    """Return the path of a model relative to its repository."""
    if not is_url(url):
        return url
    path = urlsplit(url).path
    match = _REPOSITORY_PREFIX.match(path)
    return unquote(path[match.end() :] if match else path.lstrip("/"))


def _parse_base(model_root: str) -> str:
    """Parse `--model-root` into a URL that ends with a slash."""
    if not model_root or is_url(model_root):
        return f"{model_root.rstrip('/')}/" if model_root else ""
    if not Path(model_root).is_dir():
        raise UsageError(
            f"--model-root {model_root} is not a folder", "Name the folder or URL that contains `validated/`."
        )
    return f"file://{quote(str(resolve_links(Path(model_root))))}/"


@dataclass(frozen=True, slots=True)
class OnnxModelTest:
    """A test of one model.

    Attributes:
        name: pytest's name, `tests/…_test.py::test_models[mnist/model/mnist-12.onnx]`.
        skip: the reason for skipping the test; empty if the test runs.
        failing_stage: the stage at which the test is expected to fail; None if it is expected to pass.
    """

    name: str
    url: str
    markers: frozenset[str] = frozenset()
    skip: str = ""
    failing_stage: Stage | None = None
    reason: str = ""


class _UnreadableError(Exception):
    """A part of a test that cannot be read, and its line."""

    def __init__(self, node: ast.expr | ast.FunctionDef, message: str) -> None:
        super().__init__(message)
        self.line = node.lineno


def _read_test_file(path: Path, shown_path: str, suite_path: str) -> tuple[list[OnnxModelTest], list[Problem]]:
    """Read the tests of a file."""
    try:
        return _read_tests(ast.parse(read_file(path)), shown_path, suite_path)
    except OSError as error:
        return [], [Problem(shown_path, 0, "", f"cannot be read: {error.strerror}", "Check its rights.")]
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0) or 0
        return [], [Problem(shown_path, line, "", f"is not Python: {error}", "Is the file truncated?")]


def _read_tests(tree: ast.Module, path: str, suite_path: str) -> tuple[list[OnnxModelTest], list[Problem]]:
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
            tests += _read_function(node, constants, suite_path)
        except _UnreadableError as error:
            problems.append(Problem(path, error.line, node.name, str(error), _HINT))
    calls = {call for node in functions for call in _find_comparisons(node)}
    stray = [call for call in _find_comparisons(tree) if call not in calls]
    problems += [Problem(path, call.lineno, "", "compares a model outside of a test function", _HINT) for call in stray]
    return tests, problems


def _find_comparisons(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _join_names(node.func) == COMPARISON]


def _read_base(conftest: Path) -> str:
    """Read the base of the suite's relative URLs from the repository in its `conftest.py`."""
    try:
        tree = ast.parse(read_file(conftest))
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Use the newest suite's base: older suites have no relative URLs. A broken checkout's tests report it.
        return _DEFAULT_BASE_URL
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _join_names(node.func) in _BASE_URLS:
            repository = _read_text(_find_keyword(node, "repository_name"), {})
            if repository:
                return _BASE_URLS[_join_names(node.func)].format(repository)
    return _DEFAULT_BASE_URL


def _read_function(function: ast.FunctionDef, constants: Mapping[str, str], suite_path: str) -> Iterator[OnnxModelTest]:
    calls = _find_comparisons(function)
    if not calls:
        return
    if len(calls) > 1:
        raise _UnreadableError(calls[1], f"compares {len(calls)} models: expected one")
    url = _find_keyword(calls[0], "model_url") or (calls[0].args[0] if calls[0].args else None)
    marks = [node for node in function.decorator_list if _get_mark_name(node) != "parametrize"]
    parameter_marks = [node for node in function.decorator_list if _get_mark_name(node) == "parametrize"]
    if len(parameter_marks) > 1:
        raise _UnreadableError(parameter_marks[1], "is parametrized twice: expected one list of models")
    for parameter_id, names, own_marks in _read_parameters(parameter_marks[0]) if parameter_marks else [("", {}, [])]:
        model_url = _read_text(url, {**constants, **names})
        if model_url is None:
            raise _UnreadableError(calls[0], "its model_url cannot be read as text without running it")
        name = f"{suite_path}::{function.name}" + (f"[{parameter_id}]" if parameter_marks else "")
        # Pytest keeps marks in this order.
        yield _apply_marks(OnnxModelTest(name, model_url), [*reversed(marks), *own_marks])


def _read_parameters(decorator: ast.expr) -> Iterator[tuple[str, dict[str, str], list[ast.expr]]]:
    """Yield (id, value by name, marks) of each parameter."""
    arguments = decorator.args if isinstance(decorator, ast.Call) else []
    name, values = (_read_text(arguments[0], {}), arguments[1]) if len(arguments) > 1 else (None, None)
    if name is None or not name.isidentifier() or not isinstance(values, ast.List | ast.Tuple):
        raise _UnreadableError(decorator, 'expected pytest.mark.parametrize("model", [pytest.param("….onnx"), …])')
    for element in values.elts:
        is_param = isinstance(element, ast.Call) and _join_names(element.func) == "pytest.param"
        argument = element.args[0] if isinstance(element, ast.Call) and is_param and element.args else element
        value = _read_text(argument, {})
        if value is None:
            raise _UnreadableError(element, "a parameter is not text: expected a model's path")
        marks = _find_keyword(element, "marks") if isinstance(element, ast.Call) else None
        element_marks = list(marks.elts) if isinstance(marks, ast.List | ast.Tuple) else [marks] if marks else []
        element_id = _read_text(_find_keyword(element, "id"), {}) if isinstance(element, ast.Call) else None
        yield element_id or value, {name: value}, element_marks


def _apply_marks(test: OnnxModelTest, marks: Sequence[ast.expr]) -> OnnxModelTest:
    """Apply a test's marks; as in pytest, only the first mark that expects a failure counts."""
    markers: set[str] = set()
    skip, failing_stage, failure_reason = test.skip, test.failing_stage, ""
    for node in marks:
        name = _get_mark_name(node)
        call = node if isinstance(node, ast.Call) else None
        reason = (
            _read_text(_find_keyword(call, "reason") or (call.args[0] if call.args else None), {}) if call else ""
        ) or ""
        if name == "skip":
            skip = skip or f"skipped by the suite: {reason or 'no reason given'}"
        elif name == "xfail":
            exception = _join_names(_find_keyword(call, "raises")) if call else ""
            if not exception:
                raise _UnreadableError(node, "xfail does not name the exception, which would show the stage that fails")
            if exception not in _STAGES_BY_EXCEPTION:
                # Other exceptions are errors of the suite itself, before IREE runs.
                skip = skip or f"the suite expects {exception}: it cannot test this model"
            elif failing_stage is None:
                failing_stage, failure_reason = _STAGES_BY_EXCEPTION[exception], reason or f"xfail: {exception}"
        elif name in ("skipif", ""):
            raise _UnreadableError(node, "a mark whose meaning cannot be read without running it")
        else:
            markers.add(name)
    return OnnxModelTest(test.name, test.url, frozenset(markers), skip, failing_stage, failure_reason)


def _get_mark_name(node: ast.expr) -> str:
    """Return the name of a mark; empty for any other expression."""
    prefix, _, name = _join_names(node.func if isinstance(node, ast.Call) else node).rpartition(".")
    return name if prefix == "pytest.mark" else ""


def _join_names(node: ast.expr | None) -> str:
    """Return `pytest.mark.skip` for an expression of names and dots; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        prefix = _join_names(node.value)
        return f"{prefix}.{node.attr}" if prefix else ""
    return node.id if isinstance(node, ast.Name) else ""


def _find_keyword(call: ast.Call | None, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None) if call else None


def _read_text(node: ast.expr | None, names: Mapping[str, str]) -> str | None:
    """Evaluate an expression of text literals, names and sums; None for other expressions."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id=name):
            return names.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            left_text, right_text = _read_text(left, names), _read_text(right, names)
            return None if left_text is None or right_text is None else left_text + right_text
        case _:
            return None
