"""The tasks that carry a suite to a machine without a network: `cache.export` and `cache.import`.

    {"format": 1, "suite": "cpu", "version": "0.1.0", "files": [
      {"kind": "artifact", "name": "https/host/a.irpa", "url": "https://host/a.irpa", "sha256": "…", "size": 12},
      {"kind": "module", "name": "<key>", "url": "", "sha256": "…", "size": 34}]}

The files follow in this order, named `files/000001` and so on. Their paths in the cache are determined by artifacts'
URLs and modules' keys, never by names in the archive.
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
    ArchiveDamageError,
    ArchiveEndError,
    ArchiveReader,
    Blocks,
    compute_archive_size,
    member,
)
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import explain_disk_errors, replace_artifact, require_space
from iree_gauntlet.artifacts.sources import PypiSource, RemoteSource, make_local_name, parse_source
from iree_gauntlet.engine.modules.module_cache import (
    DamageError,
    ModuleCache,
    compute_packed_size,
    is_key,
    pack,
    unpack,
)
from iree_gauntlet.engine.plan import make_plan
from iree_gauntlet.engine.run_start import describe_missing, find_missing_files
from iree_gauntlet.engine.workbench import Workbench, make_plan_context, open_workbench
from iree_gauntlet.engine.workspace import Selection, select
from iree_gauntlet.errors import ArtifactError, ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.formatting import format_bytes, pluralize
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import open_progress, write_line
from iree_gauntlet.settings import find_runs_folder
from iree_gauntlet.system.atomic import reserve_file, sync_folder
from iree_gauntlet.upkeep.cache_list import ProjectCache, explain_file_errors, open_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.reports.live_progress import Painter
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.results import FetchedFile
    from iree_gauntlet.steps import Step


_MANIFEST_FILE = "manifest.json"
# An entry has about 300 bytes, so this is far more than any suite needs.
_MAX_MANIFEST_BYTES = 64 << 20

_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_CHARS = 120
_MAX_PROBLEMS = 20


class FileKind(StrEnum):
    """The kinds of files in an archive."""

    ARTIFACT = "artifact"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of an archive, with its size in bytes; `url` is an artifact's source, empty for a module."""

    kind: FileKind
    name: str
    url: str
    sha256: str
    size: int


def export_cache(request: RunRequest, archive: str) -> ExitCode:
    """Pack the artifacts of the selected cases, after fetching missing ones, and the cases' modules."""
    if not archive:
        raise UsageError("--output is missing: which archive is to be written?", "Such as --output suite.tar")
    output = Path(archive)
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: it cannot be written", "Name a file in an existing folder.")
    selection = select(request.selection, request.defaults)
    selection.require_no_problems()
    with open_progress(sys.stderr) as progress:
        workbench = open_workbench(request.toolchain, progress, request.network, need_toolchain=False)
        steps, cases = _plan_steps(selection, workbench), selection.cases
        if request.network.offline:
            missing = find_missing_files(steps, (*cases.cases, *cases.needed_cases), workbench.store)
            if missing:
                raise GauntletError(describe_missing(missing))
        artifacts = _fetch_all(steps, workbench.store)
        # The modules' keys can be computed only when every program is in the store. Synthetic weights are not packed:
        # the other machine generates them. Cached failures have no module, and will fail again there.
        hits = [step for step in _plan_steps(selection, workbench) if step.stage.row.makes_modules and step.cache.hit]
        entries = {key: workbench.modules.lookup(key).entry for key in dict.fromkeys(step.cache.key for step in hits)}
        keys = [key for key, entry in entries.items() if entry is not None and entry.files]
    files = [
        FileEntry(FileKind.ARTIFACT, make_local_name(artifact.url), artifact.url, artifact.sha256, artifact.bytes)
        for artifact in artifacts
    ]
    contents: list[Callable[[], Iterator[bytes]]] = [partial(_read_blocks, artifact.path) for artifact in artifacts]
    leases = Leases(workbench.cache_dir)
    with explain_file_errors(workbench.cache_dir):
        for key in keys:
            folder = workbench.modules.get_entry_folder(key)
            leases.use(folder)
            content = partial(_pack_module, folder, key)
            digest = hashlib.sha256()
            for block in content():
                digest.update(block)
            files.append(FileEntry(FileKind.MODULE, key, "", digest.hexdigest(), compute_packed_size(folder, key)))
            contents.append(content)
        size = _write(output, selection.name, files, contents)
    total = sum(step.stage.row.makes_modules for step in steps)
    write_line(
        f"{output}: {pluralize(len(artifacts), 'artifact')} and {pluralize(len(keys), 'module')}, {format_bytes(size)}"
    )
    if total > len(keys):
        reason = "" if workbench.toolchain else "; without an IREE, the modules that it needs are unknown"
        write_line(
            f"{total - len(keys)} of {total} imports and compiles are not in the cache: "
            f"the other machine builds them{reason}"
        )
    return ExitCode.OK


