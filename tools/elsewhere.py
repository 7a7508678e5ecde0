"""Runs the tests as if on other machines: other CPUs for `host`, another user, locale, time zone, umask and home.

    sudo python tools/elsewhere.py [NAME …] [-- pytest options]

Takes what HEAD holds, in a path with blanks that an unknown user owns, as all lies that the tests make; this user may
only read the packages. (Their path has none: by itself, the compiler does not find its linker then.) The
first of `PLACES` runs all tests, the others those that need IREE. `host` is resolved by `tools/host_cpu.c`, which
stands before the compiler's library. Exits with 1 where a test fails. It needs Linux on x86-64, root, git, a C
compiler, and the locales of `PLACES` (`apt install gcc git locales`).
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

__all__ = ["PLACES", "Place", "main"]

_CHECKOUT = Path(__file__).resolve().parent.parent
# No user of the system: it has no name, no group and no entry in /etc/passwd.
_USER = 64_321
_NEEDS_IREE = ("-m", "iree and not stress and not measure and not models")
# What a machine needs to reach the registries of packages; all else is the place's own.
_CARRIED = re.compile(r"(PIP|UV(?!_PYTHON)|NPM_CONFIG|SSL|REQUESTS|CURL|NODE_EXTRA)_\w+|\w+_proxy", re.IGNORECASE)
_LIBRARY, _RENAMED = b"libIREECompiler.so", b"libIREECompilez.so"


@dataclass(frozen=True)
class Place:
    """A machine and a user that are not ours.

    Attributes:
        cpu: of which `host` is to be; modules that are compiled for it run here.
        zone, locale, umask: of the user.
        home: whether the user has a home, with blanks in its path; else no variable names one.
        cores: how many of this machine's cores the tests may use; 0 for all.
        pytest: options that select the tests; none for all.
    """

    name: str
    cpu: str
    zone: str
    locale: str
    umask: str
    home: bool = True
    cores: int = 0
    pytest: tuple[str, ...] = _NEEDS_IREE


PLACES = (
    Place("v3", "x86-64-v3", "Asia/Kathmandu", "tr_TR.UTF-8", "077", pytest=()),
    Place("v2", "x86-64-v2", "America/St_Johns", "C", "002", home=False),
    Place("v4", "x86-64-v4", "Pacific/Apia", "de_DE.UTF-8", "027", cores=1),
    Place("zen", "znver4", "UTC", "ja_JP.UTF-8", "022"),
    Place("intel", "icelake-server", "Africa/Casablanca", "C.UTF-8", "000"),
)


def main(words: Sequence[str]) -> int:
    """Runs the tests in the places that are named, or in all of them; the exit code."""
    names, options = list(words), []
    if "--" in words:
        names, options = list(words[: words.index("--")]), list(words[words.index("--") + 1 :])
    unknown = [name for name in names if name not in {place.name for place in PLACES}]
    if unknown:
        sys.stderr.write(f"error: no such place: {', '.join(unknown)}\n  There are: {_list_names()}\n")
        return 2
    missing = _find_missing()
    if missing:
        sys.stderr.write(f"error: {missing}\n")
        return 2
    codes = []
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as folder:
        # An unknown user must pass through to its own files.
        Path(folder).chmod(0o755)
        ground = Ground(Path(folder) / "a path with blanks")
        ground.make()
        for place in PLACES:
            if not names or place.name in names:
                began = time.monotonic()
                code = ground.run(place, options)
                codes.append(code)
                _say(f"{place.name} ({place.cpu}): exit code {code}, {time.monotonic() - began:.0f} s")
    return 1 if any(codes) else 0


@dataclass(frozen=True)
class Ground:
    """The folder in which the places are: checkout, packages and homes."""

    folder: Path

    @property
    def checkout(self) -> Path:
        """The clone of what HEAD holds."""
        return self.folder / "iree gauntlet"

    @property
    def python(self) -> Path:
        """The environment's Python."""
        return self.folder.with_name("packages") / "bin" / "python"

    def make(self) -> None:
        """Clones the checkout and installs what the tests need, with a copy of IREE's compiler that may be changed."""
        self.folder.mkdir()
        _call("git", "clone", "-q", "--no-hardlinks", _CHECKOUT, self.checkout)
        _call("uv", "venv", "-q", "--python", _find_python(), self.python.parent.parent)
        extras = f"{self.checkout}[cluster,iree,record]"
        group = f"{self.checkout / 'pyproject.toml'}:test"
        _call("uv", "pip", "install", "-q", "--python", self.python, "-e", extras, "pip", "--group", group)
        for path in self._tools.glob("libIREECompiler.so"):
            # Not the file itself, which the cache of uv may have too.
            content = path.read_bytes()
            path.unlink()
            # The first one is the library's own name for the dynamic loader.
            path.with_name(_RENAMED.decode()).write_bytes(content.replace(_LIBRARY, _RENAMED, 1))

    @property
    def _tools(self) -> Path:
        return next(self.python.parent.parent.glob("lib/python3.*/site-packages/iree/compiler/_mlir_libs"))

    def run(self, place: Place, options: Sequence[str]) -> int:
        """Runs the tests in a place; pytest's exit code."""
        self._stand_before_library(place.cpu)
        home = self.folder / f"home of {place.name}"
        home.mkdir()
        for folder in (self.checkout, home):
            _call("chown", "-R", f"{_USER}:{_USER}", folder)
        cpus = home.with_name(f"cpuinfo of {place.name}")
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        cpus.write_text(re.sub(r"(?m)^(model name\s*:).*", rf"\1 {place.cpu} elsewhere", text), encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if _CARRIED.fullmatch(name)}
        # The machine's Pythons are not for this user, where they lie in root's home.
        paths = [path for path in os.environ["PATH"].split(":") if not Path(path).is_relative_to(Path.home())]
        environment |= {"PATH": ":".join((str(self.python.parent), *paths)), "TZ": place.zone, "LC_ALL": place.locale}
        environment |= {"HOME": str(home)} if place.home else {}
        available = sorted(os.sched_getaffinity(0))
        cores = available[: place.cores or len(available)]
        pytest = ("-n", len(cores), "--dist", "worksteal", f"--basetemp={home / 'made by tests'}")
        inside = [
            f"mount --bind {shlex.quote(str(cpus))} /proc/cpuinfo",
            f"umask {place.umask}",
            f"cd {shlex.quote(str(self.checkout))}",
            shlex.join(
                [
                    *("exec", "setpriv", "--reuid", str(_USER), "--regid", str(_USER), "--clear-groups", "--"),
                    *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
                    *("taskset", "--cpu-list", ",".join(map(str, cores))),
                    *(str(self.python), "-m", "pytest", *map(str, pytest), *place.pytest, *options),
                ]
            ),
        ]
        words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", " && ".join(inside))
        return subprocess.run(words, stdin=subprocess.DEVNULL, check=False).returncode

    def _stand_before_library(self, cpu: str) -> None:
        versions = self.folder / "versions.txt"
        versions.write_text("IREE_API_0.0 { global: iree*; local: *; };\n", encoding="utf-8")
        target = self._tools / _LIBRARY.decode()
        target.unlink(missing_ok=True)
        words = ("-shared", "-fPIC", f'-DHOST_CPU="{cpu}"', f"-Wl,--version-script={versions},-rpath,$ORIGIN")
        library = self._tools / _RENAMED.decode()
        _call("cc", *words, "-o", target, _CHECKOUT / "tools" / "host_cpu.c", "-Wl,--no-as-needed", library)
        question = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
        argv = (self._tools / "iree-compile", "-", *question, "--compile-to=executable-targets")
        said = subprocess.run(argv, input="module {}", capture_output=True, text=True, check=True).stdout
        if f'cpu = "{cpu}"' not in said:
            sys.exit(f"error: `host` is not {cpu} to the compiler: tools/host_cpu.c does not fit this IREE")


