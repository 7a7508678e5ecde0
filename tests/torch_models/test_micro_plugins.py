"""Loading plugin files and the modules of entry points."""

from __future__ import annotations

import importlib.metadata
import sys
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.plugins import (
    BUILTIN_FILES,
    ENTRY_POINTS,
    PluginError,
    find_entry_point_files,
    load_registry,
)

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.torch_models.plugins import PluginRegistry

HEAD = "from iree_gauntlet.micro.registry import activation, architecture, compiler_recipe, recipe, shape_set\n"
RECIPE = '@recipe("{name}", kind="quantization")\ndef {name}(model):\n    return {value}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, *parts: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + "".join(parts), encoding="utf-8")
    return path


def recipe(name: str, value: str = "model") -> str:
    return RECIPE.format(name=name, value=value)


def load(*files: Path) -> PluginRegistry:
    return load_registry(files)


def recipes_of_files(registry: PluginRegistry) -> list[str]:
    return [name for name, item in registry.recipes.items() if item.file not in BUILTIN_FILES]


def refused(*files: Path) -> list[str]:
    with pytest.raises(PluginError) as caught:
        load(*files)
    return [str(problem) for problem in caught.value.problems]


def test_what_the_toolkit_brings() -> None:
    registry = load_registry()
    assert {"pow2", "pow2_extended", "llama", "small_sweep", "sweep"} <= set(registry.shape_sets)
    assert {"baseline", "int8wo", "int8dq"} <= set(registry.recipes)
    assert {"linear", "ln_linear_relu", "ln_linear_gelu", "transformer_block"} <= set(registry.list_model_types())
    assert registry.files == ()
    for item in (*registry.recipes.values(), *registry.architectures.values(), *registry.shape_sets.values()):
        assert item.about
        assert item.file in BUILTIN_FILES


def test_files_of_a_user_stand_beside_the_toolkits_own(folder: Path) -> None:
    one = write(folder, "one.py", recipe("first"), '\n@shape_set("mine")\ndef mine():\n    return [(1, 2, 3)]\n')
    two = write(folder, "sub/two-recipes.py", recipe("second"), 'compiler_recipe("O9", flags=("--x",), about="")\n')
    registry = load(one, two, folder / "sub" / ".." / "one.py")
    assert recipes_of_files(registry) == ["O9", "first", "second"]
    assert "mine" in registry.shape_sets
    assert "pow2" in registry.shape_sets
    assert registry.files == (one, two)
    assert registry.recipes["first"].location == "one.py:2"
    assert registry.recipes["O9"].location == "sub/two-recipes.py:5"


def test_a_file_is_read_anew(folder: Path) -> None:
    path = write(folder, "one.py", recipe("first", "1"))
    for value in (1, 2):
        path.write_text(HEAD + recipe("first", str(value)), encoding="utf-8")
        function = load(path).recipes["first"].function
        assert function is not None
        assert function(None) == value
    assert not list(folder.rglob("*.pyc"))


def test_files_of_one_name_do_not_meet(folder: Path) -> None:
    one = write(folder, "a/recipes.py", "VALUE = 1\n", recipe("first", "VALUE"))
    two = write(folder, "b/recipes.py", "VALUE = 2\n", recipe("second", "VALUE"))
    registry = load(one, two)
    functions = [registry.recipes[name].function for name in ("first", "second")]
    assert [function(None) for function in functions if function] == [1, 2]
    assert "recipes" not in sys.modules


def test_dataclasses_of_a_plugin_find_their_module(folder: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        f"{HEAD}\n@dataclass\nclass Scale:\n    shared: ClassVar[int] = 2\n    by: int = 3\n\n"
    )
    path = folder / "one.py"
    path.write_text(text + recipe("first", "Scale()"), encoding="utf-8")
    assert "first" in load(path).recipes


def test_two_of_one_name_name_both_places(folder: Path) -> None:
    one = write(folder, "one.py", recipe("first"), recipe("first"))
    two = write(folder, "two.py", '@shape_set("pow2")\ndef pow2():\n    return [(1, 2, 3)]\n')
    messages = refused(one, two)
    assert len(messages) == 2
    assert "one.py:5: first: a recipe of this name is already declared at one.py:2\n    rename one" in messages[0]
    assert "two.py:2: pow2: a shape set of this name is already declared at " in messages[1]
    assert "builtin_plugins.py:" in messages[1]


