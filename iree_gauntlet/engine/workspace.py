"""Where things are for one command: project folder, specs, caches, toolchain; and what was selected.

And what a spec of somebody else's could do beyond compiling and running its model, as far as its words tell: a flag is
judged by its name, and by a path in its value. Whatever its name, one that leads out of the run's folder may be written
to, unless it is known that the flag only reads.
"""

from __future__ import annotations

import functools
import itertools
import re
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.device_kinds import ROCM
from iree_gauntlet.dialects.locations import file_path, is_url, problem_of_flag
from iree_gauntlet.dialects.selection import Include, MarkerExpression, explain_no_match, find_idle_globs
from iree_gauntlet.dialects.spec_file import problem_of_field, read_toml, with_lines
from iree_gauntlet.errors import ArtifactError, Problem, SpecError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.requests import suggest_each
from iree_gauntlet.settings import find_project_folder, find_shipped_folder, read_file, resolve_links, shown
from iree_gauntlet.stages import DEFAULT_STAGES, Stage
from iree_gauntlet.targets import FAMILIES, Target, parse_target
from iree_gauntlet.toolchains.flags import split_flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.configured_suites import Config
    from iree_gauntlet.dialects.load import AnySpec, CaseSet
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.dialects.suite import Suite
    from iree_gauntlet.requests import Defaults, SelectionRequest
    from iree_gauntlet.stages import Stage


