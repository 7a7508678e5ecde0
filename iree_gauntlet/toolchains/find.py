"""Finding the requested IREE (`--iree`, `--iree-compiler`, `--iree-runtime`), in its possible locations."""

from __future__ import annotations

import hashlib
import os
import platform
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
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.messages import report_progress
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.github_api import (
    PAGE_SIZE,
    TOKEN_VARIABLES,
    CiArtifact,
    find_github_token,
    make_github_headers,
)
from iree_gauntlet.toolchains.build_tree import BuildTree, find_bindings, find_built_compiler, find_built_runtime
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.toolchains.environments import (
    Environment,
    Environments,
    Recipe,
    convert_file_errors,
    make_environment_tag,
    make_temporary_folder,
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
    from iree_gauntlet.toolchains.source_builds import UsageRegistry


_WORKFLOW = "pkgci.yml"
_REQUEST_SECONDS = 60.0
_NEWS_SECONDS = 10.0
_BLOCK_BYTES = 1 << 20
_NO_ACCESS_CODES = (401, 403, 429)
IREE_VARIABLE = "IREE_GAUNTLET_IREE"
_VERSION_KINDS = (ChoiceKind.RELEASE, ChoiceKind.RANGE, ChoiceKind.NIGHTLY)
# The subfolders of a folder of toolchains.
_SUBFOLDERS = ("envs", "builds", "work")
# The number of digits of a commit's hash in the name of its environment.
_COMMIT_DIGITS = 12


@dataclass(frozen=True, slots=True)
class CommitPackages:
    """The packages that IREE's CI builds from commits."""

    api: str
    environ: Mapping[str, str]
    news: Callable[[str], None]

    def resolve_commit(self, prefix: str) -> str:
        """Return the full hash of a commit, resolved by GitHub."""
        return prefix if len(prefix) == 40 else str(self._fetch_json(f"commits/{prefix}", prefix)["sha"])

    def fetch(self, commit: str, folder: Path) -> None:
        """Download the packages of a commit, and unpack its wheels into a folder.

        Raises:
            ToolchainError: there are no packages, they have expired, GitHub requires a token or limits the rate, or the
                download is damaged.
        """
        artifact = self._find_artifact(commit)
        archive = folder / "artifact.zip"
        self.news(f"commit:{commit[:12]}: downloading {artifact.name} ({format_bytes(artifact.size_in_bytes)})")
        self._download(artifact, archive, commit)
        try:
            _unpack(archive, folder)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            message = f"the packages of commit {commit[:12]} are damaged: {error}"
            raise ToolchainError(message, "Try again.") from error
        archive.unlink()

    def _find_artifact(self, commit: str) -> CiArtifact:
        """Find the artifact with the packages for this platform in the newest CI run that has one."""
        name = f"{platform.system().lower()}_{platform.machine()}_release_packages"
        runs = list(self._list_pages(f"actions/workflows/{_WORKFLOW}/runs?head_sha={commit}", "workflow_runs", commit))
        has_expired, other_names = False, set()
        for run in runs:
            for entry in self._list_pages(f"actions/runs/{run['id']}/artifacts", "artifacts", commit):
                artifact = CiArtifact.from_dict(entry)
                if artifact.name == name and not artifact.expired:
                    return artifact
                has_expired = has_expired or artifact.name == name
                other_names.add(artifact.name)
        if not runs:
            message = f"IREE's CI has not built commit {commit[:12]}"
        elif has_expired:
            message = f"the packages of commit {commit[:12]} have expired: GitHub keeps them for 90 days"
        else:
            available = ", ".join(sorted(other_names)) or "no package"
            message = f"IREE's CI has no {name} of commit {commit[:12]}: it has {available}"
        raise NoSuchToolchainError(message, _make_build_hint(commit))

    def _list_pages(self, path: str, key: str, commit: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of all pages of a list."""
        separator = "&" if "?" in path else "?"
        page, count = 1, 0
        while True:
            document = self._fetch_json(f"{path}{separator}per_page={PAGE_SIZE}&page={page}", commit)
            yield from document[key]
            count += len(document[key])
            if not document[key] or count >= document.get("total_count", 0):
                return
            page += 1

    def _fetch_json(self, path: str, commit: str) -> Any:
        response = self._request(f"{self.api}/{path}", commit)
        try:
            return response.json()
        except ValueError as error:
            raise ToolchainError(f"{self.api}/{path} does not answer with JSON", "Is that GitHub's API?") from error

    def _download(self, artifact: CiArtifact, path: Path, commit: str) -> None:
        response = self._request(f"{self.api}/actions/artifacts/{artifact.id}/zip", commit, stream=True)
        digest, size, last_report = hashlib.sha256(), 0, time.monotonic()
        try:
            with response, path.open("wb") as file:
                for block in response.iter_content(_BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    size += len(block)
                    if time.monotonic() - last_report > _NEWS_SECONDS:
                        last_report = time.monotonic()
                        self.news(f"commit:{commit[:12]}: {format_bytes(size)} so far")
        except OSError as error:  # All of requests' errors are OSErrors.
            message = f"the packages of commit {commit[:12]} were truncated after {format_bytes(size)}: {error}"
            raise ToolchainError(message, "Try again.") from error
        if artifact.sha256 and digest.hexdigest() != artifact.sha256:
            message = f"the packages of commit {commit[:12]} differ from what GitHub reports"
            raise ToolchainError(message, f"Try again. Expected sha256 {artifact.sha256}, got {digest.hexdigest()}.")

    def _request(self, url: str, commit: str, *, stream: bool = False) -> requests.Response:
        import requests  # noqa: PLC0415 - a plan needs none

        token = find_github_token(self.environ)
        try:
            response = requests.get(url, headers=make_github_headers(token), timeout=_REQUEST_SECONDS, stream=stream)
        except requests.RequestException as error:
            raise ToolchainError(
                f"GitHub does not answer: {type(error).__name__} at {url}", _make_build_hint(commit)
            ) from error
        if response.ok:
            return response
        if response.status_code in _NO_ACCESS_CODES and (limit := _describe_rate_limit(response.headers)):
            token_hint = "" if token else f" A token in ${TOKEN_VARIABLES[0]} raises the limit."
            raise ToolchainError(f"GitHub refuses further requests {limit}", f"{_make_build_hint(commit)}{token_hint}")
        if response.status_code in _NO_ACCESS_CODES:
            message = f"GitHub requires a token that can read actions (status {response.status_code})"
            if token:
                message = f"the token cannot read GitHub's actions (status {response.status_code})"
            hint = f"Set ${TOKEN_VARIABLES[0]}, e.g. to the output of `gh auth token`. {_make_build_hint(commit)}"
            raise ToolchainError(message, hint)
        if response.status_code in (404, 422):
            raise NoSuchToolchainError(f"GitHub knows no commit {commit} at {self.api}", "Check its spelling.")
        raise ToolchainError(f"GitHub answers with status {response.status_code} at {url}", _make_build_hint(commit))


def _describe_rate_limit(headers: Mapping[str, str]) -> str:
    """Describe for how long one of GitHub's two rate limits rejects requests; empty if no limit is the cause."""
    if headers.get("x-ratelimit-remaining") == "0":
        return f"until {time.strftime('%H:%M UTC', time.gmtime(int(headers.get('x-ratelimit-reset') or 0)))}"
    wait = headers.get("retry-after", "")
    return f"for {wait} s" if wait.isdigit() else ""


def _make_build_hint(commit: str) -> str:
    return f"Build it: source:DIR@{commit[:12]}, with a checkout of IREE."


def _unpack(archive: Path, folder: Path) -> None:
    """Extract the wheels of an archive and of nested archives into a folder."""
    with zipfile.ZipFile(archive) as outer:
        for entry in outer.infolist():
            name = PurePosixPath(entry.filename).name
            if entry.is_dir() or PurePosixPath(name).suffix not in (".whl", ".zip"):
                continue
            path = folder / name
            with outer.open(entry) as source, path.open("wb") as target:
                while block := source.read(_BLOCK_BYTES):
                    target.write(block)
            if path.suffix == ".zip" and path != archive:
                _unpack(path, folder)
                path.unlink()


@dataclass(frozen=True, slots=True)
class ToolchainLocations:
    """The locations of toolchains besides this Python's wheels; `search_path` is PATH, and `pythonpath` PYTHONPATH."""

    environments: Environments
    builds: SourceBuilds
    packages: CommitPackages
    nightly_links: str
    hash_of: Callable[[Path], str]
    search_path: str
    importer: bool = False
    pythonpath: str = ""


def parse_compiler_and_runtime(
    request: ToolchainRequest, environ: Mapping[str, str], default: ChoiceKind = ChoiceKind.INSTALLED
) -> tuple[Choice, Choice]:
    """Parse the requested compiler and runtime from their own options, else `--iree`, else the environment."""
    iree, compiler, runtime = request.iree, request.iree_compiler, request.iree_runtime
    from_variable = environ.get(IREE_VARIABLE, "") or str(default)
    common = parse_choice(iree) if iree else parse_choice(from_variable, f"${IREE_VARIABLE}")
    return (
        parse_choice(compiler, "--iree-compiler") if compiler else common,
        parse_choice(runtime, "--iree-runtime") if runtime else common,
    )


def find_requested_toolchain(
    request: ToolchainRequest, environ: Mapping[str, str], locations: ToolchainLocations, *, prefer_path: bool = False
) -> Toolchain:
    """Find the IREE that a command requests; if several are available and no option decides, note the reason.

    The default is the wheels of this Python; with `prefer_path`, first the tools that a shell would start.

    Raises:
        UsageError: an option, or the environment variable, names no IREE.
        ToolchainError: errors as in `find_toolchain`.
    """
    shell_tools = [_find_shell_tool(tool, locations.search_path) for tool in (COMPILE, RUN_MODULE, BENCHMARK_MODULE)]
    shell_tool = next((path for path in shell_tools if path), None)
    default = ChoiceKind.PATH if prefer_path and all(shell_tools) else ChoiceKind.INSTALLED
    choices = parse_compiler_and_runtime(request, environ, default)
    from_variable = environ.get(IREE_VARIABLE, "")
    try:
        iree = find_toolchain(*choices, locations)
    except ToolchainError as error:
        if shell_tool and not from_variable and ChoiceKind.INSTALLED in (choice.kind for choice in choices):
            error.hint += f"\n  Or use {shell_tool}, which is on the PATH: --iree path, or export {IREE_VARIABLE}=path."
        raise
    reason = ""
    if request.iree or (request.iree_compiler and request.iree_runtime):
        return iree
    if from_variable:
        reason = f"IREE is {iree.source}, set by ${IREE_VARIABLE}: {from_variable}"
    elif default is ChoiceKind.PATH:
        reason = f"IREE is {iree.source}, since its tools are on the PATH; {IREE_VARIABLE}=installed uses this Python's"
    elif shell_tool:
        reason = (
            f"IREE is {iree.source}; {shell_tool}, which is on the PATH, "
            f"is used with --iree path or {IREE_VARIABLE}=path"
        )
    return replace(iree, selection_reason=reason)


def make_toolchain_locations(
    folder: Path,
    cache_dir: Path,
    configuration: Configuration,
    uses_of: Callable[[Path], UsageRegistry],
    hash_of: Callable[[Path], str],
    *,
    offline: bool,
    importer: bool = False,
) -> ToolchainLocations:
    """Make the locations of toolchains. New ones go into `folder`, for all projects; `offline` makes none.

    Existing ones in a project's `cache_dir` are used, too. With `importer`, source builds include the ONNX importer.
    """
    legacy_folder = cache_dir.absolute() / "toolchains"
    has_legacy = legacy_folder != folder and any((legacy_folder / name).is_dir() for name in _SUBFOLDERS)
    folders = (folder, legacy_folder) if has_legacy else (folder,)
    registries = [uses_of(path) for path in folders]

    def mark_used(path: Path) -> None:
        for registry in registries:
            registry.use(path)

    environments = Environments(
        folder / "envs",
        Installer(),
        offline=offline,
        mark_used=mark_used,
        news=report_progress,
        legacy_folders=tuple(path / "envs" for path in folders[1:]),
    )
    builds = SourceBuilds(
        folder / "builds",
        configuration.build_options,
        os.environ,
        offline=offline,
        uses=registries[0],
        mark_used=mark_used,
        news=report_progress,
        legacy_folders=tuple(path / "builds" for path in folders[1:]),
    )
    packages = CommitPackages(configuration.packages_api, os.environ, report_progress)
    links, search_path = configuration.nightly_links, os.environ.get("PATH", "")
    pythonpath = os.environ.get("PYTHONPATH", "")
    return ToolchainLocations(environments, builds, packages, links, hash_of, search_path, importer, pythonpath)


def find_toolchain(compiler: Choice, runtime: Choice, locations: ToolchainLocations) -> Toolchain:
    """Find the requested compiler and runtime; install releases that are missing.

    Raises:
        ToolchainError: the compiler or the runtime is not available, or lacks a tool.
    """
    if compiler == runtime and compiler.kind is ChoiceKind.INSTALLED:
        return find_installed()
    parts = frozenset((COMPILER, *([IMPORTER] if locations.importer else [])))
    # If both are the same source build, one build has all parts.
    is_common_build = compiler == runtime and compiler.kind is ChoiceKind.SOURCE
    location = _locate(compiler, locations, parts | {RUNTIME} if is_common_build else parts)
    if location is None:
        tools = find_installed().compiler
    elif isinstance(location, BuildTree):
        tools = find_built_compiler(location, locations.hash_of, locations.environments.folder.with_name("bindings"))
    else:
        tools = find_compiler_on(*_describe_environment(location, compiler))
    if not is_common_build:
        location = _locate(runtime, locations, {RUNTIME})
    if location is None:
        return Toolchain(tools, find_installed().runtime)
    if isinstance(location, BuildTree):
        return Toolchain(tools, find_built_runtime(location, locations.hash_of))
    return Toolchain(tools, find_runtime_on(*_describe_environment(location, runtime)))


def _describe_environment(python: Path, choice: Choice) -> tuple[list[str], str, str]:
    """Return an environment's search path, its Python, and its name for people."""
    name = str(choice.kind) if choice.folder or choice.kind is ChoiceKind.PATH else choice.text
    return [str(path) for path in find_site_packages(python)], str(python), name


def _locate(choice: Choice, locations: ToolchainLocations, parts: AbstractSet[str]) -> Path | BuildTree | None:
    """Locate the interpreter of an environment, or a build; None for the installed wheels."""
    tools = (COMPILE,) if COMPILER in parts else (RUN_MODULE, BENCHMARK_MODULE)
    version = None
    if choice.kind in _VERSION_KINDS:
        version = choice.version or _find_newest(
            choice, locations, partial(list_local_versions, locations.environments)
        )
    # If this Python has the requested release, it is not installed again.
    if choice.kind is ChoiceKind.INSTALLED or (version and version == find_installed_release()):
        return None
    if choice.kind is ChoiceKind.SOURCE:
        build = locations.builds.provide(choice, frozenset(parts))
        return BuildTree(build.path, build.path / "tools", f"source: {build.title}", build.commit)
    if choice.kind is ChoiceKind.BUILD and choice.folder:
        return BuildTree.find(choice.folder, tools)
    if choice.kind is ChoiceKind.VENV and choice.folder:
        return _find_venv_python(choice.folder)
    if choice.kind is ChoiceKind.PATH:
        tool = _find_on_path(tools, locations.search_path)
        target, python = tool.resolve(), tool.parent / "python"
        with tool.open("rb") as file:
            is_script = file.read(2) == b"#!"
        # A script belongs to the environment that contains it.
        folders = (Path(folder).absolute() for folder in locations.pythonpath.split(os.pathsep) if folder)
        bindings = find_bindings(folders)
        tree = BuildTree(target.parent.parent, target.parent, f"path: {target.parent}", bindings=bindings)
        return python if is_script and python.exists() else tree
    environment = _provide_version(choice, version, locations) if version else provide_environment(choice, locations)
    return environment.python


def _find_on_path(tools: Sequence[str], search_path: str) -> Path:
    """Find the first of several tools on the path; the others must be in the same folder."""
    tool_paths = {tool: shutil.which(tool, path=search_path) for tool in tools}
    missing = [tool for tool, path in tool_paths.items() if path is None]
    if missing:
        hint = "Add the folder of IREE's tools: export PATH=<build>/tools:$PATH"
        raise ToolchainError(f"no {' and '.join(missing)} on the PATH: {search_path or 'it is empty'}", hint)
    paths = [Path(path).absolute() for path in tool_paths.values() if path is not None]
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        hint = "Put the folder with all tools of one IREE first."
        raise ToolchainError(f"{' and '.join(tools)} on the PATH come from several folders: {', '.join(folders)}", hint)
    return paths[0]


def _find_shell_tool(tool: str, search_path: str) -> Path | None:
    """Find the file that a shell starts for a tool; None without one, or for a script of this Python's wheels."""
    path = shutil.which(tool, path=search_path)
    python_folder = Path(sys.executable).parent.resolve()
    return Path(path).absolute() if path and Path(path).absolute().parent.resolve() != python_folder else None


def _find_venv_python(folder: Path) -> Path:
    if folder.is_file():
        return folder
    python = folder / "bin" / "python"
    if not python.exists():
        hint = f"Create one: python -m venv {folder}, and install IREE in it."
        raise NoSuchToolchainError(f"venv:{folder} is not a virtual environment: {python} does not exist", hint)
    return python


def provide_environment(choice: Choice, locations: ToolchainLocations) -> Environment:
    """Return the cached environment of a release, a nightly, a commit or wheels; UsageError for other kinds."""
    if choice.kind is ChoiceKind.WHEELS and choice.folder:
        return locations.environments.provide(_make_wheels_recipe(choice.folder, locations.hash_of))
    if choice.kind is ChoiceKind.COMMIT:
        return _install_commit(choice, locations)
    if choice.kind in _VERSION_KINDS:
        version = choice.version or _find_newest(choice, locations, locations.environments.list_versions)
        return _provide_version(choice, version, locations)
    hint = "Name a release, a range, a nightly, commit:SHA or wheels:DIR."
    raise UsageError(f"{choice.text} is not installed by this toolkit", hint)


def _make_sources(choice: Choice, locations: ToolchainLocations) -> Sources:
    # The page of nightlies is only for nightlies. Requiring an exact version allows that pre-release, and no other.
    return Sources(locations.nightly_links) if choice.kind is ChoiceKind.NIGHTLY else Sources()


def _provide_version(choice: Choice, version: Version, locations: ToolchainLocations) -> Environment:
    environments, sources = locations.environments, _make_sources(choice, locations)
    try:
        requirements = (f"iree-base-compiler[onnx]=={version}", f"iree-base-runtime=={version}")
        return environments.provide(Recipe(str(version), requirements, sources, *(str(version),) * 3))
    except ToolchainError as error:
        suggestion = None if environments.offline else _find_nearest(version, locations, sources)
        if suggestion is None:
            raise
        raise NoSuchToolchainError(f"there is no IREE {version} for this Python and platform", suggestion) from error


def _install_commit(choice: Choice, locations: ToolchainLocations) -> Environment:
    """Return the environment with the packages of a commit; make it from downloaded packages if it does not exist."""
    environments = locations.environments
    label = f"commit-{choice.ref[:_COMMIT_DIGITS]}"
    labels = [env.label for _, env, _ in environments.all() if env and env.label.startswith(label)]
    if len(labels) == 1 and (env := environments.find(labels[0])):
        return env
    if environments.offline:
        hint = f"Install it with network access: gauntlet toolchain.install {choice.text}"
        raise ToolchainError(f"{choice.text} is not installed, and offline mode is on", hint)
    commit = locations.packages.resolve_commit(choice.ref)
    label = f"commit-{commit[:_COMMIT_DIGITS]}"
    with convert_file_errors(environments.folder):
        environments.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(environments.folder / f".{label}.download.lock"):
            if env := environments.find(label):
                return env
            with make_temporary_folder(environments.folder / f".downloading-{label}") as folder:
                locations.packages.fetch(commit, folder)
                recipe = _make_wheels_recipe(folder, locations.hash_of)
                return environments.provide(replace(recipe, label=label, asked=choice.text))


def _find_newest(choice: Choice, locations: ToolchainLocations, list_local: Callable[[], list[Version]]) -> Version:
    """Return the newest version of a range, or the newest nightly; without a network, only local versions count."""
    environments, sources = locations.environments, _make_sources(choice, locations)
    specifiers = choice.range if choice.range is not None else SpecifierSet()
    if environments.offline:
        local_versions = list_local()
        candidates = [version for version in local_versions if choice.range is not None or version.is_prerelease]
        matches = list(specifiers.filter(candidates, prereleases=None if choice.range is not None else True))
        if not matches:
            names = ", ".join(map(str, local_versions)) or "none"
            raise ToolchainError(
                f"no installed IREE matches {choice.text}, and offline mode is on: installed: {names}",
                f"Install one with network access: gauntlet toolchain.install '{choice.text}'",
            )
        return max(matches)
    index_sources = sources if choice.range is not None else Sources(sources.find_links, only_links=True, pre=True)
    versions = environments.installer.list_versions(COMPILER_WHEEL.distribution, specifiers, index_sources)
    if not versions and choice.range is not None:
        releases = environments.installer.list_versions(COMPILER_WHEEL.distribution, SpecifierSet(), index_sources)
        raise NoSuchToolchainError(
            f"no release of IREE matches {choice.text}",
            f"Available: {releases[0]} to {releases[-1]}." if releases else "The index is empty: check its settings.",
        )
    if not versions:
        hint = "Name its page in gauntlet.toml: [toolchains] nightly_links."
        raise ToolchainError(f"no nightly of IREE for this Python and platform at {sources.find_links}", hint)
    return versions[-1]


def list_local_versions(environments: Environments) -> list[Version]:
    """List the locally available releases and nightlies (in environments and in this Python), ascending."""
    release = find_installed_release()
    return sorted({*environments.list_versions(), *([release] if release else [])})


def _find_nearest(version: Version, locations: ToolchainLocations, sources: Sources) -> str | None:
    """Suggest versions close to a version that does not exist; return None if the version exists."""
    installer = locations.environments.installer
    sources = replace(sources, pre=version.is_prerelease)

    def list_versions(text: str) -> list[Version]:
        return installer.list_versions(COMPILER_WHEEL.distribution, SpecifierSet(text), sources)

    if list_versions(f"=={version}"):
        return None
    neighbors = [*list_versions(f"<{version}")[-1:], *list_versions(f">{version}")[:1]]
    if not neighbors:
        return f"The index has no {COMPILER_WHEEL.distribution} at all: check its settings."
    return f"Nearest: {' and '.join(map(str, neighbors))}."


def _make_wheels_recipe(folder: Path, hash_of: Callable[[Path], str]) -> Recipe:
    """Make the recipe of a folder of wheels: for each distribution, the wheel that fits this Python."""
    if not folder.is_dir():
        raise NoSuchToolchainError(f"wheels:{folder} is not a folder", "Name the folder that contains IREE's wheels.")
    tags = frozenset(sys_tags())
    matches: dict[str, list[tuple[Version, Path]]] = {}
    other_names = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, wheel_tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            other_names.append(path.name)
            continue
        if name in (COMPILER_WHEEL.distribution, RUNTIME_WHEEL.distribution) and wheel_tags & tags:
            matches.setdefault(name, []).append((version, path))
        else:
            other_names.append(path.name)
    if not matches:
        available = ", ".join(other_names[:6]) or "no wheel"
        raise ToolchainError(
            f"no wheel of iree-base-compiler or iree-base-runtime for {make_environment_tag()} in {folder}: "
            f"it has {available}",
            "Name a folder of wheels built for this Python and platform.",
        )
    for wheels in matches.values():
        if len(wheels) > 1:
            names = ", ".join(path.name for _, path in wheels)
            raise ToolchainError(f"several wheels of one kind in {folder}: {names}", "Keep one of each kind.")
    by_name = {name: matches[name][0] for name in sorted(matches)}
    digest = hashlib.sha256("".join(f"{name} {hash_of(path)}\n" for name, (_, path) in by_name.items()).encode())
    extras = {COMPILER_WHEEL.distribution: "[onnx]"}
    requirements = [f"{name}{extras.get(name, '')} @ {path.resolve().as_uri()}" for name, (_, path) in by_name.items()]
    versions = {name: str(version) for name, (version, _) in by_name.items()}
    return Recipe(
        label=f"wheels-{digest.hexdigest()[:16]}",
        requirements=tuple(requirements),
        sources=Sources(),
        compiler=versions.get(COMPILER_WHEEL.distribution, ""),
        runtime=versions.get(RUNTIME_WHEEL.distribution, ""),
        asked=f"wheels:{folder}",
    )
