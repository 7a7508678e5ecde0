"""The IREE that was asked for (`--iree`, `--iree-compiler`, `--iree-runtime`), and where it is looked for."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError, UsageError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.messages import news
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.toolchains.build_tree import BuildTree, find_bindings, find_compiler_of, find_runtime_of
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.toolchains.environments import (
    Environment,
    Environments,
    Recipe,
    empty_folder,
    make_environment_tag,
    name_refusals,
)
from iree_gauntlet.toolchains.installed import (
    COMPILER_WHEEL,
    RUNTIME_WHEEL,
    find_compiler_on,
    find_installed,
    find_installed_release,
    find_runtime_on,
    find_site_packages,
)
from iree_gauntlet.toolchains.installer import Installer, Sources
from iree_gauntlet.toolchains.source_builds import COMPILER, IMPORTER, RUNTIME, SourceBuilds
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import requests
    from packaging.version import Version

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.toolchains.source_builds import Uses


# In the order of looking.
_TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN")
_WORKFLOW = "pkgci.yml"
_PER_PAGE = 100
_SECONDS = 60.0
_NEWS_SECONDS = 10.0
_BLOCK = 1 << 20
_NO_ACCESS = (401, 403, 429)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
IREE_VARIABLE = "IREE_GAUNTLET_IREE"
_VERSIONS = (ChoiceKind.RELEASE, ChoiceKind.RANGE, ChoiceKind.NIGHTLY)
# What lies in a folder of toolchains.
_KINDS = ("envs", "builds", "work")
# Of a commit's hash, in the name of its environment.
_COMMIT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class _CiArtifact(Recorded):
    """What GitHub says of a file that a run of IREE's CI has left."""

    id: int
    name: str
    size_in_bytes: int = 0
    expired: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class CommitPackages:
    """Where packages of commits are."""

    api: str
    environ: Mapping[str, str]
    news: Callable[[str], None]

    def commit_of(self, beginning: str) -> str:
        """The whole hash of a commit, by GitHub."""
        return beginning if len(beginning) == 40 else str(self._ask(f"commits/{beginning}", beginning)["sha"])

    def fetch(self, commit: str, folder: Path) -> None:
        """Downloads the packages of a commit, and lays its wheels into a folder.

        Raises:
            ToolchainError: there are none, they have expired, GitHub asks for a token or for patience, or what came is
                damaged.
        """
        artifact = self._find_artifact(commit)
        archive = folder / "artifact.zip"
        self.news(f"commit:{commit[:12]}: downloading {artifact.name} ({byte_size(artifact.size_in_bytes)})")
        self._download(artifact, archive, commit)
        try:
            _unpack(archive, folder)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            what = f"the packages of commit {commit[:12]} came damaged: {error}"
            raise ToolchainError(what, "Try again.") from error
        archive.unlink()

    def _find_artifact(self, commit: str) -> _CiArtifact:
        """The artifact with the packages for this platform, of the newest run that has one."""
        name = f"{platform.system().lower()}_{platform.machine()}_release_packages"
        runs = list(self._list(f"actions/workflows/{_WORKFLOW}/runs?head_sha={commit}", "workflow_runs", commit))
        expired, others = False, set()
        for run in runs:
            for item in self._list(f"actions/runs/{run['id']}/artifacts", "artifacts", commit):
                artifact = _CiArtifact.from_dict(item)
                if artifact.name == name and not artifact.expired:
                    return artifact
                expired = expired or artifact.name == name
                others.add(artifact.name)
        if not runs:
            why = f"IREE's CI has not built commit {commit[:12]}"
        elif expired:
            why = f"the packages of commit {commit[:12]} have expired: GitHub keeps them for 90 days"
        else:
            there = ", ".join(sorted(others)) or "nothing"
            why = f"IREE's CI has no {name} of commit {commit[:12]}: there is {there}"
        raise NoSuchToolchainError(why, _build_hint(commit))

    def _list(self, path: str, key: str, commit: str) -> Iterator[dict[str, Any]]:
        """What all pages of a list hold."""
        mark = "&" if "?" in path else "?"
        page, seen = 1, 0
        while True:
            answer = self._ask(f"{path}{mark}per_page={_PER_PAGE}&page={page}", commit)
            yield from answer[key]
            seen += len(answer[key])
            if not answer[key] or seen >= answer.get("total_count", 0):
                return
            page += 1

    def _ask(self, path: str, commit: str) -> Any:
        response = self._get(f"{self.api}/{path}", commit)
        try:
            return response.json()
        except ValueError as error:
            raise ToolchainError(f"{self.api}/{path} answers with no JSON", "Is that GitHub's API?") from error

    def _download(self, artifact: _CiArtifact, path: Path, commit: str) -> None:
        response = self._get(f"{self.api}/actions/artifacts/{artifact.id}/zip", commit, stream=True)
        digest, size, told = hashlib.sha256(), 0, time.monotonic()
        try:
            with response, path.open("wb") as file:
                for block in response.iter_content(_BLOCK):
                    file.write(block)
                    digest.update(block)
                    size += len(block)
                    if time.monotonic() - told > _NEWS_SECONDS:
                        told = time.monotonic()
                        self.news(f"commit:{commit[:12]}: {byte_size(size)} so far")
        except OSError as error:  # as all of requests' are
            what = f"the packages of commit {commit[:12]} were cut short after {byte_size(size)}: {error}"
            raise ToolchainError(what, "Try again.") from error
        known = _HASH.fullmatch(artifact.digest)
        if known and digest.hexdigest() != known[1]:
            what = f"the packages of commit {commit[:12]} came with another content than GitHub says"
            raise ToolchainError(what, f"Try again. Expected sha256 {known[1]}, came {digest.hexdigest()}.")

    def _get(self, url: str, commit: str, *, stream: bool = False) -> requests.Response:
        import requests  # noqa: PLC0415 - a plan needs none

        token = next((self.environ[name] for name in _TOKEN_VARIABLES if self.environ.get(name)), "")
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        # requests leaves it out where GitHub sends it on to another host.
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        try:
            response = requests.get(url, headers=headers, timeout=_SECONDS, stream=stream)
        except requests.RequestException as error:
            raise ToolchainError(
                f"GitHub does not answer: {type(error).__name__} at {url}", _build_hint(commit)
            ) from error
        if response.ok:
            return response
        if response.status_code in _NO_ACCESS and (until := _read_patience(response.headers)):
            more = "" if token else f" With a token in ${_TOKEN_VARIABLES[0]} there are more."
            raise ToolchainError(f"GitHub answers no more questions {until}", f"{_build_hint(commit)}{more}")
        if response.status_code in _NO_ACCESS:
            what = f"GitHub gives no packages without a token that may read actions (status {response.status_code})"
            if token:
                what = f"the token may not read GitHub's actions (status {response.status_code})"
            hint = f"Set ${_TOKEN_VARIABLES[0]}, such as to what `gh auth token` prints. {_build_hint(commit)}"
            raise ToolchainError(what, hint)
        if response.status_code in (404, 422):
            raise NoSuchToolchainError(f"GitHub knows no commit {commit} at {self.api}", "Mind its spelling.")
        raise ToolchainError(f"GitHub answers with status {response.status_code} at {url}", _build_hint(commit))


