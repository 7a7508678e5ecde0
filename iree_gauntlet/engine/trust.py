"""What a spec of somebody else's could do beyond compiling and running its model, as far as its words tell.

A flag is judged by its name, and by a path in its value. Whatever its name, one that leads out of the run's folder may
be written to, unless it is known that the flag only reads.
"""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.dialects.load import list_urls
from iree_gauntlet.dialects.locations import file_path, problem_of_flag
from iree_gauntlet.dialects.spec_file import problem_of_field
from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import read_file, resolve_links, shown
from iree_gauntlet.toolchains.flags import split_flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.cases import Case
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.requests import SelectionRequest


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


def list_risks(case: Case) -> Iterator[Problem]:
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


def list_outside_files(case: Case, folders: Iterable[Path]) -> Iterator[Problem]:
    """The files that a case reads outside of the folders of its project, by their paths or by links."""
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


def require_plain_settings(project: Path) -> None:
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
