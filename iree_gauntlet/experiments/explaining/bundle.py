"""A bundle: a folder, and an archive of it, with which anyone can see a failure, or that it is mended.

README.md      an issue for IREE, filled in
repro.sh       compiles, runs and compares: exit code 0 fixed, 1 still there, 125 cannot be judged
program.mlir   what fails, and nothing else
input_0.bin…   what it is given, as raw values, and what is expected of it (`expected_0.bin`)
run.ireereplay the run as the device saw it, where the runtime can record one (`replay.py`)
bundle.json    versions, flags, sizes and hashes
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import byte_size
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


BUNDLE_FACTS = "bundle.json"
REPRODUCE = "repro.sh"
REPLAY = "run.ireereplay"
# What `repro.sh` ends with.
FIXED, STILL_THERE, CANNOT_BE_JUDGED = 0, 1, 125
_LIMIT = 10_000_000
PROGRAM = "program.mlir"

_SCRIPT = """\
#!/bin/sh
# Exit codes: 0 fixed, 1 still there, 125 cannot be judged: as `git bisect run` takes them.
#
# IREE_COMPILE and IREE_RUN_MODULE name the tools; without them, {versions} are installed into env/.
set -u
cd "$(dirname "$0")" || exit 125
if [ -z "${{IREE_COMPILE:-}}" ] || [ -z "${{IREE_RUN_MODULE:-}}" ]; then
    if [ ! -x env/bin/iree-run-module ]; then
        python3 -m venv env && env/bin/python -m pip install -q {packages} || exit 125
    fi
    IREE_COMPILE=$PWD/env/bin/iree-compile IREE_RUN_MODULE=$PWD/env/bin/iree-run-module
fi
work=$(mktemp -d) || exit 125
trap 'rm -rf "$work"' EXIT
{judge}
"""

_COMPILE = """\
"$IREE_COMPILE" {program} {flags} -o "$work/module.vmfb" > "$work/compile.txt" 2>&1
code=$?
"""

_WRONG = """\
if [ $code -ne 0 ]; then
    cat "$work/compile.txt"
    exit 125
fi
"$IREE_RUN_MODULE" {device} --module="$work/module.vmfb" {arguments} > "$work/run.txt" 2>&1
code=$?
cat "$work/run.txt"
if [ $code -eq 0 ]; then
    echo "fixed: the outputs are as expected"
    exit 0
fi
if grep -q '^\\[FAILED\\]' "$work/run.txt"; then
    echo "still there: the outputs are not as expected"
    exit 1
fi
echo "cannot be judged: it does not run"
exit 125
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a bundle.

    Attributes:
        title: the failure in a line.
        what: paragraphs for the README: what happens, and how it was found.
        program: that fails, as text.
        flags: of iree-compile.
        device: that it runs on.
        arguments: of iree-run-module, with files by their names in the bundle.
        files: name and contents of everything else.
        iree: that it fails with.
        machine: where it was seen.
    """

    title: str
    what: tuple[str, ...]
    program: str
    flags: tuple[str, ...]
    device: str
    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]
    iree: Toolchain
    machine: str

    @property
    def bytes(self) -> int:
        """Of everything, before it is packed."""
        return len(self.program) + sum(len(data) for _, data in self.files)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is there.

    Attributes:
        folder: it.
        archive: the same in one file.
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
    texts = {"README.md": _readme(contents), REPRODUCE: _script(contents), PROGRAM: contents.program}
    return pack({name: text.encode() for name, text in texts.items()} | dict(contents.files), _facts(contents), folder)


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
    if len(packed) > _LIMIT:
        raise GauntletError(
            f"the bundle would have {byte_size(len(packed))}, and {byte_size(_LIMIT)} is the limit",
            "Its program holds too many weights.",
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
                # No path of it leaves the folder, and nothing is written but plain files.
                tar.extractall(folder, filter="data")
        except (OSError, tarfile.TarError) as error:
            what = f"{archive} cannot be unpacked: {str(error).splitlines()[0]}"
            raise GauntletError(what, "Name a bundle that `explain` wrote.") from error
        found = next(iter(sorted(path.parent for path in folder.glob(f"*/{BUNDLE_FACTS}"))), folder)
    if not ((found / BUNDLE_FACTS).is_file() and (found / REPRODUCE).is_file()):
        raise GauntletError(f"{archive} is no bundle: it has no {BUNDLE_FACTS}", "Name one that `explain` wrote.")
    return found


def _raw_value(data: bytes, index: int, kind: str, name: str) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """An argument of iree-run-module for a tensor's raw values, and the file that it names: none for zeros."""
    if not any(data):
        return kind, ()
    file = f"{name}_{index}.bin"
    return f"{kind}=@{file}", ((file, data),)


def _script(contents: Contents) -> str:
    judge = (_COMPILE + _WRONG).format(
        program=PROGRAM,
        flags=shlex.join(contents.flags),
        device=shlex.quote(f"--device={contents.device}"),
        arguments=shlex.join(contents.arguments),
    )
    packages = packages_of(contents.iree)
    return _SCRIPT.format(versions=" and ".join(packages), packages=shlex.join(packages), judge=judge)


def packages_of(iree: Toolchain) -> tuple[str, ...]:
    """What installs it, as pip takes it."""
    return f"iree-base-compiler=={iree.compiler.release}", f"iree-base-runtime=={iree.runtime.release}"


def _readme(contents: Contents) -> str:
    """IREE's form for issues."""
    iree = contents.iree
    flags = " \\\n    ".join(contents.flags)
    run = " \\\n    ".join(shlex.quote(word) for word in (f"--device={contents.device}", *contents.arguments))
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
iree-compile {PROGRAM} \\
    {flags} \\
    -o module.vmfb
iree-run-module --module=module.vmfb \\
    {run}
```

`./{REPRODUCE}` does both: exit code 0 fixed, 1 still there, 125 cannot be judged. It installs the versions below, or
takes those that `IREE_COMPILE` and `IREE_RUN_MODULE` name.
{replay}
## What component(s) does this issue relate to?

Compiler

## Version information

iree-base-compiler {iree.compiler.version} ({iree.compiler.commit}), iree-base-runtime {iree.runtime.version}

## Additional context

Seen on {contents.machine}.
"""


def _facts(contents: Contents) -> dict[str, object]:
    return {
        "title": contents.title,
        "iree": contents.iree.as_dict(),
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


def flag_files(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, bytes], ...]]:
    """Flags that name files by their names in a bundle, and these files."""
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for flag in flags:
        head, equals, value = flag.rpartition("=")
        path = Path(value)
        if equals and "/" in value and path.is_file():
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
        text, held = _raw_value(path.read_bytes(), index, kind, name)
        texts.append(text)
        files += held
    return texts, tuple(files)
