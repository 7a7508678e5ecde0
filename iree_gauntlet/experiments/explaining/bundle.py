"""A bundle: a folder, and an archive of it, with which anyone can see a failure, or that it is mended.

README.md      an issue for IREE, filled in
repro.sh       compiles, runs and compares: exit code 0 fixed, 1 still there, 125 cannot be judged
program.mlir   what fails, and nothing else
input_0.bin…   what it is given, as raw values, and what is expected of it (`expected_0.bin`)
run.ireereplay the run as the device saw it, where the runtime can record one (`explain.py`)
bundle.json    versions, flags, sizes and hashes
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.explaining.symptom import CRASH, FAILURE, HANG, WRONG, Symptom
from iree_gauntlet.figures import byte_size, counted, listed
from iree_gauntlet.steps import Command
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.plain_tar import unpack_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


_BUNDLE_FACTS = "bundle.json"
REPRODUCE = "repro.sh"
REPLAY = "run.ireereplay"
LIMIT = 10_000_000
_INLINE_BYTES = 4_000
PROGRAM = "program.mlir"
# What the script ends with.
FIXED, STILL_THERE, CANNOT_BE_JUDGED = 0, 1, 125
_HEAD = """\
#!/bin/sh
# Exit codes: 0 fixed, 1 still there, 125 cannot be judged: as `git bisect run` takes them.
#
# {named} the tools; without, {versions} are installed into env/.
set -u
cd "$(dirname "$0")" || exit 125
if [ -z "${{IREE_COMPILE:-}}${{IREE_RUN_MODULE:-}}" ]; then
    if [ ! -x env/bin/iree-run-module ]; then
        python3 -m venv env && env/bin/python -m pip install -q {packages} || exit 125
    fi
    IREE_COMPILE=$PWD/env/bin/iree-compile IREE_RUN_MODULE=$PWD/env/bin/iree-run-module
fi
for tool in {tools}; do
    command -v "$tool" > /dev/null || {{ echo "cannot be judged: there is no tool '$tool': {named} them"; exit 125; }}
done
work=$(mktemp -d) || exit 125
trap 'rm -rf "$work"' EXIT
"""
_NEEDS_TIMEOUT = """\
command -v timeout > /dev/null || { echo "cannot be judged: this needs timeout, of GNU coreutils"; exit 125; }
"""
_RUN = """\
{limit}{command} > "$work/said.txt" 2>&1
code=$?
cat "$work/said.txt"
"""
_COMPILED = """\
if [ $code -ne 0 ]; then
    echo "cannot be judged: it does not compile"
    exit 125
fi
"""
_JUDGE = """\
if [ $code -eq 0 ]; then
    echo "fixed: {fixed}"
    exit 0
fi
if {condition}; then
    echo "still there: {still}"
    exit 1
fi
echo "cannot be judged: it fails in another way"
exit 125
"""
# What is said where it is fixed; and what there is to see where it is not, as a condition and in words.
_ENDINGS = {
    WRONG: ("the outputs are as expected", "true", "the outputs are not as expected"),
    FAILURE: ("it does not fail", "[ $code -lt 124 ]", "it fails as it did"),
    CRASH: ("it does not crash", "[ $code -ge 128 ]", "it crashes as it did"),
    HANG: ("it ends", "[ $code -eq 124 ] || [ $code -eq 137 ]", "it does not end"),
}
# What it says, in the folder of logs.
SAID = "repro.txt"
# Installing IREE, a compile and a run.
_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a bundle.

    Attributes:
        program: that fails, as text or bytecode; empty where it is fetched.
        device: that it runs on; empty where it is the compile that fails.
        arguments: of iree-run-module, with files by their names in the bundle.
        made: files that are made where it is run: a name, and the arguments of `make_values.py` behind it.
        fetched: files that are fetched where it is run: a name, and the arguments of `fetch_file.py` behind it.
    """

    title: str
    what: tuple[str, ...]
    program: bytes
    flags: tuple[str, ...]
    device: str
    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    iree: Toolchain
    machine: str
    symptom: Symptom
    made: tuple[tuple[str, ...], ...] = ()
    fetched: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is there."""

    folder: Path
    archive: Path
    bytes: int


def write_bundle(contents: Contents, folder: Path) -> Bundle:
    """Write a bundle, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    texts = {"README.md": _make_readme(contents), REPRODUCE: _make_script(contents)}
    files = {name: text.encode() for name, text in texts.items()} | dict(contents.files)
    if contents.program:
        files[PROGRAM] = contents.program
    files |= {tool.name: tool.read_bytes() for tool, rows in _prepare(contents) if rows}
    return pack(files, _describe_facts(contents), folder)


