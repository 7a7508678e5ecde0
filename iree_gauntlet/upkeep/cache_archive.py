"""The tasks that carry a suite to a machine without a network: `cache.export` and `cache.import`.

    {"format": 1, "suite": "cpu", "version": "0.1.0", "files": [
      {"kind": "artifact", "name": "https/host/a.irpa", "url": "https://host/a.irpa", "sha256": "…", "size": 12},
      {"kind": "module", "name": "<key>", "url": "", "sha256": "…", "size": 34}]}

The files follow in this order, under the names `files/000001` and so on. Where an artifact goes is decided by its URL
and where a module goes by its key, never by what an archive says.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.archive import (
    BLOCK_BYTES,
    END,
    ArchiveReader,
    Blocks,
    CutArchiveError,
    DamagedArchiveError,
    archive_bytes,
    member,
)
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import explain_disk_errors, replace_artifact, require_space
from iree_gauntlet.artifacts.sources import PypiSource, RemoteSource, local_name, parse_source
from iree_gauntlet.engine.modules.module_cache import DamageError, ModuleCache, is_key, pack, packed_bytes, unpack
from iree_gauntlet.engine.plan import make_plan
from iree_gauntlet.engine.run_start import describe_missing, find_missing_files
from iree_gauntlet.engine.workbench import Workbench, open_workbench, plan_context
from iree_gauntlet.engine.workspace import Selection, select
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.formatting import byte_size, counted
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import open_progress, write_line
from iree_gauntlet.settings import find_runs_folder
from iree_gauntlet.system.atomic import reserve_file, sync_folder
from iree_gauntlet.upkeep.cache_list import CachePlace, explain_refusals, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.reports.live_progress import Painter
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.results import Fetched
    from iree_gauntlet.steps import Step


_MANIFEST_FILE = "manifest.json"
# At some 300 bytes a file, far more than any suite has.
_LONGEST_MANIFEST = 64 << 20

_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 120
_SHOWN_PROBLEMS = 20


class PackedKind(StrEnum):
    """What a file of an archive is."""

    ARTIFACT = "artifact"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of an archive, of so many bytes; `url` is an artifact's source, empty for a module."""

    kind: PackedKind
    name: str
    url: str
    sha256: str
    size: int


def export_cache(request: RunRequest, archive: str) -> ExitCode:
    """Packs the artifacts that the selected cases need, fetched first where they are missing, and their modules."""
    if not archive:
        raise UsageError("--output is missing: which archive is to be written?", "Such as --output suite.tar")
    output = Path(archive)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: no file can be written there", "Name a file in a folder that is there.")
    selection = select(request.selection, request.defaults)
    selection.require_sound()
    with open_progress(sys.stderr) as progress:
        machine = open_workbench(request.toolchain, progress, request.network, need_toolchain=False)
        steps = _plan_steps(selection, machine)
        if request.network.offline:
            missing = find_missing_files(steps, (*selection.cases.cases, *selection.cases.required), machine.store)
            if missing:
                raise GauntletError(describe_missing(missing))
        fetched = _fetch_all(steps, machine.store)
        # Now that every program is known, the modules' keys are known. Synthetic weights are made on the other machine;
        # failures that the cache remembers have no module, and happen there again.
        hits = [step for step in _plan_steps(selection, machine) if step.stage.row.makes_modules and step.cache.hit]
        entries = {key: machine.modules.lookup(key).entry for key in dict.fromkeys(step.cache.key for step in hits)}
        keys = [key for key, entry in entries.items() if entry is not None and entry.files]
    files = [Packed(PackedKind.ARTIFACT, local_name(item.url), item.url, item.sha256, item.bytes) for item in fetched]
    contents: list[Callable[[], Iterator[bytes]]] = [partial(_read_blocks, item.path) for item in fetched]
    leases = Leases(machine.cache_dir)
    with explain_refusals(machine.cache_dir):
        for key in keys:
            folder = machine.modules.folder_of(key)
            leases.use(folder)
            content = partial(_pack_module, folder, key)
            digest = hashlib.sha256()
            for block in content():
                digest.update(block)
            files.append(Packed(PackedKind.MODULE, key, "", digest.hexdigest(), packed_bytes(folder, key)))
            contents.append(content)
        size = _write(output, selection.name, files, contents)
    made = sum(step.stage.row.makes_modules for step in steps)
    write_line(f"{output}: {counted(len(fetched), 'artifact')} and {counted(len(keys), 'module')}, {byte_size(size)}")
    if made > len(keys):
        why = "" if machine.toolchain else "; there is no IREE here to tell which modules it needs"
        write_line(f"{made - len(keys)} of {made} imports and compiles are not in the cache: made there{why}")
    return ExitCode.OK


