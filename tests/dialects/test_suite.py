"""Suites: the content of a TOML file, and every mistake in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iree_gauntlet.cases import Expectation, Origin
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.engine.workspace import Selection, find_suite, select
from iree_gauntlet.errors import ExitCode, NothingSelectedError, SpecError, UsageError
from iree_gauntlet.requests import Defaults, SelectionRequest, parse_request
from iree_gauntlet.stages import DEFAULT_STAGES, FailureKind, Stage
from iree_gauntlet.targets import Target
from tests.support.places import ROOT
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, load, write_tree

SUITES = ROOT / "suites"
SUITE = """
name = "nightly"
target = "gfx942"
sku = "mi300"
stages = ["compile"]
spec_dirs = ["trees"]

[[include]]
model = "a"

[[include]]
submodel = "y"
markers = "not slow"

[[expect_failure]]
case = "a/*"
stage = "compile"
reason = "a known bug: https://h/issue"
"""


def write(folder: Path, text: str | bytes, name: str = "suites/x.toml") -> Path:
    return write_tree(folder, {name: text}) / name


def chosen(folder: Path, **options: Any) -> Selection:
    return select(parse_request(SelectionRequest, {"suite": str(folder / "suites/x.toml"), **options}), Defaults())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, SUITE.replace('["trees"]', '["../trees"]'))
    write_tree(
        tmp_path / "trees",
        {
            "regression_tests/a/x_rocm.json": HIP_SPEC,
            "regression_tests/b/x_rocm.json": HIP_SPEC,
            "regression_tests/b/y_rocm.json": HIP_SPEC,
            "regression_tests/c/y_rocm.json": HIP_SPEC | {"markers": ["slow"]},
            "benchmarks/a/x_rocm.json": BENCHMARK,
        },
    )
    return tmp_path


def test_a_suite_is_read(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, SUITE))
    assert (suite.name, suite.stages) == ("nightly", (Stage.COMPILE,))
    assert suite.targets == (Target("rocm", "gfx942", "mi300"),)
    assert suite.includes == (Include(model="a"), Include(submodel="y", markers="not slow"))
    assert suite.spec_dirs == (tmp_path / "suites/trees",)
    (expected,) = suite.expected_failures
    assert (expected.cases, expected.stage, expected.origin.field) == ("a/*", Stage.COMPILE, "expect_failure[0]")
    assert (expected.kinds, expected.match) == (tuple(FailureKind), "")


def test_an_expected_failure_may_have_a_kind_and_a_text(tmp_path: Path) -> None:
    more = 'stage = "compile"\nkind = "crashes"\nmatch = "SIGFPE"'
    (expected,) = read_suite(write(tmp_path, SUITE.replace('stage = "compile"', more))).expected_failures
    assert (expected.kinds, expected.match) == ((FailureKind.CRASHES,), "SIGFPE")


def test_what_a_suite_leaves_out(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, 'name = "x"\ntarget = "cpu"\n'))
    assert (suite.targets, suite.stages, suite.includes) == ((CPU,), DEFAULT_STAGES, (Include(),))
    assert suite.spec_dirs == (tmp_path / "suites/../specs",)


@pytest.mark.parametrize("path", sorted(SUITES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_suites_are_sound(path: Path) -> None:
    assert read_suite(path).name == path.stem
    chosen(SUITES, suite=str(path)).require_no_problems()


def test_the_shipped_suites_share_no_test_although_models_have_the_same_names() -> None:
    regressions, torch = (
        {case.origin.file for case in chosen(SUITES, suite=str(SUITES / name)).cases.cases}
        for name in ("cpu.toml", "torch-cpu.toml")
    )
    assert regressions
    assert not any("torch_models" in file for file in regressions)
    assert all("torch_models" in file for file in torch)
    tests = set((SUITES.parent / "specs" / "torch_models").glob("*/*_cpu.json"))
    assert {Path(file).resolve() for file in torch} == tests


def test_a_suite_has_several_chips_of_one_family_and_failures_of_each(project: Path) -> None:
    targets = 'targets = ["gfx942", "gfx1100"]'
    text = SUITE.replace('["trees"]', '["../trees"]').replace('target = "gfx942"', targets)
    entry = '[[expect_failure]]\ncase = "a/*"\ntargets = ["{}"]\nstage = "compile"\nreason = "broken"\n'
    text = text[: text.index("[[expect_failure]]")]
    write(project, text + entry.format("gfx1100"))
    cases = chosen(project, model=["a"]).cases.cases
    failing = {case.target.name: [failure.stage for failure in case.expectations] for case in cases}
    assert failing == {"rocm-gfx1100": [Stage.COMPILE], "rocm-gfx942": []}
    assert {case.target.sku for case in cases} == {"mi300"}
    assert {case.target.chip for case in chosen(project, rocm_chip="gfx90a").cases.cases} == {"gfx90a"}
    # An entry for a target that the suite does not have is as useless as one for a model that it does not have.
    path = write(project, text + entry.format("gfx1201"))
    options = parse_request(SelectionRequest, {"suite": str(path)})
    (warning,) = select(options, Defaults(), allow_only_problems=True).cases.warnings
    assert warning.field == "expect_failure[0].case"


def test_an_expected_failure_of_a_case_that_is_not_selected_is_warned_of(project: Path) -> None:
    entry = '\n[[expect_failure]]\ncase = "b/x"\nstage = "compile"\nreason = "elsewhere"\n'
    path = write(project, SUITE.replace('["trees"]', '["../trees"]') + entry)
    options = parse_request(SelectionRequest, {"suite": str(path)})
    (warning,) = select(options, Defaults(), allow_only_problems=True).cases.warnings
    place = (warning.file, warning.line, warning.field)
    assert place == (str(path), path.read_text().splitlines().index('case = "b/x"') + 1, "expect_failure[1].case")
    assert warning.message == "'b/x' is a case that no [[include]] selects"
    # Narrowed down, the entries of what is left out are as good as before.
    narrow = select(
        parse_request(SelectionRequest, {"suite": str(path), "model": "b"}), Defaults(), allow_only_problems=True
    )
    assert narrow.cases.warnings == (warning,)


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        ('name = "nightly"', "", "name", "is missing"),
        ('name = "nightly"', 'name = "../x"', "name", "starting with a letter or digit, found '../x'"),
        ('target = "gfx942"', 'target = "vulkn"', "target", "unknown target 'vulkn'"),
        ('target = "gfx942"', "target = 5", "target", "expected a string, found the number 5"),
        ('target = "gfx942"', "", "target", "missing: expected one of cpu, rocm"),
        ('target = "gfx942"', 'targets = ["gfx942", "vulkn"]', "targets[1]", "unknown target 'vulkn'"),
        ('target = "gfx942"', 'targets = ["gfx942", "hip"]', "targets", "rocm-gfx942 and rocm overlap"),
        ('target = "gfx942"', 'targets = ["gfx942", "gfx942"]', "targets", "rocm-gfx942 is named twice"),
        ('target = "gfx942"', "targets = []", "targets", "expected at least one target"),
        ('target = "gfx942"', 'target = "cpu"\ntargets = ["gfx942"]', "targets", "target is there as well"),
        ('case = "a/*"', 'case = "a/*"\ntargets = ["x"]', "expect_failure[0].targets[0]", "unknown target 'x'"),
        ('target = "gfx942"', "target = 2026-11-23", "target", 'expected a string, found the value "2026-11-23"'),
        ('["compile"]', '["compil"]', "stages[0]", "did you mean 'compile'"),
        ('["compile"]', "[]", "stages", "expected at least 1 item, found 0"),
        ('["compile"]', '"compile"', "stages", "expected an array"),
        ('sku = "mi300"', 'skuu = "mi300"', "skuu", "did you mean 'sku'"),
        ('model = "a"', 'modell = "a"', "include[0].modell", "did you mean 'model'"),
        ('markers = "not slow"', 'markers = "not"', "include[1].markers", "expected a marker"),
        ('reason = "a known bug: https://h/issue"', "", "expect_failure[0].reason", "is missing"),
        ('reason = "a known bug: https://h/issue"', 'reason = " "', "expect_failure[0].reason", "explain why"),
        ('stage = "compile"', 'stage = "run"', "expect_failure[0].stage", "unknown stage 'run'"),
        (
            'stage = "compile"',
            'stage = "compile"\nkind = "crash"',
            "expect_failure[0].kind",
            "unknown kind 'crash'; did you mean 'crashes'",
        ),
        (
            'stage = "compile"',
            'stage = "compile"\nkind = "wrong numbers"',
            "expect_failure[0].kind",
            "'wrong numbers' cannot result from the stage 'compile': expected does not compile, crashes",
        ),
    ],
)
def test_mistakes_in_a_suite(tmp_path: Path, old: str, new: str, field: str, says: str) -> None:
    assert old in SUITE
    path = write(tmp_path, SUITE.replace(old, new))
    with pytest.raises(SpecError) as caught:
        read_suite(path)
    (problem,) = caught.value.problems
    assert (problem.file, problem.field) == (str(path), field)
    assert any(text in str(problem) for text in says.split("|"))
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name = ", "is not TOML"),
        ('name = "a"\nname = "b"', "is not TOML"),
        (b'name = "\xff"', "is not UTF-8"),
        ("", "is missing"),
    ],
)
def test_files_that_are_no_suite(tmp_path: Path, content: str | bytes, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read_suite(write(tmp_path, content))


def test_a_suite_that_does_not_exist_names_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, SUITE)
    with pytest.raises(UsageError) as caught:
        read_suite(path.with_name("y.toml"))
    assert "y.toml does not exist" in caught.value.message
    assert "x.toml" in caught.value.hint


def test_includes_select_and_options_narrow_them(project: Path) -> None:
    everything = [case.id for case in chosen(project).cases.cases]
    assert everything == ["a/x@rocm-gfx942:quality", "a/x@rocm-gfx942:benchmark", "b/y@rocm-gfx942:quality"]
    assert [case.id for case in chosen(project, model="b").cases.cases] == everything[2:]
    assert [case.id for case in chosen(project, markers="benchmark").cases.cases] == everything[1:2]
    assert chosen(project).stages == (Stage.COMPILE,)


@pytest.mark.parametrize("options", [{"submodel": "z"}, {"model": "c"}, {"model": "b", "submodel": "x"}])
def test_options_never_widen_a_suite(project: Path, options: dict[str, str]) -> None:
    with pytest.raises(NothingSelectedError):
        chosen(project, **options)


def test_markers_of_the_command_line_are_read_by_themselves(project: Path) -> None:
    with pytest.raises(UsageError, match="unexpected"):
        chosen(project, markers="slow) or (quality")


def test_a_suites_target_yields_to_the_command_line(project: Path) -> None:
    assert chosen(project, sku="mi308").targets == (Target("rocm", "gfx942", "mi308"),)
    assert chosen(project, rocm_chip="gfx1100").targets == (Target("rocm", "gfx1100", "mi300"),)
    assert chosen(project, target=["gfx90a"]).targets == (Target("rocm", "gfx90a"),)


def test_expected_failures_of_a_suite_reach_the_cases_they_match(project: Path) -> None:
    for case in chosen(project).cases.cases:
        reasons = [(item.stage, item.reason) for item in case.expectations]
        assert reasons == ([(Stage.COMPILE, "a known bug: https://h/issue")] if case.model == "a" else [])


def _named(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Selection:
    """What is selected without a suite, in a project that has one."""
    monkeypatch.chdir(folder)
    (folder / "trees").rename(folder / "specs")
    write(folder, SUITE.replace('["trees"]', '["../specs"]'))
    return select(parse_request(SelectionRequest, {"target": ["gfx942"], **options}), Defaults())


def test_a_model_that_is_named_keeps_the_suites_expected_failures(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = _named(project, monkeypatch, model="a")
    assert [[item.reason for item in case.expectations] for case in selection.cases.cases] == [
        ["a known bug: https://h/issue"]
    ] * 2
    assert selection.notes == ("expected to fail, according to suites/x.toml: a/x compile",)


@pytest.mark.parametrize("options", [{"model": "b"}, {"model": "a", "target": ["gfx1100"]}])
def test_the_expected_failures_of_other_models_and_targets_do_not_apply(
    project: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    selection = _named(project, monkeypatch, **options)
    assert not any(case.expectations for case in selection.cases.cases)
    assert selection.notes == ()


def test_a_suite_that_cannot_be_read_is_named_and_stops_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "name = ", "suites/z.toml")
    selection = _named(project, monkeypatch, model="b")
    assert selection.cases.cases
    (note,) = selection.notes
    assert note.startswith("suites/z.toml cannot be used, so its expected failures do not apply")


def test_a_folder_named_like_a_suite_stops_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "suites" / "y.toml").mkdir()
    selection = _named(project, monkeypatch, model="b")
    assert selection.cases.cases
    assert any(note.startswith("suites/y.toml cannot be used") for note in selection.notes)


def test_a_model_of_several_formats_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    selection = select(parse_request(SelectionRequest, {"target": ["cpu"], "model": ["dtln"]}), Defaults())
    (note,) = selection.notes
    assert note.startswith("selected in several formats, each of which is run: dtln (specs/")
    assert "specs/torch_models/dtln/" in note
    assert "--suite or --spec-dir selects one" in note


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": ["tpu"]}, "unknown target 'tpu'"),
        ({"target": ["risc64"]}, "unknown target 'risc64'"),
        ({"target": ["rocm", "gfx90a"]}, "targets rocm and rocm-gfx90a overlap"),
        ({"external_file_directory": "/nowhere"}, "is not a folder"),
        ({"spec_dir": ["/nowhere"]}, "does not exist"),
        ({"suite": "/nowhere.toml"}, "does not exist"),
        ({"suite": "/"}, "suite / is a folder"),
    ],
)
def test_options_that_do_not_fit(project: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        chosen(project, **options)
    assert caught.value.hint


def test_an_expected_failure_that_fits_no_spec_is_a_problem(tmp_path: Path) -> None:
    write_tree(tmp_path, {"regression_tests/m/s_cpu.json": HIP_SPEC})
    origin = Origin("suites/s.toml", "expect_failure[0]")
    fits = Expectation(Stage.COMPILE, "broken", origin, cases="m/*")
    lost = Expectation(Stage.COMPILE, "broken", origin, cases="m/z")
    assert not load(tmp_path, expected_failures=[fits]).problems
    (problem,) = load(tmp_path, expected_failures=[fits, lost]).problems
    assert problem.field == "expect_failure[0].case"
    assert "did you mean 'm/s'" in problem.message


def test_an_include_that_fits_no_spec_is_named_with_those_that_fit(project: Path) -> None:
    write(project, SUITE.replace('["trees"]', '["../trees"]').replace('submodel = "y"', 'model = "bb"'))
    selection = chosen(project)
    assert selection.cases.cases, "the other include fits"
    with pytest.raises(SpecError) as caught:
        selection.require_no_problems()
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(project / "suites/x.toml"), 11)
    assert (problem.field, problem.message) == ("include[1]", "no match: no model 'bb'; did you mean 'b'?")
    write(project, SUITE.replace('["trees"]', '["../trees"]').replace('model = "a"', 'model = "b"\nsubmodel = "yy"'))
    (problem,) = chosen(project).cases.problems
    assert (problem.line, problem.field) == (8, "include[0]")
    assert problem.message == "no match: no submodel 'yy'; did you mean 'y'? 'b' has: x, y."


def test_a_suite_of_the_project_goes_before_a_folder_of_its_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for name in ("specs", "x"):
        (project / name).mkdir()
    assert find_suite("x") == Path("suites/x.toml")
    assert find_suite("specs") == Path("specs")


def test_folders_without_specs_are_what_is_wrong(project: Path) -> None:
    (project / "empty").mkdir()
    write(project, 'name = "x"\ntarget = "cpu"\nspec_dirs = ["../empty"]\n')
    (problem,) = chosen(project).cases.problems
    assert (problem.line, problem.field) == (3, "spec_dirs")
    assert problem.message == f"there is no spec in {project}/suites/../empty"


def test_an_include_alone_that_fits_no_spec(project: Path) -> None:
    write(project, 'name = "x"\ntarget = "cpu"\nspec_dirs = ["../trees"]\n[[include]]\nmodel = "aa*"\n')
    with pytest.raises(SpecError, match=r"x.toml:4: include\[0\]: no match: no model 'aa\*'"):
        chosen(project).require_no_problems()


def test_includes_are_not_held_against_other_folders(project: Path) -> None:
    write_tree(project / "other", {"regression_tests/a/x_rocm.json": HIP_SPEC})
    write(project, SUITE.replace('submodel = "y"', 'model = "b"'))
    cases = chosen(project, spec_dir=[str(project / "other")]).cases
    assert (len(cases.cases), cases.problems) == (1, ())


def test_an_expected_failure_that_fits_no_spec_has_its_line(project: Path) -> None:
    write(project, SUITE.replace('["trees"]', '["../trees"]').replace('case = "a/*"', 'case = "z/*"'))
    (problem,) = chosen(project).cases.problems
    assert (problem.line, problem.field) == (16, "expect_failure[0].case")


def test_a_folder_of_a_suite_that_does_not_exist(project: Path) -> None:
    write(project, SUITE.replace('["trees"]', '["../trees", "../treees"]'))
    with pytest.raises(SpecError) as caught:
        chosen(project)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == (str(project / "suites/x.toml"), 6, "spec_dirs[1]")
    assert "treees" in problem.message
    assert "--spec-dir" not in str(caught.value)
