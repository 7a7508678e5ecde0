"""Runs the gauntlet on a GPU machine without a network: packs the files here, and runs parts of the gauntlet there.

    python3 tools/gpu_machine.py pack FOLDER        on a machine with a network
    python3 tools/gpu_machine.py run FOLDER OUTPUT  on the GPU machine, in a copy of this checkout

`pack` needs pip and this toolkit (`gauntlet` of the same Python). `run` needs a copy of FOLDER, and only a Python of
the packed version. FOLDER gets `packages.tar.xz` (IREE and the toolkit's dependencies) and `artifacts.tar` (the models'
files). `run` performs the parts one after the other, each with its own time limit, and exits with their worst exit
code. It writes its reports into OUTPUT as it goes, so an early end loses little: `console.txt`, `parts.json`,
`nvidia-smi.csv`, `runs.tar.gz`, and from the models' run `junit.xml`, `summary.md` and `journal.jsonl`.
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
# These models are small, and take several kinds of input: sound, bytes of a file, pictures.
_MODELS = ("dtln/*", "magika/*", "speechmos/dnsmos_p808", "rapidocr/cls", "ppocr_v4/det")
# With these tags, pip accepts x86-64 wheels for another machine. pip compares spellings, so all of them are listed.
_GLIBC_TAGS = ("_2_34", "_2_31", "_2_28", "_2_27", "_2_24", "_2_17", "2014", "_2_12", "2010", "_2_5", "1")
# These files of IREE's packages are not packed, since no part of a run starts them.
_UNUSED_FILES = (
    "iree/_runtime_libs_tracy/",
    *(f"iree/_runtime_libs/iree-{name}" for name in ("benchmark-executable", "benchmark-replay", "run-replay")),
)
# These packages are of no use without a network, so they are not packed.
_NETWORK_PACKAGES = ("obstore", "uv")
# The GPU machine's Python runs this program, which prints the toolkit's dependencies that are not installed.
_MISSING_PROGRAM = """
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
# The packages hold 336 MB of x86-64 code. With these filters, the archive is a third smaller than the wheel.
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
_TIMEOUT_CODE = 124
_RUN_FILES = ("journal.jsonl", "junit.xml", "summary.md", "summary.json", "comparison.md", "comparison.json")
_MAX_LOG_BYTES = 64 << 10
_SMI = "nvidia-smi"
# This is the newest NVIDIA chip among IREE's Vulkan targets.
_VULKAN = "vulkan-ada"
_COLUMNS = (
    "timestamp,name,driver_version,pstate,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used,utilization.gpu,"
    "clocks_event_reasons.active"
)


