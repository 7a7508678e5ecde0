"""What two compiles differ in, and how it is written."""

from __future__ import annotations

from typing import Any

import pytest

from iree_gauntlet.experiments.sides import MODULE_SIZE, compile_changes
from iree_gauntlet.records.compare_record import CompileChange
from iree_gauntlet.reports.compare_report import make_compile_blocks
from tests.support.documents import block_lines, block_markdown


def statistics(dispatches: int = 19, transient: int = 8256, **more: Any) -> dict[str, Any]:
    """As iree-compile 3.5.0 to 3.13.0 write them."""
    return {
        "stream-aggregate": {
            "global": {"constant-count": 1, "constant-size": 1449536, "variable-count": 0, "variable-size": 0},
            "synchronization": {"await-count": 1},
            "execution": {
                "submission-count": 1,
                "transient-memory-size": transient,
                "fill-count": 1,
                "copy-count": 4,
                "dispatch-count": dispatches,
                "call-count": 0,
            },
            "executable": {"executable-count": 19},
            **more,
        }
    }


def sized(size: int, told: dict[str, Any]) -> dict[str, Any]:
    return {**told, MODULE_SIZE: size}


def test_compiles_that_are_alike_have_no_rows() -> None:
    changes = compile_changes(sized(5, statistics()), sized(5, statistics()))
    assert changes == ()
    assert block_lines(make_compile_blocks([])) == ["The compiler's statistics and the module's size are the same."]


def test_what_differs_in_the_order_of_what_it_tells() -> None:
    changes = compile_changes(sized(1_509_696, statistics()), sized(1_479_416, statistics(28, 9792)))
    assert [(change.name, change.a, change.b, change.unit) for change in changes] == [
        ("module size", 1_509_696, 1_479_416, "bytes"),
        ("dispatches", 19, 28, ""),
        ("transient memory", 8256, 9792, "bytes"),
    ]
    assert changes[1].ratio == pytest.approx(28 / 19)


def test_turned_round_the_figures_are_swapped() -> None:
    one, other = statistics(), statistics(28, 9792)
    there, back = compile_changes(one, other), compile_changes(other, one)
    assert [(change.name, change.a, change.b) for change in there] == [
        (change.name, change.b, change.a) for change in back
    ]


def test_what_one_side_does_not_tell_is_not_zero() -> None:
    newer = statistics(executable={"executable-count": 19, "code-size": 4096})
    changes = compile_changes(statistics(), sized(10, newer))
    assert changes == (
        CompileChange("module size", None, 10, "bytes"),
        CompileChange("executable/code-size", None, 4096, "bytes"),
    )
    assert changes[0].ratio is None
    assert block_lines(make_compile_blocks(changes))[3].split() == ["module", "size", "not", "reported", "10", "B", "–"]


def test_from_nothing_there_is_no_ratio() -> None:
    assert CompileChange("calls", 0, 2).ratio is None


def test_what_is_no_number_is_passed_over() -> None:
    assert compile_changes({"a": "x", "b": [1], "c": True}, {"a": "y", "b": [2], "c": False}) == ()


def test_the_text_of_a_report() -> None:
    changes = compile_changes(sized(1_509_696, statistics()), sized(1_509_416, statistics(28, 19792)))
    assert block_lines(make_compile_blocks(changes))[2:] == [
        "figure                          A                B  B / A",
        "module size       1,509,696 bytes  1,509,416 bytes  1.000",
        "dispatches                     19               28  1.474",
        "transient memory           8.3 kB          19.8 kB  2.397",
    ]
    assert block_markdown(make_compile_blocks(changes)).splitlines()[4:6] == [
        "| module size | 1,509,696 bytes | 1,509,416 bytes | 1.000 |",
        "| dispatches | 19 | 28 | 1.474 |",
    ]