def pack(files: dict[str, bytes], facts: Mapping[str, object], folder: Path) -> Bundle:
    """Write the files of a bundle with what is known of it, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    hashes = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(files.items())
    }
    files = files | {_BUNDLE_FACTS: (json.dumps({**facts, "files": hashes}, indent=2) + "\n").encode()}
    packed = _archive(folder.name, files)
    largest = sorted(files, key=lambda name: -len(files[name]))[:3]
    if len(packed) > LIMIT:
        raise GauntletError(
            f"the bundle would have {byte_size(len(packed))}, and {byte_size(LIMIT)} is the limit",
            f"The largest in it: {listed([f'{name} {byte_size(len(files[name]))}' for name in largest], 3)}.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomic(folder / name, data)
    (folder / REPRODUCE).chmod(0o755)
    archive = folder.with_name(f"{folder.name}.tar.gz")
    write_atomic(archive, packed)
    return Bundle(folder, archive, len(packed))


def unpack(archive: Path, folder: Path) -> Path:
    """The folder of a bundle that was unpacked into another one; a folder of a bundle is taken as it is.

    Raises:
        GauntletError: it is no bundle.
    """
    if archive.is_dir():
        found = archive
    else:
        try:
            with tarfile.open(archive) as tar:
                unpack_plain(tar, folder)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            what = f"{archive} cannot be unpacked: it is no archive, or damaged"
            raise GauntletError(what, "Name a bundle that `explain` wrote.") from error
        found = next(iter(sorted(path.parent for path in folder.glob(f"*/{_BUNDLE_FACTS}"))), folder)
    missing = [name for name in (_BUNDLE_FACTS, REPRODUCE) if not (found / name).is_file()]
    if missing:
        raise GauntletError(f"{archive} is no bundle: it has no {missing[0]}", "Name one that `explain` wrote.")
    return found


def raw_value(data: bytes, kind: str, file: str) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """An argument of iree-run-module for a tensor's raw values, and the file that it names: none for zeros."""
    if not any(data):
        return kind, ()
    return f"{kind}=@{file}", ((file, data),)


def _prepare(contents: Contents) -> tuple[tuple[Path, tuple[tuple[str, ...], ...]], ...]:
    """Programs that make files where a bundle is run, and what they are given."""
    here = Path(__file__)
    return (here.with_name("make_values.py"), contents.made), (here.with_name("fetch_file.py"), contents.fetched)


def _make_script(contents: Contents) -> str:
    compiled = f'"$IREE_COMPILE" {PROGRAM} {shlex.join(contents.flags)} -o "$work/module.vmfb"'
    device, arguments = shlex.quote(f"--device={contents.device}"), shlex.join(contents.arguments)
    run = f'"$IREE_RUN_MODULE" {device} --module="$work/module.vmfb" {arguments}' if contents.device else ""
    before = [shlex.join(("python3", tool.name, *row)) for tool, rows in _prepare(contents) for row in rows]
    return repro_script(packages_of(contents.iree), before, (compiled, run), contents.symptom)


def packages_of(iree: Toolchain) -> tuple[str, ...]:
    """What installs it, as pip takes it."""
    return f"iree-base-compiler=={iree.compiler.release}", f"iree-base-runtime=={iree.runtime.release}"


def _make_readme(contents: Contents) -> str:
    """IREE's form for issues."""
    iree = contents.iree
    lines = [("iree-compile", PROGRAM, "-o module.vmfb", *map(shlex.quote, contents.flags))]
    if contents.device:
        words = (f"--device={contents.device}", *contents.arguments)
        lines.append(("iree-run-module", "--module=module.vmfb", *map(shlex.quote, words)))
    lines[:0] = [(shlex.join(("python3", tool.name, *row)),) for tool, rows in _prepare(contents) for row in rows]
    steps = "\n".join(" \\\n    ".join(words) for words in lines)
    said = "\n\n".join(contents.what)
    replay = ""
    if any(name == REPLAY for name, _ in contents.files):
        replay = f"""
`iree-run-replay --device={contents.device} {REPLAY}` does what that run did with the device, without a compiler; it
compares nothing.
"""
    program = _format_inline(contents.program)
    return f"""\
# {contents.title}

## What happened?

{said}

## Steps to reproduce your issue

```
{steps}
```

{program}`./{REPRODUCE}` does it: exit code 0 fixed, 1 still there, 125 cannot be judged. It installs
{" and ".join(packages_of(contents.iree))}, or takes the tools that `IREE_COMPILE` and `IREE_RUN_MODULE` name.
{replay}
## What component(s) does this issue relate to?

{"Compiler" if contents.symptom.ending == WRONG or not contents.device else "Compiler, Runtime"}

## Version information

iree-base-compiler {iree.compiler.version} ({iree.compiler.commit}), iree-base-runtime {iree.runtime.version}

## Additional context

Seen on {contents.machine}. {contains(contents)}
"""