def import_cache(archive: Path, cache_dir: str) -> ExitCode:
    """Put the content of an archive, except damaged files, into the cache."""
    # The import may create the cache.
    cache = open_cache(cache_dir, may_be_new=True)
    try:
        stream = archive.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"{archive}: {error.strerror}", "Name an archive that `cache.export` wrote.") from error
    with stream, explain_file_errors(cache.root):
        return _Import(archive, stream, cache).run()


def _plan_steps(selection: Selection, workbench: Workbench) -> Sequence[Step]:
    context = make_plan_context(workbench, find_runs_folder() / f"next-{selection.name}")
    plan = make_plan(selection.cases, selection.stages, context)
    if plan.problems:
        raise SpecError(list(plan.problems))
    return [step for step in plan.steps if not (step.skip or step.blocked)]


def _fetch_all(steps: Sequence[Step], store: ArtifactStore) -> list[FetchedFile]:
    """Fetch all files that the steps read from the network, not generated (`random:`) or local files (`file:`)."""
    urls = dict.fromkeys(source_file.url for step in steps if step.stage.row.fetches for source_file in step.inputs)
    artifacts: list[FetchedFile] = []
    errors: list[ArtifactError] = []
    for url in urls:
        if isinstance(parse_source(url), RemoteSource | PypiSource):
            try:
                artifacts.append(store.fetch(url))
            except ArtifactError as error:
                errors.append(error)
    if errors:
        lines = [f"  {error.message}" for error in errors]
        message = f"{len(errors)} of {len(urls)} files are not available:\n"
        raise GauntletError(message + "\n".join(lines), errors[0].hint)
    return artifacts


def _read_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _pack_module(folder: Path, key: str) -> Iterator[bytes]:
    try:
        yield from pack(folder, key)
    except DamageError as error:
        message = f"module {key[:12]} in {folder}: {error}"
        raise GauntletError(message, "Repair the cache with `cache.verify`; then export again.") from error


def _write(path: Path, suite: str, files: Sequence[FileEntry], readers: Sequence[Callable[[], Iterator[bytes]]]) -> int:
    """Write the archive; return its size in bytes."""
    manifest = format_manifest(files, suite, __version__)
    total = compute_archive_size([len(manifest), *(file.size for file in files)])
    target = path.absolute()
    with (
        replace_artifact(target, str(path)) as temporary,
        temporary.open("xb") as stream,
        open_progress(sys.stderr) as progress,
    ):
        progress.work("packing", total)
        require_space(target.parent, str(path), total)
        for block in member(_MANIFEST_FILE, len(manifest), [manifest]):
            stream.write(block)
        for index, (file, content) in enumerate(zip(files, readers, strict=True)):
            digest = hashlib.sha256()
            message = f"{file.url or file.name} changed after it was hashed: nothing was written"
            change_error = GauntletError(message, "`cache.verify` finds and repairs damaged files.")
            try:
                for block in member(name_member(index), file.size, _watch(content(), digest.update)):
                    stream.write(block)
                    progress.advance(len(block))
            except ArchiveDamageError as error:
                raise change_error from error
            if digest.hexdigest() != file.sha256:
                raise change_error
        stream.write(END)
    sync_folder(target.parent)
    return total


def _watch(blocks: Iterator[bytes], observe: Callable[[bytes], None]) -> Iterator[bytes]:
    for block in blocks:
        observe(block)
        yield block


