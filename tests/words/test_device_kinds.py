"""The table of device kinds: its rows fit together, and no other code decides by the names of kinds."""

from __future__ import annotations

import ast
import re

import pytest

from iree_gauntlet.device_kinds import (
    CPU,
    DEVICE_KINDS,
    DRIVERS,
    DeviceKind,
    Driver,
    find_driver,
    find_kind,
    is_cpu,
    split_device,
)
from iree_gauntlet.measuring.machine import gpus
from iree_gauntlet.targets import FAMILIES, Target, parse_target, target_flags
from tests.support.places import ROOT

PACKAGE = ROOT / "iree_gauntlet"
# These have other meanings too: of options, places and JSON; and this one of facts about a machine.
_PLAIN_WORDS = {"host", "local", "null"}
_FACT = "cpu"
_LOOKUPS = {"startswith", "endswith", "get"}


def test_every_name_is_of_one_kind() -> None:
    names = [name for kind in DEVICE_KINDS for name in kind.names]
    assert "" not in names
    assert len(names) == len({*names})
    assert len(DRIVERS) == sum(len(kind.drivers) for kind in DEVICE_KINDS)


@pytest.mark.parametrize("row", DEVICE_KINDS, ids=lambda row: row.family)
def test_a_row_is_complete(row: DeviceKind) -> None:
    # What is compiled for has a name, flags, and a device to run on.
    assert bool(row.backend) is bool(row.target_flags) is bool(row.device) is (row.family in FAMILIES)
    assert not row.device or row.device in DRIVERS
    assert row.chips or not (row.chip_prefix or row.chip_flags or row.needs_chip)
    assert not row.needs_chip or row.chip_flags
    # A chip with several flags is a name of its own, and its flags are those that another chip replaces.
    assert {*row.architectures} == {
        name for name in row.architectures if parse_target(name) == Target(row.family, name)
    }
    flags = [flag for processor in row.architectures.values() for flag in processor.flags]
    assert all(flag.startswith(f"--iree-{row.code_generator}-target-") for flag in (*flags, *row.host_flags))
    assert not (row.is_cpu and row.state_tools)
    # A tool that is named has its reader.
    assert {*row.state_tools} <= {*gpus._TOOLS}
    re.compile(row.chips + row.unknown_chip)


@pytest.mark.parametrize(
    ("device", "family"),
    [
        ("local-task", "cpu"),
        ("local-sync://", "cpu"),
        ("local-task://?x=1", "cpu"),
        ("local-task,local-sync", "cpu"),
        # As drivers of the processor are called, whoever brings it.
        ("local-elsewhere", "cpu"),
        ("hip://1", "rocm"),
        ("amdgpu", "rocm"),
        ("vulkan://GPU-6d65", "vulkan"),
        ("webgpu", "webgpu"),
        ("of-a-plugin://0", "of-a-plugin"),
        # A family, and no device of IREE's.
        ("cpu", "cpu"),
        ("", ""),
    ],
)
def test_the_kind_of_a_device(device: str, family: str) -> None:
    assert find_kind(device).family == family
    assert is_cpu(device) is device.startswith("local-")
    assert find_driver(device).name == split_device(device)[0]


def test_of_what_has_no_row_only_the_name_is_known() -> None:
    kind = find_kind("of-a-plugin://0")
    assert kind.names == ("of-a-plugin",)
    assert find_driver("of-a-plugin://0") == Driver("of-a-plugin")
    assert Target("of-a-plugin").kind.names == kind.names
    assert target_flags(Target("of-a-plugin")) == ()
    assert parse_target("of-a-plugin") is None


def test_every_name_of_a_kind_with_a_backend_is_a_target() -> None:
    for kind in DEVICE_KINDS:
        assert {parse_target(name) for name in kind.names} == {Target(kind.family) if kind.backend else None}


def test_nothing_else_decides_by_the_name_of_a_kind() -> None:
    names = {name for kind in DEVICE_KINDS for name in kind.names} - _PLAIN_WORDS | {CPU.driver_prefix}
    assert names >= {"cpu", "rocm", "hip", "local-task", "llvm-cpu", "webgpu", "local-"}
    # Only files with such a text are parsed, which saves seconds.
    quoted_names = tuple(f'"{name}"' for name in names)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    decisions = {
        f"{path.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for path, text in texts.items()
        if any(name in text for name in quoted_names)
        for node in ast.walk(ast.parse(text))
        for word in _list_compared_words(node)
        if word in names and (word != _FACT or isinstance(node, ast.Compare))
    }
    assert decisions == set()


def _list_compared_words(node: ast.AST) -> list[object]:
    """List the constants that something is compared with, begins with, or is looked up by."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        operands = [key for key in node.keys if key]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS:
        operands = node.args
    parts = [part for item in operands for part in ast.iter_child_nodes(item)]
    return [part.value for part in (*operands, *parts) if isinstance(part, ast.Constant)]