def _format_inline(program: bytes) -> str:
    """A small program, for those who read the issue alone."""
    if not program or len(program) > _INLINE_BYTES or b"\0" in program:
        return ""
    return f"`{PROGRAM}`:\n\n```mlir\n{program.decode(errors='replace').strip()}\n```\n\n"


def contains(contents: Contents) -> str:
    """What a bundle holds of a model, in a sentence or two."""
    own = sum(len(data) for _, data in contents.files)
    parts = [f"the program ({byte_size(len(contents.program))})"] if contents.program else []
    files = counted(len(contents.files), "file")
    parts += [f"{files} of values and flags ({byte_size(own)})"] if contents.files else []
    said = f"It contains {' and '.join(parts)}." if parts else "It contains no file of the model."
    said += " Inputs are made up." if contents.made else ""
    urls = [row[1] for row in contents.fetched]
    return said + (f" It fetches {', '.join(urls)}." if urls else "")


def _describe_facts(contents: Contents) -> dict[str, object]:
    return {
        "title": contents.title,
        # Where it is installed here is nobody else's business.
        "iree": {name: value for name, value in contents.iree.as_dict().items() if name != "source"},
        "packages": list(packages_of(contents.iree)),
        "flags": list(contents.flags),
        "device": contents.device,
        "arguments": list(contents.arguments),
        "machine": contents.machine,
    }


def _archive(name: str, files: dict[str, bytes]) -> bytes:
    """A .tar.gz that is the same, byte for byte, for the same files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file, data in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mode = len(data), 0o755 if file == REPRODUCE else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def flag_files(flags: Sequence[str], folder: Path = Path()) -> tuple[tuple[str, ...], tuple[tuple[str, bytes], ...]]:
    """Flags that name files, relative to a folder, by their names in a bundle, and these files."""
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for flag in flags:
        head, equals, value = flag.rpartition("=")
        path = folder / value
        # A word such as `host` is no file, whatever lies in the folder.
        if equals and ("/" in value or path.suffix) and path.is_file():
            name = f"flag_{len(files)}{path.suffix}"
            files.append((name, path.read_bytes()))
            texts.append(f"{head}={name}")
        else:
            texts.append(flag)
    return tuple(texts), tuple(files)


def file_values(kinds: Sequence[tuple[str, Path]], name: str) -> tuple[list[str], tuple[tuple[str, bytes], ...]]:
    """Arguments for tensors whose raw values lie in files, and what a bundle holds of them."""
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for index, (kind, path) in enumerate(kinds):
        text, held = raw_value(path.read_bytes(), kind, f"{name}_{index}.bin")
        texts.append(text)
        files += held
    return texts, tuple(files)


def repro_script(packages: Sequence[str], before: Sequence[str], lines: tuple[str, str], symptom: Symptom) -> str:
    """The script.

    Args:
        packages: what it installs.
        before: commands that have to succeed first.
        lines: commands that compile and run, in which `$IREE_COMPILE` and `$IREE_RUN_MODULE` are the tools and `$work`
            a folder; the second is empty where it is the compile that fails.
        symptom: what there is to see.
    """
    compile_line, run_line = lines
    limit = f"timeout -k 10 {symptom.seconds:.0f} " if symptom.ending == HANG else ""
    fixed, condition, still = _ENDINGS[symptom.ending]
    if symptom.ending == WRONG:
        condition += """ && grep -q '^\\[FAILED\\]' "$work/said.txt\""""
    elif symptom.pattern:
        # Releases break a diagnostic's lines at different places.
        condition += f""" && tr '\\n' ' ' < "$work/said.txt" | grep -qE {shlex.quote(symptom.pattern)}"""
    parts = [
        _HEAD.format(
            versions=" and ".join(packages),
            packages=shlex.join(packages),
            named="IREE_COMPILE and IREE_RUN_MODULE name" if run_line else "IREE_COMPILE names",
            tools='"${IREE_COMPILE:-}" "${IREE_RUN_MODULE:-}"' if run_line else '"${IREE_COMPILE:-}"',
        ),
        _NEEDS_TIMEOUT if limit else "",
        *(f"{line} || exit 125\n" for line in before),
        _RUN.format(limit="" if run_line else limit, command=compile_line),
    ]
    if run_line:
        parts += [_COMPILED, _RUN.format(limit=limit, command=run_line)]
    return "".join((*parts, _JUDGE.format(fixed=fixed, condition=condition, still=still)))


