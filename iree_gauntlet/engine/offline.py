"""What an offline run will miss, said at once, before anything runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.artifacts.sources import PypiSource, RemoteSource, parse_source
from iree_gauntlet.cases import Case, Stage
from iree_gauntlet.dialects.locations import file_path

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.steps import Step


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that is not available without the network.

    Attributes:
        url: where it comes from.
        needed_by: what needs it: a field of a spec file, or a step.
        more: how many others need it, too.
    """

    url: str
    needed_by: str
    more: int


def missing_files(
    steps: Iterable[Step], cases: Iterable[Case], store: ArtifactStore, finished: Container[str] = ()
) -> list[MissingFile]:
    """The files of steps that only the network has, in the order of the steps.

    A file that the user named by its path (`file:`) is not among them, nor one that is made here (`random:`).

    Args:
        steps: of a plan; what is skipped, or cannot run, needs nothing.
        cases: what the plan was made from; says which field of which spec names a file.
        store: what there is.
        finished: ids of steps that an earlier run has done.

    Raises:
        ArtifactError: the record of hashes cannot be read.
    """
    wanted: dict[str, list[str]] = {}
    for step in steps:
        if step.stage is Stage.FETCH and not (step.skip or step.blocked) and step.id not in finished:
            for item in step.inputs:
                wanted.setdefault(item.url, []).append(step.id)
    # It brings pydantic.
    from iree_gauntlet.dialects.load import urls_of  # noqa: PLC0415 - it brings pydantic

    missing = [url for url in wanted if _needs_network(store, url)]
    fields: dict[str, list[str]] = {url: [] for url in missing}
    # Most of the time nothing is missing, and no spec needs to be looked at.
    for case in cases if missing else ():
        for field, url in urls_of(case):
            place = f"{case.origin.file}: {field}"
            if url in fields and place not in fields[url]:
                fields[url].append(place)
    needed = ((url, fields[url] or wanted[url]) for url in missing)
    return [MissingFile(url, by[0], len(by) - 1) for url, by in needed]


def missing_text(files: Sequence[MissingFile]) -> str:
    """The list for people, one line a file."""
    count = "1 file is missing" if len(files) == 1 else f"{len(files)} files are missing"
    lines = [f"offline: {count}:"]
    for file in files:
        more = f" and {file.more} more" if file.more else ""
        lines.append(f"  {file.url} ({file.needed_by}{more})")
    lines.append(
        "  Fetch once with network access, or `cache.import` an archive; `cache.where URL` shows where it would lie."
    )
    return "\n".join(lines)


def without_missing_files(steps: Iterable[Step], missing: Sequence[MissingFile]) -> tuple[Step, ...]:
    """The steps of a plan, where those that fetch say what of theirs is not available."""
    urls = {file.url for file in missing}

    def with_missing(step: Step) -> Step:
        # Path.exists raises for a name that is too long.
        gone = [
            item.url
            for item in step.inputs
            if item.url in urls or ((path := file_path(item.url)) and not os.path.exists(path))  # noqa: PTH110
        ]
        if step.stage is not Stage.FETCH or not gone:
            return step
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        count = f"{len(gone)} of {len(step.inputs)} files {'is' if len(gone) == 1 else 'are'} missing"
        return replace(step, cache=replace(step.cache, reason=f"{count}: {gone[0]}{more}"))

    return tuple(map(with_missing, steps))


def _needs_network(store: ArtifactStore, url: str) -> bool:
    source = parse_source(url)
    if not isinstance(source, RemoteSource | PypiSource) or store.present(url):
        return False
    if isinstance(source, PypiSource):
        # Whether it is the right one shows when the file is taken out of it.
        wheels = store.root.joinpath("wheels", *source.local_name.split("/")[1:3])
        return next(wheels.glob("*.whl"), None) is None
    from iree_gauntlet.artifacts.remotes import places  # noqa: PLC0415 - the network's libraries take their time

    return not any(_on_this_machine(place) for place in places(url, store.configuration))


def _on_this_machine(place: str) -> bool:
    """Whether a place, such as a mirror in a folder, is a file that is there."""
    path = unquote(urlsplit(place).path if place.startswith("file:") else place)
    # Path.is_file raises for a name that is too long.
    return path.startswith("/") and os.path.isfile(path)  # noqa: PTH113