_MOST_NAMES = 5
_MOST_RISKS = 10
_DIRS_HINT = "Write it relative to the suite's file."
# Options that leave the default suite in place: they say how it is run.
_BESIDE_A_SUITE = ("suite", "external_file_directory", "sku", "device", "untrusted")
# Names as the compiler writes them, with `-`. Programs that IREE starts; what it loads into its own process, or links
# into the modules that are run.
_PROGRAMS = re.compile(r"iree-.*linker-path|iree-.*ptxas-from|iree-hal-preprocess-executables-with|device-capture-tool")
_CODE = re.compile(
    r"load|.*(?:load|opt|pass)-.*plugin.*|executable-plugin|.*dylib-path|vulkan-libvulkan-search-path|module"
    r"|iree-link-bitcode|iree-hal-substitute-executable-.*|iree-hal-executable-object-search-path|iree-\w+-bc-dir"
)
# In a pipeline of passes.
_WITH_TOOL = "executables-with-tool"
_FLAG_FILES = re.compile(r"flagfile|config(?:-file)?")
# What a file is only read for.
_READS = re.compile(
    r"input|expected-output|parameters|iree-(?:parameter|opt)-import.*|iree-codegen-tuning-spec-path"
    r"|iree-preprocessing-.*-filename|iree-codegen-transform-dialect-library|iree-codegen-debug-patched-func-ops-file-name"
)
# A path in a value that leads out of the working folder.
_OUTSIDE = re.compile(r"(?:\A|[,;=@])((?:[/~]|(?:[^,;=@]*/)?\.\.(?:/|\Z|[,;=@]))[^,;=@]*)")
_HINT = "Read what it does before you run it (docs/explanation/trust.md); --untrusted refuses it."
# Of a project's settings, what cannot lead a run astray.
_HARMLESS_TABLES = {"downloads", "$schema"}


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command is about.

    Attributes:
        name: of the suite, or `custom`; part of a run's name.
        specs: every spec file that was read.
        not_asked: a line for each config that was named and is for a target that was not asked for.
        notes: what was selected otherwise than its options alone say, a line each.
        device_optional: where there is no such device, it is compiled and not run.
        read_from: folders of specs and of what they name, the suite's file, and configs.
        risks: flags of the cases that do more than compile and run them.
    """

    name: str
    stages: tuple[Stage, ...]
    targets: tuple[Target, ...]
    specs: tuple[Spec, ...]
    cases: CaseSet
    not_asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    device_optional: bool = False
    read_from: tuple[Path, ...] = ()
    risks: tuple[Problem, ...] = ()

    def require_sound(self) -> None:
        """Raises SpecError where a selected spec has problems."""
        problems = [*self.cases.problems, *self.source_problems(self.cases.problems)]
        if problems:
            raise SpecError(problems)

    def warnings(self) -> list[str]:
        """What is worth knowing before anything runs, one line each."""
        # What single cases of operator suites lack is an error of theirs.
        broken = {problem.file for problem in self.cases.broken}
        missing = each_once(
            (case.origin.file, case.blocked_reason) for case in self._cases if case.origin.file not in broken
        )
        left_out = Counter(problem.file for problem in self.cases.left_out)
        unusable = (
            f"{file} cannot be used ({counted(count, 'problem')}; `lint` shows them); nothing selected needs it"
            for file, count in left_out.items()
        )
        risky = [str(replace(problem, hint="")) for problem in self.risks]
        if len(risky) > _MOST_RISKS:
            risky[_MOST_RISKS:] = [f"{len(risky) - _MOST_RISKS} more flags do such things; `lint` lists them"]
        return [*self.file_warnings(), *risky, *unusable, *missing]

    def file_warnings(self, *, listed: bool = False) -> list[str]:
        """What is probably not as it was meant, one line each; without those of files where they are listed too."""
        known = ", ".join(self.cases.known_markers)
        found = [f"no case has the marker {marker!r}; known: {known}" for marker in self.cases.unknown_markers]
        warned = Counter(problem.file for problem in self.cases.warnings if not listed)
        for file, count in sorted(warned.items()):
            found.append(f"{file}: {counted(count, 'warning')}; `lint` lists them")
        for file, count in sorted(Counter(problem.file for problem in self.cases.unmatched).items()):
            entries = "1 entry names" if count == 1 else f"{count} entries name"
            found.append(f"{file}: {entries} no case that is here; `lint` of the whole suite lists them")
        return [*found, *self.not_asked]

    def source_problems(self, broken: Iterable[Problem] = ()) -> list[Problem]:
        """URLs of the selected cases, and of files that have other problems too, that mean no source."""
        # Random sources bring NumPy; `list` answers without it.
        from iree_gauntlet.artifacts.sources import parse_source  # noqa: PLC0415
        from iree_gauntlet.dialects.load import SOURCE_NAMES, list_urls  # noqa: PLC0415 - it brings pydantic
        from iree_gauntlet.dialects.spec_file import strings_of  # noqa: PLC0415

        named = {(case.origin.file, field, url) for case in self._cases for field, url in list_urls(case)}
        files = {problem.file for problem in broken}
        for spec in self.specs:
            if spec.document is None and spec.name in files:
                named |= {(spec.name, field, url) for field, url in strings_of(spec.path, SOURCE_NAMES) if is_url(url)}
        found: list[Problem] = []
        for file, field, url in sorted(named):
            try:
                parse_source(url)
            except ArtifactError as error:
                found.append(problem_of_field(file, field, error.what, error.hint))
        return found

    @property
    def _cases(self) -> tuple[Case, ...]:
        return (*self.cases.cases, *self.cases.required)


def each_once(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines of what (file, text) pairs say: a text once, with all of its files; an empty one is none."""
    files: dict[str, dict[str, None]] = {}
    for file, text in warnings:
        if text:
            files.setdefault(text, {})[file] = None
    for text, found in files.items():
        yield f"{', '.join(found)}: {text}"


