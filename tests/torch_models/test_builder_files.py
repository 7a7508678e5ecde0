"""The toolkit's own files in the key of a built model: those that build it, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.torch_models.bench_session import BenchChain
from iree_gauntlet.torch_models.model_registry import find_imported_files
from iree_gauntlet.torch_models.point_chain import PointChain
from iree_gauntlet.torch_models.torch_chain import find_builder_files

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.torch_models.torch_chain import TorchChain

# What any model is made by: the call of its function, rounding, its reference, the export.
_EVERY = {"build_files", "build_steps", "building", "decompositions", "formats", "torch_tensors"}
_MODELS = {"model_registry", "declarations"}
_RECIPES = {"building_variant", "plugins", "layers", "builtin_plugins"}
# Options, plans and reports of what was made.
_OTHERS = {"bench_options", "bench_result", "bench_session", "configuration", "peers", "roofline"}
_OTHERS |= {"point_chain", "point_session", "torch_chain", "tracing", "measure_torch", "module_facts"}
_OTHERS |= {"sweep", "sweep_rows", "sweep_reports", "torch_commands"}


def files_of(chain: type[TorchChain]) -> set[str]:
    return {path.stem for path in find_builder_files(chain.builder, chain.loaded_files)}


def test_the_key_of_a_model_has_what_makes_it() -> None:
    assert files_of(BenchChain) >= _EVERY | _MODELS
    assert files_of(PointChain) >= _EVERY | _RECIPES


def test_the_key_of_a_model_has_no_options_and_reports() -> None:
    # A changed help text builds no model again.
    assert files_of(BenchChain) & (_OTHERS | {"plugins"}) == set()
    assert files_of(PointChain) & _OTHERS == set()


def test_what_only_type_checkers_read_is_not_reached(tmp_path: Path) -> None:
    texts = {
        "first.py": "if TYPE_CHECKING:\n    from own.typed import A\n\n\ndef late():\n    from own.late import B\n",
        "late.py": "from own import sibling\nfrom other.typed import C\n",
        "sibling.py": "",
        "typed.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = find_imported_files([tmp_path / "first.py"], tmp_path, "own")
    assert [path.name for path in found] == ["first.py", "late.py", "sibling.py"]
