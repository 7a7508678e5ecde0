"""The choice of variants by name, and the change of the flags of cases by variants."""

from __future__ import annotations

import filecmp
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.errors import SpecError, UsageError
from iree_gauntlet.settings import find_project_folder, find_settings_files, find_shipped_folder
from iree_gauntlet.toolchains.flag_words import split_flags
from iree_gauntlet.variants import TUNING_SPEC_FLAG, FlagVariant, name_flag, name_variants, parse_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Case, Module
    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.toolchains.flags import FlagSet


# The flag of optimisation levels, and the end of the names of such flags for a part of the compiler.
_LEVEL_FLAG = "iree-opt-level"
_PART_LEVEL_SUFFIX = "-opt-level"


def list_known_variants(suite_variants: Sequence[FlagVariant]) -> dict[str, FlagVariant]:
    """Return the variants of the settings and of a suite by name; SpecError if the settings cannot be read."""
    variants = suite_variants
    if find_settings_files(find_project_folder(), os.environ):
        from iree_gauntlet.dialects.configuration_file import read_configuration  # noqa: PLC0415 - it brings pydantic

        variants = (*read_configuration(find_project_folder(), os.environ).variants, *suite_variants)
    return {variant.name: variant for variant in variants}


def find_variants(texts: Sequence[str], suite_variants: Sequence[FlagVariant]) -> tuple[FlagVariant, ...]:
    """Find the variants of a command line: those of the suite, of the settings, or defined by the text itself.

    Raises:
        UsageError: a name is unknown or given twice, or two variants set one flag to different values.
        SpecError: the settings cannot be read.
    """
    if not texts:
        return ()
    known = list_known_variants(suite_variants)
    variants: list[FlagVariant] = []
    for text in texts:
        variant = parse_variant(text) or _find_variant(text, known)
        if variant.name in (previous.name for previous in variants):
            raise UsageError(f"variant {variant.name}: given twice", "Name each once.")
        if variant.name in known and not known[variant.name].changes_the_same(variant):
            place = known[variant.name].origin or "another option"
            raise UsageError(f"--variant {text}: {place} defines {variant.name} with other flags", "Take another name.")
        file = get_url_path(variant.tuning_spec)
        if file and not Path(file).is_file():
            hint = f"Correct the path in {variant.origin}." if variant.origin else "Correct the path."
            raise UsageError(f"variant {variant.name}: its tuning spec {file} does not exist", hint)
        for previous in variants:
            _require_no_contradiction(previous, variant)
        variants.append(variant)
    # The order of names has no meaning, so the flags, the goldens and the names of runs do not depend on it.
    return tuple(sorted(variants, key=lambda variant: variant.name))


def _find_variant(name: str, known: Mapping[str, FlagVariant]) -> FlagVariant:
    if name not in known:
        folders = dict.fromkeys((find_project_folder(), find_shipped_folder()))
        suites = [path for folder in folders for path in sorted((folder / "suites").glob("*.toml"))]
        defining = [path.stem for path in suites if _defines(path, name)]
        hint = f"Known: {', '.join(sorted(known))}. " if known else ""
        hint += "".join(f"The suite {stem} has it: --suite {stem}. " for stem in dict.fromkeys(defining))
        hint += "Define it as [variants.NAME] in the suite or in gauntlet.toml, or write --variant 'NAME=FLAGS'."
        raise UsageError(f"there is no variant {name!r}{did_you_mean(name, known)}", hint)
    return known[name]


def _defines(path: Path, name: str) -> bool:
    """Return whether a suite defines a variant; False for a suite that cannot be read, which `lint` reports."""
    from iree_gauntlet.dialects.suite import read_suite  # noqa: PLC0415 - it brings pydantic

    try:
        return any(variant.name == name for variant in read_suite(path).variants)
    except (SpecError, UsageError):
        return False


