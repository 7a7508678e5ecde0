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
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.repro_script import repro_script
from iree_gauntlet.experiments.explaining.symptom import WRONG
from iree_gauntlet.figures import byte_size, counted, listed
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.plain_tar import unpack_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.toolchains.toolchain import Toolchain


BUNDLE_FACTS = "bundle.json"
REPRODUCE = "repro.sh"
REPLAY = "run.ireereplay"
LIMIT = 10_000_000
_INLINE_BYTES = 4_000
PROGRAM = "program.mlir"


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
    """A bundle that is there.

    Attributes:
        bytes: of that file.
    """

    folder: Path
    archive: Path
    bytes: int


def write_bundle(contents: Contents, folder: Path) -> Bundle:
    """Write a bundle, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    texts = {"README.md": _readme(contents), REPRODUCE: _script(contents)}
    files = {name: text.encode() for name, text in texts.items()} | dict(contents.files)
    if contents.program:
        files[PROGRAM] = contents.program
    files |= {tool.name: tool.read_bytes() for tool, rows in _prepared(contents) if rows}
    return pack(files, _facts(contents), folder)


def pack(files: dict[str, bytes], facts: Mapping[str, object], folder: Path) -> Bundle:
    """Write the files of a bundle with what is known of it, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    hashes = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(files.items())
    }
    files = files | {BUNDLE_FACTS: (json.dumps({**facts, "files": hashes}, indent=2) + "\n").encode()}
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
        found = next(iter(sorted(path.parent for path in folder.glob(f"*/{BUNDLE_FACTS}"))), folder)
    missing = [name for name in (BUNDLE_FACTS, REPRODUCE) if not (found / name).is_file()]
    if missing:
        raise GauntletError(f"{archive} is no bundle: it has no {missing[0]}", "Name one that `explain` wrote.")
    return found


def raw_value(data: bytes, kind: str, file: str) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """An argument of iree-run-module for a tensor's raw values, and the file that it names: none for zeros."""
    if not any(data):
        return kind, ()
    return f"{kind}=@{file}", ((file, data),)


def _prepared(contents: Contents) -> tuple[tuple[Path, tuple[tuple[str, ...], ...]], ...]:
    """Programs that make files where a bundle is run, and what they are given."""
    here = Path(__file__)
    return (here.with_name("make_values.py"), contents.made), (here.with_name("fetch_file.py"), contents.fetched)


def _script(contents: Contents) -> str:
    compiled = f'"$IREE_COMPILE" {PROGRAM} {shlex.join(contents.flags)} -o "$work/module.vmfb"'
    device, arguments = shlex.quote(f"--device={contents.device}"), shlex.join(contents.arguments)
    run = f'"$IREE_RUN_MODULE" {device} --module="$work/module.vmfb" {arguments}' if contents.device else ""
    before = [shlex.join(("python3", tool.name, *row)) for tool, rows in _prepared(contents) for row in rows]
    return repro_script(packages_of(contents.iree), before, (compiled, run), contents.symptom)


def packages_of(iree: Toolchain) -> tuple[str, ...]:
    """What installs it, as pip takes it."""
    return f"iree-base-compiler=={iree.compiler.release}", f"iree-base-runtime=={iree.runtime.release}"


def _readme(contents: Contents) -> str:
    """IREE's form for issues."""
    iree = contents.iree
    lines = [("iree-compile", PROGRAM, "-o module.vmfb", *map(shlex.quote, contents.flags))]
    if contents.device:
        words = (f"--device={contents.device}", *contents.arguments)
        lines.append(("iree-run-module", "--module=module.vmfb", *map(shlex.quote, words)))
    lines[:0] = [(shlex.join(("python3", tool.name, *row)),) for tool, rows in _prepared(contents) for row in rows]
    steps = "\n".join(" \\\n    ".join(words) for words in lines)
    said = "\n\n".join(contents.what)
    replay = ""
    if any(name == REPLAY for name, _ in contents.files):
        replay = f"""
`iree-run-replay --device={contents.device} {REPLAY}` does what that run did with the device, without a compiler; it
compares nothing.
"""
    return f"""\
# {contents.title}

## What happened?

{said}

## Steps to reproduce your issue

```
{steps}
```

{_inline(contents.program)}`./{REPRODUCE}` does it: exit code 0 fixed, 1 still there, 125 cannot be judged. It installs
{" and ".join(packages_of(contents.iree))}, or takes the tools that `IREE_COMPILE` and `IREE_RUN_MODULE` name.
{replay}
## What component(s) does this issue relate to?

{"Compiler" if contents.symptom.ending == WRONG or not contents.device else "Compiler, Runtime"}

## Version information

iree-base-compiler {iree.compiler.version} ({iree.compiler.commit}), iree-base-runtime {iree.runtime.version}

## Additional context

Seen on {contents.machine}. {contains(contents)}
"""


def _inline(program: bytes) -> str:
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


def _facts(contents: Contents) -> dict[str, object]:
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
