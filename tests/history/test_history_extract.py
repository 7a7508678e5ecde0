"""A history's record of a run on a cluster: one part for each kind of machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.figures import Figure
from iree_gauntlet.history.extract import extract
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.chain_figures import make_matrix_cell
from iree_gauntlet.records.history_record import make_history_file
from iree_gauntlet.records.outcome import read_outcome
from tests.support.journal_builder import JournalBuilder, make_check, make_samples
from tests.support.matrix_builder import make_compile_result

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = {"cpu": "EPYC", "cores": 64, "os": "Linux 6"}, {"cpu": "Xeon", "cores": 8, "os": "Linux 6"}


def test_each_machine_has_what_it_measured(tmp_path: Path) -> None:
    builder = JournalBuilder()
    steps = {name: [builder.step("m", name, stage) for stage in ("compile", "benchmark")] for name in ("a", "b", "c")}
    builder.begin()
    builder.worker("one", **ONE)
    builder.worker("two", **TWO)
    builder.worker("three", **ONE)
    # The last was compiled on a machine of the other kind.
    places = {"a": ("one", "one"), "b": ("two", "two"), "c": ("two", "three")}
    for name, (compiled, timed) in places.items():
        builder.result(steps[name][0], worker=compiled, **make_compile_result())
        builder.result(steps[name][1], worker=f"{timed}/cpu", samples=make_samples(1.0, 1.1))
    builder.end()
    parts = extract(read_outcome(read_journal(builder.write(tmp_path) / "journal.jsonl")))
    found = {
        part.machine.cpu: {case.submodel: {item.name for item in case.figures} for case in part.cases} for part in parts
    }
    assert set(found["EPYC"]) == {"a", "c"}
    assert set(found["Xeon"]) == {"b"}
    assert "compile_s" in found["EPYC"]["a"]
    assert "compile_s" not in found["EPYC"]["c"], "it is another machine's"
    assert "time_ms" in found["EPYC"]["c"]
    # Each has a file of its own.
    assert len(dict(map(make_history_file, parts))) == 2


def test_counts_are_a_series_for_each_counter_and_what_compiles_for_them_no_part_of_the_model(tmp_path: Path) -> None:
    found = {}
    counters = (("valgrind 3.19.0", "x86-64-v3,-fma"), ("valgrind 3.24.0", "znver2"), ("hardware counters", ""))
    for counter, cpu in counters:
        builder = JournalBuilder()
        compiled = builder.step("m", "a", "compile")
        for_it, counted = builder.step("m", "a", "compile", role="count"), builder.step("m", "a", "count")
        builder.begin()
        builder.result(compiled, **make_compile_result(seconds=2.0))
        builder.result(for_it, **make_compile_result(seconds=30.0))
        builder.result(counted, statistics={"instructions": 1000, "counter": counter, "cpu": cpu})
        builder.end()
        folder = tmp_path / f"{counter} {cpu}"
        folder.mkdir()
        outcome = read_outcome(read_journal(builder.write(folder) / "journal.jsonl"))
        (part,) = extract(outcome)
        (case,) = part.cases
        (figure,) = [item for item in case.figures if item.name.startswith("instructions")]
        found[figure.name] = case.flags
        # What it was counted with is the same whether the model is compiled for itself as well.
        assert figure.flags not in ("", case.flags)
        cell = make_matrix_cell(outcome.chains[0])
        assert (cell.figures.values[Figure.CALL_INSTRUCTIONS], cell.figures.values[Figure.COMPILE_TIME]) == (1000, 2.0)
    assert [*found] == ["instructions", "instructions (valgrind, znver2)", "instructions (hardware)"]
    assert len(set(found.values())) == 1


def test_instructions_in_dispatches_are_a_series_and_those_outside_another_one(tmp_path: Path) -> None:
    builder = JournalBuilder()
    counted = builder.step("m", "a", "count")
    builder.begin()
    statistics = {"instructions": 1000, "instructions_outside": 300, "counter": "valgrind 3", "cpu": "x86-64-v3,-fma"}
    checks = [make_check("instructions", 700, 900), make_check("instructions_outside", 300, 400)]
    builder.result(counted, statistics=statistics, checks=checks)
    builder.end()
    (part,) = extract(read_outcome(read_journal(builder.write(tmp_path) / "journal.jsonl")))
    (case,) = part.cases
    figures = {item.name: (item.value, item.limit) for item in case.figures}
    assert figures == {"instructions_in_dispatches": (700, 900), "instructions_outside": (300, 400)}


def test_one_that_was_done_here_is_one_run(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "a", "compile")
    builder.begin()
    builder.result(step, **make_compile_result())
    builder.end()
    (part,) = extract(read_outcome(read_journal(builder.write(tmp_path) / "journal.jsonl")))
    assert part.machine.cores == read_outcome(read_journal(tmp_path / "journal.jsonl")).machine.cores
