"""A run as the device saw it, in a bundle: `iree-run-replay` does the same again without a compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.bundle import PROGRAM, REPLAY, write_bundle
from iree_gauntlet.experiments.explaining.symptom import FAILURE, WRONG
from iree_gauntlet.toolchains.toolchain import RUN_MODULE

if TYPE_CHECKING:
    from iree_gauntlet.experiments.explaining.bundle import Bundle, Contents
    from iree_gauntlet.experiments.explaining.tools import Tools


_OUTPUT = "--device_replay_output"
# A larger one is worth less than what it costs to send.
_LIMIT = 1_000_000


def with_replay(contents: Contents, bundle: Bundle, tools: Tools, *, timeout: float) -> Bundle:
    """The bundle with its run recorded; as it is where the runtime records none, or a large one, or none to its end.

    Args:
        contents: of the bundle, which was shown to fail when it is run.
        bundle: where it is.
        tools: of the IREE that fails.
        timeout: seconds for the compile and for the run.
    """
    if contents.symptom.ending not in (WRONG, FAILURE) or not contents.device or not tools.knows(RUN_MODULE, _OUTPUT):
        return bundle
    module = tools.compile("replay.vmfb", bundle.folder / PROGRAM, contents.flags, timeout=timeout, cwd=bundle.folder)
    recorded = tools.folder / REPLAY
    argv = (f"--device={contents.device}", f"--module={module}", *contents.arguments)
    # Weights that a program reads from archives go into the recording, and no more of these files.
    argv = (*argv, f"{_OUTPUT}={recorded}", "--device_replay_file_policy=capture-ranges")
    tools.run_module("replay", argv, timeout=timeout, cwd=bundle.folder)
    if not (recorded.is_file() and 0 < recorded.stat().st_size <= _LIMIT):
        return bundle
    files = (*contents.files, (REPLAY, recorded.read_bytes()))
    try:
        return write_bundle(replace(contents, files=files), bundle.folder)
    except GauntletError:
        # It would be too large; nothing was written.
        return bundle
