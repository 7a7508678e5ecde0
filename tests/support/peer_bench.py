"""IREE next to peers on a model: rounds as `bench --against` takes them, without all that comes before."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources
from iree_gauntlet.torch_models.peers import PeerEnvironment, make_iree_rounds, measure_peers
from iree_gauntlet.torch_models.torch_chain import make_torch_argv
from iree_gauntlet.workers import iree_side
from tests.support.command_line import LIMIT_SECONDS
from tests.support.sessions import session_in
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.torch_models.peers import Peer

__all__ = ["CHAIN", "PeerBench", "answer_of", "run_script"]

CHAIN = "tiny/model@cpu"


class _Messages(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.doing: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def status(self, text: str) -> None:
        self.doing.append(text)


class PeerBench:
    """Measures in a folder."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self._python = python
        self.shown = _Messages()
        self.cancelled = threading.Event()

    def measure(self, names: Sequence[str], build: Path, script: str = "measure_module", **place: Any) -> list[Peer]:
        step = make_step(
            Stage.BENCHMARK,
            CHAIN,
            dialect="bench",
            model="tiny",
            submodel="model",
            target="cpu",
            folder=str(self.folder / "step"),
            origin=Origin("tiny.py"),
            resources=Resources(device="local-task"),
        )
        path = str(Path(iree_side.__file__).with_name(f"{script}.py"))
        command = Command((self._python, "-B", path, str(build / f"{script}.json")), str(self.folder))
        place = {"builder": {"dataformat": "Fp32"}, "torch_python": sys.executable, "replace_disturbed": False, **place}
        where = PeerEnvironment(**place)
        with (
            EventLog(self.folder / "journal.jsonl", lambda: datetime.now(UTC)) as log,
            session_in(self.folder, log, self.shown, self.cancelled) as session,
        ):
            return measure_peers(session, names, make_iree_rounds(step, command), build, where)

    def blocks(self) -> list[dict[str, Any]]:
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "block"]

    def plan(self, peer: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "step" / "against" / peer / f"{name}.json").read_text())
        return found


def run_script(
    module: str, build: Path, env: dict[str, str] | None = None, **plan: Any
) -> subprocess.CompletedProcess[str]:
    """A script that measures a peer by itself, as in a Python where the toolkit is not installed."""
    path = build.parent / "script.json"
    shared = {"warm_up_calls": 1, "compile_threads": None, "outputs": plan.pop("outputs", "")}
    path.write_text(json.dumps({"models": [{"name": "peer", "build": str(build), "calls": 2, **plan}], **shared}))
    argv = [*make_torch_argv(sys.executable, module), str(path)]
    limit = LIMIT_SECONDS
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit, env=env or {}, cwd="/")


def answer_of(build: Path, module: str, **plan: Any) -> dict[str, Any]:
    done = run_script(module, build, **plan)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1])["models"]
    assert isinstance(found, dict)
    return found
