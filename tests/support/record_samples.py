"""Records small experiments anew, as `tests/records/test_recorded_experiments.py` reports and resumes them.

`python -m tests.support.record_samples` writes `tests/data/recorded`; what is of this machine becomes placeholders.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.toolchains.devices import read_host_cpu
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.micro_project import Micro
from tests.support.places import DATA, ROOT
from tests.support.session_folder import SESSION_FOLDER_VARIABLE
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RECORDED", "find_placeholders"]

RECORDED = DATA / "recorded"
_MACHINE = {"host": "recorder", "os": "Linux"}


def find_placeholders(folder: Path, *, module: str = "", prefix: str = sys.prefix) -> dict[str, str]:
    """What stands for placeholders in the records of a project here; `module` is the key of the toy's module."""
    installed = find_installed()
    entries = ModuleCache(folder / "cache").list_entries()
    compiled = (entry.key for entry in entries if entry.ingredients["kind"] == "compile")
    return {
        "@PROJECT@": str(folder),
        "@SITE@": str(Path(installed.compiler.compile).parents[3]),
        "@PREFIX@": prefix,
        "@TOOLKIT@": str(ROOT),
        "@IDENTITY@": installed.compiler.identity,
        "@RUNTIME@": installed.runtime.identity,
        "@HOST@": read_host_cpu().identity,
        "@MODULE@": module or next(compiled, ""),
    }


def _record(project: Any, source: str, name: str, words: Sequence[str], prefix: str) -> None:
    done = project.gauntlet(*words)
    sys.stdout.write(f"{name}: exit code {done.code}\n{done.err}")
    folder = project.folder / "runs"
    (run,) = folder.glob(source)
    placeholders = find_placeholders(project.folder, prefix=prefix)
    # Paths first: the toolkit may lie within another, and the shortest comes last.
    order = sorted((item for item in placeholders.items() if item[1]), key=lambda item: -len(item[1]))
    shutil.rmtree(RECORDED / name, ignore_errors=True)
    for path in sorted(run.rglob("journal.jsonl")):
        text = ""
        for line in path.read_text().splitlines():
            event = json.loads(line)
            for facts in [event["machine"]] if event.get("machine") else []:
                facts |= {key: value for key, value in _MACHINE.items() if key in facts}
            text += json.dumps(event, separators=(",", ":")) + "\n"
        for placeholder, value in order:
            text = text.replace(value, placeholder)
        target = RECORDED / name / path.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def main() -> None:
    """Records them all."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SESSION_FOLDER_VARIABLE] = folder
        prefix = Path(folder, "env")
        prefix.symlink_to(sys.prefix)
        env = f"venv:{prefix}"
        project = Project(Path(folder, "project"))
        stages = ("--stages", "compile", "--stages", "threshold")
        of_size = ("--metric", "size", "--among", "path")
        for name, *words in (
            ("run",),
            ("compare", "installed", env, "--disturbed", "count", "--budget", "0.4", "--no-work"),
            ("matrix", "--iree", "installed", "--iree", env, *stages),
            ("bisect", "--good", "installed", "--bad", env, *of_size),
        ):
            _record(project, name, name, (name, *words, "--model", "toy", "--run-dir", f"runs/{name}"), str(prefix))
        micro = Micro(Path(folder, "sweep"))
        micro.write(recipes="int8wo", shape="[4, 64, 128], [8, 64, 128]")
        _record(micro, "*-micro-lin", "micro", micro.words(), str(prefix))
        shutil.copy(micro.folder / "lin.yml", RECORDED / "micro" / "lin.yml")


if __name__ == "__main__":
    main()
