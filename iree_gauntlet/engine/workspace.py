"""A command's project folder, specs and selection, and the risks in specs from other people.

A spec from somebody else could do more than compile and run its model. Flags are judged by their names, and by paths in
their values. A path that leads out of the run's folder is a risk with every flag, because the tool may write to it;
exceptions are flags whose files are known to be only read.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.device_kinds import ROCM
from iree_gauntlet.dialects.locations import get_url_path, is_url, make_flag_problem
from iree_gauntlet.dialects.selection import Include, MarkerExpression, explain_no_match, find_unmatched_globs
from iree_gauntlet.dialects.spec_file import did_you_mean, make_field_problem, read_toml, with_lines
from iree_gauntlet.engine.varying import find_variants, vary_cases
from iree_gauntlet.errors import ArtifactError, Problem, SpecError, UsageError
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.requests import suggest_each
from iree_gauntlet.settings import find_project_folder, find_shipped_folder, format_path, read_file, resolve_links
from iree_gauntlet.stages import DEFAULT_STAGES, Stage
from iree_gauntlet.targets import ARCHITECTURES, FAMILIES, VECTOR_LENGTHS, Target, parse_target
from iree_gauntlet.toolchains.flag_words import split_flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.configured_suites import Config
    from iree_gauntlet.dialects.load import AnySpec, CaseSet
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.dialects.suite import Suite
    from iree_gauntlet.requests import Defaults, SelectionRequest
    from iree_gauntlet.stages import Stage
    from iree_gauntlet.variants import FlagVariant


_MAX_NAMES = 5
_MAX_RISKS = 10
_DIRS_HINT = "Write it relative to the suite's file."
# These options determine how cases are run, so they do not replace the default suite.
_EXECUTION_OPTIONS = ("suite", "external_file_directory", "sku", "device", "variant", "untrusted")
# Flag names with `-`, as the compiler writes them. `_PROGRAM_FLAGS` name programs that IREE starts; `_CODE_FLAGS` name
# code that IREE loads into its process, or links into the modules that are run.
_PROGRAM_FLAGS = re.compile(
    r"iree-.*linker-path|iree-.*ptxas-from|iree-hal-preprocess-executables-with|device-capture-tool"
)
_CODE_FLAGS = re.compile(
    r"load|.*(?:load|opt|pass)-.*plugin.*|executable-plugin|.*dylib-path|vulkan-libvulkan-search-path|module"
    r"|iree-link-bitcode|iree-hal-substitute-executable-.*|iree-hal-executable-object-search-path|iree-\w+-bc-dir"
)
# A pass option that names a program to start; it stands inside the text of a pass pipeline.
_TOOL_OPTION = "executables-with-tool"
_FLAG_FILE_FLAGS = re.compile(r"flagfile|config(?:-file)?")
# The tools only read the files of these flags.
_INPUT_FLAGS = re.compile(
    r"input|expected-output|parameters|iree-(?:parameter|opt)-import.*|iree-codegen-tuning-spec-path"
    r"|iree-preprocessing-.*-filename|iree-codegen-transform-dialect-library|iree-codegen-debug-patched-func-ops-file-name"
)
# Matches a path in a flag's value that leads out of the working directory.
_OUTSIDE_PATH = re.compile(r"(?:\A|[,;=@])((?:[/~]|(?:[^,;=@]*/)?\.\.(?:/|\Z|[,;=@]))[^,;=@]*)")
_RISK_HINT = "Read what it does before you run it (docs/explanation/trust.md); --untrusted refuses it."
# These tables of a project's settings are harmless to a run.
_HARMLESS_TABLES = {"downloads", "$schema"}


@dataclass(frozen=True, slots=True)
class Selection:
    """The cases and specs that a command works on.

    Attributes:
        name: the name of the suite, or `custom`, and those of variants (`cpu+O3`); part of a run's name.
        specs: every spec file that was read.
        unselected_configs: a line for each named config whose target was not requested.
        notes: a line for each way in which the project's suites or formats affect what is selected or expected.
        device_optional: True to compile cases without running them if their device does not exist.
        source_paths: folders of specs and of the files that they name, the suite's file, and configs.
        risks: flags of the cases that do more than compile and run them.
        variants: the changes of the cases' flags.
        known_variants: variants that are found by name before those of the settings.
    """

    name: str
    stages: tuple[Stage, ...]
    targets: tuple[Target, ...]
    specs: tuple[Spec, ...]
    cases: CaseSet
    unselected_configs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    device_optional: bool = False
    source_paths: tuple[Path, ...] = ()
    risks: tuple[Problem, ...] = ()
    variants: tuple[FlagVariant, ...] = ()
    known_variants: tuple[FlagVariant, ...] = ()

    def require_no_problems(self) -> None:
        """Raise SpecError if a selected spec has problems."""
        problems = [*self.cases.problems, *self.find_url_problems(self.cases.problems)]
        if problems:
            raise SpecError(problems)

    def warnings(self) -> list[str]:
        """Return warnings to print before anything runs, one line each."""
        # A problem in one case of an operator suite becomes that case's verdict, so it is not also a warning.
        broken_files = {problem.file for problem in self.cases.operator_case_problems}
        reasons = merge_equal_texts(
            (case.origin.file, case.blocked_reason) for case in self._cases if case.origin.file not in broken_files
        )
        problem_counts = Counter(problem.file for problem in self.cases.unselected_problems)
        unusable_files = (
            f"{file} cannot be used ({pluralize(count, 'problem')}; `lint` shows them); nothing selected needs it"
            for file, count in problem_counts.items()
        )
        risk_lines = [str(replace(problem, hint="")) for problem in self.risks]
        if len(risk_lines) > _MAX_RISKS:
            risk_lines[_MAX_RISKS:] = [f"{len(risk_lines) - _MAX_RISKS} more flags do such things; `lint` lists them"]
        return [*self.file_warnings(), *risk_lines, *unusable_files, *reasons]

    def file_warnings(self, *, omit_lint_warnings: bool = False) -> list[str]:
        """Return a line for each probable mistake; `omit_lint_warnings` omits warnings that `lint` itself shows."""
        marker_names = ", ".join(self.cases.known_markers)
        lines = [f"no case has the marker {marker!r}; known: {marker_names}" for marker in self.cases.unknown_markers]
        warning_counts = Counter(problem.file for problem in self.cases.warnings if not omit_lint_warnings)
        for file, count in sorted(warning_counts.items()):
            lines.append(f"{file}: {pluralize(count, 'warning')}; `lint` lists them")
        for file, count in sorted(Counter(problem.file for problem in self.cases.unmatched_entries).items()):
            entries = "1 entry names" if count == 1 else f"{count} entries name"
            lines.append(f"{file}: {entries} no existing case; `lint` of the whole suite lists them")
        return [*lines, *self.unselected_configs]

    def find_url_problems(self, other_problems: Iterable[Problem] = ()) -> list[Problem]:
        """Return a problem for each invalid URL in the selected cases, and unreadable specs with `other_problems`."""
        # Random sources import NumPy; `list` runs without it.
        from iree_gauntlet.artifacts.sources import parse_source  # noqa: PLC0415
        from iree_gauntlet.dialects.load import list_urls  # noqa: PLC0415 - it brings pydantic
        from iree_gauntlet.dialects.spec import SOURCE_NAMES  # noqa: PLC0415
        from iree_gauntlet.dialects.spec_file import iterate_file_strings  # noqa: PLC0415

        urls = {(case.origin.file, field, url) for case in self._cases for field, url in list_urls(case)}
        files = {problem.file for problem in other_problems}
        for spec in self.specs:
            if spec.document is None and spec.name in files:
                urls |= {
                    (spec.name, field, url)
                    for field, url in iterate_file_strings(spec.path, SOURCE_NAMES)
                    if is_url(url)
                }
        problems: list[Problem] = []
        for file, field, url in sorted(urls):
            try:
                parse_source(url)
            except ArtifactError as error:
                problems.append(make_field_problem(file, field, error.message, error.hint))
        return problems

    def knowing(self, texts: Sequence[str]) -> Selection:
        """Return the selection with the variants that `--variant` takes known by name, each alone and not applied."""
        variants = [variant for text in texts for variant in find_variants([text], self.known_variants)]
        return replace(self, known_variants=(*variants, *self.known_variants))

    def with_variants(self, texts: Sequence[str]) -> Selection:
        """Return the selection with more variants, as `--variant` takes them; errors as in `find_variants`."""
        if not texts:
            return self
        names = [variant.name for variant in self.variants]
        variants = find_variants((*names, *texts), (*self.known_variants, *self.variants))
        cases = vary_cases(self.cases, variants, added=[entry for entry in variants if entry.name not in names])
        risks = {risk for case in (*cases.cases, *cases.needed_cases) for risk in _list_risks(case)}
        name = _name_selection(self.name.partition("+")[0], variants)
        return replace(self, name=name, cases=cases, variants=variants, risks=tuple(sorted(risks)))

    @property
    def _cases(self) -> tuple[Case, ...]:
        return (*self.cases.cases, *self.cases.needed_cases)


def _name_selection(suite: str, variants: Sequence[FlagVariant]) -> str:
    return "+".join((suite, *(variant.name for variant in variants)))


def merge_equal_texts(warnings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each distinct text of (file, text) pairs, with all of its files; skip empty texts."""
    files: dict[str, dict[str, None]] = {}
    for file, text in warnings:
        if text:
            files.setdefault(text, {})[file] = None
    for text, file_names in files.items():
        yield f"{', '.join(file_names)}: {text}"