def import_cache(archive: Path, cache_dir: str) -> ExitCode:
    """Puts what an archive holds into the cache; a file that is wrong is left out, and the rest is put there."""
    # It may be the first thing that a new cache gets.
    place = open_cache(cache_dir, may_be_new=True)
    try:
        stream = archive.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"{archive}: {error.strerror}", "Name an archive that `cache.export` has written.") from error
    with stream, explain_refusals(place.root):
        return _Import(archive, stream, place).run()


def _plan_steps(selection: Selection, machine: Workbench) -> Sequence[Step]:
    context = plan_context(machine, find_runs_folder() / f"next-{selection.name}")
    plan = make_plan(selection.cases, selection.stages, context)
    if plan.problems:
        raise SpecError(list(plan.problems))
    return [step for step in plan.steps if not (step.skip or step.blocked)]


def _fetch_all(steps: Sequence[Step], store: ArtifactStore) -> list[Fetched]:
    """Every file of the network that the steps read; what is made (`random:`) or the user's own (`file:`) stays."""
    urls = dict.fromkeys(item.url for step in steps if step.stage.row.fetches for item in step.inputs)
    found: list[Fetched] = []
    failed: list[ArtifactError] = []
    for url in urls:
        if isinstance(parse_source(url), RemoteSource | PypiSource):
            try:
                found.append(store.fetch(url))
            except ArtifactError as error:
                failed.append(error)
    if failed:
        lines = [f"  {error.what}" for error in failed]
        what = f"{len(failed)} of {len(urls)} files are not available:\n"
        raise GauntletError(what + "\n".join(lines), failed[0].hint)
    return found


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _pack_module(folder: Path, key: str) -> Iterator[bytes]:
    try:
        yield from pack(folder, key)
    except DamageError as error:
        what = f"module {key[:12]} in {folder}: {error}"
        raise GauntletError(what, "`cache.verify` repairs the cache; then export again.") from error


def _write(output: Path, suite: str, files: Sequence[Packed], contents: Sequence[Callable[[], Iterator[bytes]]]) -> int:
    """Writes the archive; its size in bytes."""
    manifest = format_manifest(files, suite, __version__)
    total = archive_bytes([len(manifest), *(file.size for file in files)])
    target = output.absolute()
    with (
        replace_artifact(target, str(output)) as temporary,
        temporary.open("xb") as stream,
        open_progress(sys.stderr) as progress,
    ):
        progress.work("packing", total)
        require_space(target.parent, str(output), total)
        for block in member(_MANIFEST_FILE, len(manifest), [manifest]):
            stream.write(block)
        for index, (file, content) in enumerate(zip(files, contents, strict=True)):
            digest = hashlib.sha256()
            what = f"{file.url or file.name} is not what it was when it was hashed: nothing was written"
            changed = GauntletError(what, "`cache.verify` finds and repairs what is damaged.")
            try:
                for block in member(name_member(index), file.size, _watch(content(), digest.update)):
                    stream.write(block)
                    progress.advance(len(block))
            except DamagedArchiveError as error:
                raise changed from error
            if digest.hexdigest() != file.sha256:
                raise changed
        stream.write(END)
    sync_folder(target.parent)
    return total


def _watch(blocks: Iterator[bytes], watch: Callable[[bytes], None]) -> Iterator[bytes]:
    for block in blocks:
        watch(block)
        yield block


