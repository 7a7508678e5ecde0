"""The selection of specs and cases by a command, and the messages if nothing is selected."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.dialects.load import load_cases, read_specs
from iree_gauntlet.dialects.selection import Include, MarkerExpression, explain_no_match
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.targets import FAMILIES, Target
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, SPEC, load, write_tree
from tests.support.torch_trees import TREE

if TYPE_CHECKING:
    from pathlib import Path

ROCM = Target("rocm", "gfx942", "mi300")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(
        tmp_path,
        {
            "regression_tests/sdxl/clip.json": SPEC | {"markers": ["text"]},
            "regression_tests/sdxl/unet_fp16_rocm.json": HIP_SPEC,
            "regression_tests/sdxl/vae_cpu.json": HIP_SPEC | {"markers": ["vision", "slow"]},
            "regression_tests/llama/block_cpu.json": HIP_SPEC,
            "benchmarks/sdxl/vae_cpu.json": BENCHMARK,
        },
    )


def chosen(tree: Path, *targets: Target, **globs: Any) -> list[str]:
    return [case.id for case in load(tree, *targets, includes=[Include(**globs)]).cases]


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ({"model": "llama"}, ["llama/block@cpu:quality"]),
        ({"model": "l*"}, ["llama/block@cpu:quality"]),
        ({"model": "SDXL"}, []),
        ({"submodel": "v?e"}, ["sdxl/vae@cpu:quality", "sdxl/vae@cpu:benchmark"]),
        ({"submodel": "unet*"}, ["sdxl/unet_fp16@rocm-gfx942:quality"]),
        ({"submodel": "unet_fp16_rocm"}, []),
        ({"filename": "*_rocm"}, ["sdxl/unet_fp16@rocm-gfx942:quality"]),
        ({"filename": "clip"}, ["sdxl/clip@cpu:quality", "sdxl/clip@rocm-gfx942:quality"]),
        ({"markers": "slow"}, ["sdxl/vae@cpu:quality"]),
        ({"markers": "benchmark"}, ["sdxl/vae@cpu:benchmark"]),
        ({"markers": "gfx942 and not text"}, ["sdxl/unet_fp16@rocm-gfx942:quality"]),
        ({"model": "s*", "markers": "cpu and (text or slow)"}, ["sdxl/clip@cpu:quality", "sdxl/vae@cpu:quality"]),
        ({"submodel": "[ab]*"}, ["llama/block@cpu:quality"]),
    ],
)  # fmt: skip
def test_globs_and_markers(tree: Path, globs: dict[str, str], expected: list[str]) -> None:
    assert chosen(tree, CPU, ROCM, **globs) == expected


def test_a_spec_is_chosen_once_by_several_includes(tree: Path) -> None:
    cases = load(tree, includes=[Include(model="llama"), Include(model="l*"), Include(submodel="clip")]).cases
    assert [case.id for case in cases] == ["llama/block@cpu:quality", "sdxl/clip@cpu:quality"]


def test_targets_leave_out_what_is_not_for_them(tree: Path) -> None:
    assert "sdxl/unet_fp16@rocm-gfx942:quality" not in chosen(tree, CPU)
    assert chosen(tree, Target("rocm", "gfx1100")) == [
        "sdxl/clip@rocm-gfx1100:quality",
        "sdxl/unet_fp16@rocm-gfx1100:quality",
    ]


def test_rocm_only_specs_have_no_cpu_chain(tmp_path: Path) -> None:
    write_tree(tmp_path, {"m/s.json": SPEC | {"rocm_tests_only": True}})
    assert chosen(tmp_path, CPU, ROCM) == ["m/s@rocm-gfx942:quality"]


def test_an_include_within_another_needs_both(tree: Path) -> None:
    include = Include(model="sdxl", outer=Include(submodel="vae"))
    assert [case.submodel for case in load(tree, includes=[include]).cases] == ["vae", "vae"]


def test_a_device_replaces_the_specs(tree: Path) -> None:
    assert {case.device for case in load(tree, device="local-sync").cases} == {"local-sync"}


def test_unknown_markers_are_told(tree: Path) -> None:
    cases = load(tree, includes=[Include(markers="cpu and not slwo or vision")])
    assert cases.unknown_markers == ("slwo",)
    assert set(cases.known_markers) == {"cpu", "quality", "benchmark", "text", "vision", "slow"}


@pytest.mark.parametrize(
    ("include", "says"),
    [
        (Include(model="sdx"), ["--model sdx", "No model 'sdx'; did you mean 'sdxl'?", "llama, sdxl"]),
        (Include(model="zzz"), ["No model 'zzz'.", "Models for cpu: llama, sdxl."]),
        (Include(model="sdxl", submodel="clipp"), ["No submodel 'clipp'; did you mean 'clip'?", "has: clip, vae."]),
        (Include(filename="vae_cp"), ["No filename 'vae_cp'; did you mean 'vae_cpu'?"]),
        (Include(markers="fast"), ["--markers fast", "Markers of what otherwise matches: benchmark, cpu"]),
    ],
)
def test_nothing_selected_says_what_exists(tree: Path, include: Include, says: list[str]) -> None:
    cases = load(tree, includes=[include])
    assert not cases.cases
    error = explain_no_match([include], read_specs([tree]), {"cpu"}, cases.known_markers)
    assert error.exit_code is ExitCode.NOTHING_SELECTED
    for text in says:
        assert text in str(error)
    assert "\n" not in error.message


def test_nothing_selected_in_a_suite_says_what_is_outside(tree: Path) -> None:
    includes = [Include(model="llama", outer=Include(submodel=name)) for name in ("clip", "vae")]
    error = explain_no_match(includes, read_specs([tree]), {"cpu"})
    assert error.message == "nothing selected: no case matches --model llama"
    assert error.hint.splitlines() == [
        "No model 'llama'.",
        "  Models for cpu: sdxl.",
        "  Models outside the suite: llama.",
        "  `list` shows every model, submodel and marker.",
    ]


@pytest.mark.parametrize(
    ("families", "says"),
    [
        ({"rocm"}, "no case for target rocm"),
        ({"rocm", "cuda"}, "no case for target cuda or rocm"),
        ({*FAMILIES}, "there is no case"),
    ],
)
def test_nothing_selected_says_what_was_asked(tmp_path: Path, families: set[str], says: str) -> None:
    error = explain_no_match([Include()], read_specs([tmp_path]), families)
    assert error.message == f"nothing selected: {says}"


def test_a_model_for_another_target_is_not_listed_for_this_one(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE)
    includes = [Include()]
    cases = load_cases(read_specs([tmp_path]), includes, [Target("rocm")])
    assert not cases.cases
    error = explain_no_match(includes, read_specs([tmp_path]), {"rocm"}, cases.known_markers, cases.other_targets)
    assert "Models for rocm: none." in error.hint
    assert "Models for other targets: m; see --target." in error.hint


def test_models_of_other_targets_are_told(tmp_path: Path) -> None:
    write_tree(tmp_path, {"m/s_rocm.json": HIP_SPEC})
    error = explain_no_match([Include()], read_specs([tmp_path]), {"cpu"})
    assert "Models for other targets: m; see --target." in error.hint


# Marker expressions

WORDS = ["cpu", "slow", "vision", "text", "gfx942", "a_b"]
EXPRESSIONS = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: st.one_of(
        inner.map("not {}".format),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
    ),
    max_leaves=12,
)


@given(text=EXPRESSIONS, have=st.sets(st.sampled_from(WORDS)), space=st.sampled_from([" ", "  ", "\t"]))
def test_marker_expressions_mean_what_python_means(text: str, have: set[str], space: str) -> None:
    expression = MarkerExpression(text.replace(" ", space))
    reference = eval(text, {"__builtins__": {}}, {word: word in have for word in WORDS})
    assert expression.matches(have) is reference
    assert expression.matches(have) is reference
    assert expression.words == {word for word in WORDS if word in text}


@given(text=st.text(st.sampled_from("ab ()-!.&") | st.characters(), max_size=12))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        MarkerExpression(text).matches({"a"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu and", "expected a marker, found the end"),
        ("and cpu", "expected a marker, found 'and'"),
        ("cpu slow", "unexpected 'slow'"),
        ("cpu AND slow", "unexpected 'AND'"),
        ("(cpu", "a parenthesis is not closed"),
        ("cpu)", "unexpected ')'"),
        ("cpu & slow", "'&' is not a marker"),
        ("()", "expected a marker, found ')'"),
        ("(" * 5000 + "a" + ")" * 5000, "more than 100 uses"),
        ("not " * 5000 + "a", "more than 100 uses"),
    ],
)
def test_bad_expressions(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        MarkerExpression(text)
    assert says in caught.value.message
    assert "--markers" in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_expression_matches_everything(text: str) -> None:
    assert MarkerExpression(text).matches(set())
