"""Records small experiments anew, for `tests/records/test_recorded_experiments.py`, which reports and resumes them.

`python -m tests.support.record_samples` writes `tests/data/recorded`; values of this machine become placeholders.
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

__all__ = ["SAMPLES_FOLDER", "find_placeholders"]

SAMPLES_FOLDER = DATA / "recorded"
_MACHINE = {"host": "recorder", "os": "Linux"}


def find_placeholders(folder: Path, *, module: str = "", prefix: str = sys.prefix) -> dict[str, str]:
    """Return the values of the placeholders for a project's records here; `module` is the key of the toy's module."""
    toolchain = find_installed()
    entries = ModuleCache(folder / "cache").list_entries()
    compile_keys = (entry.key for entry in entries if entry.ingredients["kind"] == "compile")
    return {
        "@PROJECT@": str(folder),
        "@SITE@": str(Path(toolchain.compiler.compile).parents[3]),
        "@PREFIX@": prefix,
        "@TOOLKIT@": str(ROOT),
        "@IDENTITY@": toolchain.compiler.identity,
        "@RUNTIME@": toolchain.runtime.identity,
        "@HOST@": read_host_cpu().identity,
        "@MODULE@": module or next(compile_keys, ""),
    }


def _record(project: Any, run_pattern: str, name: str, arguments: Sequence[str], prefix: str) -> None:
    result = project.gauntlet(*arguments)
    sys.stdout.write(f"{name}: exit code {result.code}\n{result.err}")
    folder = project.folder / "runs"
    (run,) = folder.glob(run_pattern)
    placeholders = find_placeholders(project.folder, prefix=prefix)
    # Longer values come first, as one path may contain another.
    replacements = sorted((entry for entry in placeholders.items() if entry[1]), key=lambda entry: -len(entry[1]))
    shutil.rmtree(SAMPLES_FOLDER / name, ignore_errors=True)
    for path in sorted(run.rglob("journal.jsonl")):
        text = ""
        for line in path.read_text().splitlines():
            event = json.loads(line)
            for machine in [event["machine"]] if event.get("machine") else []:
                machine |= {key: value for key, value in _MACHINE.items() if key in machine}
            text += json.dumps(event, separators=(",", ":")) + "\n"
        for placeholder, value in replacements:
            text = text.replace(value, placeholder)
        sample_path = SAMPLES_FOLDER / name / path.relative_to(run)
        sample_path.parent.mkdir(parents=True, exist_ok=True)
        sample_path.write_text(text)


def main() -> None:
    """Record all experiments."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SESSION_FOLDER_VARIABLE] = folder
        prefix = Path(folder, "env")
        prefix.symlink_to(sys.prefix)
        env = f"venv:{prefix}"
        project = Project(Path(folder, "project"))
        stages = ("--stages", "compile", "--stages", "threshold")
        bisect_options = ("--metric", "size", "--among", "path")
        for command, *arguments in (
            ("run",),
            ("compare", "installed", env, "--disturbed", "count", "--budget", "0.4", "--no-work"),
            ("matrix", "--iree", "installed", "--iree", env, *stages),
            ("bisect", "--good", "installed", "--bad", env, *bisect_options),
        ):
            _record(
                project,
                command,
                command,
                (command, *arguments, "--model", "toy", "--run-dir", f"runs/{command}"),
                str(prefix),
            )
        micro = Micro(Path(folder, "sweep"))
        micro.write(recipes="int8wo", shape="[4, 64, 128], [8, 64, 128]")
        _record(micro, "*-micro-lin", "micro", micro.words(), str(prefix))
        shutil.copy(micro.folder / "lin.yml", SAMPLES_FOLDER / "micro" / "lin.yml")


if __name__ == "__main__":
    main()
