"""Reading the rows of `iree-profile`: recorded, synthetic and wrong rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.profiles.dispatch_profile import (
    DispatchName,
    DispatchProfile,
    ProfileError,
    merge_profiles,
    parse_dispatch_events,
    parse_dispatch_name,
)
from tests.support.recorded_profiles import INVOCATIONS, read_profile, read_profile_lines


def row(key: str, duration: int, **changes: Any) -> dict[str, Any]:
    return {"type": "host_dispatch_event", "key": key, "valid": True, "duration_ns": duration} | changes


def summary(count: int, kind: str = "matched_host_dispatches") -> dict[str, Any]:
    return {"type": "dispatch_summary", kind: count}


def read(*rows: dict[str, Any], invocations: int = 1) -> DispatchProfile:
    return parse_dispatch_events(map(json.dumps, [*rows, summary(len(rows))]), invocations=invocations)


def test_a_recorded_profile_of_a_cpu() -> None:
    profile = read_profile("dtln-3.13.0")
    assert len(profile.dispatches) == 19
    assert not profile.on_device
    assert profile.notes == ()
    first = profile.dispatches[0]
    assert (first.name, first.count) == ("model_1$async_dispatch_0_matmul_1x128x257_f32", INVOCATIONS)
    durations = [
        json.loads(line)["duration_ns"] for line in read_profile_lines("dtln-3.13.0") if f'"{first.name}"' in line
    ]
    assert first.total_ns == sum(durations)
    assert first.invocation_ns == sorted(durations)[INVOCATIONS // 2]
    assert profile.outside_ns is not None
    assert profile.dispatched_ns + profile.outside_ns == 128_000
    assert profile.outside_ns > 0


def test_a_recorded_profile_of_a_device_has_the_same_dispatches() -> None:
    device, host = read_profile("dtln-3.13.0-vulkan"), read_profile("dtln-3.13.0")
    assert device.on_device
    assert [one.name for one in device.dispatches] == [one.name for one in host.dispatches]


def test_a_function_that_is_dispatched_several_times_in_an_invocation() -> None:
    profile = read_profile("minilm-3.13.0")
    product = next(one for one in profile.dispatches if one.name.endswith("_dispatch_4_batch_matmul_1x64x384x384_f32"))
    assert profile.count_per_invocation(product) == 9
    assert product.invocation_ns == pytest.approx(product.total_ns / INVOCATIONS, rel=0.3)


def test_an_invocation_that_was_interrupted_moves_nothing() -> None:
    rows = [row("f", duration) for duration in (900, 10, 11, 10, 12, 10)]
    # 910, 21 and 22: the first found cold caches.
    assert read(*rows, invocations=3).dispatches[0].invocation_ns == 22


@pytest.mark.parametrize("extra", [{"type": "new_kind"}, {"type": "host_dispatch_group", "key": "f"}, {}])
def test_rows_of_other_kinds_are_passed_over(extra: dict[str, Any]) -> None:
    lines = [json.dumps(one) for one in (extra, row("f", 5), summary(1))]
    assert parse_dispatch_events([*lines, ""], invocations=1).dispatched_ns == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": None}, "line 1 of the profile's rows (host_dispatch_event): key is None, expected a name"),
        ({"duration_ns": "5"}, "duration_ns is '5', expected a number of ns"),
        ({"duration_ns": -1}, "duration_ns is -1"),
        ({"valid": None}, "valid is None, expected true or false"),
        ({"clock_fit_available": False}, "the device's clock could not be related to nanoseconds"),
        ({"valid": False}, "no dispatch of f has a valid time"),
    ],
)
def test_a_row_without_what_is_needed(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        read(row("f", 5) | changed)
    assert message in caught.value.message


@pytest.mark.parametrize("field", ["key", "duration_ns", "valid"])
def test_a_missing_field_is_named(field: str) -> None:
    broken = row("f", 5)
    del broken[field]
    with pytest.raises(ProfileError, match=f"{field} is missing"):
        read(broken)


def test_no_dispatches_is_an_error() -> None:
    with pytest.raises(ProfileError, match="contains no dispatches"):
        read()


def test_rows_that_are_cut_off() -> None:
    lines = read_profile_lines("dtln-3.13.0")
    with pytest.raises(ProfileError, match="end without their dispatch_summary"):
        parse_dispatch_events(lines[:-1], invocations=INVOCATIONS)
    with pytest.raises(ProfileError, match="line 1 of the profile's rows is not JSON"):
        parse_dispatch_events([lines[0][:50]], invocations=INVOCATIONS)
    with pytest.raises(ProfileError, match="contain 94 dispatches, but dispatch_summary counts 95"):
        parse_dispatch_events(lines[1:], invocations=INVOCATIONS)
    with pytest.raises(ProfileError, match="not a JSON object"):
        parse_dispatch_events(["[]"], invocations=INVOCATIONS)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_profile_or_an_error_of_ours(data: bytes) -> None:
    lines = data.decode("utf-8", errors="replace").splitlines()
    with pytest.raises(ProfileError):
        parse_dispatch_events(lines, invocations=1)


def test_dispatches_without_a_valid_time_are_said() -> None:
    profile = read(row("f", 10), row("f", 0, valid=False), row("f", 20), row("f", 30), invocations=2)
    assert profile.notes == ("f: 1 of 4 dispatches have no valid time",)
    assert profile.dispatches[0].invocation_ns == 40


def test_dispatches_that_differ_between_invocations_are_said() -> None:
    profile = read(row("f", 10), row("f", 20), row("f", 30), invocations=2)
    assert profile.notes == ("f: 3 dispatches in 2 invocations, not the same number in each",)
    assert profile.dispatches[0].invocation_ns == 30


def test_no_invocations_are_an_error() -> None:
    with pytest.raises(ProfileError, match="0 invocations"):
        read(row("f", 5), invocations=0)


def test_profiles_of_one_program_are_merged() -> None:
    one, other = read(row("f", 10), row("g", 5)), read(row("f", 21), row("g", 5))
    both = merge_profiles([one, other])
    assert both.invocations == 2
    assert [(item.name, item.count, item.total_ns, item.invocation_ns) for item in both.dispatches] == [
        ("f", 2, 31, 16),
        ("g", 2, 10, 5),
    ]
    assert both.elapsed_ns is None
    profile = read_profile("dtln-3.13.0")
    assert merge_profiles([profile, profile]).elapsed_ns == profile.elapsed_ns


def test_profiles_of_two_programs_are_not_merged() -> None:
    with pytest.raises(ProfileError, match="g is not in all of them"):
        merge_profiles([read(row("f", 10)), read(row("f", 10), row("g", 1))])
    with pytest.raises(ProfileError, match="no profile to merge"):
        merge_profiles([])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("main$async_dispatch_12_matmul_256x256x256_f32", DispatchName("main", 12, "matmul_256x256x256_f32", "matmul")),
        ("main_dispatch_3_matvec_like_10x40_f32", DispatchName("main", 3, "matvec_like_10x40_f32", "matmul")),
        ("a-b$async_dispatch_7_conv_12x96x8x3x3_f32", DispatchName("a-b", 7, "conv_12x96x8x3x3_f32", "conv")),
        ("m_dispatch_2_conv_2d_nchw_fchw_1x64x7xD_f32", DispatchName("m", 2, "conv_2d_nchw_fchw_1x64x7xD_f32", "conv")),
        ("m_dispatch_5_reduction_Dx384_f32", DispatchName("m", 5, "reduction_Dx384_f32", "reduction")),
        (
            "m_dispatch_9_softmax_2xf32_dispatch_tensor_store",
            DispatchName("m", 9, "softmax_2xf32_dispatch_tensor_store", "reduction"),
        ),
        ("m_dispatch_1_elementwise_broadcast_64x384_i64xf32", None),
        ("m$async_dispatch_17_slow_memcpy", DispatchName("m", 17, "slow_memcpy", "slow_memcpy")),
        ("m_dispatch_8_scatter_4x4xf32", DispatchName("m", 8, "scatter_4x4xf32", "scatter")),
        ("_encoding_37_encode_8x4xf32_to_8x4xf32", DispatchName("", 37, "encode_8x4xf32_to_8x4xf32", "encoding")),
        ("m_dispatch_0", DispatchName("m", 0, "", "other")),
        ("my_kernel", DispatchName("", None, "my_kernel", "other")),
    ],
)
def test_what_a_name_says(name: str, parts: DispatchName | None) -> None:
    expected = parts or DispatchName("m", 1, "elementwise_broadcast_64x384_i64xf32", "elementwise")
    assert parse_dispatch_name(name) == expected


@pytest.mark.parametrize("name", ["minilm-3.12.0", "minilm-3.13.0", "minilm-3.13.0-horizontal", "dtln-3.13.0"])
def test_every_recorded_name_is_understood(name: str) -> None:
    for dispatch in read_profile(name).dispatches:
        parts = parse_dispatch_name(dispatch.name)
        assert parts.function in ("main_graph", "model_1")
        assert parts.kind in ("matmul", "reduction", "elementwise", "slow_memcpy", "gather", "conv"), dispatch.name