class _Import:
    """The import of one archive."""

    def __init__(self, archive: Path, stream: BinaryIO, place: CachePlace) -> None:
        self.archive = archive
        self.stream = stream
        self.place = place
        self.store = place.store(Progress(), offline=True)
        self.modules = ModuleCache(place.root)
        self.problems: list[str] = []
        self.arrived: list[Packed] = []
        self.present: list[Packed] = []
        self.reached = 0

    def run(self) -> ExitCode:
        reader = ArchiveReader(self.stream)
        listed, files = b"", list[Packed]()
        try:
            listed = reader.first(_MANIFEST_FILE, _LONGEST_MANIFEST)
            files = read_manifest(listed)
            with open_progress(sys.stderr) as progress:
                progress.work("unpacking", sum(file.size for file in files))
                self._unpack(reader, files, progress)
            reader.end()
        except DamagedArchiveError as error:
            self.problems.append(f"{self.archive}: {self._damage(error, listed, files)}")
        write_line(f"{self.place.root}: {_count(self.arrived)} put there, {_count(self.present)} there already")
        if not self.problems:
            return ExitCode.OK
        lines = ["not all of the archive was taken:", *(f"  {problem}" for problem in self.problems[:_SHOWN_PROBLEMS])]
        if (more := len(self.problems) - _SHOWN_PROBLEMS) > 0:
            lines.append(f"  and {more} more")
        what = "\n".join(lines) if len(self.problems) > 1 else self.problems[0]
        raise GauntletError(what, "Make the archive again on the other machine, or copy it again.")

    def _damage(self, error: DamagedArchiveError, listed: bytes, files: Sequence[Packed]) -> str:
        """What is wrong with the archive, in which of its files, and how many before that are right."""
        what = str(error)
        if not files:
            return what
        if isinstance(error, CutArchiveError):
            whole = archive_bytes([len(listed), *(file.size for file in files)])
            place = "behind its last file"
            if self.reached < len(files):
                at = files[self.reached]
                place = f"in {at.url or at.name} (file {self.reached + 1} of {len(files)})"
            what = f"it ends after {self.archive.stat().st_size:,} of {whole:,} bytes, {place}"
        right = [file for file in files[: self.reached] if file in self.arrived or file in self.present]
        size = byte_size(sum(file.size for file in right))
        return f"{what}; {len(right)} of {len(files)} files ({size}) arrived and are right"

    def _unpack(self, reader: ArchiveReader, files: Sequence[Packed], progress: Painter) -> None:
        self.place.root.mkdir(parents=True, exist_ok=True)
        wanted = list(map(self._is_wanted, files))
        needed = sum(file.size for file, want in zip(files, wanted, strict=True) if want)
        # Not more than the archive can have: its manifest may be a lie.
        require_space(self.place.root, str(self.archive), min(needed, self.archive.stat().st_size))
        for index, (file, want) in enumerate(zip(files, wanted, strict=True)):
            name = name_member(index)
            if want:
                digest = hashlib.sha256()
                content = _watch(reader.member(name, file.size), lambda block: progress.advance(len(block)))
                take = self._take_artifact if file.kind is PackedKind.ARTIFACT else self._take_module
                problem = take(file, _watch(content, digest.update), digest)
                if problem:
                    self.problems.append(problem)
                else:
                    self.arrived.append(file)
            else:
                reader.skip(name, file.size, self.stream)
                progress.advance(file.size)
            self.reached = index + 1

    def _is_wanted(self, file: Packed) -> bool:
        if file.kind is PackedKind.MODULE:
            wanted = self.modules.lookup(file.name).entry is None
        else:
            pin = self.place.pins.of(file.name)
            if pin is not None and pin.sha256 != file.sha256:
                said = f"{file.url}: the archive has sha256 {file.sha256}, {pin.path} says {pin.sha256}"
                self.problems.append(f"{said}; nothing was replaced")
                return False
            wanted = self.store.verified.known(self.store.path(file.url)) != file.sha256
        if not wanted:
            self.present.append(file)
        return wanted

    def _take_artifact(self, file: Packed, blocks: Iterator[bytes], digest: Any) -> str:
        """Puts an artifact into the store; what is wrong, empty for nothing."""
        with reserve_file(self.place.root / "imported") as temporary:
            with explain_disk_errors(self.place.root, file.url), temporary.open("xb") as stream:
                for block in blocks:
                    stream.write(block)
            if digest.hexdigest() != file.sha256:
                return f"{file.url}: {_describe_difference(file, digest)}"
            try:
                self.store.adopt(file.url, temporary, file.sha256, Progress())
            except ArtifactError as error:
                return error.what
            # Another file, of a hash that is not pinned, may have been there.
            held = self.store.known_hash(file.url)
            return "" if held == file.sha256 else f"{file.url}: the cache has one of sha256 {held}, which was kept"

    def _take_module(self, file: Packed, blocks: Iterator[bytes], digest: Any) -> str:
        """Puts a module into the cache; what is wrong, empty for nothing."""
        with self.modules.incoming(file.name) as folder:
            try:
                hashes = unpack(Blocks(blocks), file.name, folder, size=file.size)
            except DamageError as error:
                # The files after it may be right.
                for _ in blocks:
                    pass
                return f"module {file.name[:12]}: {error}"
            if digest.hexdigest() != file.sha256:
                return f"module {file.name[:12]}: {_describe_difference(file, digest)}"
            published = self.modules.adopt(folder, file.name, hashes)
        return "" if published.entry else f"module {file.name[:12]}: {published.note}"