def select(
    request: SelectionRequest,
    defaults: Defaults,
    *,
    allow_only_problems: bool = False,
    variants: tuple[FlagVariant, ...] | None = None,
) -> Selection:
    """Read specs and select cases, by the request and the task's defaults.

    `allow_only_problems` is for commands such as `lint`: a selection that has only problems is returned, and expected
    failures that no case has are warned about. `variants` are the request's variants; None to look them up.

    Raises:
        UsageError: options that exclude each other, or that name something that does not exist.
        SpecError: a suite that cannot be read.
        NothingSelectedError: nothing matches.
    """
    # Specs import pydantic; `--help` runs without it.
    from iree_gauntlet.dialects.load import load_cases, read_specs  # noqa: PLC0415
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415
    from iree_gauntlet.dialects.suite import add_expected_failures, find_unselected_failures, find_useless_includes  # noqa: PLC0415

    if request.untrusted:
        _refuse_project_settings(find_project_folder())
    suite = _find_suite(request, defaults)
    targets = _define_targets(_choose_targets(request, defaults, suite))
    folders = [Path(folder) for folder in request.spec_dir] or (
        _list_folders(suite) if suite else [_find_project_specs()]
    )
    external = _find_folder("--external-file-directory", request.external_file_directory, "external files")
    modules = _find_folder("--module-directory", request.module_directory, "module definitions")
    configs = [Path(config) for config in request.config] or list(suite.configs if suite else ())
    specs = read_specs(folders, external, modules, configs, request.model_root)
    _require_known_targets(targets, specs)
    if request.config and not (request.target or request.backend or request.rocm_chip):
        targets = _use_config_targets(targets, specs)
    includes = _choose_includes(request, defaults, suite)
    families = {target.family for target in targets}
    if unmatched_globs := find_unmatched_globs(includes, specs):
        raise explain_no_match(unmatched_globs, specs, families)
    failures = suite.expected_failures if suite else ()
    cases = load_cases(specs, includes, targets, failures, request.device, suite.quarantines if suite else ())
    if suite:
        # With other spec folders, fewer cases may exist than the suite names.
        unmatched_includes = [] if request.spec_dir else find_useless_includes(suite, specs)
        cases = replace(cases, problems=_add_line_numbers(suite, (*cases.problems, *unmatched_includes)))
        if allow_only_problems and (failures or suite.quarantines) and not (cases.problems or request.spec_dir):
            # Load the suite without the options, since they may narrow it down.
            full_cases = load_cases(specs, suite.includes, targets)
            idle_failures = _add_line_numbers(suite, find_unselected_failures(suite, full_cases))
            cases = replace(cases, warnings=(*cases.warnings, *idle_failures))
    notes: list[str] = []
    if suite is None and not request.spec_dir:
        suites, notes = list_project_suites()
        cases, failure_notes = add_expected_failures(suites, cases)
        notes += [*failure_notes, *_note_several_formats(cases)]
    if not (cases.cases or cases.problems or (allow_only_problems and cases.unselected_problems)):
        unread_files = sorted({problem.file for problem in cases.unselected_problems})
        raise explain_no_match(includes, specs, families, cases.known_markers, cases.other_targets, unread_files)
    suite_variants = suite.variants if suite else ()
    variants = find_variants(request.variant, suite_variants) if variants is None else variants
    varied_cases = vary_cases(cases, variants, added=variants)
    if variants and varied_cases == cases:
        notes.append(f"{'+'.join(variant.name for variant in variants)} changes the flags of no selected case")
    cases = varied_cases
    read_from = tuple(path for path in (*folders, external, modules, *configs, suite and suite.path) if path)
    risks = {risk for case in (*cases.cases, *cases.needed_cases) for risk in _list_risks(case)}
    if request.untrusted:
        cases = _block_risky_cases(cases, _list_trusted_folders(request, suite))
    return Selection(
        name=_name_selection(suite.name if suite else "custom", variants),
        stages=suite.stages if suite else DEFAULT_STAGES,
        targets=tuple(targets),
        specs=tuple(spec for spec in specs if isinstance(spec, Spec)),
        cases=cases,
        unselected_configs=_list_unselected_configs(specs, targets) if configs else (),
        notes=tuple(notes),
        device_optional=bool(suite and suite.device_optional),
        source_paths=read_from,
        risks=tuple(sorted(risks)),
        variants=variants,
        known_variants=suite_variants,
    )


