"""Valid files of torch models with damage at some place: wrong values, arbitrary JSON, damaged text."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.budgets import scale_example_count
from tests.support.spec_trees import plan
from tests.support.spoiling import (
    ACTIONS,
    classify,
    damage_text,
    format_path,
    get_at,
    is_reported,
    json_values,
    list_paths,
    rename_key,
    spoil,
)
from tests.support.torch_documents import (
    BENCHMARK_FILE,
    COMPSTAT_FILE,
    DOCUMENTS,
    MODELS,
    MODULE_FILE,
    QUALITY_FILE,
    load_changed,
)
from tests.support.torch_trees import ALL_STAGES

if TYPE_CHECKING:
    from iree_gauntlet.cases import Case
    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem

JSON = json_values(
    *(".", "a/" * 3000, "-", "skip", "xfail", "quality", "benchmark", "compstat", "url", "random", "splat", "git-lfs"),
    *("m/modules/a", "m/stat", "and"),
)
FIELDS = {field for model in MODELS.values() for field in model.model_fields}
names = st.sampled_from(sorted(DOCUMENTS))
quick = settings(max_examples=scale_example_count(0.4), derandomize=True)


def check(name: str, content: Any) -> tuple[list[Problem], CaseSet]:
    """Problems of a tree in which one file has other content; where there are none, it can be planned."""
    with TemporaryDirectory() as folder:
        cases = load_changed(Path(folder), name, content)
        for problem in cases.problems:
            assert problem.message
            assert problem.file
            assert str(problem).encode()
        if not cases.problems:
            json.dumps([step.id for step in plan(cases, ALL_STAGES).steps]).encode()
        # What is wrong with a definition is reported for its own file, also to the tests that load it.
        return [problem for problem in cases.problems if problem.file.endswith(name)], cases


@quick
@given(name=names, key=st.text(min_size=1, max_size=12), value=JSON)
def test_an_unknown_key_is_always_reported_by_its_name(name: str, key: str, value: Any) -> None:
    if key not in FIELDS:
        problems, cases = check(name, DOCUMENTS[name] | {key: value})
        # One that looks like a known field is misspelt; others may be newer than this toolkit.
        found = problems or cases.warnings
        assert [problem.field for problem in found] == [key]
        assert found[0].message.startswith("unknown field; did you mean" if problems else "unknown field, which is")
        assert found[0].line > 1


@quick
@given(name=names, data=st.data())
def test_a_renamed_key_is_always_reported(name: str, data: st.DataObject) -> None:
    document = deepcopy(DOCUMENTS[name])
    inside = [path for path in list_paths(document) if isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(inside))
    renamed = rename_key(document, path, data)
    if path[:-1] == ("onnx_import", "shapes"):
        return  # names of inputs, which may be any
    problems, _ = check(name, document)
    fields = {problem.field for problem in problems}
    reported = any(repr(renamed) in problem.message for problem in problems)  # an unknown stage
    assert format_path((*path[:-1], renamed)) in fields or reported or fields == {"type"}


@quick
@given(name=names, data=st.data())
def test_a_value_of_another_type_is_always_reported_with_its_field(name: str, data: st.DataObject) -> None:
    document = deepcopy(DOCUMENTS[name])
    path = data.draw(st.sampled_from(list_paths(document)))
    old, value = get_at(document, path), data.draw(JSON)
    # Optional fields take null for being absent.
    if classify(old) == classify(value) or value is None:
        return
    if path == ("module",) and value == [old]:
        return  # the one other way to write it
    get_at(document, path[:-1])[path[-1]] = value
    problems, _ = check(name, document)
    assert is_reported(path, {problem.field for problem in problems})
    assert all(problem.line >= 1 for problem in problems)


def same_except(first: Case, second: Case, *fields: str) -> bool:
    """Whether two cases are one but for some fields; `calls.inputs` is a field of each call."""
    blank: dict[str, Any] = {name: None for name in fields if "." not in name}
    call: dict[str, Any] = {name.removeprefix("calls."): None for name in fields if "." in name}
    one, other = (
        replace(case, calls=tuple(replace(item, **call) for item in case.calls), **blank) for case in (first, second)
    )
    return one == other


# What a field of a test may change of its case, and nothing else.
CHANGES: dict[str, tuple[str, ...]] = {
    "markers": ("markers", "skip_reason", "expectations"),
    "description": (),
    "timeouts": ("timeouts",),
    "weights": ("parameters",),
    "inputs": ("calls.inputs",),
    "outputs": ("outputs",),
    "expected_outputs": ("calls.expected_outputs",),
    "run_args": ("run_flags", "device"),
    "pipeline_mlir": ("notes",),
    "golden_time": ("goldens", "notes"),
    "golden_time_ms": ("goldens",),
    "tolerance_factor": ("goldens",),
    "sku": ("goldens", "golden_keys"),
    "golden_dispatch_count": ("goldens",),
    "golden_binary_size": ("goldens",),
    "golden_compiler": ("goldens",),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return by_file(load_changed(tmp_path_factory.mktemp("tree"), QUALITY_FILE, DOCUMENTS[QUALITY_FILE]))


def by_file(cases: CaseSet) -> dict[str, Case]:
    """Cases by their file's place in the tree, free of where the tree lies."""
    found = {}
    for case in cases.cases:
        text = case.origin.file
        folder = text[: text.index("/torch_models/")]
        found[text.partition("/torch_models/")[2]] = relocated(case, folder)
    return found


