"""The suite of ONNX models: each test a model that is fetched, imported, compiled, and compared with onnxruntime."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from iree_gauntlet.cases import (
    ArgumentOrder,
    Case,
    Expectation,
    Kind,
    Module,
    OnnxImport,
    Origin,
    Program,
)
from iree_gauntlet.dialects.flagfile import outside
from iree_gauntlet.dialects.locations import is_url
from iree_gauntlet.dialects.onnx_configs import OUTCOMES, is_models_config, misnamed_tests, read_models_config
from iree_gauntlet.dialects.onnx_tests import DEFAULT_BASE, FIXTURE, ModelTest, base_of, read_test_file
from iree_gauntlet.dialects.spec_file import problem_at
from iree_gauntlet.dialects.target_flags import devices_of_flags
from iree_gauntlet.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.dialects.onnx_configs import ModelsConfig
    from iree_gauntlet.targets import Target

__all__ = ["MODELS_FOLDER", "ModelSpec", "ModelsSuite", "build_model_cases", "is_models_suite", "read_model_specs"]

MODELS_FOLDER = "onnx_models"
_DIALECT = "onnx_models"
# Upstream's `ONNX_CONVERTER_OUTPUT_MIN_VERSION`.
_LEAST_OPSET = 17
_CONFIGS = "configs"
# A test's name, from which the model's path follows where the suite's own files are not at hand.
_NAME = re.compile(r"tests/(?:model_zoo/)?(?P<path>.+?)_models_test\.py::test_models\[(?P<model>.+\.onnx)\]")
# What comes before a file's path in the URLs of GitHub and Hugging Face.
_BEFORE_PATH = re.compile(r"/[^/]+/[^/]+/(?:raw|resolve)/[^/]+/")


@dataclass(frozen=True, slots=True, eq=False)
class ModelsSuite:
    """Tests with one root.

    Attributes:
        configs: how they are compiled and run; one that cannot be read is among them.
        base: the URL at which relative ones begin.
        other_base: what takes the place of the base, and of that of whole URLs; empty for none.
    """

    configs: tuple[ModelsConfig, ...]
    base: str
    other_base: str

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that its configs are for."""
        return tuple(dict.fromkeys(config.target.family for config in self.configs if config.document))

    def url_of(self, test: ModelTest) -> str:
        """Where the model of a test is fetched from."""
        if not self.other_base:
            return test.url if is_url(test.url) else self.base + test.url
        return self.other_base + _path_in_zoo(test.url)


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """A test of a model; or a file that holds none that could be read.

    Attributes:
        suite: what it belongs to.
        name: the file that it is written in, as the user names it.
        test: what it says; None where it cannot be understood.
        model: the file of tests, and the folder of the model as its name has it.
        stem: name of the model's file without suffix.
        submodel: what `--submodel` selects.
        problems: what is wrong with it.
    """

    suite: ModelsSuite
    name: str
    test: ModelTest | None
    model: str
    stem: str
    submodel: str
    problems: tuple[Problem, ...] = ()

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that it may be for."""
        return self.suite.families

    @property
    def document(self) -> ModelTest | None:
        """What it says."""
        return self.test

    @property
    def defines_module(self) -> bool:
        """Never: it is compiled and run."""
        return False


def is_models_suite(folder: Path, *, named: bool) -> bool:
    """Whether a folder is the suite, or IREE's folder of configs for it.

    Args:
        folder: which.
        named: whether the user named it: one that holds configs may have any name.
    """
    if folder.name == MODELS_FOLDER:
        return bool(_configs_in(folder) or _test_files(folder))
    return named and bool(_configs_in(folder))


def read_model_specs(
    roots: Sequence[Path], asked: Sequence[Path], model_root: str, working_folder: str
) -> list[ModelSpec]:
    """The tests of suites of ONNX models, in a stable order.

    Args:
        roots: folders of the suites, absolute.
        asked: configs that are to be used; by default, all of each root.
        model_root: folder or URL from which all models are fetched; empty for the suites' own.
        working_folder: from which the user names files.

    Raises:
        UsageError: a suite has no config, or the folder of models does not exist.
    """
    prefix = f"{working_folder.rstrip('/')}/"
    other_base = _base(model_root)
    specs: list[ModelSpec] = []
    for root in roots:
        shown = str(root).removeprefix(prefix)
        paths = asked or _configs_in(root)
        if not paths:
            hint = f"Give one as --config, or write {shown}/{_CONFIGS}/NAME.json (docs/onnx-models.md)."
            raise UsageError(f"the suite of ONNX models {shown} has no config", hint)
        configs = [read_models_config(path, str(path).removeprefix(prefix)) for path in paths]
        files = _test_files(root)
        read = [
            (f"{path}".removeprefix(prefix), *read_test_file(path, str(path).removeprefix(prefix), inside))
            for path, inside in files
        ]
        if files:
            known = [test.name for _, tests, _ in read for test in tests]
            configs = [replace(config, aimless=tuple(misnamed_tests(config, known))) for config in configs]
        else:
            read = [(config.name, *_named_tests(config)) for config in configs]
        suite = ModelsSuite(tuple(configs), base_of(root / "conftest.py") if files else DEFAULT_BASE, other_base)
        specs += _specs(suite, read)
    return specs


def build_model_cases(spec: ModelSpec, targets: Sequence[Target]) -> tuple[list[Case], list[Problem], list[str]]:
    """The cases of a test, one for each config whose target is asked for.

    Returns:
        The cases, what is wrong with the test's file, and names of targets that other configs are for.
    """
    cases: list[Case] = []
    elsewhere: list[str] = []
    for config in spec.suite.configs if spec.test else ():
        if config.document is None:
            continue
        asked = next((target for target in targets if target.covers(config.target)), None)
        if asked is None:
            elsewhere.append(replace(config.target, config="").name)
        elif spec.test is not None:
            cases.append(_case(spec, spec.test, config, replace(config.target, sku=asked.sku)))
    return cases, list(spec.problems), elsewhere


def _case(spec: ModelSpec, test: ModelTest, config: ModelsConfig, target: Target) -> Case:
    document = config.document
    assert document is not None, "only configs that were read are chosen"
    origin = Origin(spec.name, test.name.partition("::")[2])
    flags_origin = Origin(config.name)
    program = Program(spec.suite.url_of(test), OnnxImport(least_opset=_LEAST_OPSET))
    flags = tuple(document.iree_compile_flags)
    name = f"{spec.model}/{spec.submodel}"
    run_flags = tuple(document.iree_run_module_flags)
    marked = (Expectation(test.fails, test.reason, origin),) if test.fails else ()
    skip = test.skip and f"{test.skip} ({spec.name})"
    return Case(
        dialect=_DIALECT,
        model=spec.model,
        submodel=spec.submodel,
        stem=spec.stem,
        kind=Kind.QUALITY,
        target=target,
        modules=(Module(name, "main", target, program, flags, origin, flags_origin=flags_origin),),
        origin=origin,
        device=devices_of_flags(run_flags),
        run_flags=run_flags,
        order=ArgumentOrder.MODULES_FIRST,
        # Of several marks that expect a failure pytest takes the first, which is the file's own.
        expectations=marked or config.expectations_of(test.name),
        markers=frozenset({Kind.QUALITY.value, target.family, *filter(None, [target.chip]), *test.markers}),
        skip_reason=skip or config.skip_of(test.name),
        flags_origin=flags_origin,
        reference=True,
    )


def _specs(suite: ModelsSuite, read: Iterable[tuple[str, list[ModelTest], list[Problem]]]) -> Iterator[ModelSpec]:
    """The specs of files of tests, each test once."""
    seen: set[str] = set()
    for name, tests, problems in read:
        stem = PurePosixPath(name).stem
        if problems or not tests:
            yield ModelSpec(suite, name, None, MODELS_FOLDER, stem, stem, tuple(problems))
        for test in tests:
            if test.name not in seen:
                seen.add(test.name)
                yield _spec(suite, name, test)


def _spec(suite: ModelsSuite, name: str, test: ModelTest) -> ModelSpec:
    """`tests/…/classification_models_test.py::test_models[mnist/model/mnist-12.onnx]` is the model
    `classification/mnist/model` with the submodel `mnist-12`; `::test_mnist` is `classification` with `mnist`.
    """  # noqa: D205 - a name of two lines
    file, _, function = test.name.partition("::")
    kind = PurePosixPath(file).stem.removesuffix("_test").removesuffix("_models")
    function, bracket, parameter = function.partition("[")
    model = parameter.removesuffix("]").removesuffix(".onnx") if bracket else function.removeprefix("test_")
    folder, _, submodel = model.rpartition("/")
    stem = PurePosixPath(urlsplit(test.url).path).stem
    for path in (model, _path_in_zoo(test.url)):
        if outside(path):
            hint = "A model's path has no '..' and no backslash, and begins at the suite's base."
            problem = Problem(name, 0, test.name, f"{path!r} leaves the folder of models", hint)
            return ModelSpec(suite, name, None, kind, stem, stem, (problem,))
    return ModelSpec(suite, name, test, f"{kind}/{folder}" if folder else kind, stem, submodel)


def _named_tests(config: ModelsConfig) -> tuple[list[ModelTest], list[Problem]]:
    """The tests that a config names, where the suite's own files are not there."""
    tests: list[ModelTest] = []
    unknown: list[str] = []
    for name in config.tests:
        match = _NAME.fullmatch(name)
        if match:
            tests.append(ModelTest(name, f"{match['path']}/{match['model']}"))
        else:
            unknown.append(name)
    if not unknown:
        return tests, []
    others = f" (and {len(unknown) - 1} others)" if len(unknown) > 1 else ""
    message = f"the test does not name its model{others}, and the suite's tests are not here"
    hint = f"Give the suite: --spec-dir iree-test-suites/{MODELS_FOLDER} --config {config.name}."
    return tests, [problem_at(config.name, config.text, [OUTCOMES, unknown[0]], message, hint)]


