"""The design's rules about the imports between rooms, checked on the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import size

from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = ROOT / "iree_gauntlet"

# A file may import its own room and those with a lower number; rooms of one number know nothing of each other.
# A part of a room that has a number of its own is a room.
ROOMS = {
    # The words: they import each other alone.
    **dict.fromkeys(("cases", "diagnostics", "document", "errors", "figures", "formatting", "stages"), 0),
    **dict.fromkeys(("journal_events", "journal_format", "messages", "progress", "recorded", "requests"), 0),
    **dict.fromkeys(
        ("cache_folders", "device_kinds", "results", "settings", "steps", "targets", "variants", "__version__"), 0
    ),
    "system": 1,
    **dict.fromkeys(("artifacts", "dialects", "measuring", "records", "toolchains"), 2),
    **dict.fromkeys(("engine", "history"), 3),
    "torch_models": 4,
    "torch_models/torch_side": 4,
    **dict.fromkeys(("experiments", "torch_models/sweep"), 5),
    **dict.fromkeys(("reports", "torch_models/reports"), 6),
    **dict.fromkeys(("cluster", "torch_models/torch_commands", "upkeep"), 7),
    **dict.fromkeys(("pytest_plugin", "tasks"), 8),
    # What users' files import, and what starts the program; no room does.
    **dict.fromkeys(("__main__", "bench", "micro"), 9),
}
WORDS = {room for room, number in ROOMS.items() if number == 0}
# They run in another Python: nothing of ours but their own.
WORKERS = "workers"
# What `tools/size.py` counts may not grow beyond; lower them with what they hold.
MOST = {
    "files": 346,
    "lines": 97_365,
    "code": 69_086,
    "docs": 12_028,
    "imports": 7_376,
    "keys": 375,
    "any": 571,
    "not_none": 7,
    "crumbs": 137,
    "parcels": 37,
    "nouns": 379,
    "many": 4,
    "verbal": 15,
}
# The greatest share that `tools/size.py` may find: (column, of which column).
MOST_SHARES = {
    ("participles", "names"): 0.015,
    ("fillers", "names"): 0.004,
    ("questions", "docstrings"): 0.01,
    ("openers", "docstrings"): 0.01,
    ("fragments", "comments"): 0.01,
}
_ASKED_SENTENCES = {
    # Of obstore, pydantic, and the runtime.
    ("artifacts/remotes.py", "'HTTP error' not in reason"),
    ("dialects/spec_file.py", "message.startswith('Input should be a valid dictionary or instance')"),
    ("engine/processes/run_client.py", "record.message.startswith('RESOURCE_EXHAUSTED')"),
    # Punctuation, and whether a line would say the same again.
    ("errors.py", "message.endswith('?')"),
    ("reports/details.py", "step.signal in step.reason"),
    ("reports/details.py", "f'exit code {step.exit_code}' not in step.reason"),
    # Of journals, which keep it as a note alone: a constant.
    ("engine/run_start.py", "NOTHING_COMPARED not in step.notes"),
    ("reports/run_reports.py", "NOTHING_COMPARED not in step.notes"),
    ("reports/run_reports.py", "NOTHING_COMPARED in step.notes"),
    ("records/outcome.py", "_ENVIRONMENT_NOTE.search(note)"),
}
# What the rest of the package may know of the models that torch makes: their commands, and the schema of their files.
WING = "torch_models"
KNOW_THE_WING = {"tasks", "upkeep", "bench", "micro"}
# Of the Python with torch; what it runs of ours may import these alone.
IN_TORCHS_PYTHON = {"numpy", "torch", "torchao", "transformers", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes"}
HEAVY = ("numpy", "pydantic", "rich", "pooch", "requests", "psutil", "junit_xml", "ml_dtypes", "jinja2")


@dataclass(frozen=True)
class Module:
    """What the rules ask of a module."""

    path: Path
    lines: int
    documented: bool
    imports: tuple[str, ...]
    relative: bool
    untyped: tuple[str, ...]
    offered: frozenset[str]
    asked: frozenset[str]
    begins_early: bool

    @property
    def part(self) -> str:
        return find_room(self.path.with_suffix("").parts)


def find_room(parts: Sequence[str]) -> str:
    """The longest beginning of a path that has a number; the first part where none has."""
    known = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((room for room in known if room in ROOMS), parts[0])


@cache
def modules() -> tuple[Module, ...]:
    """All of the package, each read once for all rules."""
    return tuple(read_module(path) for path in sorted(PACKAGE.rglob("*.py")))


def read_module(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports: list[str] = []
    relative = False
    untyped: list[str] = []
    asked = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.Call):
            if _asks_a_sentence(node):
                asked.add(ast.unparse(node))
        elif isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            relative = relative or node.level > 0
            imports += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef) and takes_a_mapping_of_options(node):
            untyped.append(node.name)
    offered = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            offered += [target.id for target in targets if isinstance(target, ast.Name)]
    return Module(
        path=path.relative_to(PACKAGE),
        lines=len(text.splitlines()),
        documented=bool(ast.get_docstring(tree)),
        imports=tuple(imports),
        relative=relative,
        untyped=tuple(untyped),
        offered=frozenset(name for name in offered if not name.startswith("_") or name == "__all__"),
        asked=frozenset(asked),
        begins_early=any(
            isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "main(" in ast.unparse(node.body[0])
            for node in tree.body[:-1]
        ),
    )


def takes_a_mapping_of_options(function: ast.FunctionDef) -> bool:
    """Whether it is given `options: dict[str, Any]` or the like."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    of_options = [ast.unparse(item.annotation) for item in given if item.arg == "options" and item.annotation]
    return any(kind.startswith(("dict[", "Mapping[")) and "Any" in kind for kind in of_options)