def select(request: SelectionRequest, defaults: Defaults, *, for_problems: bool = False) -> Selection:
    """Reads specs and selects cases, by what is asked for, and what the task selects by itself.

    `for_problems`: problems are what is asked for, also those of files that were not selected.

    Raises:
        UsageError: options that do not fit together, or name what does not exist.
        SpecError: a suite that cannot be read.
        NothingSelectedError: nothing matches.
    """
    # Specs bring pydantic; `--help` answers without it.
    from iree_gauntlet.dialects.load import load_cases, read_specs  # noqa: PLC0415
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415
    from iree_gauntlet.dialects.suite import find_idle_includes, find_unselected_failures, with_failures_of  # noqa: PLC0415

    if request.untrusted:
        _require_plain_settings(find_project_folder())
    suite = _find_suite(request, defaults)
    targets = _choose_targets(request, defaults, suite)
    folders = [Path(folder) for folder in request.spec_dir] or (_list_dirs(suite) if suite else [_locate_own_specs()])
    external = _find_folder("--external-file-directory", request.external_file_directory, "external files")
    modules = _find_folder("--module-directory", request.module_directory, "module definitions")
    configs = [Path(config) for config in request.config] or list(suite.configs if suite else ())
    specs = read_specs(folders, external, modules, configs, request.model_root)
    _require_known(targets, specs)
    if request.config and not (request.target or request.backend or request.rocm_chip):
        targets = _with_configs(targets, specs)
    includes = _choose_includes(request, defaults, suite)
    families = {target.family for target in targets}
    if idle := find_idle_globs(includes, specs):
        raise explain_no_match(idle, specs, families)
    failures = suite.expected_failures if suite else ()
    cases = load_cases(specs, includes, targets, failures, request.device)
    if suite:
        # Folders in place of its own may hold less than it names.
        unused = [] if request.spec_dir else find_idle_includes(suite, specs)
        cases = replace(cases, problems=_with_lines_of(suite, (*cases.problems, *unused)))
        if for_problems and failures and not (cases.problems or request.spec_dir):
            # The options may narrow it down.
            whole = load_cases(specs, suite.includes, targets)
            useless = _with_lines_of(suite, find_unselected_failures(suite, whole))
            cases = replace(cases, warnings=(*cases.warnings, *useless))
    notes: list[str] = []
    if suite is None and not request.spec_dir:
        suites, notes = list_project_suites()
        cases, applied = with_failures_of(suites, cases)
        notes += [*applied, *_note_several_formats(cases)]
    if not (cases.cases or cases.problems or (for_problems and cases.left_out)):
        unread = sorted({problem.file for problem in cases.left_out})
        raise explain_no_match(includes, specs, families, cases.known_markers, cases.elsewhere, unread)
    read_from = tuple(path for path in (*folders, external, modules, *configs, suite and suite.path) if path)
    risks = {item for case in (*cases.cases, *cases.required) for item in _list_risks(case)}
    if request.untrusted:
        cases = _block_risky_cases(cases, _list_own_folders(request, suite))
    return Selection(
        name=suite.name if suite else "custom",
        stages=suite.stages if suite else DEFAULT_STAGES,
        targets=tuple(targets),
        specs=tuple(spec for spec in specs if isinstance(spec, Spec)),
        cases=cases,
        not_asked=_list_not_asked(specs, targets) if configs else (),
        notes=tuple(notes),
        device_optional=bool(suite and suite.device_optional),
        read_from=read_from,
        risks=tuple(sorted(risks)),
    )


def _list_own_folders(request: SelectionRequest, suite: Suite | None) -> list[Path]:
    """The folders of a stranger's project: what the user has named. A suite may name any."""
    named = (*request.spec_dir, request.external_file_directory, request.module_directory, request.model_root)
    folders = [find_project_folder(), find_shipped_folder(), *map(Path, filter(None, named))]
    if suite is not None:
        beside = suite.path.absolute().parent
        folders.append(beside.parent if beside.name == "suites" else beside)
    return folders


def _block_risky_cases(cases: CaseSet, folders: Sequence[Path]) -> CaseSet:
    """The cases, of which none runs that could do more than compile and run its model."""

    def block(case: Case) -> Case:
        found = next(itertools.chain(_list_risks(case), _list_outside_files(case, folders)), None)
        reason = f"refused by --untrusted: {replace(found, hint='')}" if found else case.blocked_reason
        return replace(case, blocked_reason=reason, blocked_at=None if found else case.blocked_at)

    return replace(cases, cases=tuple(map(block, cases.cases)), required=tuple(map(block, cases.required)))


