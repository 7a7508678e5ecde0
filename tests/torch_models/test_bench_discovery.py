from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.model_registry import MODEL_PARAMETERS, ModelError, discover, find_model, find_sources
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.errors import Problem

MODEL = """\
from iree_gauntlet.bench import benchmark_model


@benchmark_model(configs=["tiny"])
def {name}(training: bool, config: str):
    return {value}
"""
SHIPPED = ROOT / "specs" / "models"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def model(name: str, value: str = "None") -> str:
    return MODEL.format(name=name, value=value)


def refused(*folders: Path) -> list[str]:
    with pytest.raises(ModelError) as caught:
        discover(folders)
    return [str(problem) for problem in caught.value.problems]


def test_every_module_of_a_folder_is_loaded(folder: Path) -> None:
    write(folder, {"b.py": model("bert") + model("albert"), "a-1.py": model("vit"), "_c.py": "1/0", ".#b.py": "1/0"})
    write(folder, {"sub/d.py": "1/0", "notes.txt": ""})
    (folder / "folder.py").mkdir()
    models = discover([folder])
    assert list(models) == ["albert", "bert", "vit"]
    assert models["bert"].location == "models/b.py:4"
    assert models["vit"].file == folder / "a-1.py"


def test_files_share_helpers_and_folders_do_not_meet(folder: Path) -> None:
    write(folder, {"bert.py": "from ._layers import VALUE\n" + model("bert", "VALUE"), "_layers.py": "VALUE = 1\n"})
    other = folder.parent / "others"
    write(other, {"bert.py": "from ._layers import VALUE\n" + model("other", "VALUE"), "_layers.py": "VALUE = 2\n"})
    models = discover([folder, other, folder])
    assert [models[name].function(training=False, config="tiny") for name in ("bert", "other")] == [1, 2]
    assert models["bert"].module != models["other"].module
    assert "_layers" not in sys.modules
    assert "bert" not in sys.modules


def test_a_model_that_a_sibling_imports_is_declared_once(folder: Path) -> None:
    write(folder, {"a.py": "from .b import bert\n" + model("vit"), "b.py": model("bert")})
    assert list(discover([folder])) == ["bert", "vit"]


def test_a_folder_may_be_a_package(folder: Path) -> None:
    write(
        folder,
        {"__init__.py": "VALUE = 3\n" + model("first"), "b.py": "from . import VALUE\n" + model("bert", "VALUE")},
    )
    models = discover([folder])
    assert list(models) == ["bert", "first"]
    assert models["bert"].function(False, "tiny") == 3
    assert find_sources(models["first"]) == (folder / "__init__.py",)


def test_a_folder_is_read_anew(folder: Path) -> None:
    write(folder, {"b.py": "from ._c import VALUE\n" + model("bert", "VALUE"), "_c.py": "VALUE = 1\n"})
    assert discover([folder])["bert"].function(False, "tiny") == 1
    # As long as before, and within its second: bytecode would not notice.
    write(folder, {"_c.py": "VALUE = 2\n"})
    assert discover([folder])["bert"].function(False, "tiny") == 2
    assert not list(folder.rglob("__pycache__"))


def test_two_models_of_one_name(folder: Path) -> None:
    write(folder, {"a.py": model("bert"), "b.py": "\n" + model("bert")})
    (problem,) = refused(folder)
    assert problem.startswith("models/b.py:5: bert: a model of this name is already declared at models/a.py:4")


def test_two_models_of_one_name_in_one_file_and_in_two_folders(folder: Path) -> None:
    write(folder, {"a.py": model("bert") + model("bert")})
    other = folder.parent / "others"
    write(other, {"a.py": model("bert")})
    first, second = refused(folder, other)
    assert first.startswith("models/a.py:10: bert: a model of this name is already declared at models/a.py:4")
    assert second.startswith("others/a.py:4: bert: a model of this name is already declared at models/a.py:4")


