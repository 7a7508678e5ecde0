"""The definition of variants in a suite and in `gauntlet.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from iree_gauntlet.dialects.fields import Flags, StrictDocument, TargetName, Text, about, expect, make_list
from iree_gauntlet.dialects.locations import is_url
from iree_gauntlet.dialects.spec_file import FieldError
from iree_gauntlet.settings import format_path
from iree_gauntlet.targets import parse_target
from iree_gauntlet.variants import VARIANT_NAME, FlagVariant, name_flag

if TYPE_CHECKING:
    from pathlib import Path


_Name = Annotated[str, expect("a name of letters, digits, '_' and '-'", VARIANT_NAME.fullmatch)]


class _VariantTable(StrictDocument):
    compiler_flags: Flags = Field(
        description="Flags of iree-compile: each replaces the spec's flag of the same name, or is added."
    )
    remove_compiler_flags: Flags = Field(description="Names of the spec's flags that are left out.")
    run_flags: Flags = Field(description="Flags of iree-run-module and iree-benchmark-module, as compiler_flags.")
    tuning_spec: Text | None = about(None, "The compiler's tuning spec: a file relative to this one, or a URL.")
    targets: list[TargetName] = Field(
        default_factory=make_list, description="Targets whose cases it changes; without any, all."
    )
    description: str = about("", "For people.")

    @model_validator(mode="after")
    def _check_contents(self) -> _VariantTable:
        if not (self.compiler_flags or self.remove_compiler_flags or self.run_flags or self.tuning_spec):
            raise FieldError("compiler_flags", "a variant without any change: give flags, or a tuning_spec")
        for index, flag in enumerate(self.remove_compiler_flags):
            if "=" in flag:
                raise FieldError(f"remove_compiler_flags[{index}]", f"expected a flag's name, found {flag!r}")
            if name_flag(flag) in map(name_flag, self.compiler_flags):
                raise FieldError(f"remove_compiler_flags[{index}]", f"{flag} is also in compiler_flags: keep one")
        return self


class WithVariants(StrictDocument):
    """A table with definitions of variants."""

    variants: dict[_Name, _VariantTable] = Field(
        default_factory=dict, description="Changes of flags by name, for --variant."
    )


def make_variants(document: WithVariants, file: Path) -> tuple[FlagVariant, ...]:
    """Make the variants that a file defines; its folder resolves relative paths of tuning specs."""

    def resolve(source: str) -> str:
        return source if not source or is_url(source) else (file.parent.absolute() / source).as_uri()

    return tuple(
        FlagVariant(
            name,
            tuple(table.compiler_flags),
            tuple(table.remove_compiler_flags),
            tuple(table.run_flags),
            resolve(table.tuning_spec or ""),
            tuple(target.name for target in map(parse_target, table.targets) if target),
            table.description,
            str(format_path(file)),
        )
        for name, table in document.variants.items()
    )
