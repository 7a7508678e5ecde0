"""`micro --list`: what a configuration can name, read from the declarations; nothing is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.micro.refused_recipes import REFUSED
from iree_gauntlet.micro.registry import CUSTOM
from iree_gauntlet.reporting.printing import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.micro.lookup import Registry

__all__ = ["print_registry"]


def print_registry(registry: Registry, stream: TextIO) -> None:
    """A list for each kind of thing."""
    recipes = sorted(registry.recipes.values(), key=lambda item: (item.kind, item.name))
    for kind in ("quantization", "sparsity", "compiler"):
        rows = [(item.usage, item.about) for item in recipes if item.kind == kind]
        _print(f"recipes ({kind})", rows, stream)
    _print("recipes of torchao that are refused", list(REFUSED.items()), stream)
    types = [(name, registry.model_type(name).architecture.about) for name in registry.model_types()]
    _print("model types", types, stream)
    shapes = [(item.name, item.about) for item in registry.shape_sets.values()]
    _print("shape sets", [*shapes, (CUSTOM, "the shapes that the configuration lists")], stream)


def _print(title: str, rows: Sequence[tuple[str, str]], stream: TextIO) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name:{width}}  {about}".rstrip() for name, about in rows]
    write_text(stream, "\n".join([f"{title}:", *lines, "", ""]))