def main() -> int:
    """Pack or run, as the command line requests, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    pack_parser = commands.add_parser("pack", help="make the folder")
    pack_parser.add_argument("folder", type=Path)
    pack_parser.add_argument("--python", default="3.12", help="version of the machine's Python (default: %(default)s)")
    pack_parser.add_argument("--without", nargs="*", default=[], help="packages that the machine has, such as numpy")
    pack_parser.add_argument("--model", nargs="*", default=_MODELS, help="MODEL/SUBMODEL of suites/cuda.toml, as globs")
    pack_parser.add_argument("--operators", type=Path, help="an operator suite to pack: the folder with configs/")
    run_parser = commands.add_parser("run", help="run what was packed")
    run_parser.add_argument("folder", type=Path)
    run_parser.add_argument("output", type=Path, help="folder of the reports")
    run_parser.add_argument("--target", default="sm_89", help="what is compiled for (default: %(default)s)")
    run_parser.add_argument("--sku", default="h100", help="name of the machine in goldens (default: %(default)s)")
    run_parser.add_argument("--part", nargs="*", default=[], help="only these parts")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    if options.command == "pack":
        if options.operators is not None and not (options.operators / "configs").is_dir():
            parser.error(f"--operators {options.operators}: expected an operator suite, a folder with configs/")
        options.folder.mkdir(parents=True, exist_ok=True)
        pack(options.folder, options.python, options.without, options.model, options.operators)
        return 0
    if options.target != "cpu" and not options.target.startswith("sm_"):
        parser.error(
            f"--target {options.target}: expected a chip of CUDA such as sm_89, or cpu to try all of it without a GPU"
        )
    missing = [name for name in (PACKAGES, MODELS, ARTIFACTS) if not (options.folder / name).is_file()]
    if missing:
        parser.error(f"{options.folder} has no {missing[0]}: was it made by `pack`, and copied whole?")
    options.output.mkdir(parents=True, exist_ok=True)
    unpack(options.folder)
    return Parts(options.folder, options.output.absolute(), options.target, options.sku).run(options.part)


def pack(folder: Path, python: str, exclusions: Sequence[str], models: Sequence[str], operators: Path | None) -> None:
    """Fill a folder with the files that a machine without a network needs."""
    site = folder / "packing"
    shutil.rmtree(site, ignore_errors=True)
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    requirements = project["dependencies"]
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in _GLIBC_TAGS]
    pip_options = ("--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(site))
    subprocess.run([*pip, *pip_options, *requirements, *project["optional-dependencies"]["iree"]], check=True)
    for name in dict.fromkeys((*_NETWORK_PACKAGES, *exclusions)):
        _remove_package(site, name)
    _print(f"packing {PACKAGES}, some minutes")
    with lzma.open(folder / PACKAGES, "wb", filters=_FILTERS) as stream, tarfile.open(None, "w", stream) as archive:
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if path.is_file() and not name.startswith(_UNUSED_FILES):
                archive.add(path, name)
    shutil.rmtree(site)
    (folder / MODELS).write_text(json.dumps(list(models)))
    cache = folder / "cache"
    arguments = ("cache.export", "--suite", write_suite(folder), "--cache-dir", str(cache))
    gauntlet = (sys.executable, "-m", "iree_gauntlet", *arguments, "--output", str(folder / ARTIFACTS))
    subprocess.run(gauntlet, check=True, cwd=CHECKOUT)
    shutil.rmtree(cache)
    if operators is not None:
        with tarfile.open(folder / OPERATORS, "w:xz", preset=9) as archive:
            archive.add(operators, "operators")
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 2**20:.1f} MiB" for path in sorted(folder.glob("*.tar*")))
    _print(f"{folder}: {sizes}\ncopy it and this checkout there, then: python3 tools/gpu_machine.py run FOLDER OUTPUT")


def write_suite(folder: Path) -> str:
    """Write suites/cuda.toml with only the packed models and return its path."""
    folders = [str(CHECKOUT / "specs" / name) for name in ("regression_tests", "benchmarks", "torch_models")]
    lines = ['name = "cuda"', 'target = "sm_80"', "device_optional = true", f"spec_dirs = {json.dumps(folders)}"]
    for name in json.loads((folder / MODELS).read_text()):
        model, _, submodel = name.partition("/")
        lines.append(f"[[include]]\nmodel = {json.dumps(model)}\nsubmodel = {json.dumps(submodel)}")
    suite = folder / "cuda.toml"
    suite.write_text("\n".join([*lines, ""]))
    return str(suite)


def _remove_package(site: Path, name: str) -> None:
    """Remove an installed package from a folder, using the package's list of files."""
    normalized_name = name.lower().replace("-", "_")
    matches = [path for path in site.glob("*.dist-info") if path.name.split("-")[0].lower() == normalized_name]
    if not matches:
        raise SystemExit(f"gpu_machine.py: --without {name}: nothing that is packed needs it")
    with (matches[0] / "RECORD").open(newline="") as file:
        for row in csv.reader(file):
            # With `--target`, pip puts the files of an environment's bin/ below the folder.
            path = Path(os.path.normpath(site / row[0].replace("../../bin/", "bin/")))
            if path.is_relative_to(site):
                path.unlink(missing_ok=True)


