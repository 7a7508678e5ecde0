"""The gauntlet on a GPU of a machine that has no network: packs what is needed here, and runs all of it there.

    python3 tools/gpu_machine.py pack FOLDER        where there is a network
    python3 tools/gpu_machine.py run FOLDER OUTPUT  there, in a copy of this checkout and of the folder

`pack` needs pip and this toolkit (`gauntlet` of the same Python), `run` no more than a Python of the version that was
packed for. The folder gets `packages.tar.xz`, IREE and what this toolkit needs, and `artifacts.tar`, the models' files.
`run` does the parts one after the other, each within its own time, and keeps reports in OUTPUT as it goes, so that what
ends it early loses little: `console.txt`, `parts.json`, `nvidia-smi.csv`, `runs.tar.gz`, and of the models' run
`junit.xml`, `summary.md` and `journal.jsonl`. It ends with the worst exit code of its parts.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES, MODELS, ARTIFACTS, OPERATORS = "packages.tar.xz", "models.json", "artifacts.tar", "operators.tar.xz"
# Small ones of several kinds: sound, bytes of a file, pictures.
_MODELS = ("dtln/*", "magika/*", "speechmos/dnsmos_p808", "rapidocr/cls", "ppocr_v4/det")
# Tags of wheels for x86-64 that pip is to accept for another machine; it takes each as it is spelled.
_GLIBC = ("_2_34", "_2_31", "_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
# Of IREE's packages, nothing that a run starts.
_UNUSED = (
    "iree/_runtime_libs_tracy/",
    *(f"iree/_runtime_libs/iree-{name}" for name in ("benchmark-executable", "benchmark-replay", "run-replay")),
)
# Packages that nothing uses where there is no network.
_FOR_NETWORKS = ("obstore", "uv")
# What this toolkit needs of the packages that were left out, asked of the machine's own Python.
_MISSING = """
import re, sys
from importlib.metadata import PackageNotFoundError, requires
wanted, known = sys.argv[1:], set()
while wanted:
    text = wanted.pop()
    name, _, condition = text.partition(";")
    name = re.match(r"[\\w.-]+", name.strip())[0].lower().replace("_", "-")
    # Conditions are those of other Pythons, other systems, and extras.
    if name in known or condition:
        continue
    known.add(name)
    try:
        wanted += requires(name) or ()
    except PackageNotFoundError:
        print(name)
"""
# Dense x86-64 code, 336 MB of it: a third smaller than in the wheel.
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
_TOO_LONG = 124
_RUN_FILES = ("journal.jsonl", "junit.xml", "summary.md", "summary.json", "comparison.md", "comparison.json")
_LARGEST_LOG = 64 << 10
_SMI = "nvidia-smi"
# The newest of NVIDIA's that IREE's Vulkan targets name.
_VULKAN = "vulkan-ada"
_WATCHED = (
    "timestamp,name,driver_version,pstate,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used,utilization.gpu,"
    "clocks_event_reasons.active"
)


def main() -> int:
    """Packs or runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="make the folder")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--python", default="3.12", help="version of the machine's Python (default: %(default)s)")
    packing.add_argument("--without", nargs="*", default=[], help="packages that the machine has, such as numpy")
    packing.add_argument("--model", nargs="*", default=_MODELS, help="MODEL/SUBMODEL of suites/cuda.toml, as globs")
    packing.add_argument("--operators", type=Path, help="an operator suite to pack: the folder with configs/")
    running = commands.add_parser("run", help="run what was packed")
    running.add_argument("folder", type=Path)
    running.add_argument("output", type=Path, help="folder of the reports")
    running.add_argument("--target", default="sm_89", help="what is compiled for (default: %(default)s)")
    running.add_argument("--sku", default="h100", help="name of the machine in goldens (default: %(default)s)")
    running.add_argument("--part", nargs="*", default=[], help="only these parts")
    asked = parser.parse_args()
    asked.folder = asked.folder.absolute()
    if asked.command == "pack":
        if asked.operators is not None and not (asked.operators / "configs").is_dir():
            parser.error(f"--operators {asked.operators}: expected an operator suite, a folder with configs/")
        asked.folder.mkdir(parents=True, exist_ok=True)
        pack(asked.folder, asked.python, asked.without, asked.model, asked.operators)
        return 0
    if asked.target != "cpu" and not asked.target.startswith("sm_"):
        parser.error(
            f"--target {asked.target}: expected a chip of CUDA such as sm_89, or cpu to try all of it without a GPU"
        )
    missing = [name for name in (PACKAGES, MODELS, ARTIFACTS) if not (asked.folder / name).is_file()]
    if missing:
        parser.error(f"{asked.folder} has no {missing[0]}: was it made by `pack`, and copied whole?")
    asked.output.mkdir(parents=True, exist_ok=True)
    unpack(asked.folder)
    return Parts(asked.folder, asked.output.absolute(), asked.target, asked.sku).run(asked.part)