def test_every_problem_of_every_file_is_said_at_once(folder: Path) -> None:
    write(folder, {"a.py": "def f(:\n", "b.py": "x = 1\nraise ValueError('no\\nsecond line')\n"})
    write(folder, {"c.py": model("bert").replace("config: str", "size: int"), "d.py": "import sys\nsys.exit(3)\n"})
    write(folder, {"e.py": "1/0", "f.py": "from .e import x", "g.py": model("fine")})
    said = refused(folder)
    assert [line.splitlines()[0] for line in said] == [
        "models/a.py:1: SyntaxError: invalid syntax",
        "models/b.py:2: ValueError: no",
        f"models/c.py:4: bert: no argument is passed to the parameter size; options give {', '.join(MODEL_PARAMETERS)}",
        "models/c.py:4: bert: the decorator lists configs, but the function has no parameter `config: str`",
        "models/d.py:2: SystemExit: 3",
        "models/e.py:1: ZeroDivisionError: division by zero",
    ]


def test_what_is_broken_may_be_passed_over(folder: Path) -> None:
    write(folder, {"a.py": "def f(:\n", "b.py": model("bert")})
    problems: list[Problem] = []
    assert list(discover([folder], problems)) == ["bert"]
    assert [problem.file for problem in problems] == ["models/a.py"]


def page_files(part: str) -> dict[str, str]:
    """The model files of a folder that the page about PyBuda's shows."""
    page = (ROOT / "docs" / "how-to" / "bench-models.md").read_text(encoding="utf-8")
    return dict(re.findall(rf"```python\n# {part}/(\w+\.py)\n(.*?)```", page, re.DOTALL))


def test_what_is_still_pybudas_names_the_page_about_it(folder: Path) -> None:
    (text,) = page_files("theirs").values()
    hint = "docs/how-to/bench-models.md describes how to port a model file of PyBuda"
    write(folder, {"a.py": text})
    assert refused(folder) == [f"models/a.py:2: ModuleNotFoundError: No module named 'pybuda'\n    {hint}"]
    # Imports of PyBuda's; torch need not be here.
    text = re.sub(r"^(?:import|from) (?:pybuda|torch).*\n", "", text, flags=re.MULTILINE)
    write(folder, {"a.py": text})
    (problem,) = refused(folder)
    assert problem.startswith("models/a.py:3: ImportError: attempted relative import beyond top-level package\n")
    assert problem.endswith(hint)
    write(folder, {"a.py": text.replace("..common", "iree_gauntlet.bench")})
    problems = refused(folder)
    for name in ("arch", "data_type", "devtype", "math_fidelity"):
        assert f"no argument is passed to the parameter {name};" in "".join(problems)
    assert all(problem.endswith(hint) for problem in problems)


def test_a_model_of_pybudas_that_was_brought_over(folder: Path) -> None:
    write(folder, page_files("ours"))
    model = discover([folder])["two_layers"]
    assert model.configs == ("narrow", "wide")
    assert sorted(model.required) == ["config", "training"]


def test_the_users_line_is_named_and_not_the_librarys(folder: Path) -> None:
    write(folder, {"a.py": "import json\n\ndef load():\n    json.loads('{')\n\nload()\n"})
    (problem,) = refused(folder)
    assert problem.startswith("models/a.py:4: JSONDecodeError: ")
    assert "importlib" not in problem


def test_a_decorated_class_names_its_line(folder: Path) -> None:
    write(folder, {"a.py": "from iree_gauntlet.bench import benchmark_model\n\n@benchmark_model()\nclass Bert: ...\n"})
    (problem,) = refused(folder)
    assert problem.startswith("models/a.py:3: TypeError: the decorator of a model is for a function")


def test_a_missing_torch_says_what_to_install_and_how_to_do_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    write(folder, {"a.py": "import torch.nn\n" + model("bert")})
    (problem,) = refused(folder)
    assert problem.startswith("models/a.py:1: ModuleNotFoundError: ")
    assert "iree-gauntlet[models]" in problem
    assert "to list models without that package, import it inside the functions" in problem