def _list_trusted_folders(request: SelectionRequest, suite: Suite | None) -> list[Path]:
    """Return the folders that the user has named; folders that a suite names do not count, as it may name any."""
    user_folders = (*request.spec_dir, request.external_file_directory, request.module_directory, request.model_root)
    folders = [find_project_folder(), find_shipped_folder(), *map(Path, filter(None, user_folders))]
    if suite is not None:
        suite_folder = suite.path.absolute().parent
        folders.append(suite_folder.parent if suite_folder.name == "suites" else suite_folder)
    return folders


def _block_risky_cases(cases: CaseSet, folders: Sequence[Path]) -> CaseSet:
    """Return the cases; block each case that could do more than compile and run its model."""

    def block(case: Case) -> Case:
        risk = next(itertools.chain(_list_risks(case), _list_outside_files(case, folders)), None)
        reason = f"refused by --untrusted: {replace(risk, hint='')}" if risk else case.blocked_reason
        return replace(case, blocked_reason=reason, blocked_stage=None if risk else case.blocked_stage)

    return replace(cases, cases=tuple(map(block, cases.cases)), needed_cases=tuple(map(block, cases.needed_cases)))


def _find_folder(option: str, text: str, content: str) -> Path | None:
    if text and not Path(text).is_dir():
        raise UsageError(f"{option} {Path(text)} is not a folder", f"Name the folder of the {content}.")
    return Path(text) if text else None