def pack(folder: Path, python: str, without: Sequence[str], models: Sequence[str], operators: Path | None) -> None:
    """Fills a folder with what a machine without a network needs."""
    site = folder / "packing"
    shutil.rmtree(site, ignore_errors=True)
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = project["dependencies"]
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in _GLIBC]
    own = ("--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(site))
    subprocess.run([*pip, *own, *wanted, *project["optional-dependencies"]["iree"]], check=True)
    for name in dict.fromkeys((*_FOR_NETWORKS, *without)):
        _remove_package(site, name)
    _say(f"packing {PACKAGES}, some minutes")
    with lzma.open(folder / PACKAGES, "wb", filters=_FILTERS) as stream, tarfile.open(None, "w", stream) as archive:
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if path.is_file() and not name.startswith(_UNUSED):
                archive.add(path, name)
    shutil.rmtree(site)
    (folder / MODELS).write_text(json.dumps(list(models)))
    cache = folder / "cache"
    words = ("cache.export", "--suite", write_suite(folder), "--cache-dir", str(cache))
    gauntlet = (sys.executable, "-m", "iree_gauntlet", *words, "--output", str(folder / ARTIFACTS))
    subprocess.run(gauntlet, check=True, cwd=CHECKOUT)
    shutil.rmtree(cache)
    if operators is not None:
        with tarfile.open(folder / OPERATORS, "w:xz", preset=9) as archive:
            archive.add(operators, "operators")
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 2**20:.1f} MiB" for path in sorted(folder.glob("*.tar*")))
    _say(f"{folder}: {sizes}\ncopy it and this checkout there, then: python3 tools/gpu_machine.py run FOLDER OUTPUT")


def write_suite(folder: Path) -> str:
    """Writes suites/cuda.toml with only the models that are packed; its path."""
    folders = [str(CHECKOUT / "specs" / name) for name in ("regression_tests", "benchmarks", "torch_models")]
    lines = ['name = "cuda"', 'target = "sm_80"', "device_optional = true", f"spec_dirs = {json.dumps(folders)}"]
    for name in json.loads((folder / MODELS).read_text()):
        model, _, submodel = name.partition("/")
        lines.append(f"[[include]]\nmodel = {json.dumps(model)}\nsubmodel = {json.dumps(submodel)}")
    suite = folder / "cuda.toml"
    suite.write_text("\n".join([*lines, ""]))
    return str(suite)


def _remove_package(site: Path, name: str) -> None:
    """Takes an installed package out of a folder, by its own list of files."""
    wanted = name.lower().replace("-", "_")
    found = [path for path in site.glob("*.dist-info") if path.name.split("-")[0].lower() == wanted]
    if not found:
        raise SystemExit(f"gpu_machine.py: --without {name}: nothing that is packed needs it")
    with (found[0] / "RECORD").open(newline="") as file:
        for row in csv.reader(file):
            # With `--target`, pip puts what belongs into an environment's bin/ below the folder.
            path = Path(os.path.normpath(site / row[0].replace("../../bin/", "bin/")))
            if path.is_relative_to(site):
                path.unlink(missing_ok=True)


