"""What a configuration's texts ask for: recipes with arguments, model types with activations, shape sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.declarations import unknown_name
from iree_gauntlet.torch_models.refused_recipes import refused_recipe
from iree_gauntlet.torch_models.signatures import read_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.torch_models.recipe_registry import Activation, Architecture, Recipe, ShapeSet


@dataclass(frozen=True, slots=True)
class AskedRecipe:
    """A recipe with its arguments.

    Attributes:
        text: as it was asked for, `int4wo-32`.
        recipe: what is called so.
        arguments: all of them, with the defaults of those that were left out.
    """

    text: str
    recipe: Recipe
    arguments: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedArchitecture:
    """An architecture with its activation.

    Attributes:
        text: as it was asked for, `ln_linear_gelu`.
        architecture: what is called so.
        activation: None where it takes none, or its own.
    """

    text: str
    architecture: Architecture
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that is declared, by name.

    Attributes:
        recipes: of all kinds.
        architectures: without the names of activations.
        activations: for the architectures that take one.
        shape_sets: without `custom`, whose shapes a configuration lists itself.
        files: the plugin files beside the toolkit's own, absolute.
    """

    recipes: Mapping[str, Recipe]
    architectures: Mapping[str, Architecture]
    activations: Mapping[str, Activation]
    shape_sets: Mapping[str, ShapeSet]
    files: tuple[Path, ...] = ()

    def recipe(self, text: str) -> AskedRecipe:
        """The recipe that a text asks for: the longest name that it is, or that it begins with before a dash.

        One of torchao's that is not made here is found too, with its `refusal`; a declared one goes before it.

        Raises:
            UsageError: there is none, or its arguments are not what it takes.
            PluginError: its check of them fails.
        """
        found = max((name for name in self.recipes if f"{text}-".startswith(f"{name}-")), key=len, default=None)
        if found is not None:
            asked = self.recipes[found]
            values, wrong = read_arguments(text.removeprefix(found).split("-")[1:], asked.arguments)
            wrong = wrong or _checked(asked, values or ())
            if values is not None and not wrong:
                return AskedRecipe(text, asked, values)
        refused = refused_recipe(text)
        if refused is not None and refused.name not in self.recipes:
            return AskedRecipe(text, refused)
        if found is None:
            usages = [self.recipes[name].usage for name in sorted(self.recipes)]
            raise unknown_name(f"there is no recipe {text!r}", text, self.recipes, usages)
        raise UsageError(f"recipe {text!r}: {wrong}", f"It is written {asked.usage}.")

    def model_type(self, text: str) -> AskedArchitecture:
        """The architecture that a text asks for, with the activation that it ends with.

        Raises:
            UsageError: there is none, or it takes an activation and has none that there is.
        """
        whole = self.architectures.get(text)
        if whole is not None and whole.takes.activation != "must":
            return AskedArchitecture(text, whole)
        with_activation = [item for item in self.architectures.values() if item.takes.activation != "no"]
        for item in sorted(with_activation, key=lambda item: len(item.name), reverse=True):
            ending = text.removeprefix(f"{item.name}_")
            if ending != text and ending in self.activations:
                return AskedArchitecture(text, item, self.activations[ending])
        raise unknown_name(f"there is no model type {text!r}", text, self.model_types())

    def model_types(self) -> tuple[str, ...]:
        """Every text that `model_type` knows, sorted."""
        names = []
        for name, item in self.architectures.items():
            names += [name] if item.takes.activation != "must" else []
            names += [f"{name}_{ending}" for ending in self.activations] if item.takes.activation != "no" else []
        return tuple(sorted(set(names)))

    def shapes(self, name: str) -> ShapeSet:
        """The shape set of a name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.shape_sets:
            names = sorted([*self.shape_sets, "custom"])
            raise unknown_name(f"there is no shape set {name!r}", name, names)
        return self.shape_sets[name]


def _checked(recipe: Recipe, arguments: Sequence[int | str]) -> str:
    """What is wrong with arguments; empty where nothing is."""
    with recipe.blamed():
        return recipe.check(*arguments) if recipe.check else ""
