"""Steps of models that torch builds, planned like all other steps: environment, device, needs, machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.cases import Origin
from iree_gauntlet.journal_events import Device
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Resources
from iree_gauntlet.targets import Target
from iree_gauntlet.torch_models import torch_chain
from iree_gauntlet.torch_models.build_files import BuildPlan
from iree_gauntlet.torch_models.torch_chain import TorchChain, TorchPython, list_runnable_files
from tests.support.spec_trees import make_context

if TYPE_CHECKING:
    import pytest

    from iree_gauntlet.steps import Step

_GPU = Device("hip://GPU-1", "MI300", "hip", software=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain(TorchChain):
    dialect: ClassVar[str] = "bench"
    builder: ClassVar[str] = "building"

    @property
    def names(self) -> tuple[str, str]:
        return "line", "small"

    @property
    def origin(self) -> Origin:
        return Origin("line.py", "line")


def chain(device: str = "local-task", **changes: Any) -> _Chain:
    planning = make_context(
        lookup=lambda _name, key_inputs: CacheLookup(key=repr(sorted(key_inputs.items()))), **changes
    )
    iree: Any = SimpleNamespace(compiler=SimpleNamespace(import_onnx=("python", "-m", "importer")))
    torch = TorchPython("python-with-torch", "3.11.2", {"torch": "2.13.0"}, ())
    flags = ("--iree-opt-level=O2",)
    return _Chain(target=Target("cpu"), device=device, flags=flags, context=planning, toolchain=iree, torch=torch)


def plan_made(made: _Chain) -> tuple[Step, Step, Step]:
    """Export, import and compile."""
    plan = BuildPlan(models_dirs=("models",), model="line")
    export = made.plan_export("main", plan, {"kind": "export", "program": "ab"}, [Path("line.py")])
    imported = made.plan_import("main", Path("line.onnx"), "cd", "main")
    return export, imported, made.plan_compile("main", "line_small", made.flags, Path("line.onnx"), "cd", imported)


def test_the_environment_is_that_of_commands_and_part_of_what_is_made_in_it() -> None:
    plain, changed = plan_made(chain()), plan_made(chain(env=(("A", "1"), ("B", "2"))))
    quietly, own = (("OMP_WAIT_POLICY", "passive"),), (("A", "1"), ("B", "2"))
    assert [step.required_command.env for step in plain] == [quietly, (), ()]
    assert [step.required_command.env for step in changed] == [(*quietly, *own), own, own]
    export, imported, compiled = (dict(step.cache.ingredients) for step in changed)
    assert (export["environment"], compiled["environment"]) == ("A=1 B=2", "A=1 B=2")
    assert imported == {"kind": "import with parameters", "program": "cd", "importer": "importer"}
    assert all("environment" not in dict(step.cache.ingredients) for step in plain)
    assert all(before.cache.key != after.cache.key for before, after in zip(plain[::2], changed[::2], strict=True))


def test_steps_need_each_other_and_say_where_their_files_lie() -> None:
    export, imported, compiled = plan_made(chain())
    assert (export.needs, imported.needs, compiled.needs) == ((), (export.id,), (imported.id,))
    folder = "/run/steps/line/small.cpu"
    folders = [f"{folder}/{stage}" for stage in ("export", "import", "compile")]
    assert [step.folder for step in (export, imported, compiled)] == folders
    paths = [item.path for item in list_runnable_files(compiled, imported)]
    assert paths == [f"{folder}/compile/module.vmfb", f"{folder}/import/model.irpa"]
    assert [step.timeout for step in (export, imported)] == [3600.0, 600.0]
    assert all(step.resources == Resources() for step in (export, imported, compiled))


def test_what_runs_is_on_its_device_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_chain, "find_device", lambda _iree, _device: _GPU)
    here, there = chain(), chain("hip://0")
    check = here.plan_run(Stage.THRESHOLD, (), ("line/small@cpu:compile",))
    assert (check.needs, check.resources) == (("line/small@cpu:compile",), Resources(1, device="local-task"))
    assert check.cache == CacheLookup(reason="runs every time")
    alone = there.plan_run(Stage.BENCHMARK, ())
    assert alone.resources == Resources(1, exclusive=True, device=_GPU.uri, software=True)
    # Each block of rounds takes the machine by itself.
    assert there.plan_rounds(()).resources == replace(alone.resources, cores=0, exclusive=False)
