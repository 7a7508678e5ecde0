"""The IREE that was asked for (`--iree`, `--iree-compiler`, `--iree-runtime`), and where it is looked for."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.messages import news
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.toolchains.build_tree import BuildTree, compiler_of, runtime_of
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.toolchains.commit_packages import CommitPackages
from iree_gauntlet.toolchains.environments import Environment, Environments, Recipe, environment_tag
from iree_gauntlet.toolchains.installed import (
    COMPILER_WHEEL,
    RUNTIME_WHEEL,
    compiler_on,
    find_installed,
    runtime_on,
    site_packages_of,
)
from iree_gauntlet.toolchains.installer import Installer, Sources
from iree_gauntlet.toolchains.sealed import empty_folder, named_refusals
from iree_gauntlet.toolchains.source_builds import COMPILER, IMPORTER, RUNTIME, SourceBuilds
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Compiler, Runtime, Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from packaging.version import Version

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.toolchains.source_builds import Build, Uses


IREE_VARIABLE = "IREE_GAUNTLET_IREE"
# Of a commit's hash, in the name of its environment.
_COMMIT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Place:
    """Where toolchains are looked for, in addition to those that are installed with this toolkit.

    Attributes:
        environments: of the cache.
        builds: of the cache, from source.
        packages: of commits, by IREE's CI.
        nightly_links: page or folder with links to nightly wheels.
        hash_of: SHA-256 of a file's content.
        search_path: the value of PATH.
        importer: whether ONNX programs are to be imported, for which a source build needs its Python bindings.
    """

    environments: Environments
    builds: SourceBuilds
    packages: CommitPackages
    nightly_links: str
    hash_of: Callable[[Path], str]
    search_path: str
    importer: bool = False


def chosen(request: ToolchainRequest, environ: Mapping[str, str]) -> tuple[Choice, Choice]:
    """Compiler and runtime that are asked for, by their own options, else by `--iree`, else by the variable.

    Raises:
        UsageError: a value names no IREE.
    """
    from_environment = environ.get(IREE_VARIABLE, ""), f"${IREE_VARIABLE}"
    whole = parse_choice(request.iree) if request.iree else parse_choice(*from_environment)
    compiler, runtime = request.iree_compiler, request.iree_runtime
    return (
        parse_choice(compiler, "--iree-compiler") if compiler else whole,
        parse_choice(runtime, "--iree-runtime") if runtime else whole,
    )


def toolchain_place(
    cache_dir: Path,
    configuration: Configuration,
    uses: Uses,
    hash_of: Callable[[Path], str],
    *,
    offline: bool,
    importer: bool = False,
) -> Place:
    """Where toolchains are looked for and installed.

    Args:
        cache_dir: folder of the caches.
        configuration: of the project and the user.
        uses: what of the cache is in use.
        hash_of: SHA-256 of a file's content.
        offline: nothing is installed or built.
        importer: whether ONNX programs are to be imported.
    """
    folder = cache_dir.absolute() / "toolchains"
    environments = Environments(folder / "envs", Installer(), offline=offline, use=uses.use, news=news)
    builds = SourceBuilds(
        folder / "builds", configuration.build_options, os.environ, offline=offline, uses=uses, news=news
    )
    packages = CommitPackages(configuration.packages_api, os.environ, news)
    search_path = os.environ.get("PATH", "")
    return Place(environments, builds, packages, configuration.nightly_links, hash_of, search_path, importer=importer)


def find_toolchain(compiler: Choice, runtime: Choice, place: Place) -> Toolchain:
    """Compiler and runtime that were asked for, installed where they are releases and are not there.

    Raises:
        ToolchainError: one is not available, or lacks a tool.
        UsageError: a choice means nothing here.
    """
    if compiler == runtime and compiler.kind is ChoiceKind.INSTALLED:
        return find_installed()
    if compiler == runtime and compiler.kind is ChoiceKind.SOURCE:
        # Once for both halves.
        of_both = frozenset((COMPILER, RUNTIME, *([IMPORTER] if place.importer else [])))
        build = place.builds.ready(compiler, of_both)
        return Toolchain(_built_compiler(build, place), _built_runtime(build, place))
    return Toolchain(_compiler(compiler, place), _runtime(runtime, place))


def _compiler(choice: Choice, place: Place) -> Compiler:
    if choice.kind is ChoiceKind.SOURCE:
        parts = frozenset((COMPILER, *([IMPORTER] if place.importer else [])))
        return _built_compiler(place.builds.ready(choice, parts), place)
    found = _where(choice, place, (COMPILE,))
    if found is None:
        return find_installed().compiler
    if isinstance(found, BuildTree):
        return compiler_of(found, place.hash_of, place.environments.folder.with_name("bindings"))
    return compiler_on([str(path) for path in site_packages_of(found)], str(found), _name(choice))


def _built_compiler(build: Build, place: Place) -> Compiler:
    tree = BuildTree(build.path, build.path / "tools", f"source: {build.title}")
    found = compiler_of(tree, place.hash_of, place.environments.folder.with_name("bindings"))
    return replace(found, commit=build.commit)


def _built_runtime(build: Build, place: Place) -> Runtime:
    tree = BuildTree(build.path, build.path / "tools", f"source: {build.title}")
    return replace(runtime_of(tree, place.hash_of), commit=build.commit)


def _runtime(choice: Choice, place: Place) -> Runtime:
    if choice.kind is ChoiceKind.SOURCE:
        return _built_runtime(place.builds.ready(choice, frozenset((RUNTIME,))), place)
    found = _where(choice, place, (RUN_MODULE, BENCHMARK_MODULE))
    if found is None:
        return find_installed().runtime
    if isinstance(found, BuildTree):
        return runtime_of(found, place.hash_of)
    return runtime_on([str(path) for path in site_packages_of(found)], str(found), _name(choice))


def _name(choice: Choice) -> str:
    return str(choice.kind) if choice.folder or choice.kind is ChoiceKind.PATH else choice.text


def _where(choice: Choice, place: Place, tools: tuple[str, ...]) -> Path | BuildTree | None:
    """The interpreter of an environment, or a build; None for what is installed."""
    if choice.kind is ChoiceKind.INSTALLED:
        return None
    if choice.kind is ChoiceKind.BUILD and choice.folder:
        return BuildTree.of(choice.folder, tools)
    if choice.kind is ChoiceKind.VENV and choice.folder:
        return _venv_python(choice.folder)
    if choice.kind is ChoiceKind.PATH:
        tool = _find_on_path(tools, place.search_path)
        native = tool.resolve()
        return _environment_of(tool) or BuildTree(native.parent.parent, native.parent, f"path: {native.parent}")
    return environment_for(choice, place).python


def _find_on_path(tools: Sequence[str], search_path: str) -> Path:
    """The first one of several tools that belong together; the others must lie next to it.

    Args:
        tools: their names.
        search_path: the value of PATH.

    Raises:
        ToolchainError: one is missing, or they come from several places.
    """
    found = {tool: shutil.which(tool, path=search_path) for tool in tools}
    missing = [tool for tool, path in found.items() if path is None]
    if missing:
        raise ToolchainError(
            f"no {' and '.join(missing)} on the PATH: {search_path or 'it is empty'}",
            "Put the folder of IREE's tools on it: export PATH=<build>/tools:$PATH",
        )
    paths = [Path(path).absolute() for path in found.values() if path is not None]
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise ToolchainError(
            f"{' and '.join(tools)} on the PATH come from several places: {', '.join(folders)}",
            "Put the folder of one IREE first.",
        )
    return paths[0]


def _environment_of(tool: Path) -> Path | None:
    """The interpreter of the environment whose script a tool is; None for a native program.

    A wheel puts scripts on the PATH that start its native programs.
    """
    with tool.open("rb") as file:
        if file.read(2) != b"#!":
            return None
    python = tool.parent / "python"
    return python if python.exists() else None


def _venv_python(folder: Path) -> Path:
    if folder.is_file():
        return folder
    python = folder / "bin" / "python"
    if not python.exists():
        raise NoSuchToolchainError(
            f"venv:{folder} is no virtual environment: {python} does not exist",
            f"Make one: python -m venv {folder}, and install IREE there.",
        )
    return python


def environment_for(choice: Choice, place: Place) -> Environment:
    """The environment of the cache that a choice means: a release, a nightly, or wheels.

    Raises:
        ToolchainError: there is none, or it cannot be made.
        UsageError: the choice is of another kind.
    """
    environments = place.environments
    if choice.kind is ChoiceKind.WHEELS and choice.folder:
        return environments.ready(_wheels_recipe(choice.folder, place.hash_of))
    if choice.kind is ChoiceKind.COMMIT:
        return _install_commit(choice, place)
    if choice.kind in (ChoiceKind.RELEASE, ChoiceKind.RANGE):
        sources = Sources()
    elif choice.kind is ChoiceKind.NIGHTLY:
        # The exact version allows itself; nothing else is to be a pre-release.
        sources = Sources(place.nightly_links)
    else:
        raise UsageError(
            f"{choice.text} is not installed by this toolkit",
            "Name a release, a range, a nightly, commit:SHA or wheels:DIR.",
        )
    version = choice.version or _newest(choice, place, sources)
    try:
        return environments.ready(_recipe(version, sources))
    except ToolchainError as error:
        nearest = None if environments.offline else _nearest(version, place, sources)
        if nearest is None:
            raise
        raise NoSuchToolchainError(f"there is no IREE {version} for this Python and platform", nearest) from error


def _install_commit(choice: Choice, place: Place) -> Environment:
    """The environment with the packages of a commit; they are downloaded where it is not there."""
    environments = place.environments
    there = {path.name: found for path, found, _ in environments.all() if found}
    label = f"commit-{choice.ref[:_COMMIT_DIGITS]}"
    known = [found.label for found in there.values() if found.label.startswith(label)]
    if len(known) == 1 and (found := environments.find(known[0])):
        return found
    if environments.offline:
        raise ToolchainError(
            f"{choice.text} is not installed in the cache, and this is offline",
            f"Install it where there is a network: gauntlet toolchain.install {choice.text}",
        )
    commit = place.packages.commit_of(choice.ref)
    label = f"commit-{commit[:_COMMIT_DIGITS]}"
    with named_refusals(environments.folder):
        environments.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(environments.folder / f".{label}.download.lock"):
            if found := environments.find(label):
                return found
            with empty_folder(environments.folder / f".downloading-{label}") as folder:
                place.packages.fetch(commit, folder)
                recipe = _wheels_recipe(folder, place.hash_of)
                return environments.ready(replace(recipe, label=label, asked=choice.text))


def _recipe(version: Version, sources: Sources) -> Recipe:
    requirements = (f"iree-base-compiler[onnx]=={version}", f"iree-base-runtime=={version}")
    return Recipe(str(version), requirements, sources, str(version), str(version), str(version))


def _newest(choice: Choice, place: Place, sources: Sources) -> Version:
    """The newest version of a range, or the newest nightly."""
    environments = place.environments
    wanted = choice.range if choice.range is not None else SpecifierSet()
    if environments.offline:
        found = environments.versions()
        here = [version for version in found if choice.range is not None or version.is_prerelease]
        fitting = list(wanted.filter(here, prereleases=None if choice.range is not None else True))
        if not fitting:
            have = ", ".join(map(str, found)) or "none"
            raise ToolchainError(
                f"no IREE in the cache is {choice.text}, and this is offline: installed are {have}",
                f"Install one where there is a network: gauntlet toolchain.install '{choice.text}'",
            )
        return max(fitting)
    asked = sources if choice.range is not None else Sources(sources.find_links, only_links=True, pre=True)
    versions = environments.installer.versions(COMPILER_WHEEL.distribution, wanted, asked)
    if not versions and choice.range is not None:
        known = environments.installer.versions(COMPILER_WHEEL.distribution, SpecifierSet(), asked)
        raise NoSuchToolchainError(
            f"no release of IREE is {choice.text}",
            f"There are {known[0]} to {known[-1]}." if known else "The index has none: check its settings.",
        )
    if not versions:
        raise ToolchainError(
            f"no nightly of IREE for this Python and platform at {sources.find_links}",
            "Name its page in gauntlet.toml: [toolchains] nightly_links.",
        )
    return versions[-1]


def _nearest(version: Version, place: Place, sources: Sources) -> str | None:
    """The versions close to one that does not exist; None where it does."""
    installer = place.environments.installer
    sources = replace(sources, pre=version.is_prerelease)

    def there(text: str) -> list[Version]:
        return installer.versions(COMPILER_WHEEL.distribution, SpecifierSet(text), sources)

    if there(f"=={version}"):
        return None
    near = [*there(f"<{version}")[-1:], *there(f">{version}")[:1]]
    if not near:
        return f"The index has no {COMPILER_WHEEL.distribution} at all: check its settings."
    return f"Nearest: {' and '.join(map(str, near))}."


def _wheels_recipe(folder: Path, hash_of: Callable[[Path], str]) -> Recipe:
    """What is installed of a folder of wheels: the one of each kind that fits this Python."""
    if not folder.is_dir():
        raise NoSuchToolchainError(f"wheels:{folder} is not a folder", "Name the folder that holds IREE's wheels.")
    tags = frozenset(sys_tags())
    fitting: dict[str, list[tuple[Version, Path]]] = {}
    others = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, made_for = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            others.append(path.name)
            continue
        if name in (COMPILER_WHEEL.distribution, RUNTIME_WHEEL.distribution) and made_for & tags:
            fitting.setdefault(name, []).append((version, path))
        else:
            others.append(path.name)
    if not fitting:
        there = ", ".join(others[:6]) or "no wheel"
        raise ToolchainError(
            f"no wheel of iree-base-compiler or iree-base-runtime for {environment_tag()} in {folder}: it has {there}",
            "Name the folder of wheels that were built for this Python and platform.",
        )
    for found in fitting.values():
        if len(found) > 1:
            names = ", ".join(path.name for _, path in found)
            raise ToolchainError(f"several wheels of one kind in {folder}: {names}", "Leave one of each kind.")
    chosen = {kind: fitting[kind][0] for kind in sorted(fitting)}
    digest = hashlib.sha256("".join(f"{kind} {hash_of(path)}\n" for kind, (_, path) in chosen.items()).encode())
    extras = {COMPILER_WHEEL.distribution: "[onnx]"}
    requirements = [f"{kind}{extras.get(kind, '')} @ {path.resolve().as_uri()}" for kind, (_, path) in chosen.items()]
    versions = {kind: str(version) for kind, (version, _) in chosen.items()}
    return Recipe(
        label=f"wheels-{digest.hexdigest()[:16]}",
        requirements=tuple(requirements),
        sources=Sources(),
        compiler=versions.get(COMPILER_WHEEL.distribution, ""),
        runtime=versions.get(RUNTIME_WHEEL.distribution, ""),
        asked=f"wheels:{folder}",
    )
