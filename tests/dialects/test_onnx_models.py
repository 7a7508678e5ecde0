"""The suite of ONNX models: its test files and configs become cases with the commands of upstream's runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.load import CaseSet, load_cases, read_specs
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.errors import UsageError
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.onnx_suite import COMPILE_FLAGS, TEST_FILE, ZOO_URL, make_test_file, make_test_name, write_config
from tests.support.spec_trees import CPU, find_argv, find_step, plan, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.cases import Case

RUN = (Stage.COMPILE, Stage.THRESHOLD)
MNIST = 'pytest.param("mnist/model/mnist-12.onnx")'
CHAIN = "classification/mnist/model/mnist-12@cpu"


def suite(folder: Path, *parameters: str, **files: str) -> Path:
    """A checkout of the suite, without a config."""
    return write_tree(folder / "onnx_models", {TEST_FILE: make_test_file(*parameters or [MNIST]), **files})


def load(folder: Path, *targets: Target, configs: tuple[Path, ...] = (), model_root: str = "") -> CaseSet:
    specs = read_specs([folder], configs=configs, model_root=model_root)
    return load_cases(specs, [Include()], targets or (CPU,))


def only(folder: Path) -> Case:
    cases = load(folder)
    assert not cases.problems
    assert len(cases.cases) == 1
    return cases.cases[0]


def url_of(case: Case) -> str:
    return case.modules[0].program.url


def problems_of(folder: Path) -> list[str]:
    return [str(problem).replace(f"{folder}/", "") for problem in load(folder).problems]


def test_commands_are_those_of_upstreams_runner(tmp_path: Path) -> None:
    write_config(suite(tmp_path))
    made = plan(load(tmp_path), RUN)
    assert not made.problems
    assert [step.id for step in made.steps] == [
        f"{CHAIN}:{stage}" for stage in ("fetch", "import", "compile", "reference", "threshold")
    ]
    fetched = find_step(made, f"{CHAIN}:fetch")
    assert [item.url for item in fetched.inputs] == [
        f"{ZOO_URL}validated/vision/classification/mnist/model/mnist-12.onnx"
    ]
    model = fetched.inputs[0].path
    place = "/run/steps/classification/mnist/model/mnist-12.cpu"
    assert find_argv(made, f"{CHAIN}:import")[2:] == [
        model,
        "-o",
        f"{place}/import/program.mlir",
        "--least-opset",
        "17",
    ]
    compiled = find_argv(made, f"{CHAIN}:compile")
    assert compiled[1:4] == ["../import/program.mlir", *COMPILE_FLAGS]
    assert compiled[-2:] == ["-o", f"{place}/compile/module.vmfb"]
    assert find_argv(made, f"{CHAIN}:reference")[2:] == [model, "-o", f"{place}/reference/reference.zip"]
    assert find_argv(made, f"{CHAIN}:threshold") == [
        "iree-run-module",
        f"--module={place}/compile/module.vmfb",
        "--flagfile=arguments.txt",
        "--device=local-sync",
    ]
    checked = find_step(made, f"{CHAIN}:threshold")
    assert checked.command is not None
    assert checked.command.cwd == checked.folder
    assert {f"{CHAIN}:compile", f"{CHAIN}:reference"} <= set(checked.needs)
    assert (checked.dialect, checked.model, checked.submodel, checked.resources.device, checked.notes) == (
        *("onnx_models", "classification/mnist/model", "mnist-12"),
        *("local-sync", ()),
    )


def test_without_onnxruntime_the_step_says_what_to_install(tmp_path: Path) -> None:
    write_config(suite(tmp_path))
    made = plan(load(tmp_path), RUN, onnxruntime="")
    assert "pip install 'iree-gauntlet[record]'" in find_step(made, f"{CHAIN}:reference").blocked
    assert not find_step(made, f"{CHAIN}:compile").blocked


def test_the_reference_belongs_to_model_and_onnxruntime(tmp_path: Path) -> None:
    write_config(suite(tmp_path))
    steps = [find_step(plan(load(tmp_path), RUN, onnxruntime=version), f"{CHAIN}:reference") for version in ("1", "2")]
    first, second = (dict(step.cache.ingredients) for step in steps)
    assert first.keys() == {"kind", "program", "inputs", "onnxruntime"}
    assert first == second | {"onnxruntime": "1"}


@pytest.mark.parametrize(
    ("conftest", "base"),
    [
        ("", ZOO_URL),
        (
            'x = HuggingFaceCacheScope(scope_name="a", repository_name="me/mine")',
            "https://huggingface.co/me/mine/resolve/main/",
        ),
        (
            'x = GitHubLFSRepositoryCacheScope(repository_name="onnx/models")',
            "https://github.com/onnx/models/raw/main/",
        ),
    ],
)
def test_relative_urls_begin_where_the_conftest_says(tmp_path: Path, conftest: str, base: str) -> None:
    write_config(suite(tmp_path, **{"conftest.py": conftest}))
    assert url_of(only(tmp_path)) == f"{base}validated/vision/classification/mnist/model/mnist-12.onnx"


def test_older_generations_of_test_files(tmp_path: Path) -> None:
    whole = "https://github.com/onnx/models/raw/main/validated/vision/classification"
    text = f"""import pytest