def test_an_absolute_import_of_a_sibling_says_how_to_write_it(folder: Path) -> None:
    write(folder, {"a.py": "from _layers import VALUE\n" + model("bert"), "_layers.py": "VALUE = 1\n"})
    (problem,) = refused(folder)
    assert "from ._layers import" in problem
    write(folder, {"a.py": "import no_such_library_at_all\n"})
    (problem,) = refused(folder)
    assert problem == "models/a.py:1: ModuleNotFoundError: No module named 'no_such_library_at_all'"


def test_names_that_cannot_be_imported(folder: Path) -> None:
    write(folder, {"bert.v2.py": model("bert")})
    (problem,) = refused(folder)
    assert "rename it to bert.py" in problem


def test_folders_without_models(folder: Path) -> None:
    with pytest.raises(UsageError, match="no models folder models/none"):
        discover([folder / "none"])
    with pytest.raises(UsageError, match=r"no \*\.py files in the models folder models"):
        discover([folder])
    write(folder, {"_a.py": ""})
    with pytest.raises(UsageError, match=r"no \*\.py files"):
        discover([folder])
    write(folder, {"a.py": "VALUE = 1\n"})
    (problem,) = refused(folder)
    assert problem.startswith("models: no file in it declares a model")
    (folder / "a.py").unlink()
    write(folder.parent, {"file": ""})
    with pytest.raises(UsageError, match="no models folder file"):
        discover([folder.parent / "file"])


def test_a_model_is_found_by_name(folder: Path) -> None:
    write(folder, {"a.py": model("bert") + model("vit")})
    models = discover([folder])
    assert find_model(models, "vit") is models["vit"]
    with pytest.raises(UsageError, match="no such benchmark model: 'brt'\n  Did you mean bert\\? Available: bert, vit"):
        find_model(models, "brt")
    with pytest.raises(UsageError, match="'q'\n  Available:"):
        find_model(models, "q")


def test_sources_are_what_a_model_is_made_from(folder: Path) -> None:
    write(
        folder,
        {
            "a.py": model("bert", "__import__")
            + "    from ._b import x, y\n    from .parts.deep import z\n    import os\n",
            "_b.py": "from . import _c\ntry:\n    from ._missing import x\nexcept ImportError:\n    x = y = 1\n",
            "_c.py": "from ._b import x\n",
            "_d.py": "",
            "parts/__init__.py": "from .side import s\n",
            "parts/side.py": "from .._e import e\ns = 1\n",
            "parts/deep.py": "z = 1\n",
            "parts/other.py": "",
            "_e.py": "from ..outside import x\n",
            "vit.py": model("vit"),
        },
    )
    write(folder.parent, {"outside.py": ""})
    models = discover([folder])
    names = [str(path.relative_to(folder)) for path in find_sources(models["bert"])]
    assert names == ["_b.py", "_c.py", "_e.py", "a.py", "parts/__init__.py", "parts/deep.py", "parts/side.py"]
    assert find_sources(models["vit"]) == (folder / "vit.py",)
    assert len(names) == len(set(names))


def test_sources_of_a_model_that_is_declared_in_a_package(folder: Path) -> None:
    write(folder, {"a.py": "from .parts.bert import bert\nfrom .parts import vit\n", "_b.py": ""})
    write(folder, {"parts/__init__.py": model("vit"), "parts/bert.py": model("bert") + "    from .._b import x\n"})
    models = discover([folder])
    assert find_sources(models["bert"]) == (folder / "_b.py", folder / "parts/__init__.py", folder / "parts/bert.py")
    assert find_sources(models["vit"]) == (folder / "parts/__init__.py",)


def test_sources_that_are_no_python(folder: Path) -> None:
    write(folder, {"a.py": model("bert") + "    from ._b import x\n", "_b.py": "x = (\n"})
    with pytest.raises(ModelError, match=r"models/_b.py:1: SyntaxError"):
        find_sources(discover([folder])["bert"])


def test_the_models_here_are_listed_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    models = discover([SHIPPED])
    assert list(models) == ["bert", "deit", "llama", "mobilenet", "resnet", "unet", "vit", "whisper"]
    for made in models.values():
        assert all(made.parameter_count(config) for config in made.configs or [None])
        assert "microbatch" in made.accepts