def relocated(value: Any, folder: str) -> Any:
    """A value whose strings, however deep, do not name the tree's folder."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value.replace(folder, "")
    if isinstance(value, tuple):
        return tuple(relocated(item, folder) for item in value)
    if hasattr(value, "__dataclass_fields__"):
        names_of_fields = value.__dataclass_fields__
        return replace(value, **{name: relocated(getattr(value, name), folder) for name in names_of_fields})
    return value


@settings(max_examples=scale_example_count(0.6), derandomize=True)
@given(name=st.sampled_from([QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE]), action=ACTIONS, data=st.data(), junk=JSON)
def test_junk_is_reported_or_changes_what_it_says_and_nothing_else(
    originals: dict[str, Case], name: str, action: str, data: st.DataObject, junk: Any
) -> None:
    document, path = spoil(DOCUMENTS[name], action, data, junk)
    problems, cases = check(name, document)
    found = by_file(cases)
    # The other files mean what they meant.
    assert all(found[other] == case for other, case in originals.items() if other != name)
    if problems:
        assert name not in found
    elif path[0] == "type" and document.get("type") != DOCUMENTS[name]["type"]:
        pytest.fail("a test of another type, without a word")
    elif path[0] in ("module", "modules"):
        assert found[name].modules == originals[name].modules
    else:
        assert same_except(found[name], originals[name], *CHANGES.get(str(path[0]), ()))


@quick
@given(action=ACTIONS, data=st.data(), junk=JSON)
def test_junk_in_a_definition_is_reported_or_changes_the_module_alone(
    originals: dict[str, Case], action: str, data: st.DataObject, junk: Any
) -> None:
    document, path = spoil(DOCUMENTS[MODULE_FILE], action, data, junk)
    problems, cases = check(MODULE_FILE, document)
    if problems:
        assert not cases.cases
        return
    for name, case in by_file(cases).items():
        # The flags say the target, and the weights name the module.
        assert same_except(case, originals[name], "modules", "parameters", "target")
        (module,), (original,) = case.modules, originals[name].modules
        if path[0] not in ("mlir", "onnx_import"):
            assert module.program == original.program
        if path[0] != "compiler_flags":
            assert (module.flags, module.target) == (original.flags, original.target)


@quick
@given(name=names, data=st.data())
def test_damaged_text_never_is_a_traceback(name: str, data: st.DataObject) -> None:
    check(name, damage_text(DOCUMENTS[name], data))


@quick
@given(name=names, content=JSON)
def test_any_json_never_is_a_traceback(name: str, content: Any) -> None:
    check(name, content)


@quick
@given(word=st.text(max_size=12), name=st.sampled_from([QUALITY_FILE, BENCHMARK_FILE, COMPSTAT_FILE]))
def test_any_marker_is_one_or_is_refused(word: str, name: str) -> None:
    problems, cases = check(name, DOCUMENTS[name] | {"markers": [word]})
    if problems:
        assert [problem.field for problem in problems] == ["markers[0]"]
    else:
        case = by_file(cases)[name]
        assert case.markers == {word, DOCUMENTS[name]["type"]}
        assert word.isascii()
        assert not any(char.isspace() for char in word)