def _read_patience(headers: Mapping[str, str]) -> str:
    """How long GitHub answers nothing more, by one of its two limits; empty where that is not why."""
    if headers.get("x-ratelimit-remaining") == "0":
        return f"until {time.strftime('%H:%M UTC', time.gmtime(int(headers.get('x-ratelimit-reset') or 0)))}"
    wait = headers.get("retry-after", "")
    return f"for {wait} s" if wait.isdigit() else ""


def _build_hint(commit: str) -> str:
    return f"Build it: source:DIR@{commit[:12]}, with a checkout of IREE."


def _unpack(archive: Path, folder: Path) -> None:
    """Lays the wheels of an archive into a folder; those of archives within it too."""
    with zipfile.ZipFile(archive) as outer:
        for item in outer.infolist():
            name = PurePosixPath(item.filename).name
            if item.is_dir() or PurePosixPath(name).suffix not in (".whl", ".zip"):
                continue
            path = folder / name
            with outer.open(item) as source, path.open("wb") as target:
                while block := source.read(_BLOCK):
                    target.write(block)
            if path.suffix == ".zip" and path != archive:
                _unpack(path, folder)
                path.unlink()


@dataclass(frozen=True, slots=True)
class ToolchainPlace:
    """Where toolchains are looked for, in addition to those that are installed with this toolkit."""

    environments: Environments
    builds: SourceBuilds
    packages: CommitPackages
    nightly_links: str
    hash_of: Callable[[Path], str]
    search_path: str
    importer: bool = False
    python_path: str = ""