def unpack(folder: Path) -> None:
    """Create an environment below the folder: packed packages take precedence over the machine's own."""
    if (folder / "env" / "ready").is_file():
        return
    with tarfile.open(folder / PACKAGES) as archive:
        archive.extractall(folder / "packages", filter="tar")
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "env")], check=True)
    site = next((folder / "env" / "lib").glob("python3.*")) / "site-packages"
    paths = (
        folder / "packages",
        CHECKOUT,
        *dict.fromkeys(sysconfig.get_paths()[scheme] for scheme in ("purelib", "platlib")),
    )
    (site / "gpu_machine.pth").write_text("".join(f"{path}\n" for path in paths))
    if (folder / OPERATORS).is_file():
        with tarfile.open(folder / OPERATORS) as archive:
            archive.extractall(folder, filter="data")
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["iree"]]
    argv = (str(folder / "env" / "bin" / "python"), "-c", _MISSING_PROGRAM, *requirements)
    missing = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if missing := sorted({*missing} - {*_NETWORK_PACKAGES}):
        raise SystemExit(f"gpu_machine.py: this machine lacks {', '.join(missing)}: pack without --without for these")
    (folder / "env" / "ready").touch()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the run.

    Attributes:
        name: the part's name, for `--part` and in the reports.
        perform: a function that gets the time limit in seconds and returns an exit code.
    """

    name: str
    seconds: float
    perform: Callable[[float], int]


class Parts:
    """All parts of a run and their reports; `unpack` must have prepared `folder`."""

    def __init__(self, folder: Path, output: Path, target: str, sku: str) -> None:
        self.folder, self.output, self.target, self.sku = folder, output, target, sku
        self.python = str(folder / "env" / "bin" / "python")
        self.environment = {**os.environ, "IREE_GAUNTLET_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
        self.selection = ("--suite", write_suite(folder), "--target", target, "--offline")
        self.model = json.loads((folder / MODELS).read_text())[0].partition("/")[0]
        self.results: list[dict[str, object]] = []

    def list_parts(self) -> Iterable[Part]:
        """Yield the parts, the most valuable first."""

        def make(name: str, seconds: float, *arguments: str) -> Part:
            return Part(name, seconds, partial(self.run_gauntlet, arguments))

        yield make("devices", 60, "devices")
        yield make("files", 60, "cache.import", str(self.folder / ARTIFACTS))
        yield make("models", 150, "run", *self.selection, "--sku", self.sku)
        if (self.folder / "operators").is_dir():
            yield Part("operators", 120, self.run_operators)
        yield Part("killed", 90, self.run_killed)
        arguments = ("compare", "installed", "installed", *self.selection, "--model", self.model, "--budget", "1")
        yield make("alike", 100, *arguments)
        yield Part("together", 60, self.run_concurrently)
        if self.target != "cpu":
            yield make("vulkan", 120, "run", "--suite", write_suite(self.folder), "--target", _VULKAN, "--offline")
        device = ("--device", "local-task") if self.target == "cpu" else ("--device", "cuda", "--target", self.target)
        for form in ("Fp32", "Fp16"):
            bench_options = ("-m", "bert", "-c", "tiny", "--dataformat", form, "--loop-count", "200")
            yield make(f"bench-{form}", 60, "bench", *bench_options, *device)
        recipes = ("--config", "specs/recipes/quick.yml", "--against", "none", "--dtype", "float16")
        yield make("micro", 90, "micro", *recipes, *device)

    def run(self, names: Sequence[str]) -> int:
        """Run the named parts, or all if none is named, and return the worst exit code."""
        worst_code = 0
        with (self.output / "nvidia-smi.csv").open("w") as file, _log_gpu_state(file):
            for part in self.list_parts():
                if names and part.name not in names:
                    continue
                self.log(f"=== {part.name}")
                start = time.monotonic()
                code = part.perform(part.seconds)
                worst_code = max(worst_code, code)
                self.results.append(
                    {"part": part.name, "exit_code": code, "seconds": round(time.monotonic() - start, 1)}
                )
                self.log(f"=== {part.name}: exit code {code}, {time.monotonic() - start:.1f} s")
                (self.output / "parts.json").write_text(json.dumps(self.results, indent=1))
                self.save_reports()
        return worst_code

    def log(self, text: str) -> None:
        """Write a line to the console and to console.txt."""
        _print(text)
        with (self.output / "console.txt").open("a") as file:
            file.write(f"{text}\n")

    def run_gauntlet(self, arguments: Sequence[str], timeout: float) -> int:
        """Run a command of the toolkit and return its exit code, or 124 after a timeout."""
        return self.run_command(timeout, (self.python, "-m", "iree_gauntlet", *arguments))

    def run_command(self, timeout: float, argv: Sequence[str]) -> int:
        """Run a command, copy its output to the console and console.txt, and return its exit code or 124."""
        self.log("$ " + " ".join(argv))
        console = self.output / "console.txt"
        with console.open("ab") as file:
            offset = file.tell()
            process = self.start(argv, file)
            code = _wait_or_kill(process, timeout)
        with console.open("rb") as file:
            file.seek(offset)
            sys.stdout.write(file.read().decode(errors="replace"))
        return code

    def start(self, argv: Sequence[str], file: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a command in its own process group."""
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=CHECKOUT,
            env=self.environment, process_group=0,
        )  # fmt: skip

    def run_operators(self, timeout: float) -> int:
        """Run the operator suite twice on this GPU; the second run expects the failures of the first."""
        name, device = "gpu_cuda", "cuda"
        compile_flags = ["--iree-hal-target-device=cuda", f"--iree-cuda-target={self.target}"]
        if self.target == "cpu":
            backend = "--iree-hal-local-target-device-backends=llvm-cpu"
            name, device, compile_flags = "cpu", "local-task", ["--iree-hal-target-device=local", backend]
        config = self.folder / f"{name}.json"
        # Compute the f64 cases in f64, as their expected outputs were computed.
        compile_flags.append("--iree-input-demote-f64-to-f32=false")
        flags = {"iree_compile_flags": compile_flags, "iree_run_module_flags": [f"--device={device}"]}
        config.write_text(json.dumps({"config_name": name, **flags}))
        suite = str(self.folder / "operators")
        arguments = ("run", "--spec-dir", suite, "--config", str(config), "--offline")
        if self.run_gauntlet(arguments, timeout) == _TIMEOUT_CODE:
            return _TIMEOUT_CODE
        if code := self.run_gauntlet(("xfail.update", "--write", "--rerun", "1"), timeout):
            return code
        shutil.copyfile(config, self.output / config.name)
        return self.run_gauntlet(arguments, timeout)

    def run_concurrently(self, timeout: float) -> int:
        """Start two runs at the same time; their benchmarks have to take turns."""
        argv = (self.python, "-m", "iree_gauntlet", "run", *self.selection, "--model", self.model)
        with (self.output / "console.txt").open("ab") as file:
            second_run = self.start(argv, file)
            code = self.run_command(timeout, argv)
            return max(code, _wait_or_kill(second_run, timeout))

    def run_killed(self, timeout: float) -> int:
        """Kill a run while the GPU works for it, check that no process remains, and resume the run."""
        earlier_runs = set(_list_runs())
        argv = (self.python, "-m", "iree_gauntlet", "run", *self.selection, "--model", self.model)
        with (self.output / "console.txt").open("ab") as file:
            process = self.start(argv, file)
        end = time.monotonic() + timeout / 3
        benchmarks: list[str] = []
        while not benchmarks and time.monotonic() < end and process.poll() is None:
            benchmarks = [line for line in _list_processes() if "iree-benchmark-module" in line]
            time.sleep(0.05)
        self.log(f"killed while it ran: {benchmarks[:1] or 'nothing: there is no GPU, or it was too quick'}")
        process.kill()
        process.wait()
        end = time.monotonic() + 10
        while (orphans := [line for line in _list_processes() if "iree-" in line]) and time.monotonic() < end:
            time.sleep(0.1)
        self.log(f"left over: {orphans or 'no process'}; {_read_gpu_memory()}")
        new_runs = sorted(set(_list_runs()) - earlier_runs)
        code = self.run_gauntlet(("run", "--resume", "--run-dir", str(new_runs[-1])), timeout / 2) if new_runs else 0
        return 1 if orphans else code

    def save_reports(self) -> None:
        """Save the reports that the runs have written so far."""
        temporary = self.output / "runs.tmp"
        with tarfile.open(temporary, "w:gz") as archive:
            for run in _list_runs():
                for path in sorted(run.rglob("*")):
                    is_log = path.suffix == ".txt" and path.is_file() and path.stat().st_size <= _MAX_LOG_BYTES
                    if is_log or path.name in _RUN_FILES:
                        archive.add(path, path.relative_to(CHECKOUT).as_posix())
        temporary.replace(self.output / "runs.tar.gz")
        for run in [run for run in _list_runs() if run.name.endswith("-cuda")][:1]:
            for name in ("junit.xml", "summary.md", "journal.jsonl"):
                if (run / name).is_file():
                    shutil.copyfile(run / name, self.output / name)