def allowed(module: Module, room: str) -> bool:
    """Whether a module may import something of a room."""
    own = module.part
    if own == "__init__" or room in {own, WORKERS} or (module.path.name == "__main__.py" and room == "tasks"):
        # A door: what it opens may be a task. Of workers others know where they lie.
        return own != "__init__"
    if own == WORKERS or room not in ROOMS:
        return False
    if own in WORDS:
        return room in WORDS
    if own.endswith("reports"):
        # They are functions of records; those of the wing are rendered as all others.
        return ROOMS[room] < 3 or room == "reports"
    # The two sides of the wing share their words.
    return ROOMS[room] < ROOMS[own] or {own, room} == {WING, f"{WING}/torch_side"}


def test_imports_follow_the_arrows() -> None:
    wrong = [f"{module.path}: relative import" for module in modules() if module.relative]
    for module in modules():
        names = [name.split(".") for name in module.imports]
        rooms = {find_room(words[1:]) for words in names if words[0] == "iree_gauntlet" and words[1:]}
        wrong += [f"{module.path}: may not import {room}" for room in sorted(rooms) if not allowed(module, room)]
    assert wrong == []


def test_every_room_has_its_number() -> None:
    assert {module.part for module in modules()} - {"__init__"} == {*ROOMS, WORKERS} - {"__version__"}


def test_the_map_for_contributors_has_every_room() -> None:
    text = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d|–) \| (.+?) \|", text, re.MULTILINE)
    drawn = {room: number for number, rooms in rows for room in re.findall(r"`([\w/]+)/`", rooms)}
    folders = {module.part for module in modules() if (PACKAGE / module.part).is_dir()}
    assert drawn == {room: str(ROOMS[room]) if ROOMS.get(room, 9) < 9 else "–" for room in folders}


def test_no_two_files_have_one_name() -> None:
    names = Counter(module.path.stem for module in modules())
    assert {name for name, count in names.items() if count > 1} - {"__init__", "__main__"} == set()


def test_the_worker_needs_nothing_but_its_own_python() -> None:
    workers = [module for module in modules() if module.path.match("workers/*/*.py")]
    assert workers
    for module in workers:
        # Run as a script, a worker finds its siblings in its own package, wherever that lies (see measure_module.py).
        used = {name for name in module.imports if not name.startswith("iree_gauntlet.workers.iree_side.")}
        outside = {name.split(".")[0] for name in used} - set(sys.stdlib_module_names)
        # onnx brings google.protobuf and ml_dtypes, jax brings jaxlib.
        known = {"numpy", "onnx", "google", "ml_dtypes", "onnxruntime", "iree", "jax", "jaxlib", "torch"}
        assert outside <= known | {"ai_edge_litert", "tosa_converter_for_tflite"}, module.path


def test_the_wing_is_known_in_two_places() -> None:
    beginning = f"iree_gauntlet.{WING}."
    knows = {module.part for module in modules() for name in module.imports if f"{name}.".startswith(beginning)}
    assert {room for room in knows if not room.startswith(WING)} == KNOW_THE_WING


def test_what_runs_in_torchs_python_needs_nothing_of_the_toolkits() -> None:
    # With all of ours that it brings: errors, records, arrays.
    own = {module.path: module for module in modules()}
    waiting = [path for path in own if path.is_relative_to(f"{WING}/torch_side")]
    assert len(waiting) > 2
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        # Workers have a rule of their own.
        if path not in own or path in reached or path.parts[0] == WORKERS:
            continue
        reached.add(path)
        for name in own[path].imports:
            first, *rest = name.split(".")
            if first == "iree_gauntlet":
                waiting += [Path(*rest[:length]).with_suffix(".py") for length in range(1, len(rest) + 1)]
            else:
                assert first in {*sys.stdlib_module_names, *IN_TORCHS_PYTHON}, f"{path}: {name}"
    assert not {path.parts[0] for path in reached} & {"engine", "history", "experiments", "reports", "tasks"}


def test_modules_say_what_they_are_for() -> None:
    assert [module.path for module in modules() if not module.documented] == []


