"""What `host` means to the compiler: the CPU that this process runs on.

`--iree-llvmcpu-target-cpu=host` and `--iree-llvmcpu-target-cpu-features=host` (either one sets both) make
code for the compiling machine's CPU, so what they produce belongs to machines of that kind.

Without a target flag the compiler targets a **generic** CPU of the machine's architecture, warns that this
will perform poorly, and its output depends on the architecture alone (checked with 3.9.0 and 3.13.0). The
word must be exactly `host`: neither `HOST` nor `host,+avx2` is understood.

A program may name `host` too, in an attribute (`cpu = "host"`); that is not seen here.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.flags import split_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


_HOST_FLAGS = frozenset({"iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features"})
_TIMEOUT_SECONDS = 30.0

# Fields of /proc/cpuinfo from which LLVM's host detection, or the same facts, follow: x86, Arm, RISC-V,
# Power. Left out are those that differ between equal machines (frequency, microcode, bogomips).
_KIND = (
    *("vendor_id", "cpu family", "model"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    *("mvendorid", "marchid", "uarch"),
    "cpu",
)
_FEATURES = ("flags", "Features", "isa", "features")
_NAMES = ("model name", "Model", "uarch", "cpu")
# macOS: names below `machdep.cpu` and `hw` that tell the kind and the features.
_SYSCTL_KIND = ("machdep.cpu.vendor", "machdep.cpu.family", "machdep.cpu.model", "hw.cputype", "hw.cpufamily")
_SYSCTL_FEATURES = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")


@dataclass(frozen=True, slots=True)
class HostCpu:
    """A CPU, as far as code that is made for it cares.

    Attributes:
        kind: what identifies it, as `field=value`, once for each kind of core.
    """

    name: str
    kind: tuple[str, ...]
    features: frozenset[str]

    @property
    def identity(self) -> str:
        """Text and digest for a cache key and for people: equal where the same code is made for `host`.

        It follows from what the system says of the CPU, so a new kernel that names more features makes a new
        identity: a needless compile, never a wrong one.
        """
        text = "\n".join([platform.machine(), *self.kind, *sorted(self.features)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.name} ({platform.machine()}, {len(self.features)} features, {digest})"


@functools.cache
def read_host_cpu() -> HostCpu:
    """The CPU of this machine; it does not change while a process runs."""
    if sys.platform == "darwin":
        return _parse_sysctl(ask(["/usr/sbin/sysctl", "machdep.cpu", "hw"], timeout=_TIMEOUT_SECONDS).stdout)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> HostCpu:
    """The CPU that Linux's `/proc/cpuinfo` describes; a machine with several kinds of cores gives them all.

    Where the text says nothing of use, it is what Python knows of the machine.
    """
    fields: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), set()).add(value.strip())
    kind = tuple(f"{key}={value}" for key in _KIND for value in sorted(fields.get(key, ())))
    # Code must run on every core: what only some of them have is no feature of the machine.
    per_core = [set(re.split(r"[\s_]+", value)) for key in _FEATURES for value in sorted(fields.get(key, ()))]
    features = frozenset(set.intersection(*per_core) if per_core else ())
    if not kind:
        return _make_unknown_cpu()
    names = next((sorted(fields[key]) for key in _NAMES if fields.get(key)), ["CPU"])
    return HostCpu(" + ".join(names), kind, features)


def _parse_sysctl(text: str) -> HostCpu:
    """The CPU that macOS's `sysctl` describes, a line `name: value` for each fact."""
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = {word for name in _SYSCTL_FEATURES for word in facts.get(name, "").split()}
    features |= {name for name, value in facts.items() if name.startswith("hw.optional.") and value == "1"}
    kind = tuple(f"{name}={facts[name]}" for name in _SYSCTL_KIND if name in facts)
    if not kind:
        return _make_unknown_cpu()
    return HostCpu(facts.get("machdep.cpu.brand_string", "CPU"), kind, frozenset(features))


def _make_unknown_cpu() -> HostCpu:
    name = platform.processor() or platform.machine() or "unknown CPU"
    # Nothing tells two such machines apart but their names: better a cache of their own for each.
    return HostCpu(name, (f"processor={name}", f"node={platform.node()}"), frozenset())


def means_host(flags: Sequence[str]) -> bool:
    """Whether compile flags make code for the CPU of the compiling machine."""
    return any(
        flag.name in _HOST_FLAGS and flag.value is not None and "host" in flag.value.split(",")
        for flag in split_flags(flags, _HOST_FLAGS)
    )


def ask_host_cpu(toolchain: Toolchain) -> str:
    """LLVM's name of the CPU that the compiler takes `host` for (`znver4`); compiles an empty program.

    Raises:
        ToolchainError: where the compiler does not say.
    """
    argv = [
        toolchain.compiler.compile,
        "-",
        "--iree-hal-target-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
        "--compile-to=executable-targets",
    ]
    answer = ask(argv, timeout=_TIMEOUT_SECONDS, stdin="module {}")
    cpu = re.search(r'\bcpu = "([^"]+)"', answer.stdout)
    if cpu is None:
        raise ToolchainError(
            f"the compiler does not say what CPU `host` is (exit code {answer.exit_code})",
            "name the CPU in the flags: --iree-llvmcpu-target-cpu=<cpu>",
        )
    return cpu[1]