def _find_missing() -> str:
    """Name the first thing that this machine lacks; empty where it lacks nothing."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the places are Linux machines with CPUs of x86-64"
    if os.geteuid() != 0:
        return "needs root, for another user and for mounts: sudo nox -s elsewhere"
    needed = ("cc", "git", "locale", "mount", "setpriv", "taskset", "unshare", "uv")
    programs = [name for name in needed if not shutil.which(name)]
    if programs:
        return f"needs {', '.join(programs)}; on Debian: apt install gcc git libc-bin mount util-linux; pip install uv"
    known = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=True).stdout.lower().split()
    absent = [place.locale for place in PLACES if place.locale.lower().replace("utf-8", "utf8") not in known]
    if absent:
        made = " && ".join(f"localedef -i {name.partition('.')[0]} -f UTF-8 {name}" for name in absent)
        return f"needs the locales {', '.join(absent)}; on Debian: apt install locales && {made}"
    return ""


def _find_python() -> str:
    """A Python of this version that another user may start too."""
    version = f"python3.{sys.version_info.minor}"
    candidates = [Path(folder) / version for folder in (f"{sys.base_prefix}/bin", *os.environ["PATH"].split(":"))]
    for path in candidates:
        real = path.resolve()
        if real.is_file() and all(parent.stat().st_mode & 0o001 for parent in real.parents):
            return str(path)
    sys.exit(f"error: no {version} may be started by other users: {', '.join(map(str, candidates))}")


def _list_names() -> str:
    return ", ".join(place.name for place in PLACES)


def _call(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def _say(text: str) -> None:
    sys.stdout.write(f"elsewhere: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