def test_what_has_no_underscore_is_for_other_files() -> None:
    # So that no module needs a list of what it offers. Tasks and hooks are found by their names.
    texts = [
        path
        for folder in ("iree_gauntlet", "tests", "specs", "benchmarks", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]
    used = Counter(word for path in texts for word in set(re.findall(r"\w+", path.read_text(encoding="utf-8"))))
    for module in modules():
        found_by_name = {name for name in module.offered if name.endswith("_task") or name.startswith("pytest_")}
        if module.path.name != "__init__.py" and module.part not in {"bench", "micro"}:
            assert {name for name in module.offered - found_by_name if used[name] == 1} == set(), module.path
            assert "__all__" not in module.offered, module.path


def test_the_package_does_not_grow() -> None:
    measured = size.measure(PACKAGE)
    larger = {column: measured.total(column) for column, most in MOST.items() if measured.total(column) > most}
    assert not larger, f"`python tools/size.py` says where; the most are {MOST}"
    shares = {pair: measured.total(pair[0]) / measured.total(pair[1]) for pair in MOST_SHARES}
    vague = {pair: share for pair, share in shares.items() if share > MOST_SHARES[pair]}
    assert not vague, f"`python tools/size.py --places {next(iter(vague))[0]}` says where"
    assert measured.find_shared_class_names() == [], "a class name stands for one thing"
    assert measured.find_circles() == [], "no files import each other"


def test_no_sentence_of_ours_decides() -> None:
    """What people read is looked into only where it is others' words."""
    found = {(module.path.as_posix(), words) for module in modules() for words in module.asked}
    assert found == _ASKED_SENTENCES


def _asks_a_sentence(node: ast.Compare | ast.Call) -> bool:
    """Whether a text for people is searched, or held against a text with a blank."""

    def is_sentence(item: ast.expr) -> bool:
        name = item.attr if isinstance(item, ast.Attribute) else item.id if isinstance(item, ast.Name) else ""
        return name in {"reason", "note", "notes", "what", "message", "remark", "remarks", "why", "problem", "hint"}

    if isinstance(node, ast.Compare):
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            return is_sentence(node.comparators[0])
        texts = [item.value for item in node.comparators if isinstance(item, ast.Constant)]
        return is_sentence(node.left) and any(" " in str(text) for text in texts)
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in {"startswith", "endswith"}:
            return is_sentence(node.func.value)
        return node.func.attr in {"search", "match", "fullmatch"} and any(map(is_sentence, node.args))
    return False


def test_a_program_begins_where_all_of_it_is_defined() -> None:
    early = [module.path for module in modules() if module.begins_early]
    assert not early, f"what stands below is not defined yet when they run: {early}"


def test_modules_have_one_job_and_are_not_large() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert [module.path for module in modules() if module.path.stem in vague or module.lines > 800] == []


def test_nothing_sees_options_by_their_names() -> None:
    # Tasks are given requests, whose fields a type checker knows.
    tasks = [module.path for module in modules() if "iree_gauntlet.tasks.task_options.gauntlet_task" in module.imports]
    assert {path.name for path in tasks} == {"cluster_commands.py", "experiment_commands.py", "upkeep_commands.py"}
    assert [f"{module.path}: {name}" for module in modules() for name in module.untyped] == []
    (untyped,) = ast.parse("def show(*, options: Mapping[str, Any]) -> None: ...").body
    assert isinstance(untyped, ast.FunctionDef)
    assert takes_a_mapping_of_options(untyped)


def imported_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_the_command_line_starts_without_heavy_imports() -> None:
    loaded = imported_by("import iree_gauntlet.tasks.program")
    assert "iree_gauntlet.requests" in loaded
    assert not loaded & set(HEAVY)


def test_plugins_are_loaded_without_heavy_imports() -> None:
    # In torch's Python too, which has nothing of what the toolkit needs.
    assert not imported_by("import iree_gauntlet.torch_models.plugins") & set(HEAVY)


def test_listing_brings_pydantic_alone() -> None:
    statement = "import iree_gauntlet.tasks.inspect, iree_gauntlet.dialects.load, iree_gauntlet.dialects.suite"
    loaded = imported_by(statement)
    assert loaded & set(HEAVY) == {"pydantic"}
    assert "iree_gauntlet.journal_format" not in loaded


def test_a_plan_brings_nothing_that_runs_or_fetches() -> None:
    statement = "import iree_gauntlet.engine.plan, iree_gauntlet.engine.workbench, iree_gauntlet.experiments.shards"
    loaded = imported_by(statement)
    assert not loaded & {"requests", "psutil", "iree_gauntlet.engine.engine"}


def test_numpy_is_brought_by_what_compares_arrays_alone() -> None:
    assert "numpy" not in imported_by("import iree_gauntlet.experiments.run, iree_gauntlet.reports.experiment_reports")


def test_reading_specs_and_planning_touch_neither_network_nor_processes() -> None:
    pure = [
        module
        for module in modules()
        if module.path.match("dialects/*.py") or str(module.path) in {"engine/plan.py", "engine/commands.py"}
    ]
    assert len(pure) > 2
    for module in pure:
        used = {name.split(".")[0] for name in module.imports}
        assert not used & {"subprocess", "socket", "requests", "urllib3", "time", "datetime", "random"}, module.path