BASE_URL: str = ""
BASE_URL = "{whole}/"
def test_alexnet(compare_between_iree_and_onnxruntime):
    compare_between_iree_and_onnxruntime(
        model_url="{whole}/alexnet/model/bvlcalexnet-12.onnx", artifacts_subdir="vision")
@pytest.mark.size_medium
@pytest.mark.xfail(raises=IreeCompileException)
def test_vgg(compare_between_iree_and_onnxruntime):
    compare_between_iree_and_onnxruntime(BASE_URL + "vgg/" + "model/vgg19-7.onnx")
def test_something_else():
    assert True
"""
    root = write_tree(tmp_path / "onnx_models", {"tests/vision/classification_models_test.py": text})
    write_config(root)
    alexnet, vgg = load(tmp_path).cases
    assert (alexnet.model, alexnet.submodel, alexnet.stem) == ("classification", "alexnet", "bvlcalexnet-12")
    assert url_of(alexnet) == f"{whole}/alexnet/model/bvlcalexnet-12.onnx"
    assert url_of(vgg) == f"{whole}/vgg/model/vgg19-7.onnx"
    assert vgg.markers == {"cpu", "quality", "size_medium"}
    assert [(item.stage, item.reason) for item in vgg.expectations] == [(Stage.COMPILE, "xfail: IreeCompileException")]
    # The folder or URL that takes the base's place holds what the repository holds.
    (tmp_path / "zoo").mkdir()
    for place, base in ((str(tmp_path / "zoo"), (tmp_path / "zoo").as_uri()), ("https://h/x", "https://h/x")):
        found = load(tmp_path, model_root=place).cases[0]
        assert url_of(found) == f"{base}/validated/vision/classification/alexnet/model/bvlcalexnet-12.onnx"
    with pytest.raises(UsageError, match="--model-root nowhere is not a folder"):
        load(tmp_path, model_root="nowhere")


def test_marks_of_parameters(tmp_path: Path) -> None:
    write_config(
        suite(
            tmp_path,
            'pytest.param("a/large.onnx", marks=pytest.mark.size_large)',
            'pytest.param("a/skipped.onnx", marks=[pytest.mark.skip("ONNXRuntimeError"), pytest.mark.size_large])',
            'pytest.param("a/uint8.onnx", marks=pytest.mark.xfail(raises=NotImplementedError))',
            '"a/plain.onnx"',
        ),
        tests_and_expected_outcomes={"default": "fail-compile"},
    )
    cases = {case.submodel: case for case in load(tmp_path).cases}
    assert {name: sorted(case.markers) for name, case in cases.items()} == {
        "large": ["cpu", "quality", "size_large"],
        "plain": ["cpu", "quality"],
        "skipped": ["cpu", "quality", "size_large"],
        "uint8": ["cpu", "quality"],
    }
    assert cases["skipped"].skip_reason.startswith("skipped by the suite: ONNXRuntimeError (")
    assert cases["uint8"].skip_reason.startswith("the suite expects NotImplementedError")
    assert not cases["plain"].skip_reason
    # What does not run is one skipped step, and nothing is fetched for it.
    made = plan(load(tmp_path), RUN)
    skipped = [step.id for step in made.steps if "skipped" in step.chain]
    assert skipped == ["classification/a/skipped@cpu:threshold"]
    assert find_step(made, skipped[0]).skip == cases["skipped"].skip_reason


def test_outcomes_are_expected_at_their_stage(tmp_path: Path) -> None:
    outcomes = {"pass": None, "fail-import": "import", "fail-compile": "compile", "fail-run": "threshold"}
    root = suite(tmp_path, *(f'"a/{outcome}.onnx"' for outcome in (*outcomes, "skip", "other")))
    named = "".join(
        f'  "{make_test_name(f"a/{outcome}.onnx")}": "{outcome}", // because\n' for outcome in (*outcomes, "skip")
    )
    file = write_config(root)
    text = file.read_text().replace('"default": "pass"', f'"default": "skip",\n{named}')
    file.write_text(text.replace("because", "no such op", 2))
    assert not problems_of(tmp_path)
    cases = load(tmp_path)
    assert not cases.warnings + cases.unmatched_entries
    made = plan(cases, RUN)
    for outcome, stage in outcomes.items():
        expected = {step.stage.value for step in made.steps if f"/{outcome}@" in step.id and step.expect_failure}
        assert expected == ({stage} if stage else set())
    skips = {case.submodel: case.skip_reason for case in cases.cases if case.skip_reason}
    assert skips == {"skip": f"because ({file})", "other": f"not listed ({file})"}
    assert find_step(made, "classification/a/fail-import@cpu:import").expect_failure == f"no such op ({file})"


def test_several_configs_and_targets(tmp_path: Path) -> None:
    root = suite(tmp_path)
    write_config(root)
    write_config(root, "gpu", iree_compile_flags=["--iree-hal-target-device=hip", "--iree-rocm-target=gfx1100"])
    assert [case.chain for case in load(tmp_path).cases] == [CHAIN]
    assert load(tmp_path).other_targets == ("rocm-gfx1100",)
    gpu = load(tmp_path, Target("rocm", "gfx1100")).cases
    assert [(case.target.name, "gfx1100" in case.markers) for case in gpu] == [("gpu", True)]
    # IREE keeps its configs elsewhere, and they take the place of the suite's.
    other = write_config(tmp_path / "iree", "mine", "onnx_models_mine.json")
    assert [case.target.name for case in load(root, configs=(other,)).cases] == ["mine"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there is no suite of ONNX models in"):
        load(tmp_path / "empty", configs=(other,))
    with pytest.raises(UsageError, match="--model-root x: there is no suite of ONNX models in"):
        load(tmp_path / "empty", model_root="x")
    (problem,) = load(root, configs=(tmp_path / "nowhere.json",)).problems
    assert str(problem).startswith(f"{tmp_path}/nowhere.json: cannot be read: No such file")


def test_irees_folder_of_configs_alone(tmp_path: Path) -> None:
    file = write_config(tmp_path / "onnx_models", "cpu", "onnx_models_cpu.json")
    named = f'"default": "skip",\n "{make_test_name("mnist/model/mnist-12.onnx")}": "pass",\n'
    file.write_text(file.read_text().replace('"default": "pass"', named))
    case = only(tmp_path)
    assert (case.chain, case.skip_reason, case.origin.file) == (CHAIN, "", str(file))
    assert url_of(case) == f"{ZOO_URL}validated/vision/classification/mnist/model/mnist-12.onnx"
    file.write_text(
        file.read_text().replace(
            '"pass",\n', f'"pass",\n "{TEST_FILE}::test_b": "pass", "{TEST_FILE}::test_c": "pass"\n'
        )
    )
    (problem,) = load(tmp_path).problems
    assert (problem.line, problem.field) == (13, f"tests_and_expected_outcomes.{TEST_FILE}::test_b")
    assert problem.message == "the test does not name its model (and 1 more), and the suite's tests are not available"
    assert "--spec-dir iree-test-suites/onnx_models --config" in problem.hint
    assert len(load(tmp_path).cases) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tests_and_expected_outcomes": {"default": "fial-run"}},
            "unknown outcome 'fial-run'; did you mean 'fail-run'?",
        ),
        ({"config_nam": "x"}, "config_nam: unknown field; did you mean 'config_name'?"),
        ({"iree_compile_flags": "x"}, "iree_compile_flags: expected an array, found the string"),
    ],
)
def test_configs_that_cannot_be_read(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    root = suite(tmp_path)
    write_config(root, "bad", **changes)
    write_config(root)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith("onnx_models/configs/bad.json:")
    assert message in problem


def test_fields_that_nobody_knows_are_warnings(tmp_path: Path) -> None:
    write_config(suite(tmp_path), added_upstream=True)
    assert [case.chain for case in load(tmp_path).cases] == [CHAIN]
    (warning,) = load(tmp_path).warnings
    assert (warning.field, warning.message) == ("added_upstream", "unknown field, which is ignored")


def test_a_broken_config_alone_is_told(tmp_path: Path) -> None:
    write_config(tmp_path / "onnx_models", file="cpu.json", iree_compile_flags=3)
    assert problems_of(tmp_path) == [
        "onnx_models/cpu.json:3: iree_compile_flags: expected an array, found the number 3"
    ]


def test_configs_of_one_name(tmp_path: Path) -> None:
    root = suite(tmp_path)
    write_config(root)
    write_config(root, "other", config_name="cpu")
    # IREE has such: their files' names tell them apart.
    assert [case.target.name for case in load(tmp_path).cases] == ["cpu", "other"]
    write_config(tmp_path / "iree", file="cpu.json")
    cases = load(root, configs=(root / "configs" / "cpu.json", tmp_path / "iree" / "cpu.json"))
    (problem,) = cases.problems
    assert str(problem).startswith(f"{tmp_path}/iree/cpu.json:2: config_name: 'cpu' is also the name of {tmp_path}")


def test_entries_that_name_no_test_are_warnings(tmp_path: Path) -> None:
    write_config(suite(tmp_path), tests_and_expected_outcomes={make_test_name("mnist/model/mnist-13.onnx"): "pass"})
    (warning,) = load(tmp_path).unmatched_entries
    assert warning.message == f"is not a test; did you mean {make_test_name('mnist/model/mnist-12.onnx')!r}?"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def test_a(:\n", ":1: is not Python: "),
        ("@pytest.mark.parametrize('model', MODELS)\n{}", ":1: test_a: expected pytest.mark.parametrize("),
        ("@pytest.mark.parametrize('m', [3])\n{}", ":1: test_a: a parameter is not text"),
        (
            "@pytest.mark.parametrize('m', ['a'])\n@pytest.mark.parametrize('n', ['b'])\n{}",
            ":2: test_a: is parametrized",
        ),
        ("@pytest.mark.skipif(True, reason='x')\n{}", ":1: test_a: a mark whose meaning cannot be read"),
        ("@pytest.mark.xfail\n{}", ":1: test_a: xfail does not name the exception"),
        ("{}    compare_between_iree_and_onnxruntime('b')\n", ":3: test_a: compares 2 models"),
        ("@pytest.mark.parametrize('m')\n{}", ":1: test_a: expected pytest.mark.parametrize("),
        (
            "class TestB:\n    def test_b(x):\n        compare_between_iree_and_onnxruntime('b')\n",
            ":3: compares a model",
        ),
        ("A = " + "'a' + " * 2000 + "'b'\n{}", ": is not Python: maximum recursion depth exceeded"),
        ("def test_b(x):\n    compare_between_iree_and_onnxruntime(made())\n", ":2: test_b: its model_url"),
    ],
)
def test_test_files_that_cannot_be_read(tmp_path: Path, text: str, problem: str) -> None:
    function = (
        "def test_a(compare_between_iree_and_onnxruntime):\n    compare_between_iree_and_onnxruntime('u/x.onnx')\n"
    )
    comment = "# compare_between_iree_and_onnxruntime"
    root = suite(tmp_path, **{"tests/bad_test.py": text.replace("{}", function) + comment})
    write_config(root)
    found = problems_of(tmp_path)
    assert [item.startswith(f"onnx_models/tests/bad_test.py{problem}") for item in found] == [True]
    # The others are there as ever, and alone where they are asked for.
    assert CHAIN in [case.chain for case in load(tmp_path).cases]
    chosen = load_cases(read_specs([tmp_path]), [Include("classification*")], [CPU])
    assert ([case.chain for case in chosen.cases], chosen.problems) == ([CHAIN], ())


@pytest.mark.parametrize(
    "path", ["../../../../x.onnx", "/etc/x.onnx", "a\\\\..\\\\x.onnx", "a\\0b.onnx", "https://h/%2e%2e/x.onnx"]
)
def test_no_path_leaves_its_folder(tmp_path: Path, path: str) -> None:
    root = suite(tmp_path, f'"{path}"')
    file = root / TEST_FILE
    # A whole URL stands by itself.
    file.write_text(file.read_text().replace("=BASE_PATH + model", "=model") if "https" in path else file.read_text())
    write_config(root)
    (problem,) = problems_of(tmp_path)
    assert "is not a path inside the folder of models" in problem
    assert not load(tmp_path).cases