def _find_folder(option: str, named: str, what: str) -> Path | None:
    if named and not Path(named).is_dir():
        raise UsageError(f"{option} {Path(named)} is not a folder", f"Name the folder of the {what}.")
    return Path(named) if named else None


def list_project_suites() -> tuple[list[Suite], list[str]]:
    """Suites of the project, and a line for each that cannot be read."""
    from iree_gauntlet.dialects.suite import read_suite  # noqa: PLC0415 - it brings pydantic

    suites, broken = [], []
    for path in sorted((find_project_folder() / "suites").glob("*.toml")):
        try:
            suites.append(read_suite(shown(path)))
        except (SpecError, UsageError):
            why = f"`lint --suite {path.stem}` shows why"
            broken.append(f"{shown(path)} cannot be used, so its expected failures do not apply; {why}")
    return suites, broken


def _note_several_formats(cases: CaseSet) -> Iterator[str]:
    """A line where models are selected in several formats: they are compiled and run in each of them."""
    formats: dict[str, dict[str, str]] = {}
    for case in cases.cases:
        # A regression and a benchmark of sharktank's are one chain.
        formats.setdefault(case.model, {}).setdefault(case.dialect.partition("-")[0], case.origin.file)
    several = [model for model, files in formats.items() if len(files) > 1]
    if several:
        names = ", ".join(several[:_MOST_NAMES]) + (" …" if len(several) > _MOST_NAMES else "")
        files = " and ".join(sorted(formats[several[0]].values()))
        yield f"selected in several formats, each of which is run: {names} ({files}); --suite or --spec-dir takes one"