def list_project_suites() -> tuple[list[Suite], list[str]]:
    """Return the project's suites, and a line for each that cannot be read."""
    from iree_gauntlet.dialects.suite import read_suite  # noqa: PLC0415 - it brings pydantic

    suites, notes = [], []
    for path in sorted((find_project_folder() / "suites").glob("*.toml")):
        try:
            suites.append(read_suite(format_path(path)))
        except (SpecError, UsageError):
            advice = f"`lint --suite {path.stem}` shows why"
            notes.append(f"{format_path(path)} cannot be used, so its expected failures do not apply; {advice}")
    return suites, notes


def _note_several_formats(cases: CaseSet) -> Iterator[str]:
    """Yield a line if models are selected in several formats, in each of which they are compiled and run."""
    formats: dict[str, dict[str, str]] = {}
    for case in cases.cases:
        # A regression and a benchmark of sharktank are one chain.
        formats.setdefault(case.model, {}).setdefault(case.dialect.partition("-")[0], case.origin.file)
    models = [model for model, files in formats.items() if len(files) > 1]
    if models:
        names = ", ".join(models[:_MAX_NAMES]) + (" …" if len(models) > _MAX_NAMES else "")
        files = " and ".join(sorted(formats[models[0]].values()))
        yield f"selected in several formats, each of which is run: {names} ({files}); --suite or --spec-dir selects one"