def choose_halves(
    request: ToolchainRequest, environ: Mapping[str, str], default: ChoiceKind = ChoiceKind.INSTALLED
) -> tuple[Choice, Choice]:
    """Compiler and runtime that are asked for, by their own options, else by `--iree`, else by the variable."""
    iree, compiler, runtime = request.iree, request.iree_compiler, request.iree_runtime
    named = environ.get(IREE_VARIABLE, "") or str(default)
    whole = parse_choice(iree) if iree else parse_choice(named, f"${IREE_VARIABLE}")
    return (
        parse_choice(compiler, "--iree-compiler") if compiler else whole,
        parse_choice(runtime, "--iree-runtime") if runtime else whole,
    )


def find_requested(
    request: ToolchainRequest, environ: Mapping[str, str], place: ToolchainPlace, *, as_shell: bool = False
) -> Toolchain:
    """The IREE that a command asks for, with why it is that one, where no option says it and several are here.

    Where nothing says which, it is the wheels of this Python; `as_shell`, first what a shell would start.

    Raises:
        UsageError: an option, or the variable, names no IREE.
        ToolchainError: as of `find_toolchain`.
    """
    shell = [_find_shell_tool(tool, place.search_path) for tool in (COMPILE, RUN_MODULE, BENCHMARK_MODULE)]
    other = next((path for path in shell if path), None)
    default = ChoiceKind.PATH if as_shell and all(shell) else ChoiceKind.INSTALLED
    choices = choose_halves(request, environ, default)
    named = environ.get(IREE_VARIABLE, "")
    try:
        found = find_toolchain(*choices, place)
    except ToolchainError as error:
        if other and not named and ChoiceKind.INSTALLED in (choice.kind for choice in choices):
            error.hint += f"\n  Or use {other}, which is on the PATH: --iree path, or export {IREE_VARIABLE}=path."
        raise
    why = ""
    if request.iree or (request.iree_compiler and request.iree_runtime):
        return found
    if named:
        why = f"IREE is {found.source}, as ${IREE_VARIABLE} says: {named}"
    elif default is ChoiceKind.PATH:
        why = f"IREE is {found.source}, as its tools are on the PATH; {IREE_VARIABLE}=installed takes this Python's"
    elif other:
        why = f"IREE is {found.source}; {other}, which is on the PATH, is used with --iree path or {IREE_VARIABLE}=path"
    return replace(found, why=why)


def make_toolchain_place(
    folder: Path,
    cache_dir: Path,
    configuration: Configuration,
    uses_of: Callable[[Path], Uses],
    hash_of: Callable[[Path], str],
    *,
    offline: bool,
    importer: bool = False,
) -> ToolchainPlace:
    """Where toolchains are looked for, and installed and built unless this is offline: in a folder for all projects.

    What a project's cache has from before is used as well. With `importer`, what is built imports ONNX programs too.
    """
    before = cache_dir.absolute() / "toolchains"
    has_some = before != folder and any((before / kind).is_dir() for kind in _KINDS)
    places = (folder, before) if has_some else (folder,)
    uses = [uses_of(place) for place in places]

    def use(path: Path) -> None:
        for each in uses:
            each.use(path)

    environments = Environments(
        folder / "envs",
        Installer(),
        offline=offline,
        use=use,
        news=news,
        earlier=tuple(place / "envs" for place in places[1:]),
    )
    builds = SourceBuilds(
        folder / "builds",
        configuration.build_options,
        os.environ,
        offline=offline,
        uses=uses[0],
        use=use,
        news=news,
        earlier=tuple(place / "builds" for place in places[1:]),
    )
    packages = CommitPackages(configuration.packages_api, os.environ, news)
    links, search_path = configuration.nightly_links, os.environ.get("PATH", "")
    python_path = os.environ.get("PYTHONPATH", "")
    return ToolchainPlace(environments, builds, packages, links, hash_of, search_path, importer, python_path)


