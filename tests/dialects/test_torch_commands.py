"""Command lines of torch models, derived from the JSON as today's program derives them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.places import CORPUS
from tests.support.spec_trees import CPU, find_argv, find_step, plan, write_tree
from tests.support.torch_trees import BENCHMARK, COMPSTAT, MODULE, QUALITY, load_torch

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.engine.plan import Plan

MODELS = CORPUS / "torch_models"
EXTERNAL = CORPUS / "test_suite_files"
FILES = sorted(path.relative_to(MODELS).as_posix() for path in MODELS.rglob("*.json"))
MODULES = [name for name in FILES if "/modules/" in name]
TESTS = [name for name in FILES if name not in MODULES]
ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
CHECKS = {"quality": "threshold", "benchmark": "benchmark", "compstat": "compstat"}
STATISTICS = "--iree-scheduling-dump-statistics-"

on_the_corpus = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="the corpus is not next to the checkout")]


# What today's program executes. It reads nothing but the JSON.


def document(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((MODELS / name).read_text(encoding="utf-8"))
    return content


def target_of_file(name: str) -> str:
    """The files of the corpus say their target in their names."""
    return "rocm-gfx942" if "gfx942" in name or "mi325" in name else "cpu"


def folder_of(module: str) -> str:
    return f"/run/steps/{module}.{target_of_file(module)}/compile"


def local(url: str) -> str:
    return f"/cache/{url.removeprefix('https://')}"


def arguments(option: str, items: list[dict[str, str]]) -> list[str]:
    words = []
    for item in items:
        parts = [item[key] if key == "value" else f"@{local(item[key])}" for key in ("value", "url") if key in item]
        words.append(f"--{option}={'='.join(parts)}")
    return words


def compile_command(module: str) -> list[str]:
    definition = document(f"{module}.json")
    paths = {f"{STATISTICS}file": f"{folder_of(module)}/statistics.json", f"{STATISTICS}format": "json"}
    flags = [flag.partition("=")[0] for flag in definition["compiler_flags"]]
    written = [
        f"{flag}={paths[flag]}" if flag in paths else whole
        for flag, whole in zip(flags, definition["compiler_flags"], strict=True)
    ]
    added = [f"{flag}={path}" for flag, path in paths.items() if flag not in flags]
    return ["iree-compile", local(definition["mlir"]), *written, *added, "-o", f"{folder_of(module)}/module.vmfb"]


def run_command(test: dict[str, Any]) -> list[str]:
    tool = ["iree-run-module"] if test["type"] == "quality" else ["iree-benchmark-module", "--benchmark_format=json"]
    return [
        *tool,
        *(f"--module={folder_of(module)}/module.vmfb" for module in test["modules"]),
        *(f"--parameters={weight['scope']}={local(weight['url'])}" for weight in test.get("weights", [])),
        *arguments("input", test["inputs"]),
        *arguments("output", test.get("outputs", [])),
        *arguments("expected_output", test.get("expected_outputs", [])),
        *test.get("run_args", []),
    ]


@cache
def corpus_plan() -> Plan:
    cases = load_torch(MODELS, external=EXTERNAL)
    assert not cases.problems
    assert not cases.other_targets
    return plan(cases, ALL)


def step_id(name: str, stage: str) -> str:
    return f"{name.removesuffix('.json')}@{target_of_file(name)}:{stage}"


@pytest.mark.parametrize("name", MODULES)
class TestModuleOfTheCorpus:
    pytestmark = on_the_corpus

    def test_compile(self, name: str) -> None:
        step = find_step(corpus_plan(), step_id(name, "compile"))
        assert step.command is not None
        assert list(step.command.argv) == compile_command(name.removesuffix(".json"))
        assert step.command.cwd == str(EXTERNAL)
        assert step.needs == (step_id(name, "fetch"),)

    def test_its_program_is_all_that_is_fetched(self, name: str) -> None:
        fetch = find_step(corpus_plan(), step_id(name, "fetch"))
        assert [(item.role, item.url) for item in fetch.inputs] == [("program", document(name)["mlir"])]


@pytest.mark.parametrize("name", TESTS)
class TestTestOfTheCorpus:
    pytestmark = on_the_corpus

    def test_command(self, name: str) -> None:
        test = document(name)
        step = find_step(corpus_plan(), step_id(name, CHECKS[test["type"]]))
        if test["type"] == "compstat":
            assert step.command is None
            folder = folder_of(test["module"])
            names = ("module.vmfb", "statistics.json", "code.json")
            assert [item.path for item in step.inputs] == [f"{folder}/{name}" for name in names]
            assert step.needs == (step_id(test["module"], "compile"),)
        else:
            assert step.command is not None
            assert list(step.command.argv) == run_command(test)
            assert step.command.cwd == str(EXTERNAL)
            assert set(step.needs) >= {step_id(module, "compile") for module in test["modules"]}
        assert not step.blocked
        assert not step.skip
        assert not step.expect_failure

    def test_what_it_reads_is_fetched_before(self, name: str) -> None:
        test = document(name)
        items = [item for field in ("weights", "inputs", "expected_outputs") for item in test.get(field, [])]
        urls = {item["url"] for item in items if "url" in item}
        fetches = [step for step in corpus_plan().steps if step.id == step_id(name, "fetch")]
        assert {item.url for step in fetches for item in step.inputs} == urls
        if urls:
            assert step_id(name, "fetch") in find_step(corpus_plan(), step_id(name, CHECKS[test["type"]])).needs

    def test_goldens(self, name: str) -> None:
        test = document(name)
        expected: list[tuple[Figure, float, float, Statistic | None]] = []
        if "golden_time_ms" in test:
            expected.append((Figure.TIME, test["golden_time_ms"], test.get("tolerance_factor", 1.1), Statistic.MIN))
        for metric, field in ((Figure.DISPATCHES, "golden_dispatch_count"), (Figure.SIZE, "golden_binary_size")):
            if field in test:
                # An upper bound: what is equal to it passes, what is more does not.
                expected.append((metric, test[field], 1.0, None))
        goldens = find_step(corpus_plan(), step_id(name, CHECKS[test["type"]])).goldens
        assert [shown(golden) for golden in goldens] == expected
        assert all(golden.limit == golden.value * golden.factor for golden in goldens)
        assert not {golden.sku for golden in goldens} - {""}
        assert not {golden.release for golden in goldens} - {""}


def shown(golden: Golden) -> tuple[Figure, float, float, Statistic | None]:
    statistic = golden.statistic if golden.metric is Figure.TIME else None
    return golden.metric, golden.value, golden.factor, statistic


class TestCorpus:
    pytestmark = on_the_corpus

    def test_every_module_is_compiled_once_and_every_test_is_checked_once(self) -> None:
        ids = [step.id for step in corpus_plan().steps]
        assert len(set(ids)) == len(ids)
        compiled = {name for name in ids if name.endswith(":compile")}
        checked = {name for name in ids if not name.endswith((":compile", ":fetch"))}
        # Several tests load one module: 13 of them load 6.
        assert compiled == {step_id(name, "compile") for name in MODULES}
        assert checked == {step_id(name, CHECKS[document(name)["type"]]) for name in TESTS}

    @pytest.mark.parametrize("target", ["cpu", "rocm-gfx942"])
    def test_targets_part_it(self, target: str) -> None:
        family, _, chip = target.partition("-")
        cases = load_torch(MODELS, Target(family, chip), external=EXTERNAL)
        assert {f"{case.model}/{case.stem}.json" for case in cases.cases} == {
            name for name in TESTS if target_of_file(name) == target
        }

    def test_a_statistics_flag_of_a_definition_keeps_its_place(self) -> None:
        argv = find_argv(corpus_plan(), "sdxl/modules/clip_cpu@cpu:compile")
        assert argv[-4:-2] == [
            f"{STATISTICS}format=json",
            f"{STATISTICS}file=/run/steps/sdxl/modules/clip_cpu.cpu/compile/statistics.json",
        ]
        assert sum(word.startswith(STATISTICS) for word in argv) == 2


# A tree like it, with all that the corpus has none of.

NO_SCOPE = "scope.e3b0c44298fc1c14"  # the SHA-256 of an empty string begins so
A = "/run/steps/deep/er/a.cpu"
B = "/run/steps/defs/b.cpu"  # directly in the module folder: its model is that folder
DEFINITIONS: dict[str, Any] = {
    "defs/deep/er/a.json": MODULE | {"compiler_flags": ["--iree-hal-target-device=local", "--spec=tuner/a.mlir"]},
    "defs/b.json": {"mlir": "programs/b.mlir", "compiler_flags": [f"-{STATISTICS[2:]}file=x.json", "--last"]},
    "defs/lfs/c.json": {"type": "git-lfs", "mlir": "lfs/c.mlir", "compiler_flags": ["--iree-hal-target-device=cuda"]},
    "defs/lfs/d.json": {"type": "azure", "mlir": "https://h/d.mlir", "compiler_flags": []},
    "defs/lfs/c.mlir": "module {}",
    "files/programs/b.mlir": "module {}",
    "files/in/x.npy": b"x",
    "files/w.irpa": b"w",
}
FULL = QUALITY | {
    "modules": ["b", "deep/er/a.json"],
    "weights": [
        {"type": "url", "url": "https://h/w.irpa", "scope": "model"},
        {"type": "url", "url": "w.irpa", "scope": ""},
        {"type": "random", "module": "deep/er/a", "seed": 0, "scope": ""},
        {"type": "splat", "module": "b", "value": -0.5, "scope": "my-scope"},
        {"type": "random", "module": "lfs/d", "seed": 7, "scope": "model"},
    ],
    "inputs": [
        {"value": "2x2xf32=1,2,3,4"},
        {"url": "https://h/in.npy"},
        {"url": "https://h/in.bin", "value": "1x64xi64"},
        {"url": "in/x.npy"},
        {"value": "@in/y.npy"},
        {"value": "3"},
    ],
    "outputs": [{"value": "@out.npy"}, {"value": "+all.bin"}, {"value": "-"}],
    "expected_outputs": [{"value": "(ignored)"}, {"url": "https://h/o.bin", "value": "4xf16"}, {"value": "f32=1"}],
    "run_args": ["--device=local-task", "--function=main", "--device=local-sync", "--file=in/x.npy", "-x"],
}
SUITE: dict[str, Any] = DEFINITIONS | {
    "suite/deep/er/still/full.json": FULL,
    "suite/top.json": BENCHMARK | {"modules": ["lfs/c"], "weights": [], "run_args": []},
    "suite/deep/stat.json": COMPSTAT | {"module": "lfs/c"},
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path, SUITE)


def plan_of(tree: Path) -> Plan:
    cases = load_torch(tree / "suite", external=tree / "files", modules=tree / "defs")
    assert not cases.problems
    return plan(cases, ALL)


def test_everything_that_a_test_may_say(tree: Path) -> None:
    made = plan_of(tree)
    step = find_step(made, "deep/er/still/full@cpu:threshold")
    assert step.command is not None
    assert list(step.command.argv) == [
        "iree-run-module",
        f"--module={B}/compile/module.vmfb",
        f"--module={A}/compile/module.vmfb",
        "--parameters=model=/cache/h/w.irpa",
        f"--parameters={tree}/files/w.irpa",
        f"--parameters={A}/parameters.random-0.{NO_SCOPE}/{NO_SCOPE}.irpa",
        f"--parameters=my-scope={B}/parameters.splat--0.5.my-scope/my-scope.irpa",
        "--parameters=model=/run/steps/lfs/d.cpu/parameters.random-7.model/model.irpa",
        "--input=2x2xf32=1,2,3,4",
        "--input=@/cache/h/in.npy",
        "--input=1x64xi64=@/cache/h/in.bin",
        f"--input=@{tree}/files/in/x.npy",
        "--input=@in/y.npy",  # found from the working folder
        "--input=3",
        f"--output=@{step.folder}/out.npy",
        f"--output=+{step.folder}/all.bin",
        "--output=-",
        "--expected_output=(ignored)",
        "--expected_output=4xf16=@/cache/h/o.bin",
        "--expected_output=f32=1",
        "--device=local-task",
        "--function=main",
        "--device=local-sync",
        "--file=in/x.npy",
        "-x",
    ]
    assert step.command.cwd == str(tree / "files")
    # One lock for both devices, whichever is named first.
    assert step.resources.device == "local-task,local-sync"
    assert set(step.needs) == {
        "defs/b@cpu:compile",
        "deep/er/a@cpu:compile",
        f"deep/er/a@cpu:parameters.random-0.{NO_SCOPE}",
        "defs/b@cpu:parameters.splat--0.5.my-scope",
        "lfs/d@cpu:parameters.random-7.model",
        "deep/er/still/full@cpu:fetch",
    }


def test_compiles_of_the_tree(tree: Path) -> None:
    made = plan_of(tree)
    assert find_argv(made, "deep/er/a@cpu:compile") == [
        *("iree-compile", "/cache/h/model.mlir", "--iree-hal-target-device=local", "--spec=tuner/a.mlir"),
        *(f"{STATISTICS}file={A}/compile/statistics.json", f"{STATISTICS}format=json"),
        *("-o", f"{A}/compile/module.vmfb"),
    ]
    # A statistics flag with one dash is one too.
    assert find_argv(made, "defs/b@cpu:compile") == [
        *("iree-compile", f"{tree}/files/programs/b.mlir"),
        *(f"{STATISTICS}file={B}/compile/statistics.json", "--last", f"{STATISTICS}format=json"),
        *("-o", f"{B}/compile/module.vmfb"),
    ]
    # Git LFS keeps programs below the module folder.
    assert find_argv(made, "lfs/c@cuda:compile")[1] == f"{tree}/defs/lfs/c.mlir"
    for step in made.steps:
        if step.stage is Stage.COMPILE:
            assert step.command is not None
            assert step.command.cwd == str(tree / "files")
    # It is not loaded: only its program is needed, for the names of its parameters.
    assert not [step for step in made.steps if step.id == "lfs/d@cpu:compile"]


def test_archives_of_the_tree(tree: Path) -> None:
    made = plan_of(tree)
    archive = f"{A}/parameters.random-0.{NO_SCOPE}/{NO_SCOPE}.irpa"
    tool = ("python", "-m", "iree_gauntlet.artifacts.parameters")
    assert find_argv(made, f"deep/er/a@cpu:parameters.random-0.{NO_SCOPE}") == [
        *(*tool, "/cache/h/model.mlir", "--scope=", "--random=0", "--ir-tool=iree-opt", "-o", archive)
    ]
    archive = f"{B}/parameters.splat--0.5.my-scope/my-scope.irpa"
    assert find_argv(made, "defs/b@cpu:parameters.splat--0.5.my-scope") == [
        *(*tool, f"{tree}/files/programs/b.mlir", "--scope=my-scope", "--splat=-0.5"),
        *("--ir-tool=iree-opt", "-o", archive),
    ]


def test_a_test_directly_in_the_root_and_one_without_flags(tree: Path) -> None:
    made = plan_of(tree)
    step = find_step(made, "suite/top@cuda:benchmark")
    assert find_argv(made, step.id) == [
        *("iree-benchmark-module", "--benchmark_format=json", "--module=/run/steps/lfs/c.cuda/compile/module.vmfb"),
        "--input=1x64xi64",
    ]
    assert step.resources.device == ""
    assert step.resources.exclusive
    assert [shown(golden) for golden in step.goldens] == [(Figure.TIME, 12.5, 1.1, Statistic.MIN)]
    figures = [shown(golden) for golden in find_step(made, "deep/stat@cuda:compstat").goldens]
    assert figures == [(Figure.DISPATCHES, 7, 1.0, None), (Figure.SIZE, 9000, 1.0, None)]


def test_a_module_has_the_name_of_a_test(tmp_path: Path) -> None:
    # In a folder of their own, definitions may be called like the tests: the steps stay apart.
    files = {"defs/m/add.json": MODULE, "suite/m/add.json": QUALITY | {"modules": ["m/add"]}}
    write_tree(tmp_path, files | {"suite/m/other.json": BENCHMARK | {"modules": ["m/add"], "weights": []}})
    made = plan(load_torch(tmp_path / "suite", modules=tmp_path / "defs"), ALL)
    module = "--module=/run/steps/m/add.cpu/compile/module.vmfb"
    assert [step.id for step in made.steps] == [
        *("m/add@cpu:fetch", "m/add@cpu:compile", "m/add@cpu:threshold", "m/other@cpu:benchmark")
    ]
    assert find_argv(made, "m/add@cpu:threshold")[1] == module
    assert find_argv(made, "m/other@cpu:benchmark")[2] == module
    assert {item.url for item in made.steps[0].inputs} >= {"https://h/model.mlir", "https://h/w.irpa"}


def test_relative_files_lie_in_the_external_files_folder_or_next_to_the_test(tmp_path: Path) -> None:
    places = ("data/x.npy", "data/y.npy", "data/z.npy")
    inputs = [{"url": name} for name in places]
    files = {"files/data/x.npy": b"", "suite/m/data/x.npy": b"", "suite/m/data/y.npy": b""}
    write_tree(tmp_path, files | {"suite/m/q.json": QUALITY | {"inputs": inputs}, "suite/m/modules/a.json": MODULE})
    made = plan(load_torch(tmp_path / "suite", CPU, external=tmp_path / "files"), ALL)
    found = [word for word in find_argv(made, "m/q@cpu:threshold") if word.startswith("--input=")]
    assert found == [
        f"--input=@{tmp_path}/files/data/x.npy",
        f"--input=@{tmp_path}/suite/m/data/y.npy",
        f"--input=@{tmp_path}/files/data/z.npy",  # nowhere: where it is missed first
    ]


def test_without_an_external_files_folder_commands_run_in_their_own(tmp_path: Path) -> None:
    write_tree(tmp_path, {"torch_models/m/q.json": QUALITY, "torch_models/m/modules/a.json": MODULE})
    made = plan(load_torch(tmp_path, CPU), ALL)
    for step in made.steps:
        assert step.command is None or step.command.cwd == step.folder
    write_tree(tmp_path, {"test_suite_files/x": b""})
    for step in plan(load_torch(tmp_path, CPU), ALL).steps:
        assert step.command is None or step.command.cwd == str(tmp_path / "test_suite_files")
