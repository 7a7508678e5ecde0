"""The bytes that a worker is brought and gives: modules by their key, copies of projects, files.

They go straight from one worker to another, or from where the run was started, and are checked by their hashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.comm.core import connect
from distributed.core import Status

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cluster.project_copy import unpack_project
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.modules.module_entry import DamageError, pack, unpack
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed.comm.core import Comm

    from iree_gauntlet.cluster.link import Made


_BLOCK_BYTES = 4 << 20
# Who has left may not be known yet; what it has made is quickly made again.
_CONNECT_SECONDS = 5


class Transfers:
    """What is brought to one worker, and given by it.

    Args:
        cache_dir: its cache.
        work: its own folder.
    """

    def __init__(self, cache_dir: Path, work: Path) -> None:
        self._cache_dir = cache_dir
        self._work = work
        self._modules = ModuleCache(cache_dir)
        self._fetching: dict[str, asyncio.Lock] = {}

    def project(self, sha256: str) -> Path:
        """Where the copy of a project is, or would be."""
        return self._work / "projects" / sha256

    async def have(self, made: Made, connection: dict[str, Any]) -> None:
        """Has a module in the cache here, if another worker still has it; otherwise it is made here.

        Args:
            made: the module, and who has it.
            connection: how workers are reached, as of Dask's `connect`.
        """
        async with self._fetching.setdefault(made.key, asyncio.Lock()):
            for address in made.at:
                found = await asyncio.to_thread(self._modules.lookup, made.key)
                if found.entry is not None:
                    return
                with contextlib.suppress(OSError, DamageError):
                    await self._fetch_entry(address, made, connection)

    async def _fetch_entry(self, address: str, made: Made, connection: dict[str, Any]) -> None:
        comm = await connect(address, timeout=_CONNECT_SECONDS, **connection)
        try:
            await comm.write({"op": "gauntlet_entry", "key": made.key})
            with tempfile.TemporaryFile(dir=self._work_folder()) as file:
                while block := await comm.read():
                    if not isinstance(block, bytes):
                        raise DamageError(f"{address} does not have it")
                    await asyncio.to_thread(file.write, block)
                file.seek(0)

                def adopt() -> None:
                    with self._modules.incoming(made.key) as folder:
                        hashes = unpack(file, made.key, folder)
                        self._modules.adopt(folder, made.key, hashes, made.step)

                await asyncio.to_thread(adopt)
        finally:
            comm.abort()

    async def give_entry(self, comm: Comm, key: str) -> Status:
        """Sends an entry of the module cache in blocks; an empty one is the end, and an object says why it ends."""
        blocks = _gathered(pack(self._modules.folder_of(key), key))
        try:
            while (block := await asyncio.to_thread(next, blocks, b"")) != b"":
                await comm.write(block)
        except (OSError, DamageError) as error:
            await comm.write({"error": str(error)})
            return Status.dont_reply
        await comm.write(b"")
        return Status.dont_reply

    async def take_project(self, comm: Comm, sha256: str) -> str:
        """Receives the copy of a project in blocks, up to an empty one."""
        async with self._fetching.setdefault(sha256, asyncio.Lock()):
            with tempfile.TemporaryFile(dir=self._work_folder()) as file:
                await _received(comm, file)
                file.seek(0)
                if (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest() != sha256:
                    return "the copy of the project was damaged on its way"
                file.seek(0)
                try:
                    await asyncio.to_thread(unpack_project, file, self.project(sha256))
                except GauntletError as error:
                    return error.on_one_line
        return ""

    async def take_artifact(self, comm: Comm, url: str) -> str:
        """Receives a file that this worker cannot get, in blocks, up to an empty one."""
        descriptor, name = tempfile.mkstemp(dir=self._work_folder())
        try:
            with os.fdopen(descriptor, "wb") as file:
                await _received(comm, file)

            def adopt() -> None:
                store = ArtifactStore(self._cache_dir, Registry())
                store.adopt(url, Path(name), hash_file(Path(name)), Progress())

            await asyncio.to_thread(adopt)
        except GauntletError as error:
            return error.on_one_line
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - of a temporary file that the store may have taken
        return ""

    def _work_folder(self) -> Path:
        self._work.mkdir(parents=True, exist_ok=True)
        return self._work


async def _received(comm: Comm, file: Any) -> None:
    while block := await comm.read():
        await asyncio.to_thread(file.write, block)
    file.flush()


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer, larger blocks."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(bytes(block))
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
