"""The commands of every sharktank file of the corpus, derived from the JSON as today's programs derive them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.places import CORPUS
from tests.support.spec_trees import CPU, find_step, load, plan

if TYPE_CHECKING:
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.steps import Step

EXTERNAL = CORPUS / "test_suite_files"
TREES = ("sharktank_models", "sharktank_models_v1")
ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
SKUS = ("mi300", "mi308")
STATISTICS = "--iree-scheduling-dump-statistics-"

Json = dict[str, Any]


def backends_of(tree: str, path: Path) -> list[str]:
    if tree.endswith("_v1") and path.parts[0] == "regression_tests":
        rocm_only = json.loads((CORPUS / tree / path).read_text()).get("rocm_tests_only", False)
        return ["rocm"] if rocm_only else ["cpu", "rocm"]
    return [path.stem.rpartition("_")[2]]


FILES = [
    (tree, path, backend)
    for tree in TREES
    for path in sorted(file.relative_to(CORPUS / tree) for file in (CORPUS / tree).rglob("*.json"))
    for backend in backends_of(tree, path)
]
TESTS = [row for row in FILES if row[1].parts[0] != "benchmarks"]
BENCHMARKS = [row for row in FILES if row[1].parts[0] == "benchmarks"]

pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="the corpus is not next to the checkout")]


# What today's programs execute. It reads nothing but the JSON.


def document(tree: str, path: Path) -> Json:
    content: Json = json.loads((CORPUS / tree / path).read_text(encoding="utf-8"))
    return content


def submodel(path: Path) -> str:
    head, _, backend = path.stem.rpartition("_")
    return head if backend in ("cpu", "rocm") else path.stem


def folder(path: Path, backend: str, role: str = "compile") -> str:
    target = "cpu" if backend == "cpu" else "rocm-gfx942"
    return f"/run/steps/{path.parent.name}/{submodel(path)}.{target}/{role}"


def local(url: str) -> str:
    return f"/cache/{url.removeprefix('https://')}"


def compile_line(program: str, flags: list[str], where: str, *more: str) -> list[str]:
    paths = {f"{STATISTICS}file": f"{where}/statistics.json", f"{STATISTICS}format": "json"}
    names = [flag.partition("=")[0] for flag in flags]
    known = [f"{name}={paths[name]}" if name in paths else flag for name, flag in zip(names, flags, strict=True)]
    added = [f"{name}={value}" for name, value in paths.items() if name not in names]
    return ["iree-compile", program, *known, *added, *more, "-o", f"{where}/module.vmfb"]


def chip_flags(spec: Json, backend: str) -> list[str]:
    """Generation 1 names backend and chip, generation 2 the chip alone."""
    if "compiler_flags" in spec:
        return ["--iree-rocm-target=gfx942"] if backend == "rocm" else []
    if backend == "cpu":
        return ["--iree-hal-target-backends=llvm-cpu"]
    return ["--iree-hal-target-backends=rocm", "--iree-hip-target=gfx942"]


def main_compile(spec: Json, path: Path, backend: str, sku: str) -> list[str]:
    where = folder(path, backend)
    second = "compiler_flags" in spec
    flags = spec["compiler_flags"] if second else spec.get(f"{backend}_compiler_flags", [])
    tuner = spec.get("tuner_file", {}).get(sku) if backend == "rocm" else None
    library = []
    if tuner:
        library = [f"--iree-codegen-transform-dialect-library={EXTERNAL / Path(tuner).name}"]
    chip = chip_flags(spec, backend)
    flags = [*flags, *library, *chip] if second else [*flags, *chip, *library]
    splat = [] if not second or "real_weights" in spec else [f"--iree-parameter-splat={where}/splat.irpa"]
    return compile_line(local(spec["mlir"]), flags, where, *splat)


def pipeline_compile(spec: Json, path: Path, backend: str) -> list[str]:
    key = "pipeline_compiler_flags" if "compiler_flags" in spec else f"{backend}_pipeline_compiler_flags"
    flags = spec["cpu_compiler_flags"] if key == "cpu_pipeline_compiler_flags" else spec.get(key, [])
    where = folder(path, backend, "compile.pipeline")
    return compile_line(local(spec["pipeline_mlir"]), [*flags, *chip_flags(spec, backend)], where)


def blobs(option: str, items: list[Json]) -> list[str]:
    heads = [f"{item['value']}=" if "value" in item else "" for item in items]
    return [f"--{option}={head}@{local(item['source'])}" for head, item in zip(heads, items, strict=True)]


def run_line(spec: Json, path: Path, backend: str) -> list[str]:
    second = "compiler_flags" in spec
    function = spec.get("run_function" if second else f"run_{backend}_function")
    weights = local(spec["real_weights"]) if "real_weights" in spec else f"{folder(path, backend)}/splat.irpa"
    has_weights = second or "real_weights" in spec
    return [
        "iree-run-module",
        f"--device={spec['device'] if second else {'cpu': 'local-task', 'rocm': 'hip'}[backend]}",
        f"--module={folder(path, backend)}/module.vmfb",
        *([f"--function={function}"] if function else []),
        *spec.get("threshold_args" if second else f"{backend}_threshold_args", []),
        *blobs("input", spec.get("inputs", [])),
        *blobs("expected_output", spec.get("outputs", [])),
        *([f"--parameters=model={weights}"] if has_weights else []),
        *([f"--module={folder(path, backend, 'compile.pipeline')}/module.vmfb"] * spec.get("add_pipeline_module", 0)),
    ]


def regression_of(tree: str, name: str, backend: str) -> tuple[Path, Json] | None:
    """The regression file that defines the module `<model>_<submodel>`."""
    found = [path for where, path, other in TESTS if (where, other) == (tree, backend)]
    fitting = [path for path in found if f"{path.parent.name}_{submodel(path)}" == name]
    return (fitting[0], document(tree, fitting[0])) if fitting else None


def weights_of(tree: str, name: str, backend: str) -> str:
    found = regression_of(tree, name, backend)
    assert found is not None
    path, spec = found
    return local(spec["real_weights"]) if "real_weights" in spec else f"{folder(path, backend)}/splat.irpa"


def benchmark_line(tree: str, path: Path, backend: str) -> list[str]:
    spec = document(tree, path)
    loaded = []
    for name in spec.get("modules", []):
        other = Path("benchmarks", path.parent.name, f"{name.removeprefix(path.parent.name + '_')}_{backend}.json")
        loaded.append(f"--module={folder(other, backend)}/module.vmfb")
        loaded.append(f"--parameters=model={weights_of(tree, name, backend)}")
    if not spec.get("modules"):
        loaded.append(f"--parameters=model={weights_of(tree, f'{path.parent.name}_{submodel(path)}', backend)}")
    flags = [
        f"--{name}={spec[name]}" for name in ("benchmark_repetitions", "benchmark_min_warmup_time") if name in spec
    ]
    return [
        *("iree-benchmark-module", f"--device={spec['device']}", f"--function={spec['function_run']}", *loaded),
        "--benchmark_format=json",
        *(f"--input={text}" for text in spec["inputs"]),
        *flags,
        *spec.get("benchmark_flags", []),
        f"--module={folder(path, backend)}/module.vmfb",
    ]


@cache
def plan_of(tree: str, sku: str) -> Plan:
    cases = load(CORPUS / tree, CPU, Target("rocm", "gfx942", sku), external=EXTERNAL)
    assert not cases.problems
    return plan(cases, ALL)


def step(tree: str, sku: str, path: Path, backend: str, stage: str) -> Step:
    target = "cpu" if backend == "cpu" else "rocm-gfx942"
    return find_step(plan_of(tree, sku), f"{path.parent.name}/{submodel(path)}@{target}:{stage}")


def argv(found: Step) -> list[str]:
    assert found.command is not None
    if found.stage is Stage.COMPILE:
        assert found.command.cwd == str(EXTERNAL)
    return list(found.command.argv)


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize(("tree", "path", "backend"), TESTS, ids=str)
def test_regression(tree: str, path: Path, backend: str, sku: str) -> None:
    spec = document(tree, path)
    assert argv(step(tree, sku, path, backend, "compile")) == main_compile(spec, path, backend, sku)
    if "pipeline_mlir" in spec:
        assert argv(step(tree, sku, path, backend, "compile.pipeline")) == pipeline_compile(spec, path, backend)
    chain = step(tree, sku, path, backend, "compile").chain
    runs = [made for made in plan_of(tree, sku).steps if (made.chain, made.stage) == (chain, Stage.THRESHOLD)]
    if spec.get("compile_only"):
        assert not runs
    else:
        assert argv(runs[0]) == run_line(spec, path, backend)


@pytest.mark.parametrize(("tree", "path", "backend"), BENCHMARKS, ids=str)
def test_benchmark(tree: str, path: Path, backend: str) -> None:
    spec = document(tree, path)
    made = step(tree, "mi300", path, backend, "benchmark")
    missing = [name for name in spec.get("modules", []) if regression_of(tree, name, backend) is None]
    if missing:
        assert all(name in made.blocked for name in missing)
    else:
        assert argv(made) == benchmark_line(tree, path, backend)
    if spec.get("compilation_required"):
        program = EXTERNAL / Path(spec.get("mlir_file_name") or spec["mlir_file_path"]).name
        flags = [*spec["compile_flags"], *chip_flags({"compiler_flags": []}, backend)]
        expected = compile_line(str(program), flags, folder(path, backend))
        assert argv(step(tree, "mi300", path, backend, "compile")) == expected


@pytest.mark.parametrize("sku", SKUS)
@pytest.mark.parametrize(("tree", "path", "backend"), BENCHMARKS, ids=str)
def test_goldens(tree: str, path: Path, backend: str, sku: str) -> None:
    spec = document(tree, path)
    target = "" if backend == "cpu" else sku
    time = {golden.sku: (golden.value, golden.factor) for golden in step(tree, sku, path, backend, "benchmark").goldens}
    factor = spec.get("golden_time_tolerance_multiplier", {}).get(target, 1.0)
    expected = {target: (spec["golden_time_ms"][target], factor)} if target in spec.get("golden_time_ms", {}) else {}
    assert time == expected
    compstat = step(tree, sku, path, backend, "compstat")
    counts = {golden.metric.value: golden.limit for golden in compstat.goldens}
    fields = {"dispatch_count": "golden_dispatch", "binary_size_bytes": "golden_size"}
    keys = {name: spec.get(field, {}) for name, field in fields.items()}
    # A count for the backend, such as `cpu`, holds on each of its machines.
    bounds = {name: of[key] for name, of in keys.items() for key in (target, backend) if key and key in of}
    assert counts == bounds
