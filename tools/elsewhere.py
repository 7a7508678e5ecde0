"""Runs the tests as if on other machines: other CPUs for `host`, another user, locale, time zone, umask and home.

    sudo python tools/elsewhere.py [NAME …] [-- pytest options]

The tests run in a clone of HEAD. The clone and the tests' files have paths with blanks and belong to an unknown user,
who may only read the packages. (The packages' path has no blanks: the compiler cannot find its linker in such a path.)
The first of `MACHINES` runs all tests, the others only the tests that need IREE. `tools/host_cpu.c` is a library that
replaces the compiler's and resolves `host`. Exits with 1 if a test fails. Needs Linux on x86-64, root, git, a C
compiler, and the locales of `MACHINES` (`apt install gcc git locales`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MACHINES", "Machine", "main"]

_CHECKOUT = Path(__file__).resolve().parent.parent
# No account has this id, so the user has no name, no group and no entry in /etc/passwd.
_USER_ID = 64_321
_IREE_TESTS = ("-m", "iree and not stress and not measure and not models")
# Only these variables of the environment are kept: they are needed to reach package registries.
_KEPT_VARIABLE = re.compile(r"(PIP|UV(?!_PYTHON)|NPM_CONFIG|SSL|REQUESTS|CURL|NODE_EXTRA)_\w+|\w+_proxy", re.IGNORECASE)
_LIBRARY_NAME, _ORIGINAL_NAME = b"libIREECompiler.so", b"libIREECompilez.so"


@dataclass(frozen=True)
class Machine:
    """A simulated machine and user.

    Attributes:
        cpu: the CPU that `host` resolves to.
        feature: the feature that a real CPU needs to run modules compiled for `cpu`, as in `/proc/cpuinfo`.
        zone, locale, umask: the user's settings.
        home: True if the user has a home, whose path contains blanks; False if HOME is unset.
        cores: number of this machine's cores that the tests may use; 0 for all.
        pytest: options that select the tests; empty for all.
    """

    name: str
    cpu: str
    zone: str
    locale: str
    umask: str
    home: bool = True
    cores: int = 0
    feature: str = "avx2"
    pytest: tuple[str, ...] = _IREE_TESTS


MACHINES = (
    Machine("v3", "x86-64-v3", "Asia/Kathmandu", "tr_TR.UTF-8", "077", pytest=()),
    Machine("v2", "x86-64-v2", "America/St_Johns", "C", "002", home=False, feature="sse4_2"),
    Machine("v4", "x86-64-v4", "Pacific/Apia", "de_DE.UTF-8", "027", cores=1, feature="avx512f"),
    Machine("zen", "znver4", "UTC", "ja_JP.UTF-8", "022", feature="avx512f"),
    Machine("intel", "icelake-server", "Africa/Casablanca", "C.UTF-8", "000", feature="avx512f"),
)


def main(arguments: Sequence[str]) -> int:
    """Run the tests on the machines named in `arguments`, or on all, and return the exit code."""
    names, options = list(arguments), []
    if "--" in arguments:
        names, options = list(arguments[: arguments.index("--")]), list(arguments[arguments.index("--") + 1 :])
    unknown_names = [name for name in names if name not in {machine.name for machine in MACHINES}]
    if unknown_names:
        sys.stderr.write(f"error: no such place: {', '.join(unknown_names)}\n  There are: {_list_names()}\n")
        return 2
    missing = _find_missing_requirement()
    if missing:
        sys.stderr.write(f"error: {missing}\n")
        return 2
    features = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    machines = [machine for machine in MACHINES if not names or machine.name in names]
    too_new = [machine for machine in machines if machine.feature not in features]
    for machine in too_new:
        _print_line(f"{machine.name} ({machine.cpu}) is left out: this machine's CPU lacks {machine.feature}")
    if names and too_new == machines:
        return 2
    codes = []
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as directory:
        # The unknown user must be able to reach its files below this directory.
        Path(directory).chmod(0o755)
        sandbox = Sandbox(Path(directory) / "a path with blanks")
        sandbox.create()
        for machine in machines:
            if machine not in too_new:
                start = time.monotonic()
                code = sandbox.run(machine, options)
                codes.append(code)
                _print_line(f"{machine.name} ({machine.cpu}): exit code {code}, {time.monotonic() - start:.0f} s")
    return 1 if any(codes) else 0


@dataclass(frozen=True)
class Sandbox:
    """The directory with the checkout, the packages and the homes."""

    folder: Path

    @property
    def checkout(self) -> Path:
        """The path of the clone of HEAD."""
        return self.folder / "iree gauntlet"

    @property
    def python(self) -> Path:
        """The path of the environment's Python."""
        return self.folder.with_name("packages") / "bin" / "python"

    def create(self) -> None:
        """Clone the checkout, install the tests' packages, and rename IREE's compiler library."""
        self.folder.mkdir()
        _call("git", "clone", "-q", "--no-hardlinks", _CHECKOUT, self.checkout)
        _call("uv", "venv", "-q", "--python", _find_python(), self.python.parent.parent)
        extras = f"{self.checkout}[cluster,code,iree,record]"
        group = f"{self.checkout / 'pyproject.toml'}:test"
        _call("uv", "pip", "install", "-q", "--python", self.python, "-e", extras, "pip", "--group", group)
        for path in self._tools.glob("libIREECompiler.so"):
            # The installed file must not be changed in place: it may be a hard link into uv's cache.
            content = path.read_bytes()
            path.unlink()
            # The first occurrence is the library's soname.
            path.with_name(_ORIGINAL_NAME.decode()).write_bytes(content.replace(_LIBRARY_NAME, _ORIGINAL_NAME, 1))

    @property
    def _tools(self) -> Path:
        return next(self.python.parent.parent.glob("lib/python3.*/site-packages/iree/compiler/_mlir_libs"))

    def run(self, machine: Machine, options: Sequence[str]) -> int:
        """Run the tests on a machine and return pytest's exit code."""
        self._replace_library(machine.cpu)
        home = self.folder / f"home of {machine.name}"
        home.mkdir()
        for folder in (self.checkout, home):
            _call("chown", "-R", f"{_USER_ID}:{_USER_ID}", folder)
        cpuinfo = home.with_name(f"cpuinfo of {machine.name}")
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        cpuinfo.write_text(re.sub(r"(?m)^(model name\s*:).*", rf"\1 {machine.cpu} elsewhere", text), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if _KEPT_VARIABLE.fullmatch(name)}
        # The unknown user cannot read Pythons below root's home.
        paths = [path for path in os.environ["PATH"].split(":") if not Path(path).is_relative_to(Path.home())]
        env |= {"PATH": ":".join((str(self.python.parent), *paths)), "TZ": machine.zone, "LC_ALL": machine.locale}
        env |= {"HOME": str(home)} if machine.home else {}
        available = sorted(os.sched_getaffinity(0))
        cores = available[: machine.cores or len(available)]
        pytest_options = ("-n", len(cores), "--dist", "worksteal", f"--basetemp={home / 'made by tests'}")
        commands = [
            f"mount --bind {shlex.quote(str(cpuinfo))} /proc/cpuinfo",
            f"umask {machine.umask}",
            f"cd {shlex.quote(str(self.checkout))}",
            shlex.join(
                [
                    *("exec", "setpriv", "--reuid", str(_USER_ID), "--regid", str(_USER_ID), "--clear-groups", "--"),
                    *("env", "-i", *(f"{name}={value}" for name, value in env.items())),
                    *("taskset", "--cpu-list", ",".join(map(str, cores))),
                    *(str(self.python), "-m", "pytest", *map(str, pytest_options), *machine.pytest, *options),
                ]
            ),
        ]
        argv = ("unshare", "--mount", "--propagation", "private", "sh", "-c", " && ".join(commands))
        return subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode

    def _replace_library(self, cpu: str) -> None:
        versions = self.folder / "versions.txt"
        versions.write_text("IREE_API_0.0 { global: iree*; local: *; };\n", encoding="utf-8")
        target = self._tools / _LIBRARY_NAME.decode()
        target.unlink(missing_ok=True)
        flags = ("-shared", "-fPIC", f'-DHOST_CPU="{cpu}"', f"-Wl,--version-script={versions},-rpath,$ORIGIN")
        library = self._tools / _ORIGINAL_NAME.decode()
        _call("cc", *flags, "-o", target, _CHECKOUT / "tools" / "host_cpu.c", "-Wl,--no-as-needed", library)
        host_flags = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
        argv = (self._tools / "iree-compile", "-", *host_flags, "--compile-to=executable-targets")
        output = subprocess.run(argv, input="module {}", capture_output=True, text=True, check=True).stdout
        if f'cpu = "{cpu}"' not in output:
            sys.exit(f"error: `host` is not {cpu} to the compiler: tools/host_cpu.c does not fit this IREE")


