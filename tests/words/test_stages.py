"""The table of stages, and the requests' options that follow from it."""

from __future__ import annotations

import pytest

from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import ExecutionRequest, RunRequest, collect_changed_options, list_options, parse_request
from iree_gauntlet.stages import CHECK_STAGES, STAGES, Kind, Stage


def test_the_rows_are_in_the_order_of_a_chain() -> None:
    assert [*STAGES] == [*Stage]
    places = {stage: place for place, stage in enumerate(Stage)}
    for stage in Stage:
        assert all(places[before] < places[stage] for before in stage.row.upstream)
    assert Stage.REFERENCE.row.upstream == {Stage.FETCH, Stage.IMPORT, Stage.COMPILE}


def test_each_kind_of_case_has_a_check_that_is_planned_for_it() -> None:
    assert {*CHECK_STAGES} == {*Kind}
    assert all(kind in stage.row.kinds for kind, stage in CHECK_STAGES.items())


def test_a_time_limit_is_an_option_of_its_stage() -> None:
    named = {
        option.name: option.help for option in list_options(ExecutionRequest) if option.name.startswith("timeout_")
    }
    assert [*named] == [f"timeout_{stage}" for stage in Stage if stage.row.limits]
    assert named["timeout_count"] == "Seconds to count instructions (default 1800, or the spec's)."
    request = parse_request(ExecutionRequest, {"jobs": 2, "timeout_compile": 5.0, "timeout_benchmark": 0.0})
    assert request == ExecutionRequest(jobs=2, timeouts=((Stage.COMPILE, 5.0),))
    assert collect_changed_options([request]) == {"jobs": 2, "timeout_compile": 5.0}
    with pytest.raises(UsageError, match="--timeout-import -1: expected seconds above 0"):
        parse_request(ExecutionRequest, {"timeout_import": -1.0})


def test_a_resumed_run_keeps_a_time_limit_where_none_is_given() -> None:
    kept = RunRequest(execution=ExecutionRequest(timeouts=((Stage.COMPILE, 5.0), (Stage.IMPORT, 6.0)))).resume_options
    assert (kept["timeout_compile"], kept["timeout_import"], kept["timeout_count"]) == (5.0, 6.0, 0.0)
    again = RunRequest(execution=ExecutionRequest(timeouts=((Stage.COMPILE, 7.0),))).with_resumed_options(kept)
    assert dict(again.execution.timeouts) == {Stage.IMPORT: 6.0, Stage.COMPILE: 7.0}