def _with_lines_of(suite: Suite, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    own = [problem for problem in problems if problem.file == str(suite.path)]
    lined = with_lines(own, read_toml(suite.path)[0]) if own else []
    return tuple(sorted({*problems}.difference(own).union(lined)))


def _require_known(targets: Sequence[Target], specs: Iterable[AnySpec]) -> None:
    """Makes sure that every target is one of ours, or one that a config of an operator suite is for."""
    others = [target.family for target in targets if target.family not in FAMILIES]
    configured = {config.target.family for config in _list_configs(specs)} if others else ()
    for name in others:
        if name not in configured:
            known = f"Known: {', '.join(FAMILIES)}, or a chip such as gfx942 or sm_80."
            raise UsageError(
                f"unknown target {name!r}", suggest_each("target", name, (*FAMILIES, *configured)) or known
            )


def _list_configs(specs: Iterable[AnySpec]) -> list[Config]:
    """The configs of operator suites and of ONNX models that could be read."""
    from iree_gauntlet.dialects.configured_suites import ConfiguredSpec  # noqa: PLC0415 - it brings pydantic

    suites = {id(spec.suite): spec.suite for spec in specs if isinstance(spec, ConfiguredSpec)}
    configs = {config.name: config for suite in suites.values() for config in suite.configs if config.document}
    return [configs[name] for name in sorted(configs)]


def _with_configs(targets: Sequence[Target], specs: Iterable[AnySpec]) -> Sequence[Target]:
    """The targets that configs of operator suites are for, in place of those that nobody named; with their SKU.

    The others stay where there are specs that no config is for.
    """
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415

    sku = next((target.sku for target in targets), "")
    chips: dict[str, set[str]] = {}
    for config in _list_configs(specs):
        chips.setdefault(config.target.family, set()).add(config.target.chip)
    # Of several chips of a family, each config has its own.
    implied = [Target(family, min(named) if len(named) == 1 else "", sku) for family, named in chips.items()]
    kept = targets if not implied or any(isinstance(spec, Spec) for spec in specs) else ()
    return [*(target for target in kept if target.family not in chips), *implied]


def _list_not_asked(specs: Iterable[AnySpec], targets: Sequence[Target]) -> tuple[str, ...]:
    """Configs of operator suites that were named, and are for targets that were not."""
    lines = []
    for config in _list_configs(specs):
        if not any(target.covers(config.target) for target in targets):
            family = replace(config.target, config="").name
            lines.append(f"{config.name} is for {family}, which was not asked for: --target {family} does what it says")
    return tuple(lines)


def _find_suite(request: SelectionRequest, defaults: Defaults) -> Suite | None:
    from iree_gauntlet.dialects.suite import read_suite  # noqa: PLC0415

    if request.suite:
        return read_suite(find_suite(request.suite))
    asked = [value for name, value in asdict(request).items() if name not in _BESIDE_A_SUITE]
    default = find_project_folder() / defaults.suite
    if defaults.suite and default.is_file() and not any(asked):
        return read_suite(shown(default))
    return None


def find_suite(text: str) -> Path:
    """The file that `--suite` means: a path, or the name of a suite of the project or of the toolkit."""
    path = Path(text)
    if path.is_file() or path.suffix == ".toml":
        return path
    named, shipped = (folder / "suites" / f"{text}.toml" for folder in (find_project_folder(), find_shipped_folder()))
    if not named.is_file() and shipped.is_file():
        return shown(shipped)
    # A folder is no suite: it is reported as one where no suite has its name.
    return path if not named.parent.is_dir() or (path.exists() and not named.is_file()) else shown(named)


def _list_dirs(suite: Suite) -> list[Path]:
    """The spec folders of a suite."""
    missing = [
        Problem(str(suite.path), 0, f"spec_dirs[{index}]", f"there is no folder {folder}", _DIRS_HINT)
        for index, folder in enumerate(suite.spec_dirs)
        if not folder.is_dir()
    ]
    if missing:
        raise SpecError(list(_with_lines_of(suite, missing)))
    return list(suite.spec_dirs)


def _locate_own_specs() -> Path:
    folder = find_project_folder() / "specs"
    if not folder.is_dir():
        raise UsageError(
            f"there are no specs here: {Path.cwd()} is not inside a project with specs/ and suites/",
            "`gauntlet run --suite cpu` runs the pretrained models that come with the toolkit; `gauntlet init` begins "
            "a project of your own here; --spec-dir FOLDER takes specs from elsewhere.",
        )
    return shown(folder)


def _choose_targets(request: SelectionRequest, defaults: Defaults, suite: Suite | None) -> Sequence[Target]:
    names = [*request.target, *([request.backend] if request.backend else [])]
    chip = request.rocm_chip
    sku = request.sku
    if suite and not names:
        found = replace(suite.target, sku=sku or suite.target.sku)
        return [replace(found, chip=chip) if chip and found.kind is ROCM else found]
    if not names:
        names = [ROCM.family] if chip and len(defaults.targets) == 1 else list(defaults.targets)
    targets: dict[str, Target] = {}
    for name in names:
        # A name that is nobody's may be that of a plugin's backend, for which a config of an operator suite is.
        target = parse_target(name, chip=chip, sku=sku or ("" if suite else defaults.sku)) or Target(name)
        other = targets.setdefault(target.family, target)
        if other != target:
            raise UsageError(
                f"two targets of one family: {other.name} and {target.name}", "Run once for each of the two chips."
            )
    return list(targets.values())


def _choose_includes(request: SelectionRequest, defaults: Defaults, suite: Suite | None) -> list[Include]:
    """The options' globs, each with each; with a suite, its own narrowed down by them."""
    # By itself: inside parentheses, `a) or (b` would mean something.
    MarkerExpression(request.markers)
    # Empty ones, of a variable that a script has not set, are left out.
    models, submodels, files = (
        tuple(filter(None, globs)) for globs in (request.model, request.submodel, request.filename)
    )
    names = list(itertools.product(models or ("*" if suite else defaults.model,), submodels or ("*",), files or ("*",)))
    if suite is None:
        return [Include(*globs, request.markers) for globs in names]
    includes = []
    for include, globs in itertools.product(suite.includes, names):
        markers = " and ".join(f"({text})" for text in (include.markers, request.markers) if text)
        includes.append(Include(*globs, markers, include))
    return includes


@functools.lru_cache(maxsize=4096)
def find_risky_flags(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The flags of a command line that start programs, load code, or name files outside; each with what it does."""
    found = []
    for flag in split_flags(words, frozenset()):
        name, text = flag.name.replace("_", "-"), flag.text if flag.name else flag.words[0]
        outside = _OUTSIDE.search(flag.value or ("" if flag.name else text))
        if text.startswith("@") or _FLAG_FILES.fullmatch(name):
            found.append((text, "takes more flags from a file"))
        elif _PROGRAMS.fullmatch(name) or _WITH_TOOL in text:
            found.append((text, "names a program, which is started"))
        elif _CODE.fullmatch(name):
            found.append((text, "loads code, which is run"))
        elif outside and not _READS.fullmatch(name):
            found.append((text, f"may write outside of the run's folder: {outside[1]}"))
    return tuple(found)


def _list_risks(case: Case) -> Iterator[Problem]:
    """The flags of a case that do more than compile and run it."""
    modules = (*case.modules, *case.extra_modules)
    named: list[tuple[str, Sequence[str]]] = [
        ((case.flags_origin or case.origin).file, case.run_flags),
        (case.origin.file, case.own_flags),
        *(((module.flags_origin or module.origin).file, module.flags) for module in modules),
        *((module.origin.file, [f"--{flag.lstrip('-')}" for flag, _ in module.file_flags]) for module in modules),
    ]
    for file, flags in named:
        for flag, what in find_risky_flags(tuple(flags)):
            yield problem_of_flag(file, flag, f"{flag} {what}", _HINT)


def _list_outside_files(case: Case, folders: Iterable[Path]) -> Iterator[Problem]:
    """The files that a case reads outside of the folders of its project, by their paths or by links."""
    from iree_gauntlet.dialects.load import list_urls  # noqa: PLC0415 - it brings pydantic

    places = [resolve_links(folder) for folder in folders]
    onnx = {module.program.url for module in (*case.modules, *case.extra_modules) if module.program.onnx}
    for field, url in list_urls(case):
        if not file_path(url):
            continue
        file = Path(file_path(url))
        weights = list_data_files(file) if url in onnx else ()
        for path in map(resolve_links, (file, *(file.parent / name for name in weights))):
            if not any(path.is_relative_to(place) for place in places):
                yield problem_of_field(case.origin.file, field, f"{path} is outside of the project", _HINT)


def refuse_untrusted(selection: SelectionRequest) -> None:
    """Refuses (UsageError) `--untrusted` for a command that changes specs: only who has read them can change them."""
    if selection.untrusted:
        what = "--untrusted is not for commands that change specs"
        raise UsageError(what, "Read the specs, and leave it out; `run --untrusted` judges them as they are.")


def _require_plain_settings(project: Path) -> None:
    """Refuses a project's own settings, which say where files, modules and IREEs come from, and to whom secrets go."""
    path = project / "gauntlet.toml"
    try:
        tables = tomllib.loads(read_file(path).decode()).keys() - _HARMLESS_TABLES
    except OSError:
        return
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown(path)}: not TOML: {error}", "Correct it.") from error
    if tables:
        what = f"{shown(path)} sets {', '.join(sorted(tables))}, which --untrusted does not take from a project"
        hint = "Read it, and move what you want to ~/.config/iree-gauntlet/config.toml; then remove the file."
        raise UsageError(what, hint)