def _require_no_contradiction(first: FlagVariant, second: FlagVariant) -> None:
    """Raise UsageError if two variants set or remove the same flag in different ways."""
    for words, other_words in (
        (first.compiler_flags, second.compiler_flags),
        (first.run_flags, second.run_flags),
        (first.compiler_flags, second.remove_compiler_flags),
        (first.remove_compiler_flags, second.compiler_flags),
    ):
        other_flags = dict(_group_flags(other_words))
        for name, group in _group_flags(words):
            if name in other_flags and other_flags[name] != group:
                message = f"variants {first.name} and {second.name}: they treat --{name} differently"
                raise UsageError(message, f"One has {' '.join(group)}, the other {' '.join(other_flags[name])}.")
    if first.tuning_spec and second.tuning_spec:
        raise UsageError(f"variants {first.name} and {second.name}: each has a tuning spec", "Use one of them.")


def require_known_flags(variants: Sequence[FlagVariant], flags_of: Callable[[str], FlagSet]) -> None:
    """Raise UsageError for a variant's flag that an IREE does not support; `flags_of` returns the flags of a tool."""
    from iree_gauntlet.toolchains.flags import translate  # noqa: PLC0415 - not for a choice without variants
    from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE  # noqa: PLC0415 - as above

    for variant in variants:
        removed = [name for name, _ in _group_flags(variant.remove_compiler_flags)]
        for tool, words in (
            (COMPILE, (*variant.compiler_flags, *((TUNING_SPEC_FLAG + "=",) if variant.tuning_spec else ()))),
            (RUN_MODULE, variant.run_flags),
            (BENCHMARK_MODULE, variant.run_flags),
        ):
            for unknown in translate(words, flags_of(tool), tool).unknown:
                raise UsageError(f"variant {variant.name}: {unknown.message}", unknown.hint)
        known_flags = flags_of(COMPILE)
        for name in removed:
            if not known_flags.names.intersection(_list_synonyms(name)):
                nearest = known_flags.find_nearest(name)
                hint = f"Did you mean --{nearest}?" if nearest else "Fix the name, or remove it."
                raise UsageError(f"variant {variant.name}: {COMPILE} does not know --{name}", hint)


def split_variant(variant: FlagVariant, cases: CaseSet, known_flags: FlagSet) -> tuple[FlagVariant, ...]:
    """Split a variant into variants of one flag each, of which all together are the variant again.

    An optimisation level follows the flags that it sets, by `known_flags` of the compiler. It stays alone if the
    variant or a case sets the level of one part of the compiler, which decides about that part's flags.
    """
    compiler_flags = _merge_flags(variant.compiler_flags)
    modules = [module for case in cases.cases for module in (*case.modules, *case.pipeline_modules)]
    words = (
        *variant.compiler_flags,
        *variant.remove_compiler_flags,
        *(flag for item in modules for flag in item.flags),
    )
    names = set(map(name_flag, words)) - {_LEVEL_FLAG}
    groups: list[tuple[str, ...]] = []
    for name, group in compiler_flags.items():
        if name == _LEVEL_FLAG and not any(other.endswith(_PART_LEVEL_SUFFIX) for other in names):
            level_flags = known_flags.list_level_flags(group[-1].rpartition("=")[2])
            groups += [(flag,) for flag in level_flags if name_flag(flag) not in names]
        groups.append(group)
    part = FlagVariant("", targets=variant.targets, origin=variant.origin)
    parts = (
        *(replace(part, compiler_flags=group) for group in groups),
        *(replace(part, remove_compiler_flags=(word,)) for word in variant.remove_compiler_flags),
        *(replace(part, run_flags=group) for group in _merge_flags(variant.run_flags).values()),
        *((replace(part, tuning_spec=variant.tuning_spec),) if variant.tuning_spec else ()),
    )
    return tuple(replace(part, name=f"{variant.name}-{number}") for number, part in enumerate(parts, start=1))


def find_uncounted_flags(variants: Sequence[FlagVariant]) -> str:
    """Return the flags of variants that a count for a CPU of its own replaces; empty if there are none."""
    from iree_gauntlet.toolchains.flags import CPU_FLAGS  # noqa: PLC0415 - as above

    words = (word for variant in variants for word in (*variant.compiler_flags, *variant.remove_compiler_flags))
    return ", ".join(f"--{name}" for name, _ in _group_flags([*words]) if name in CPU_FLAGS)


