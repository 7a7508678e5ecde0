"""Mistakes and environments with which the command line must end in a message, never in a traceback."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.tasks.program import namespace
from tests.support.command_line import parse_options, run_in_process
from tests.support.places import ROOT

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "--nonsense"], 2, "nonsense"),
        (["--nonsense"], 2, "nonsense"),
        (["nosuchtask"], 2, "nosuchtask"),
        (["run", "--target", "tpu"], 2, "Known: cpu"),
        (["run", "--suite", "nope"], 2, "does not exist"),
        (["run", "--spec-dir", "nope"], 2, "does not exist"),
        (["run", "--markers", "cpu and ("], 2, "marker"),
        (["list", "--markers", "a and"], 2, "expected a marker"),
        (["run", "--stages", "compyle"], 2, "--stages compyle: unknown\n  Known: fetch, import, "),
        (
            ["run", "--stages", "compile,threshold"],
            2,
            "Give each one separately: --stages compile --stages threshold\n",
        ),
        (["run", "--stages", "compile,cook"], 2, "--stages compile,cook: unknown\n  Known: fetch, import, "),
        (["run", "--target", "cpu, rocm"], 2, "Give each one separately: --target cpu --target rocm\n"),
        (["run", "--model", "toy,toy"], 5, "Give each one separately: --model toy --model toy."),
        (["run", "--external-file-directory", "nope"], 2, "nope"),
        (["run", "--resume", "--last-failed"], 2, "exclude"),
        (["run", "--model"], 2, "error: --model needs a value\n"),
        (["run", "--jobs"], 2, "error: --jobs needs a value\n"),
        (["micro", "--run-dir"], 2, "error: --run-dir needs a value\n"),
        (["run", "--target"], 2, "error: --target needs a value\n"),
        (["run", "--markers", "a", "--markers", "b"], 2, "error: --markers can be given once\n"),
        (["history.add", "--new-sku=mi300"], 2, "error: --new-sku takes no value\n"),
        (["run", "--resume=yes"], 2, "error: --resume takes no value\n"),
        (["report"], 2, "error: expected report RUN… [--merge DIR] | report --index\n"),
        (["run", "--modle", "x"], 2, "error: run has no option --modle; did you mean --model?"),
        (["run", "--modle=x"], 2, "error: run has no option --modle; did you mean --model?"),
        (["golden.show", "--lst", "3"], 2, "error: golden.show has no option --lst; did you mean --last?"),
        (["cache.gc", "--max-siz", "3"], 2, "did you mean --max-size?"),
        (["micro", "--confg", "x"], 2, "did you mean --config?"),
        (["bench", "--modl", "x"], 2, "error: bench has no option --modl; did you mean --model?"),
        (["runn"], 2, "No idea what 'runn' is! Did you mean run?"),
        (["compare", "--iree", "A", "--iree", "B"], 2, "error: compare has no --iree: name them as compare A B"),
        (["qualify", "--iree", "A"], 2, "error: qualify has no --iree: name them as qualify OLD NEW"),
        (["run", "--dry-run"], 2, "error: run has no --dry-run: `gauntlet plan` prints the steps of a run"),
        (["cache.gc", "--dry-run"], 2, "error: cache.gc has no --dry-run: without --delete it changes nothing"),
        (["bisect", "--iree", "A"], 2, "error: bisect has no --iree: name them as --good A --bad B"),
        (["run", "--model", "tpy"], 5, "did you mean 'toy'"),
        (["run", "--submodel", "asb", "--model", "toy"], 5, "abs"),
        (["run", "--filename", "zzz"], 5, "zzz"),
        (["list", "--format", "xml"], 2, "json"),
        (["plan", "--format", "xml"], 2, "--format xml: unknown\n  Known: text, json."),
        (["report", "nope"], 2, "nope"),
        (["golden.record"], 2, "--model"),
        (["golden.record", "--model", "toy"], 2, "its program is MLIR, and its expected outputs are given"),
        (["run", "--jobs", "-3"], 2, "--jobs"),
        (["--help", "foo"], 2, "No idea what 'foo' is"),
        (["run", "--jobs", "many"], 2, "--jobs many: many is not a number"),
        (["run", "--jobs=many"], 2, "--jobs=many: many is not a number"),
        (["run", "-jmany"], 2, "-jmany: many is not a number"),
        (["run", "--iree", ""], 2, "--iree is empty: expected a value\n  Leave it out for the default."),
        (["cache.gc", "--board", "", "--max-size", "0MB", "--delete"], 2, "--board is empty: expected a value"),
        (["cache.list", "--board="], 2, "--board is empty"),
        (["run", "--cache-dir", "", "--suite", "cpu"], 2, "--cache-dir is empty"),
        (["run", "-j", "1.5"], 2, "-j 1.5: 1.5 is not a number"),
        (["run", "--timeout-compile", "soon"], 2, "--timeout-compile soon: soon is not a number"),
        (["run", "--timeout-compile", "-1"], 2, "expected seconds above 0\n  Leave it out for the default."),
        (["run", "--rerun-failed", "99999999999"], 2, "--rerun-failed 99999999999: expected at most 100"),
        (["run", "-j", "0"], 2, "--jobs 0: expected a number above 0\n  Leave it out for the default."),
        (["run", "--timeout-compile", "0"], 2, "--timeout-compile 0: expected seconds above 0"),
        (["run", "--dry"], 2, "run has no option --dry"),
        (["--echo", "run"], 2, "--echo"),
        (["run", "--confirm-seconds", "-1"], 2, "expected seconds above 0\n  Leave it out for 300."),
        (["run", "--resume", "--run-dir", "gone"], 2, "no run in "),
        (["run", "--timeout-compile", "nan"], 2, "--timeout-compile nan"),
        (["run", "--timeout-benchmark", "inf"], 2, "--timeout-benchmark inf"),
        (["run", "--timeout-stall", "-1"], 2, "--timeout-stall -1"),
        (["run", "--verdict", "lenient"], 2, "--verdict lenient"),
        (["run", "--confirm-seconds", "0"], 2, "--confirm-seconds 0"),
        (["run", "--disturbed", "ignore"], 2, "--disturbed ignore"),
        (["run", "--run-dir", "specs/regression_tests/toy/abs.mlir"], 2, "is a file"),
        (["run", "--run-dir", "/proc/run"], 2, "cannot be made"),
        (["run", "--run-dir", "specs/mine"], 2, "belongs to the project itself"),
        (["run", "toy"], 2, "Did you mean --model toy?"),
        (["init", "specs/regression_tests/toy/abs.mlir/mine"], 2, "abs.mlir is a file"),
        (["init", "-q", "mine"], 2, "Put the arguments of init before its options"),
        (["run", "--run-dir", "job@2"], 2, "without them with --run-dir"),
        (["run", "--run-dir", "feature%2Fx"], 2, "without them with --run-dir"),
    ],
)
def test_mistakes_get_a_message_and_their_exit_code_and_leave_nothing(
    project: Project, words: list[str], code: int, said: str
) -> None:
    done = project.gauntlet(*words)
    assert done.code == code, done.text
    assert said in done.err
    assert not (project.folder / "runs").exists()


@pytest.mark.parametrize("place", ["/proc/gauntlet", "/dev/null/x", "file", "file/x"])
@pytest.mark.parametrize("words", [["run"], ["fetch"], ["toolchain.install", "9.9.9"]])
def test_a_cache_that_cannot_be_made_is_named(project: Project, words: list[str], place: str) -> None:
    (project.folder / "file").write_text("")
    done = project.gauntlet(*words, "--cache-dir", place)
    assert (done.code, done.err.splitlines()[0].partition(" cannot")[0]) == (2, f"error: --cache-dir {place}:")
    assert not (project.folder / "runs").exists()


def test_a_cache_of_the_environment_that_cannot_be_made_is_named(project: Project) -> None:
    environ = {**project.environment(), "IREE_GAUNTLET_CACHE": "/dev/null/x"}
    done = run_in_process(["run"], project.folder, environ)
    assert done.code == 2
    assert done.err.startswith("error: $IREE_GAUNTLET_CACHE: cannot make the folder /dev/null/x: Not a directory\n")


def test_invoke_and_the_console_command_are_one(project: Project) -> None:
    shutil.copy(ROOT / "tasks.py", project.folder)
    words = ["list", "--format", "json"]
    done = project.shell(f"'{sys.executable}' -m invoke {' '.join(words)}")
    assert done.code == 0, done.text
    assert json.loads(done.out) == json.loads(project.gauntlet(*words).out)
    assert project.shell(f"'{sys.executable}' -m invoke run --model tpy").code == 5


def test_a_reader_that_goes_away_stops_no_run_and_hides_no_verdict(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    done = project.shell("gauntlet run --stages threshold | head -n 1")
    assert done.code == 1
    assert "Broken pipe" in done.err
    assert project.journal.end is not None
    assert (project.newest / "junit.xml").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_standard_output_stops_no_run(project: Project) -> None:
    done = project.shell("gauntlet run --stages compile > /dev/full")
    assert done.code == 0
    assert "No space left on device" in done.err
    assert "summary.md" in [path.name for path in project.newest.iterdir()]


def test_a_reader_of_a_list_may_go_away(project: Project) -> None:
    done = project.shell("gauntlet plan --format json | head -n 1")
    assert (done.code, done.out) == (0, "{\n")


def test_a_working_folder_that_was_removed(project: Project) -> None:
    gone = project.folder / "gone"
    gone.mkdir()
    done = project.shell("rmdir ../gone; gauntlet run", gone)
    assert done.code == 2
    assert "the working folder was removed" in done.err


def test_an_ascii_terminal(project: Project) -> None:
    project.write_expected("abs", [9.0] * 4)
    ascii_only = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii"
    done = project.shell(f"{ascii_only} gauntlet run --stages threshold")
    assert done.code == 1
    assert "went wrong" in done.out


def test_what_a_command_imports_is_compiled_once(project: Project, tmp_path: Path) -> None:
    # Invoke turns bytecode off for whatever a task imports.
    kept = f"unset PYTHONDONTWRITEBYTECODE; PYTHONPYCACHEPREFIX='{tmp_path / 'pyc'}'"
    assert project.shell(f"{kept} gauntlet list").code == 0
    assert list((tmp_path / "pyc").rglob("sharktank_schema.*.pyc"))


@pytest.mark.parametrize(
    "words", [["a", "b c"], ["it's", "x"], ["one"], ['"', "a  b"], ["a b", "c:a b"], ["c:a b", "it's\nso"]]
)
@pytest.mark.parametrize(
    "name",
    [name for name in namespace.task_names if (taking := namespace[name].words_option) and taking.takes != "number"],
)
def test_words_behind_a_task_stay_as_they_were_typed(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where one of them, or all of them together, are the name of a folder.
    monkeypatch.chdir(tmp_path)
    for folder in ("a b", "installed build:a b", "c:a b", " ".join(words)):
        (tmp_path / folder).mkdir(exist_ok=True)
    taking = namespace[name].words_option
    read = parse_options([name, *words[: None if taking.repeats else 1]])
    assert read[taking.name] == (words if taking.repeats else words[0])


def test_an_iree_whose_folder_exists_is_one_of_the_two_that_are_compared(project: Project) -> None:
    (project.folder / "iree-build").mkdir()
    done = project.gauntlet("compare", "installed", "build:iree-build", "--model", "toy")
    assert done.code == 3, done.text
    assert f"no iree-compile in the build folder {project.folder / 'iree-build'}:" in done.err


def test_names_are_selected_one_by_one(project: Project) -> None:
    for name, operation in (("neg", "arith.negf %a : tensor<4xf32>"), ("cos", "math.cos %a : tensor<4xf32>")):
        project.add(name, operation)

    def listed(*words: str) -> list[str]:
        done = project.gauntlet("list", "--format", "json", *words)
        return [item["submodel"] for item in json.loads(done.out)] if done.code == 0 else [done.err]

    assert listed("--submodel", "abs", "--submodel", "n*") == ["abs", "neg"]
    assert listed("--filename", "cos_cpu", "--filename=neg_cpu", "--model", "toy") == ["cos", "neg"]
    assert listed("--model", "toy", "--model", "to*", "--submodel", "abs") == ["abs"]
    # A variable that a script has not set.
    assert listed("--model", "", "--submodel", "abs") == ["abs"]
    (said,) = listed("--submodel", "abs", "--submodel", "neq", "--submodel", "cos")
    assert said.startswith("error: nothing selected: no case matches --submodel neq\n  No submodel 'neq'; did you mean")
    assert project.gauntlet("list", "--model", "toy", "--model", "tpy").code == 5


def test_a_run_of_several_names_is_resumed(project: Project) -> None:
    project.add("neg")
    words = ("run", "--resume", "--submodel", "abs", "--submodel", "neg")
    assert project.gauntlet("compile", "--submodel", "abs", "--submodel", "neg").code == 0
    assert {step.partition(":")[0] for step in project.journal.results} == {"toy/abs@cpu", "toy/neg@cpu"}
    assert project.gauntlet(*words).code == 0
    other = project.gauntlet("run", "--resume", "--submodel", "abs")
    assert (other.code, "was started with abs neg" in other.err) == (2, True), other.text