class _Import:
    """The import of one archive."""

    def __init__(self, archive: Path, stream: BinaryIO, cache: ProjectCache) -> None:
        self.archive = archive
        self.stream = stream
        self.cache = cache
        self.store = cache.store(Progress(), offline=True)
        self.modules = ModuleCache(cache.root)
        self.problems: list[str] = []
        self.new_files: list[FileEntry] = []
        self.old_files: list[FileEntry] = []
        self.processed_count = 0

    def run(self) -> ExitCode:
        reader = ArchiveReader(self.stream)
        manifest, files = b"", list[FileEntry]()
        try:
            manifest = reader.first(_MANIFEST_FILE, _MAX_MANIFEST_BYTES)
            files = read_manifest(manifest)
            with open_progress(sys.stderr) as progress:
                progress.work("unpacking", sum(file.size for file in files))
                self._unpack(reader, files, progress)
            reader.end()
        except ArchiveDamageError as error:
            self.problems.append(f"{self.archive}: {self._damage(error, manifest, files)}")
        write_line(f"{self.cache.root}: {_count(self.new_files)} put there, {_count(self.old_files)} already there")
        if not self.problems:
            return ExitCode.OK
        lines = ["not all of the archive was imported:", *(f"  {problem}" for problem in self.problems[:_MAX_PROBLEMS])]
        if (hidden_count := len(self.problems) - _MAX_PROBLEMS) > 0:
            lines.append(f"  and {hidden_count} more")
        message = "\n".join(lines) if len(self.problems) > 1 else self.problems[0]
        raise GauntletError(message, "Export the archive again on the other machine, or copy it again.")

    def _damage(self, error: ArchiveDamageError, manifest: bytes, files: Sequence[FileEntry]) -> str:
        """Describe the archive's damage: the damaged file, and the number of intact files before it."""
        message = str(error)
        if not files:
            return message
        if isinstance(error, ArchiveEndError):
            total_bytes = compute_archive_size([len(manifest), *(file.size for file in files)])
            position = "after its last file"
            if self.processed_count < len(files):
                next_file = files[self.processed_count]
                position = f"in {next_file.url or next_file.name} (file {self.processed_count + 1} of {len(files)})"
            message = f"it ends after {self.archive.stat().st_size:,} of {total_bytes:,} bytes, {position}"
        intact = [file for file in files[: self.processed_count] if file in self.new_files or file in self.old_files]
        size = format_bytes(sum(file.size for file in intact))
        return f"{message}; {len(intact)} of {len(files)} files ({size}) arrived intact"

    def _unpack(self, reader: ArchiveReader, files: Sequence[FileEntry], progress: Painter) -> None:
        self.cache.root.mkdir(parents=True, exist_ok=True)
        import_flags = list(map(self._needs_import, files))
        needed_bytes = sum(file.size for file, needs_import in zip(files, import_flags, strict=True) if needs_import)
        # A false manifest must not require more space than the archive's size.
        require_space(self.cache.root, str(self.archive), min(needed_bytes, self.archive.stat().st_size))
        for index, (file, needs_import) in enumerate(zip(files, import_flags, strict=True)):
            name = name_member(index)
            if needs_import:
                digest = hashlib.sha256()
                content = _watch(reader.member(name, file.size), lambda block: progress.advance(len(block)))
                take = self._take_artifact if file.kind is FileKind.ARTIFACT else self._take_module
                problem = take(file, _watch(content, digest.update), digest)
                if problem:
                    self.problems.append(problem)
                else:
                    self.new_files.append(file)
            else:
                reader.skip(name, file.size, self.stream)
                progress.advance(file.size)
            self.processed_count = index + 1

    def _needs_import(self, file: FileEntry) -> bool:
        if file.kind is FileKind.MODULE:
            needs_import = self.modules.lookup(file.name).entry is None
        else:
            pin = self.cache.pins.of(file.name)
            if pin is not None and pin.sha256 != file.sha256:
                message = f"{file.url}: the archive has sha256 {file.sha256}, {pin.path} says {pin.sha256}"
                self.problems.append(f"{message}; nothing was replaced")
                return False
            needs_import = self.store.hash_cache.get_cached_hash(self.store.path(file.url)) != file.sha256
        if not needs_import:
            self.old_files.append(file)
        return needs_import

    def _take_artifact(self, file: FileEntry, blocks: Iterator[bytes], digest: Any) -> str:
        """Put an artifact into the store; return an error message, or an empty string."""
        with reserve_file(self.cache.root / "imported") as temporary:
            with explain_disk_errors(self.cache.root, file.url), temporary.open("xb") as stream:
                for block in blocks:
                    stream.write(block)
            if digest.hexdigest() != file.sha256:
                return f"{file.url}: {_describe_difference(file, digest)}"
            try:
                self.store.adopt(file.url, temporary, file.sha256, Progress())
            except ArtifactError as error:
                return error.message
            # The store may already have another file with an unpinned hash.
            known_hash = self.store.get_known_hash(file.url)
            return (
                ""
                if known_hash == file.sha256
                else f"{file.url}: the cache has one of sha256 {known_hash}, which was left in place"
            )

    def _take_module(self, file: FileEntry, blocks: Iterator[bytes], digest: Any) -> str:
        """Put a module into the cache; return an error message, or an empty string."""
        with self.modules.reserve_entry_folder(file.name) as folder:
            try:
                hashes = unpack(Blocks(blocks), file.name, folder, size=file.size)
            except DamageError as error:
                # Skip the blocks of the damaged file, because later files may be intact.
                for _ in blocks:
                    pass
                return f"module {file.name[:12]}: {error}"
            if digest.hexdigest() != file.sha256:
                return f"module {file.name[:12]}: {_describe_difference(file, digest)}"
            publication = self.modules.adopt(folder, file.name, hashes)
        return "" if publication.entry else f"module {file.name[:12]}: {publication.note}"