def unpack(folder: Path) -> None:
    """Makes an environment below the folder: what was packed first, then what the machine has."""
    if (folder / "env" / "ready").is_file():
        return
    with tarfile.open(folder / PACKAGES) as archive:
        archive.extractall(folder / "packages", filter="tar")
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "env")], check=True)
    site = next((folder / "env" / "lib").glob("python3.*")) / "site-packages"
    paths = (folder / "packages", CHECKOUT, *dict.fromkeys(sysconfig.get_paths()[x] for x in ("purelib", "platlib")))
    (site / "gpu_machine.pth").write_text("".join(f"{path}\n" for path in paths))
    if (folder / OPERATORS).is_file():
        with tarfile.open(folder / OPERATORS) as archive:
            archive.extractall(folder, filter="data")
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["iree"]]
    asked = (str(folder / "env" / "bin" / "python"), "-c", _MISSING, *wanted)
    missing = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if missing := sorted({*missing} - {*_FOR_NETWORKS}):
        raise SystemExit(f"gpu_machine.py: this machine lacks {', '.join(missing)}: pack without --without for these")
    (folder / "env" / "ready").touch()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the run.

    Attributes:
        name: for `--part` and the reports.
        perform: does it; its exit code.
    """

    name: str
    seconds: float
    perform: Callable[[float], int]


class Parts:
    """All parts, and what is kept of them. `folder`: as `unpack` leaves it."""

    def __init__(self, folder: Path, output: Path, target: str, sku: str) -> None:
        self.folder, self.output, self.target, self.sku = folder, output, target, sku
        self.python = str(folder / "env" / "bin" / "python")
        self.environment = {**os.environ, "IREE_GAUNTLET_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
        self.models = ("--suite", write_suite(folder), "--target", target, "--offline")
        self.first = json.loads((folder / MODELS).read_text())[0].partition("/")[0]
        self.done: list[dict[str, object]] = []

    def parts(self) -> Iterable[Part]:
        """In the order of their worth."""

        def gauntlet(name: str, seconds: float, *words: str) -> Part:
            return Part(name, seconds, partial(self.gauntlet, words))

        yield gauntlet("devices", 60, "devices")
        yield gauntlet("files", 60, "cache.import", str(self.folder / ARTIFACTS))
        yield gauntlet("models", 150, "run", *self.models, "--sku", self.sku)
        if (self.folder / "operators").is_dir():
            yield Part("operators", 120, self.operators)
        yield Part("killed", 90, self.killed)
        alike = ("compare", "installed", "installed", *self.models, "--model", self.first, "--budget", "1")
        yield gauntlet("alike", 100, *alike)
        yield Part("together", 60, self.together)
        if self.target != "cpu":
            yield gauntlet("vulkan", 120, "run", "--suite", write_suite(self.folder), "--target", _VULKAN, "--offline")
        chip = ("--device", "local-task") if self.target == "cpu" else ("--device", "cuda", "--target", self.target)
        for form in ("Fp32", "Fp16"):
            of_form = ("-m", "bert", "-c", "tiny", "--dataformat", form, "--loop-count", "200")
            yield gauntlet(f"bench-{form}", 60, "bench", *of_form, *chip)
        recipes = ("--config", "specs/recipes/quick.yml", "--against", "none", "--dtype", "float16")
        yield gauntlet("micro", 90, "micro", *recipes, *chip)

    def run(self, only: Sequence[str]) -> int:
        """Performs the parts, or those that are named; the worst exit code."""
        worst = 0
        with (self.output / "nvidia-smi.csv").open("w") as file, _watched_gpu(file):
            for part in self.parts():
                if only and part.name not in only:
                    continue
                self.say(f"=== {part.name}")
                begun = time.monotonic()
                code = part.perform(part.seconds)
                worst = max(worst, code)
                self.done.append({"part": part.name, "exit_code": code, "seconds": round(time.monotonic() - begun, 1)})
                self.say(f"=== {part.name}: exit code {code}, {time.monotonic() - begun:.1f} s")
                (self.output / "parts.json").write_text(json.dumps(self.done, indent=1))
                self.keep()
        return worst

    def say(self, text: str) -> None:
        """Writes a line to the console and to its file."""
        _say(text)
        with (self.output / "console.txt").open("a") as file:
            file.write(f"{text}\n")

    def gauntlet(self, words: Sequence[str], limit: float) -> int:
        """Runs a command of the toolkit; 124 where it took too long."""
        return self.command(limit, (self.python, "-m", "iree_gauntlet", *words))

    def command(self, limit: float, argv: Sequence[str]) -> int:
        """Runs a command, with its output on the console and in its file; 124 where it took too long."""
        self.say("$ " + " ".join(argv))
        begun = self.output / "console.txt"
        with begun.open("ab") as file:
            start = file.tell()
            process = self.start(argv, file)
            code = _ended(process, limit)
        with begun.open("rb") as file:
            file.seek(start)
            sys.stdout.write(file.read().decode(errors="replace"))
        return code

    def start(self, argv: Sequence[str], file: BinaryIO) -> subprocess.Popen[bytes]:
        """Starts a command in a process group of its own."""
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=CHECKOUT,
            env=self.environment, process_group=0,
        )  # fmt: skip

    def operators(self, limit: float) -> int:
        """The operator suite, compiled for this GPU: what fails is written down, and is then what is expected."""
        name, device = "gpu_cuda", "cuda"
        compiling = ["--iree-hal-target-device=cuda", f"--iree-cuda-target={self.target}"]
        if self.target == "cpu":
            backend = "--iree-hal-local-target-device-backends=llvm-cpu"
            name, device, compiling = "cpu", "local-task", ["--iree-hal-target-device=local", backend]
        config = self.folder / f"{name}.json"
        # Cases in f64 are computed in f64, as their expected outputs were.
        compiling.append("--iree-input-demote-f64-to-f32=false")
        flags = {"iree_compile_flags": compiling, "iree_run_module_flags": [f"--device={device}"]}
        config.write_text(json.dumps({"config_name": name, **flags}))
        suite = str(self.folder / "operators")
        words = ("run", "--spec-dir", suite, "--config", str(config), "--offline")
        if self.gauntlet(words, limit) == _TOO_LONG:
            return _TOO_LONG
        if code := self.gauntlet(("xfail.update", "--write", "--rerun", "1"), limit):
            return code
        shutil.copyfile(config, self.output / config.name)
        return self.gauntlet(words, limit)

    def together(self, limit: float) -> int:
        """Two runs at once, whose benchmarks have to take turns."""
        words = (self.python, "-m", "iree_gauntlet", "run", *self.models, "--model", self.first)
        with (self.output / "console.txt").open("ab") as file:
            other = self.start(words, file)
            code = self.command(limit, words)
            return max(code, _ended(other, limit))

    def killed(self, limit: float) -> int:
        """Kills a run while the GPU works for it: nothing may be left, and the run goes on from there."""
        runs = set(_runs())
        words = (self.python, "-m", "iree_gauntlet", "run", *self.models, "--model", self.first)
        with (self.output / "console.txt").open("ab") as file:
            process = self.start(words, file)
        ends = time.monotonic() + limit / 3
        working: list[str] = []
        while not working and time.monotonic() < ends and process.poll() is None:
            working = [name for name in _processes() if "iree-benchmark-module" in name]
            time.sleep(0.05)
        self.say(f"killed while it ran: {working[:1] or 'nothing: there is no GPU, or it was too quick'}")
        process.kill()
        process.wait()
        ends = time.monotonic() + 10
        while (left := [name for name in _processes() if "iree-" in name]) and time.monotonic() < ends:
            time.sleep(0.1)
        self.say(f"left over: {left or 'no process'}; {_gpu_memory()}")
        made = sorted(set(_runs()) - runs)
        code = self.gauntlet(("run", "--resume", "--run-dir", str(made[-1])), limit / 2) if made else 0
        return 1 if left else code

    def keep(self) -> None:
        """Keeps what the runs have reported so far."""
        temporary = self.output / "runs.tmp"
        with tarfile.open(temporary, "w:gz") as archive:
            for run in _runs():
                for path in sorted(run.rglob("*")):
                    log = path.suffix == ".txt" and path.is_file() and path.stat().st_size <= _LARGEST_LOG
                    if log or path.name in _RUN_FILES:
                        archive.add(path, path.relative_to(CHECKOUT).as_posix())
        temporary.replace(self.output / "runs.tar.gz")
        for run in [run for run in _runs() if run.name.endswith("-cuda")][:1]:
            for name in ("junit.xml", "summary.md", "journal.jsonl"):
                if (run / name).is_file():
                    shutil.copyfile(run / name, self.output / name)


def _ended(process: subprocess.Popen[bytes], limit: float) -> int:
    """The exit code of a process, as a shell has it; 124 where it takes longer than so many seconds, and is ended."""
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        # As Ctrl-C would, so that reports are written.
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        # And what took no notice of it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return _TOO_LONG
    return code if code >= 0 else 128 - code


def _runs() -> list[Path]:
    return sorted(path for path in (CHECKOUT / "runs").glob("*") if path.is_dir())


def _processes() -> list[str]:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
        except OSError:
            continue
    return found


def _gpu_memory() -> str:
    """What the GPU's memory is used for, in the driver's words."""
    asked = (_SMI, "--query-gpu=memory.used,memory.total", "--format=csv,noheader")
    if shutil.which(asked[0]) is None:
        return "no nvidia-smi"
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip()


@contextmanager
def _watched_gpu(file: TextIO) -> Iterator[None]:
    """Has the driver write the GPU's state every second."""
    if shutil.which(_SMI) is None:
        yield
        return
    with subprocess.Popen((_SMI, f"--query-gpu={_WATCHED}", "--format=csv", "--loop-ms=1000"), stdout=file) as process:
        try:
            yield
        finally:
            process.kill()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