def find_toolchain(compiler: Choice, runtime: Choice, place: ToolchainPlace) -> Toolchain:
    """Compiler and runtime that were asked for, installed where they are releases and are not there.

    Raises:
        ToolchainError: one is not available, or lacks a tool.
    """
    if compiler == runtime and compiler.kind is ChoiceKind.INSTALLED:
        return find_installed()
    parts = frozenset((COMPILER, *([IMPORTER] if place.importer else [])))
    # What is built is built once for both halves.
    built = compiler == runtime and compiler.kind is ChoiceKind.SOURCE
    found = _locate(compiler, place, parts | {RUNTIME} if built else parts)
    if found is None:
        half = find_installed().compiler
    elif isinstance(found, BuildTree):
        half = find_compiler_of(found, place.hash_of, place.environments.folder.with_name("bindings"))
    else:
        half = find_compiler_on(*_describe_environment(found, compiler))
    if not built:
        found = _locate(runtime, place, {RUNTIME})
    if found is None:
        return Toolchain(half, find_installed().runtime)
    if isinstance(found, BuildTree):
        return Toolchain(half, find_runtime_of(found, place.hash_of))
    return Toolchain(half, find_runtime_on(*_describe_environment(found, runtime)))


def _describe_environment(python: Path, choice: Choice) -> tuple[list[str], str, str]:
    """The search path of an environment's Python, that Python, and what people call it."""
    name = str(choice.kind) if choice.folder or choice.kind is ChoiceKind.PATH else choice.text
    return [str(path) for path in find_site_packages(python)], str(python), name


def _locate(choice: Choice, place: ToolchainPlace, parts: AbstractSet[str]) -> Path | BuildTree | None:
    """The interpreter of an environment, or a build; None for what is installed."""
    tools = (COMPILE,) if COMPILER in parts else (RUN_MODULE, BENCHMARK_MODULE)
    version = None
    if choice.kind in _VERSIONS:
        version = choice.version or _find_newest(choice, place, partial(list_versions_here, place.environments))
    # What this Python has already is not installed again.
    if choice.kind is ChoiceKind.INSTALLED or (version and version == find_installed_release()):
        return None
    if choice.kind is ChoiceKind.SOURCE:
        build = place.builds.ready(choice, frozenset(parts))
        return BuildTree(build.path, build.path / "tools", f"source: {build.title}", build.commit)
    if choice.kind is ChoiceKind.BUILD and choice.folder:
        return BuildTree.of(choice.folder, tools)
    if choice.kind is ChoiceKind.VENV and choice.folder:
        return _find_venv_python(choice.folder)
    if choice.kind is ChoiceKind.PATH:
        tool = _find_on_path(tools, place.search_path)
        native, python = tool.resolve(), tool.parent / "python"
        with tool.open("rb") as file:
            is_script = file.read(2) == b"#!"
        # A script belongs to the environment that it lies in.
        folders = (Path(folder).absolute() for folder in place.python_path.split(os.pathsep) if folder)
        bindings = find_bindings(folders)
        tree = BuildTree(native.parent.parent, native.parent, f"path: {native.parent}", bindings=bindings)
        return python if is_script and python.exists() else tree
    environment = _provide_version(choice, version, place) if version else provide_environment(choice, place)
    return environment.python


def _find_on_path(tools: Sequence[str], search_path: str) -> Path:
    """The first one of several tools that belong together; the others must lie next to it."""
    found = {tool: shutil.which(tool, path=search_path) for tool in tools}
    missing = [tool for tool, path in found.items() if path is None]
    if missing:
        hint = "Put the folder of IREE's tools on it: export PATH=<build>/tools:$PATH"
        raise ToolchainError(f"no {' and '.join(missing)} on the PATH: {search_path or 'it is empty'}", hint)
    paths = [Path(path).absolute() for path in found.values() if path is not None]
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        hint = "Put the folder of one IREE first."
        raise ToolchainError(f"{' and '.join(tools)} on the PATH come from several places: {', '.join(folders)}", hint)
    return paths[0]


def _find_shell_tool(tool: str, search_path: str) -> Path | None:
    """What a shell starts by a tool's name; None where there is none, or a script of the wheels in this Python."""
    path = shutil.which(tool, path=search_path)
    own = Path(sys.executable).parent.resolve()
    return Path(path).absolute() if path and Path(path).absolute().parent.resolve() != own else None


def _find_venv_python(folder: Path) -> Path:
    if folder.is_file():
        return folder
    python = folder / "bin" / "python"
    if not python.exists():
        hint = f"Make one: python -m venv {folder}, and install IREE there."
        raise NoSuchToolchainError(f"venv:{folder} is no virtual environment: {python} does not exist", hint)
    return python