def _describe_difference(file: FileEntry, digest: Any) -> str:
    return (
        f"its content has sha256 {digest.hexdigest()}, the archive's {_MANIFEST_FILE} says {file.sha256}; not imported"
    )


def _count(files: Sequence[FileEntry]) -> str:
    artifacts = sum(file.kind is FileKind.ARTIFACT for file in files)
    size = format_bytes(sum(file.size for file in files))
    return f"{pluralize(artifacts, 'artifact')} and {pluralize(len(files) - artifacts, 'module')} ({size})"


def name_member(index: int) -> str:
    """Return the archive's name of the file at an index of the manifest, counted from 0."""
    return f"files/{index + 1:06d}"


def format_manifest(files: Sequence[FileEntry], suite: str, version: str) -> bytes:
    """Format the manifest of an archive."""
    head = json.dumps({"format": _FORMAT, "suite": suite, "version": version})
    lines = ",\n".join(json.dumps(asdict(file)) for file in files)
    return f'{head[:-1]}, "files": [\n{lines}\n]}}\n'.encode("ascii")


def read_manifest(manifest: bytes) -> list[FileEntry]:
    """Read the list of an archive's files.

    Raises:
        ArchiveDamageError: this toolkit would not write such a manifest, or it has names that no cache uses.
    """
    try:
        document = json.loads(manifest)
        if document["format"] != _FORMAT:
            raise ArchiveDamageError(
                f"its format is {document['format']!r:.{_MAX_CHARS}}, and this toolkit reads {_FORMAT}"
            )
        files = [_parse_entry(entry) for entry in document["files"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArchiveDamageError(f"its {_MANIFEST_FILE} is not as it was written") from error
    names = {(file.kind, file.name.casefold()) for file in files}
    if len(names) != len(files):
        raise ArchiveDamageError(f"its {_MANIFEST_FILE} names a file twice")
    return files


def _parse_entry(fields: dict[str, object]) -> FileEntry:
    file = FileEntry(**fields)  # type: ignore[arg-type]
    texts = (file.kind, file.name, file.url, file.sha256)
    has_size = type(file.size) is int and file.size >= 0
    if not has_size or not all(isinstance(text, str) for text in texts) or not _SHA256.fullmatch(file.sha256):
        raise ValueError
    is_valid = file.kind == FileKind.MODULE and is_key(file.name) and not file.url
    if file.kind == FileKind.ARTIFACT:
        with suppress(ArtifactError):
            source = parse_source(file.url)
            is_valid = isinstance(source, RemoteSource | PypiSource) and source.local_name == file.name
    if is_valid:
        return replace(file, kind=FileKind(file.kind))
    raise ArchiveDamageError(f"its {_MANIFEST_FILE} names {file.name!a:.{_MAX_CHARS}}, which is not a path in a cache")