def _wait_or_kill(process: subprocess.Popen[bytes], limit: float) -> int:
    """Return the exit code of a process as a shell does; after `limit` seconds, end it and return 124."""
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        # SIGINT, the signal of Ctrl-C, lets the process write its reports.
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        # Kill the processes that ignored SIGINT.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return _TIMEOUT_CODE
    return code if code >= 0 else 128 - code


def _list_runs() -> list[Path]:
    return sorted(path for path in (CHECKOUT / "runs").glob("*") if path.is_dir())


def _list_processes() -> list[str]:
    """Return the command lines of all processes."""
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
        except OSError:
            continue
    return command_lines


def _read_gpu_memory() -> str:
    """Return the GPU's used and total memory as the driver prints them."""
    argv = (_SMI, "--query-gpu=memory.used,memory.total", "--format=csv,noheader")
    if shutil.which(argv[0]) is None:
        return "no nvidia-smi"
    return subprocess.run(argv, check=False, capture_output=True, text=True).stdout.strip()


@contextmanager
def _log_gpu_state(file: TextIO) -> Iterator[None]:
    """Let nvidia-smi write the GPU's state every second during the block."""
    if shutil.which(_SMI) is None:
        yield
        return
    with subprocess.Popen((_SMI, f"--query-gpu={_COLUMNS}", "--format=csv", "--loop-ms=1000"), stdout=file) as process:
        try:
            yield
        finally:
            process.kill()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