@dataclass(frozen=True, slots=True)
class OpenedBundle:
    """A bundle that can be run.

    Attributes:
        packages: the IREE that it fails with: `iree-base-compiler==3.6.0`.
    """

    folder: Path
    title: str
    packages: tuple[str, ...]


def open_bundle(bundle: Path, place: Path) -> OpenedBundle:
    """Open a bundle.

    Raises:
        GauntletError: it is no bundle.
    """
    if not bundle.exists():
        raise UsageError(f"there is no bundle {bundle}", "`explain` writes runs/<run>/explain/<case>/bundle.tar.gz.")
    folder = unpack(bundle, place)
    try:
        facts = json.loads((folder / _BUNDLE_FACTS).read_text(encoding="utf-8"))
        return OpenedBundle(folder, str(facts["title"]), tuple(map(str, facts["packages"])))
    except (ValueError, KeyError, TypeError) as error:
        what = f"{bundle}: {_BUNDLE_FACTS} is not as `explain` writes it: {type(error).__name__}: {error}"
        raise GauntletError(what, "Name a bundle that `explain` wrote.") from error


def run_bundle(
    bundle: Path, iree: Toolchain | None, supervisor: Supervisor, logs: Path, base: Toolchain | None = None
) -> int | None:
    """Run it; what it says stands in `repro.txt`.

    Args:
        bundle: its folder.
        iree: whose tools are used; None for those that it installs.
        supervisor: owns the process.
        logs: where `repro.txt` goes.
        base: what it is held against, where it is about times; None for what it installs.

    Returns:
        Its exit code; None where it was ended.
    """
    tools = [
        variable for prefix, side in (("", iree), ("BASE_", base)) if side for variable in _list_tools(prefix, side)
    ]
    command = Command(("sh", f"./{REPRODUCE}"), str(bundle), env=tuple(tools))
    log = logs / SAID
    outcome = supervisor.run(command, stdout=log, stderr=log, timeout=_TIMEOUT_SECONDS)
    if outcome.cancelled:
        raise KeyboardInterrupt
    return outcome.exit_code


def _list_tools(prefix: str, iree: Toolchain) -> tuple[tuple[str, str], ...]:
    """The environment that names its tools."""
    return (
        (f"{prefix}IREE_COMPILE", iree.compiler.compile),
        (f"{prefix}IREE_RUN_MODULE", iree.runtime.run_module),
        (f"{prefix}IREE_BENCHMARK_MODULE", iree.runtime.benchmark_module),
    )


def check(bundle: Path, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with the IREE that it installs for itself.

    Raises:
        GauntletError: it is no bundle.
    """
    code, name, iree = _run(bundle, None, presenter)
    with_what = f"{name}: with {iree}, in an environment of its own,"
    if code == STILL_THERE:
        presenter.line(f"{with_what} it fails: confirmed")
        return ExitCode.OK
    if code == FIXED:
        presenter.line(f"{with_what} it does not fail: not confirmed")
        return ExitCode.FAILED
    presenter.line(f"{with_what} it cannot be judged (exit code {code}); what it said stands above")
    return ExitCode.ERROR


def run_with(bundle: Path, request: ToolchainRequest, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with an IREE.

    Raises:
        GauntletError: it is no bundle, or there is no such IREE.
    """
    with presenter.progress() as progress:
        toolchain = open_workbench(request, progress, need_toolchain=True).iree
    code, name, _ = _run(bundle, toolchain, presenter)
    with_what = f"{name}: with IREE {toolchain.compiler.version}"
    if code == FIXED:
        presenter.line(f"{with_what} it is fixed")
        return ExitCode.OK
    if code == STILL_THERE:
        presenter.line(f"{with_what} the failure is still there")
        return ExitCode.FAILED
    presenter.line(f"{with_what} it cannot be judged (exit code {code}); what it said stands above")
    return ExitCode.ERROR


def _run(bundle: Path, iree: Toolchain | None, presenter: Presenter) -> tuple[int | None, str, str]:
    """What a bundle ends with; its title, and the IREE that it fails with."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as place, Supervisor() as supervisor:
        opened = open_bundle(bundle, Path(place))
        with interruptible(supervisor.cancel_all):
            code = run_bundle(opened.folder, iree, supervisor, Path(place))
        if code in (CANNOT_BE_JUDGED, None):
            presenter.line((Path(place) / SAID).read_text(encoding="utf-8", errors="replace")[-3000:])
        return code, opened.title, ", ".join(opened.packages)