def vary_cases(cases: CaseSet, variants: Sequence[FlagVariant], *, added: Sequence[FlagVariant]) -> CaseSet:
    """Return cases with the flags of the `added` variants, and the goldens of all `variants` together."""
    name = name_variants(variants)

    def vary(case: Case) -> Case:
        applied = [variant for variant in added if variant.applies_to(case.target)]
        if not applied:
            return case
        modules, pipeline_modules = (
            tuple(_vary_module(module, applied) for module in group) for group in (case.modules, case.pipeline_modules)
        )
        run_flags = case.run_flags
        for variant in applied:
            run_flags = replace_flags(run_flags, variant.run_flags)
        parameters = tuple(
            replace(
                archive, generated=replace(archive.generated, module=_vary_module(archive.generated.module, applied))
            )
            if archive.generated
            else archive
            for archive in case.parameters
        )
        if (modules, pipeline_modules, run_flags) == (case.modules, case.pipeline_modules, case.run_flags):
            return case
        return replace(
            case,
            modules=modules,
            pipeline_modules=pipeline_modules,
            parameters=parameters,
            run_flags=run_flags,
            goldens=dict(case.variant_goldens).get(name, ()),
            idle_goldens=(),
            golden_keys=(),
            origin=replace(case.origin, variant=name_variants(applied)),
        )

    if not added:
        return cases
    return replace(cases, cases=tuple(map(vary, cases.cases)), needed_cases=tuple(map(vary, cases.needed_cases)))


def _vary_module(module: Module, variants: Sequence[FlagVariant]) -> Module:
    flags, file_flags = module.flags, module.file_flags
    for variant in variants:
        removed = variant.remove_compiler_flags
        if variant.tuning_spec:
            removed = (*removed, TUNING_SPEC_FLAG)
            file_flags = (
                *(pair for pair in file_flags if pair[0] != TUNING_SPEC_FLAG),
                (TUNING_SPEC_FLAG, variant.tuning_spec),
            )
        flags = replace_flags(flags, variant.compiler_flags, removed)
    if (flags, file_flags) == (module.flags, module.file_flags):
        return module
    origin = replace(module.origin, variant=name_variants(variants))
    return replace(module, flags=flags, file_flags=file_flags, origin=origin)


def replace_flags(words: Sequence[str], new_words: Sequence[str], removed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return flags in which new ones take the place of those of the same names, or follow all; leave out `removed`."""
    new_flags = _merge_flags(new_words)
    places = {synonym: name for name in new_flags for synonym in _list_synonyms(name)}
    removed_names = {synonym for word in removed for synonym in _list_synonyms(name_flag(word))}
    result: list[str] = []
    for name, group in _group_flags(words):
        if name in places:
            result += new_flags.pop(places[name], ())
        elif name not in removed_names:
            result += group
    return (*result, *(word for group in new_flags.values() for word in group))


def _merge_flags(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the flags of a command line by name; a flag that is repeated has all of its words."""
    flags: dict[str, tuple[str, ...]] = {}
    for name, group in _group_flags(words):
        flags[name] = (*flags.get(name, ()), *group)
    return flags


def _group_flags(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags of a command line with their names; a word without a dash is the value of a flag without `=`."""
    value_flags = {name_flag(words[end - 1]) for end in range(1, len(words)) if not words[end].startswith("-")}
    for flag in split_flags(words, frozenset(value_flags)):
        yield flag.name, flag.words


def _list_synonyms(name: str) -> set[str]:
    """Return all names of a flag in the releases of IREE."""
    from iree_gauntlet.toolchains.flags import FLAG_RENAMES  # noqa: PLC0415 - as above

    renames = [rename for rename in FLAG_RENAMES if name in (rename.old, rename.new)]
    return {name, *(rename.old for rename in renames), *(rename.new for rename in renames)}


def is_same_file(path: str, other_path: str) -> bool:
    """Return whether two paths exist and have the same bytes."""
    exist = Path(path).is_file() and Path(other_path).is_file()
    return exist and (path == other_path or filecmp.cmp(path, other_path, shallow=False))
