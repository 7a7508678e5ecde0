"""What onnxruntime was given and gave, as the inputs and expected outputs of a threshold step."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.running.commands import REFERENCE_FLAGS

if TYPE_CHECKING:
    from iree_gauntlet.running.steps import Step

__all__ = ["with_reference"]


def with_reference(step: Step) -> Step:
    """A threshold step with its reference unpacked in its folder, and the flagfile's flags in its place.

    A step without a reference is returned as it is.

    Raises:
        GauntletError: the archive cannot be unpacked.
    """
    archive = next((item.path for item in step.inputs if item.role == "reference"), "")
    if not archive or step.command is None:
        return step
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as members:
            members.extractall(folder)
        flags = (folder / REFERENCE_FLAGS.partition("=")[2]).read_text(encoding="utf-8").splitlines()
    except (OSError, zipfile.BadZipFile) as error:
        raise GauntletError(f"{archive} cannot be unpacked: {error}", "Run again with --force-recompile.") from error
    place = step.command.argv.index(REFERENCE_FLAGS)
    argv = (*step.command.argv[:place], *flags, *step.command.argv[place + 1 :])
    count = sum(flag.startswith("--expected_output=") for flag in flags)
    outputs = tuple(("actual_output", f"{folder}/actual_{index}.npy") for index in range(count))
    return replace(step, command=replace(step.command, argv=argv), outputs=outputs)