def _path_in_zoo(url: str) -> str:
    """The path of a model from the top of its repository."""
    if not is_url(url):
        return url
    path = urlsplit(url).path
    match = _BEFORE_PATH.match(path)
    return path[match.end() :] if match else path.lstrip("/")


def _base(model_root: str) -> str:
    """The URL, with a slash at its end, that `--model-root` means."""
    if not model_root or is_url(model_root):
        return f"{model_root.rstrip('/')}/" if model_root else ""
    if not Path(model_root).is_dir():
        raise UsageError(f"--model-root {model_root} is no folder", "Name the folder or URL that holds `validated/`.")
    return f"file://{quote(str(Path(model_root).resolve()))}/"


def _configs_in(root: Path) -> list[Path]:
    """The configs of a suite, or of IREE's folder for it."""
    return [
        path for folder in (root / _CONFIGS, root) for path in sorted(folder.glob("*.json")) if is_models_config(path)
    ]


def _test_files(root: Path) -> list[tuple[Path, str]]:
    """Files of tests that compare models, and their paths from the root."""
    found = []
    for current, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(current, name) for name in sorted(files) if name.endswith("_test.py")]
        found += [(path, path.relative_to(root).as_posix()) for path in paths if FIXTURE.encode() in path.read_bytes()]
    return found