def _find_missing_requirement() -> str:
    """Return a message about the first missing requirement, or an empty string."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the places are Linux machines with CPUs of x86-64"
    if os.geteuid() != 0:
        return "needs root, for another user and for mounts: sudo nox -s elsewhere"
    requirements = ("cc", "git", "locale", "mount", "setpriv", "taskset", "unshare", "uv")
    missing = [name for name in requirements if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}; on Debian: apt install gcc git libc-bin mount util-linux; pip install uv"
    available = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=True).stdout.lower().split()
    absent = [
        machine.locale for machine in MACHINES if machine.locale.lower().replace("utf-8", "utf8") not in available
    ]
    if absent:
        commands = " && ".join(f"localedef -i {name.partition('.')[0]} -f UTF-8 {name}" for name in absent)
        return f"needs the locales {', '.join(absent)}; on Debian: apt install locales && {commands}"
    return ""


def _find_python() -> str:
    """Find a Python of this version that another user may start."""
    version = f"python3.{sys.version_info.minor}"
    candidates = [Path(folder) / version for folder in (f"{sys.base_prefix}/bin", *os.environ["PATH"].split(":"))]
    for path in candidates:
        real = path.resolve()
        if real.is_file() and all(parent.stat().st_mode & 0o001 for parent in real.parents):
            return str(path)
    sys.exit(f"error: no {version} may be started by other users: {', '.join(map(str, candidates))}")


def _list_names() -> str:
    return ", ".join(machine.name for machine in MACHINES)


def _call(*argv: str | Path) -> None:
    subprocess.run([str(argument) for argument in argv], check=True)


def _print_line(text: str) -> None:
    sys.stdout.write(f"elsewhere: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