def _add_line_numbers(suite: Suite, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    suite_problems = [problem for problem in problems if problem.file == str(suite.path)]
    located_problems = with_lines(suite_problems, read_toml(suite.path)[0]) if suite_problems else []
    return tuple(sorted({*problems}.difference(suite_problems).union(located_problems)))


def _require_known_targets(targets: Sequence[Target], specs: Iterable[AnySpec]) -> None:
    """Raise UsageError for a target that neither the toolkit nor a config of an operator suite knows."""
    families = [target.family for target in targets if target.family not in FAMILIES]
    config_families = {config.target.family for config in _list_configs(specs)} if families else ()
    for name in families:
        if name not in config_families:
            known = f"Known: {', '.join((*FAMILIES, *ARCHITECTURES))}, or a chip such as gfx942 or sm_80"
            hint = f"{known}; a name in [targets] of gauntlet.toml begins with an architecture: arm64-{name}."
            if "@" in name:
                hint = f"The length of vectors, after the @, is {', '.join(map(str, VECTOR_LENGTHS))}: arm64-sve@256."
            known_names = (*FAMILIES, *ARCHITECTURES, *config_families)
            raise UsageError(f"unknown target {name!r}", suggest_each("target", name, known_names) or hint)


def _list_configs(specs: Iterable[AnySpec]) -> list[Config]:
    """Return the readable configs of operator suites and of ONNX models."""
    from iree_gauntlet.dialects.configured_suites import ConfigSpec  # noqa: PLC0415 - it brings pydantic

    suites = {id(spec.suite): spec.suite for spec in specs if isinstance(spec, ConfigSpec)}
    configs = {config.name: config for suite in suites.values() for config in suite.configs if config.document}
    return [configs[name] for name in sorted(configs)]


def _use_config_targets(targets: Sequence[Target], specs: Iterable[AnySpec]) -> Sequence[Target]:
    """Return the targets of the configs of operator suites in place of the default targets, whose SKU they get.

    The default targets are kept too if there are specs that have no configs.
    """
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415

    sku = next((target.sku for target in targets), "")
    chips: dict[str, set[str]] = {}
    for config in _list_configs(specs):
        chips.setdefault(config.target.family, set()).add(config.target.chip)
    # If a family has several chips, each config has its own.
    config_targets = [Target(family, min(names) if len(names) == 1 else "", sku) for family, names in chips.items()]
    default_targets = targets if not config_targets or any(isinstance(spec, Spec) for spec in specs) else ()
    return [*(target for target in default_targets if target.family not in chips), *config_targets]


def _list_unselected_configs(specs: Iterable[AnySpec], targets: Sequence[Target]) -> tuple[str, ...]:
    """Return a line for each named config of operator suites whose target was not requested."""
    lines = []
    for config in _list_configs(specs):
        if not any(target.covers(config.target) for target in targets):
            family = replace(config.target, config_name="").name
            lines.append(f"{config.name} is for {family}, which was not requested: --target {family} runs it")
    return tuple(lines)


def _find_suite(request: SelectionRequest, defaults: Defaults) -> Suite | None:
    from iree_gauntlet.dialects.suite import read_suite  # noqa: PLC0415

    if request.suite:
        return read_suite(find_suite(request.suite))
    selections = [value for name, value in asdict(request).items() if name not in _EXECUTION_OPTIONS]
    default = find_project_folder() / defaults.suite
    if defaults.suite and default.is_file() and not any(selections):
        return read_suite(format_path(default))
    return None


def find_suite(text: str) -> Path:
    """Return the file that `--suite` means: a path, or the name of a suite of the project or of the toolkit."""
    path = Path(text)
    if path.is_file() or path.suffix == ".toml":
        return path
    project, builtin = (folder / "suites" / f"{text}.toml" for folder in (find_project_folder(), find_shipped_folder()))
    if not project.is_file() and builtin.is_file():
        return format_path(builtin)
    # If only a folder has this name, return its path: reading it then reports the mistake.
    return path if not project.parent.is_dir() or (path.exists() and not project.is_file()) else format_path(project)


def _list_folders(suite: Suite) -> list[Path]:
    """Return the spec folders of a suite."""
    problems = [
        Problem(str(suite.path), 0, f"spec_dirs[{index}]", f"there is no folder {folder}", _DIRS_HINT)
        for index, folder in enumerate(suite.spec_dirs)
        if not folder.is_dir()
    ]
    if problems:
        raise SpecError(list(_add_line_numbers(suite, problems)))
    return list(suite.spec_dirs)


def _find_project_specs() -> Path:
    folder = find_project_folder() / "specs"
    if not folder.is_dir():
        raise UsageError(
            f"there are no specs here: {Path.cwd()} is not inside a project with specs/ and suites/",
            "`gauntlet run --suite cpu` runs the pretrained models that come with the toolkit; `gauntlet init` starts "
            "a project of your own in this folder; --spec-dir FOLDER reads specs from elsewhere.",
        )
    return format_path(folder)


def _choose_targets(request: SelectionRequest, defaults: Defaults, suite: Suite | None) -> Sequence[Target]:
    names = [*request.target, *([request.backend] if request.backend else [])]
    chip = request.rocm_chip
    sku = request.sku
    if suite and not names:
        targets = [replace(target, sku=sku or target.sku) for target in suite.targets]
        return [*dict.fromkeys(replace(t, chip=chip) if chip and t.kind is ROCM else t for t in targets)]
    if not names:
        names = [ROCM.family] if chip and len(defaults.targets) == 1 else list(defaults.targets)
    # An unknown name may be a plugin's backend for which an operator suite has a config.
    sku = sku or ("" if suite else defaults.sku)
    targets = [*dict.fromkeys(parse_target(name, chip=chip, sku=sku) or Target(name) for name in names)]
    for one, other in itertools.combinations(targets, 2):
        if one.overlaps(other):
            raise UsageError(f"targets {one.name} and {other.name} overlap", "Name each chip, or only the family.")
    return targets


def _define_targets(targets: Sequence[Target]) -> Sequence[Target]:
    """Return targets with the settings' definitions of other architectures; UsageError for one that nobody defines."""
    if not any(target.architecture for target in targets):
        return targets
    from iree_gauntlet.dialects.configuration_file import read_configuration  # noqa: PLC0415 - it brings pydantic

    definitions = read_configuration(find_project_folder(), os.environ).targets
    targets = [replace(target, definition=definitions.get(target.processor_name)) for target in targets]
    for target in targets:
        if target.architecture and target.processor is None:
            known = (*ARCHITECTURES, *definitions)
            hint = (
                f"Define it as [targets.{target.processor_name}] in gauntlet.toml, or name another: {', '.join(known)}."
            )
            message = f"target {target.name}: nothing defines {target.processor_name!r}"
            raise UsageError(f"{message}{did_you_mean(target.processor_name, known)}", hint)
        if target.vector_bits and target.vector_bits not in target.vector_lengths:
            lengths = ", ".join(map(str, target.vector_lengths)) or "none, as its runner has no place for one"
            message = f"target {target.name}: {target.processor_name} has no vectors of {target.vector_bits} bits"
            raise UsageError(message, f"Its lengths: {lengths}.")
    return targets


def _choose_includes(request: SelectionRequest, defaults: Defaults, suite: Suite | None) -> list[Include]:
    """Return all combinations of the options' globs; with a suite, its includes narrowed down by these globs."""
    # Check the markers alone first: inside the parentheses that are added later, `a) or (b` would be valid.
    MarkerExpression(request.markers)
    # Empty globs, from a variable that a script has not set, are left out.
    models, submodels, files = (
        tuple(filter(None, globs)) for globs in (request.model, request.submodel, request.filename)
    )
    triples = itertools.product(models or ("*" if suite else defaults.model,), submodels or ("*",), files or ("*",))
    if suite is None:
        return [Include(*globs, request.markers) for globs in triples]
    includes = []
    for include, globs in itertools.product(suite.includes, triples):
        markers = " and ".join(f"({text})" for text in (include.markers, request.markers) if text)
        includes.append(Include(*globs, markers, include))
    return includes


@functools.lru_cache(maxsize=4096)
def find_risky_flags(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return a command line's flags that start programs, load code, or name files outside, each with its effect."""
    risky_flags = []
    for flag in split_flags(words, frozenset()):
        name, text = flag.name.replace("_", "-"), flag.text if flag.name else flag.words[0]
        outside = _OUTSIDE_PATH.search(flag.value or ("" if flag.name else text))
        if text.startswith("@") or _FLAG_FILE_FLAGS.fullmatch(name):
            risky_flags.append((text, "reads more flags from a file"))
        elif _PROGRAM_FLAGS.fullmatch(name) or _TOOL_OPTION in text:
            risky_flags.append((text, "names a program, which is started"))
        elif _CODE_FLAGS.fullmatch(name):
            risky_flags.append((text, "loads code, which is run"))
        elif outside and not _INPUT_FLAGS.fullmatch(name):
            risky_flags.append((text, f"may write outside of the run's folder: {outside[1]}"))
    return tuple(risky_flags)


def _list_risks(case: Case) -> Iterator[Problem]:
    """Yield the flags of a case that do more than compile and run it."""
    modules = (*case.modules, *case.pipeline_modules)
    flag_groups: list[tuple[str, Sequence[str]]] = [
        ((case.flags_origin or case.origin).file, case.run_flags),
        (case.origin.file, case.own_flags),
        *(((module.flags_origin or module.origin).file, module.flags) for module in modules),
        *((module.origin.file, [f"--{flag.lstrip('-')}" for flag, _ in module.file_flags]) for module in modules),
    ]
    for file, flags in flag_groups:
        for flag, effect in find_risky_flags(tuple(flags)):
            yield make_flag_problem(file, flag, f"{flag} {effect}", _RISK_HINT)


def _list_outside_files(case: Case, folders: Iterable[Path]) -> Iterator[Problem]:
    """Yield the files outside of the given folders that a case reads, through their paths or through links."""
    from iree_gauntlet.dialects.load import list_urls  # noqa: PLC0415 - it brings pydantic

    allowed_folders = [resolve_links(folder) for folder in folders]
    onnx = {module.program.url for module in (*case.modules, *case.pipeline_modules) if module.program.onnx}
    for field, url in list_urls(case):
        if not get_url_path(url):
            continue
        file = Path(get_url_path(url))
        weights = list_data_files(file) if url in onnx else ()
        for path in map(resolve_links, (file, *(file.parent / name for name in weights))):
            if not any(path.is_relative_to(project_folder) for project_folder in allowed_folders):
                yield make_field_problem(case.origin.file, field, f"{path} is outside of the project", _RISK_HINT)


def list_golden_skus(cases: Sequence[Case]) -> tuple[str, ...]:
    """List the SKUs that goldens of the cases' specs are for, whether these goldens apply or not."""
    keys = {(case.target.family, key) for case in cases for key in case.golden_keys}
    for case in cases:
        groups = case.goldens, case.idle_goldens, *(goldens for _, goldens in case.variant_goldens)
        keys.update((case.target.family, golden.sku) for group in groups for golden in group)
    # The keys of a further target have its family before the SKU, and the keys of counts may be targets.
    names = {key.removeprefix(f"{family}-") for family, key in keys}
    return tuple(
        sorted(name for name in names if name and name.partition("-")[0] not in FAMILIES and not parse_target(name))
    )


def explain_unused_sku(cases: Sequence[Case], sku: str) -> str:
    """Return a warning if no golden of the cases is for a SKU, with the SKUs that there are; empty if one is."""
    goldens = [golden for case in cases for _, group in (("", case.goldens), *case.variant_goldens) for golden in group]
    if not sku or any(golden.sku == sku for golden in goldens):
        return ""
    known = list_golden_skus(cases)
    known_text = f"SKUs with goldens: {list_first(known, _MAX_NAMES)}" if known else "no SKU has one"
    return f"no golden of the selection is for --sku {sku}{did_you_mean(sku, known)} ({known_text})"


def refuse_untrusted(selection: SelectionRequest) -> None:
    """Raise UsageError for `--untrusted` with a command that changes specs, which users must read before changing."""
    if selection.untrusted:
        message = "--untrusted is not for commands that change specs"
        raise UsageError(message, "Read the specs, and leave it out; `run --untrusted` judges them as they are.")


def _refuse_project_settings(project: Path) -> None:
    """Raise UsageError if a project has settings, which choose where files and IREEs come from and who gets secrets."""
    path = project / "gauntlet.toml"
    try:
        tables = tomllib.loads(read_file(path).decode()).keys() - _HARMLESS_TABLES
    except OSError:
        return
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{format_path(path)}: not TOML: {error}", "Correct it.") from error
    if tables:
        message = (
            f"{format_path(path)} sets {', '.join(sorted(tables))}, which --untrusted does not accept from a project"
        )
        hint = "Read it, and move what you want to ~/.config/iree-gauntlet/config.toml; then remove the file."
        raise UsageError(message, hint)