def test_names_of_different_things_may_be_the_same(folder: Path) -> None:
    text = '@activation("linear")\ndef activate():\n    return None\n'
    assert "linear" in load(write(folder, "one.py", text, recipe("linear"))).recipes


def test_every_file_with_its_problems(folder: Path) -> None:
    files = [
        write(folder, "a.py", "x = 1\n", "1 / 0\n"),
        write(folder, "b.py", "def broken(:\n"),
        write(folder, "c.py", "import torch_that_is_missing\n"),
        write(folder, "d.py", "from . import other\n"),
        write(folder, "e.py"),
        write(folder, "f.py", "raise SystemExit(3)\n"),
        write(folder, "g.py", '@recipe("g", kind="quantization")\n', "def g():\n    return 1\n"),
        write(folder, "h.py", recipe("h")),
        write(folder, "i.py", '@recipe("i", kind="quantization")\ndef i(model, share: float):\n    return model\n'),
    ]
    messages = refused(*files)
    starts = [
        "a.py:3: ZeroDivisionError: division by zero",
        "b.py:2: SyntaxError: ",
        "c.py:2: ModuleNotFoundError: No module named 'torch_that_is_missing'",
        "d.py:2: ImportError: attempted relative import with no known parent package\n    a plugin is one file",
        "e.py: it declares nothing\n    a plugin declares it with @recipe",
        "f.py:2: SystemExit: 3",
        "g.py:2: g: it has no model parameter",
        "i.py:2: i: share is annotated with float: expected int",
    ]
    assert len(messages) == len(starts)
    for message, start in zip(messages, starts, strict=True):
        assert message.startswith(start)


def test_a_plugin_that_imports_torch_at_its_top_says_how_to_be_listed_without_it(folder: Path) -> None:
    if importlib.util.find_spec("torch"):
        pytest.skip("torch is here")
    (message,) = refused(write(folder, "a.py", "import torch\n", recipe("first")))
    assert "No module named 'torch'" in message
    assert "to list models without that package, import it inside the functions" in message


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no plugin file missing\.py\n  Name an existing Python file with --plugin"):
        load(folder / "missing.py")
    (folder / "folder.py").mkdir()
    with pytest.raises(UsageError, match="no plugin file"):
        load(folder / "folder.py")


def entry_points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = tuple(EntryPoint(name, value, ENTRY_POINTS) for name, value in values.items())
    asked: list[str] = []

    def stand_in(*, group: str) -> tuple[EntryPoint, ...]:
        asked.append(group)
        return found if group == ENTRY_POINTS else ()

    monkeypatch.setattr(importlib.metadata, "entry_points", stand_in)


def test_entry_points_name_modules_that_are_not_imported_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    one = write(folder, "gauntlet_plugin_one.py", recipe("first"))
    two = write(folder, "gauntlet_package_two/recipes.py", recipe("second"))
    write(folder, "gauntlet_package_two/__init__.py")
    entry_points(
        monkeypatch, b="gauntlet_package_two.recipes", a="gauntlet_plugin_one:anything", c="gauntlet_plugin_one"
    )
    assert find_entry_point_files() == (one, two)
    assert "gauntlet_plugin_one" not in sys.modules
    assert "gauntlet_package_two.recipes" not in sys.modules
    assert recipes_of_files(load(*find_entry_point_files())) == ["first", "second"]
    sys.modules.pop("gauntlet_package_two")


def test_entry_points_that_name_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "gauntlet_namespace").mkdir()
    write(folder, "gauntlet_broken/__init__.py", "1 / 0\n")
    entry_points(
        monkeypatch,
        a="gauntlet_missing",
        b="gauntlet_missing.recipes",
        c="gauntlet_namespace",
        d="gauntlet_broken.recipes",
        e="sys",
    )
    with pytest.raises(PluginError) as caught:
        find_entry_point_files()
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == 5
    assert "entry point: iree_gauntlet.micro: a = gauntlet_missing: no such module" in messages[0]
    assert "ModuleNotFoundError: No module named 'gauntlet_missing'" in messages[1]
    assert "it has no file" in messages[2]
    assert "ZeroDivisionError: division by zero" in messages[3]
    assert "it has no file" in messages[4]


def test_this_installation_has_none_that_fail() -> None:
    assert all(path.is_file() for path in find_entry_point_files())