def provide_environment(choice: Choice, place: ToolchainPlace) -> Environment:
    """The environment of the cache that a choice means: a release, a nightly, or wheels; UsageError for other kinds."""
    if choice.kind is ChoiceKind.WHEELS and choice.folder:
        return place.environments.ready(_make_wheels_recipe(choice.folder, place.hash_of))
    if choice.kind is ChoiceKind.COMMIT:
        return _install_commit(choice, place)
    if choice.kind in _VERSIONS:
        version = choice.version or _find_newest(choice, place, place.environments.versions)
        return _provide_version(choice, version, place)
    hint = "Name a release, a range, a nightly, commit:SHA or wheels:DIR."
    raise UsageError(f"{choice.text} is not installed by this toolkit", hint)


def _make_sources(choice: Choice, place: ToolchainPlace) -> Sources:
    # The exact version of a nightly allows itself; nothing else is to be a pre-release.
    return Sources(place.nightly_links) if choice.kind is ChoiceKind.NIGHTLY else Sources()


def _provide_version(choice: Choice, version: Version, place: ToolchainPlace) -> Environment:
    environments, sources = place.environments, _make_sources(choice, place)
    try:
        requirements = (f"iree-base-compiler[onnx]=={version}", f"iree-base-runtime=={version}")
        return environments.ready(Recipe(str(version), requirements, sources, *(str(version),) * 3))
    except ToolchainError as error:
        nearest = None if environments.offline else _find_nearest(version, place, sources)
        if nearest is None:
            raise
        raise NoSuchToolchainError(f"there is no IREE {version} for this Python and platform", nearest) from error


def _install_commit(choice: Choice, place: ToolchainPlace) -> Environment:
    """The environment with the packages of a commit; they are downloaded where it is not there."""
    environments = place.environments
    label = f"commit-{choice.ref[:_COMMIT_DIGITS]}"
    known = [found.label for _, found, _ in environments.all() if found and found.label.startswith(label)]
    if len(known) == 1 and (found := environments.find(known[0])):
        return found
    if environments.offline:
        hint = f"Install it where there is a network: gauntlet toolchain.install {choice.text}"
        raise ToolchainError(f"{choice.text} is not installed, and this is offline", hint)
    commit = place.packages.commit_of(choice.ref)
    label = f"commit-{commit[:_COMMIT_DIGITS]}"
    with name_refusals(environments.folder):
        environments.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(environments.folder / f".{label}.download.lock"):
            if found := environments.find(label):
                return found
            with empty_folder(environments.folder / f".downloading-{label}") as folder:
                place.packages.fetch(commit, folder)
                recipe = _make_wheels_recipe(folder, place.hash_of)
                return environments.ready(replace(recipe, label=label, asked=choice.text))


def _find_newest(choice: Choice, place: ToolchainPlace, list_here: Callable[[], list[Version]]) -> Version:
    """The newest version of a range, or the newest nightly; without a network, of those that are here."""
    environments, sources = place.environments, _make_sources(choice, place)
    wanted = choice.range if choice.range is not None else SpecifierSet()
    if environments.offline:
        here = list_here()
        some = [version for version in here if choice.range is not None or version.is_prerelease]
        fitting = list(wanted.filter(some, prereleases=None if choice.range is not None else True))
        if not fitting:
            have = ", ".join(map(str, here)) or "none"
            raise ToolchainError(
                f"no IREE here is {choice.text}, and this is offline: installed are {have}",
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
        hint = "Name its page in gauntlet.toml: [toolchains] nightly_links."
        raise ToolchainError(f"no nightly of IREE for this Python and platform at {sources.find_links}", hint)
    return versions[-1]


def list_versions_here(environments: Environments) -> list[Version]:
    """Releases and nightlies that need no network, rising: those of environments, and what this Python has."""
    installed = find_installed_release()
    return sorted({*environments.versions(), *([installed] if installed else [])})


def _find_nearest(version: Version, place: ToolchainPlace, sources: Sources) -> str | None:
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


def _make_wheels_recipe(folder: Path, hash_of: Callable[[Path], str]) -> Recipe:
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
            f"no wheel of iree-base-compiler or iree-base-runtime for {make_environment_tag()} in {folder}: "
            f"it has {there}",
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
