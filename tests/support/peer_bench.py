"""Measures IREE and peers on a model: the rounds of `bench --against`, without the earlier steps."""

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
from tests.support.sessions import open_session
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.torch_models.peers import Peer

__all__ = ["CHAIN", "PeerBench", "measure_peer", "run_script"]

CHAIN = "tiny/model@cpu"


class _Messages(Progress):
    """Collects messages and statuses."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.statuses: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def status(self, text: str) -> None:
        self.statuses.append(text)


class PeerBench:
    """Measures in a directory."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self._python = python
        self.progress = _Messages()
        self.cancelled = threading.Event()

    def measure(self, names: Sequence[str], build: Path, script: str = "measure_module", **options: Any) -> list[Peer]:
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
        script_path = str(Path(iree_side.__file__).with_name(f"{script}.py"))
        command = Command((self._python, "-B", script_path, str(build / f"{script}.json")), str(self.folder))
        options = {
            "builder": {"dataformat": "Fp32"},
            "torch_python": sys.executable,
            "replace_disturbed": False,
            **options,
        }
        context = PeerEnvironment(**options)
        with (
            EventLog(self.folder / "journal.jsonl", lambda: datetime.now(UTC)) as log,
            open_session(self.folder, log, self.progress, self.cancelled) as session,
        ):
            return measure_peers(session, names, make_iree_rounds(step, command), build, context)

    def blocks(self) -> list[dict[str, Any]]:
        lines = (self.folder / "journal.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "block"]

    def plan(self, peer: str, name: str) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads((self.folder / "step" / "against" / peer / f"{name}.json").read_text())
        return plan


def run_script(
    module: str, build: Path, env: dict[str, str] | None = None, **plan: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script that measures one peer, as in a Python without the toolkit."""
    plan_path = build.parent / "script.json"
    common_fields = {"warm_up_calls": 1, "compile_threads": None, "outputs": plan.pop("outputs", "")}
    plan_path.write_text(
        json.dumps({"models": [{"name": "peer", "build": str(build), "calls": 2, **plan}], **common_fields})
    )
    argv = [*make_torch_argv(sys.executable, module), str(plan_path)]
    timeout = LIMIT_SECONDS
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, env=env or {}, cwd="/")


def measure_peer(build: Path, module: str, **plan: Any) -> dict[str, Any]:
    result = run_script(module, build, **plan)
    assert result.returncode == 0, result.stderr
    (peer,) = json.loads(result.stdout.splitlines()[-1])["models"]
    assert isinstance(peer, dict)
    return peer