def _describe_difference(file: Packed, digest: Any) -> str:
    return f"its content has sha256 {digest.hexdigest()}, the archive's {_MANIFEST_FILE} says {file.sha256}; not taken"


def _count(files: Sequence[Packed]) -> str:
    artifacts = sum(file.kind is PackedKind.ARTIFACT for file in files)
    size = byte_size(sum(file.size for file in files))
    return f"{counted(artifacts, 'artifact')} and {counted(len(files) - artifacts, 'module')} ({size})"


def name_member(index: int) -> str:
    """The name, in the archive, of the file at a place of the manifest (from 0 on)."""
    return f"files/{index + 1:06d}"


def format_manifest(files: Sequence[Packed], suite: str, version: str) -> bytes:
    """The manifest of an archive."""
    head = json.dumps({"format": _FORMAT, "suite": suite, "version": version})
    lines = ",\n".join(json.dumps(asdict(file)) for file in files)
    return f'{head[:-1]}, "files": [\n{lines}\n]}}\n'.encode("ascii")


def read_manifest(data: bytes) -> list[Packed]:
    """The files of an archive.

    Raises:
        DamagedArchiveError: the manifest is not as this toolkit writes it, or names what no cache keeps.
    """
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise DamagedArchiveError(
                f"its format is {document['format']!r:.{_SHOWN}}, and this toolkit reads {_FORMAT}"
            )
        found = [_parse_packed(item) for item in document["files"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedArchiveError(f"its {_MANIFEST_FILE} is not as it was written") from error
    names = {(file.kind, file.name.casefold()) for file in found}
    if len(names) != len(found):
        raise DamagedArchiveError(f"its {_MANIFEST_FILE} names a file twice")
    return found


def _parse_packed(item: dict[str, object]) -> Packed:
    file = Packed(**item)  # type: ignore[arg-type]
    texts = (file.kind, file.name, file.url, file.sha256)
    is_sized = type(file.size) is int and file.size >= 0
    if not is_sized or not all(isinstance(text, str) for text in texts) or not _SHA256.fullmatch(file.sha256):
        raise ValueError
    known = file.kind == PackedKind.MODULE and is_key(file.name) and not file.url
    if file.kind == PackedKind.ARTIFACT:
        with suppress(ArtifactError):
            source = parse_source(file.url)
            known = isinstance(source, RemoteSource | PypiSource) and source.local_name == file.name
    if known:
        return replace(file, kind=PackedKind(file.kind))
    raise DamagedArchiveError(f"its {_MANIFEST_FILE} names {file.name!a:.{_SHOWN}}, which is no place in a cache")
