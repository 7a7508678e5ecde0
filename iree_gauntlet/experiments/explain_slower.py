"""`explain --slower`: from what a comparison found slower to a bundle of the dispatch that is.

<comparison>/explain/explain.jsonl     the record (`records/explain_outcome.py` describes it), with all rounds
<comparison>/explain/<case>/a, b       what was compiled and traced for a case, by side
<comparison>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it

Its `repro.sh` compiles `program.mlir` with both, runs their benchmarks in turn, and holds the ratio of their times
against half of what was lost.
"""

from __future__ import annotations

import shlex
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import gpu_of
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explain import iree_of
from iree_gauntlet.experiments.explaining.bundle import (
    PROGRAM,
    REPRODUCE,
    STILL_THERE,
    file_values,
    flag_files,
    pack,
    packages_of,
    run_bundle,
)
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.slower import (
    SlowDispatch,
    Slower,
    SlowerSearch,
    find_slow_dispatch,
    slower_of,
)
from iree_gauntlet.experiments.explaining.tools import Tools
from iree_gauntlet.figures import cpus_text, dispatch_change, milliseconds
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.compare_record import comparison_named, read_comparison
from iree_gauntlet.records.earlier_runs import LATEST
from iree_gauntlet.records.explain_outcome import EXPLAIN_RECORD, explained_before

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.bundle import Bundle
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import CacheRequest, ExplainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


# What is slower in fewer rounds than a comparison takes; each side has twice as many.
_BLOCKS = 5

_SCRIPT = """\
#!/bin/sh
# Exit codes: 0 fixed, 1 still there, 125 cannot be judged: as `git bisect run` takes them.
#
# IREE_COMPILE and IREE_BENCHMARK_MODULE name the tools that are judged; without them, {new} are installed into env/new.
# BASE_IREE_COMPILE and BASE_IREE_BENCHMARK_MODULE name those that they are held against; without them, {base} are
# installed into env/base.
set -u
cd "$(dirname "$0")" || exit 125
install() {{
    folder=$1
    shift
    [ -x "$folder/bin/iree-benchmark-module" ] ||
        {{ python3 -m venv "$folder" && "$folder/bin/python" -m pip install -q "$@"; }} || exit 125
}}
if [ -z "${{IREE_COMPILE:-}}" ] || [ -z "${{IREE_BENCHMARK_MODULE:-}}" ]; then
    install env/new {new_packages}
    IREE_COMPILE=$PWD/env/new/bin/iree-compile IREE_BENCHMARK_MODULE=$PWD/env/new/bin/iree-benchmark-module
fi
if [ -z "${{BASE_IREE_COMPILE:-}}" ] || [ -z "${{BASE_IREE_BENCHMARK_MODULE:-}}" ]; then
    install env/base {base_packages}
    BASE_IREE_COMPILE=$PWD/env/base/bin/iree-compile
    BASE_IREE_BENCHMARK_MODULE=$PWD/env/base/bin/iree-benchmark-module
fi
work=$(mktemp -d) || exit 125
trap 'rm -rf "$work"' EXIT
"$BASE_IREE_COMPILE" {program} {base_flags} -o "$work/base.vmfb" || exit 125
"$IREE_COMPILE" {program} {flags} -o "$work/new.vmfb" || exit 125
pin={pin}
[ -z "$pin" ] || $pin true 2> /dev/null || pin=
round() {{
    side=$1
    shift
    $pin "$@" --module="$work/$side.vmfb" > "$work/$side.$number.json" || exit 125
}}
base() {{ round base "$BASE_IREE_BENCHMARK_MODULE" {base_arguments}; }}
new() {{ round new "$IREE_BENCHMARK_MODULE" {arguments}; }}
number=0
for sides in {order}; do
    number=$((number + 1))
    $sides
done
python3 - "$work" <<'END' || exit $?
import glob, json, statistics, sys
try:
    times = {{}}
    for side in ("base", "new"):
        times[side] = []
        for file in glob.glob(f"{{sys.argv[1]}}/{{side}}.*.json"):
            rows = [row for row in json.load(open(file))["benchmarks"] if row.get("run_type") == "iteration"]
            unit = {{"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}}[rows[0]["time_unit"]]
            times[side].append(min(row["real_time"] for row in rows) * unit)
    base, new = (statistics.median(times[side]) for side in ("base", "new"))
except Exception as error:
    print(f"cannot be judged: {{type(error).__name__}}: {{error}}")
    sys.exit(125)
print(f"base {{base:.4g}} ms, new {{new:.4g}} ms: {{new / base:.3f}} times as long; {reported:.3f} was reported")
slower = new / base > {limit:.6g}
print("still there: slower by more than half of that" if slower else "fixed: not slower by more than half of that")
sys.exit(1 if slower else 0)
END
"""


def explain_slower(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what a comparison found slower.

    Raises:
        UsageError: options that exclude each other.
        GauntletError: what keeps it from starting.
    """
    if asked.no_weights:
        hint = "A slower dispatch is measured on the inputs that it had: leave one of the two out."
        raise UsageError("--slower and --no-weights exclude each other", hint)
    name, *patterns = asked.failures or (LATEST,)
    compared = comparison_named(name).resolve()
    record = read_comparison(compared)
    models = slower_of(record, compared, patterns)
    folder = compared / "explain"
    with presenter.progress() as progress:
        machines = [iree_of(compared / side.name.lower(), side.toolchain, cache, progress) for side in record.sides]
        before = explained_before(folder)
        opening = {
            "run": compared.name,
            "cases": [{"case": item.case, "kind": "slower", "reason": item.reason} for item in models],
            "toolchain": record.sides[1].toolchain,
            "base": record.sides[0].toolchain,
        }
        experiment = Experiment("explain", EXPLAIN_RECORD, folder)
        with experiment.record(presenter, opening, first={}) as log, experiment.open_session(log, progress) as session:
            explainer = _SlownessExplainer(session, (machines[0], machines[1]))
            done = [item.case in before or explainer.explain(item) for item in models]
            experiment.code = ExitCode.OK if all(done) else ExitCode.INCONCLUSIVE
    return experiment.code


@dataclass(frozen=True, slots=True)
class _SlownessExplainer:
    """Explains one model after the other, and records what is found as it is."""

    session: Session[Any]
    machines: tuple[Workbench, Workbench]

    def explain(self, slower: Slower) -> bool:
        """Whether a bundle shows it."""
        began = time.monotonic()
        folder = self.session.folder / slower.sides[1].folder
        shutil.rmtree(folder, ignore_errors=True)
        tools = [
            Tools(machine, self.session.supervisor, folder / side)
            for side, machine in zip("ab", self.machines, strict=True)
        ]
        for item in tools:
            item.folder.mkdir(parents=True)
        self.session.log.write("start", {"case": slower.case})
        self._say(slower, "slower")
        bundled = False
        try:
            found = find_slow_dispatch(slower, (tools[0], tools[1]), self.session, lambda text: self._say(slower, text))
            self._note_found(slower, "slower", _note_found(found))
            bundled = found.slow is not None and self._shows_in_bundle(slower, found.slow)
        except WaitCancelledError as error:
            raise KeyboardInterrupt from error
        except GauntletError as error:
            # Of this one alone; the others go on.
            self._note_found(slower, "nothing", {"why": error.on_one_line})
        seconds = round(time.monotonic() - began, 3)
        self.session.log.write("case", {"case": slower.case, "bundled": bundled, "seconds": seconds})
        return bundled

    def _shows_in_bundle(self, slower: Slower, slow: SlowDispatch) -> bool:
        """Whether running the bundle of a dispatch shows that it is slower."""
        base, new = (machine.iree for machine in self.machines)
        place = slower.sides[1].folder
        folder = self.session.folder / place
        bundle = _make_slower_bundle(slower, slow, (base, new), folder / "bundle")
        self._say(slower, "running its bundle")
        with self.session.quiet(gpu_of(slow.measured[1].step)):
            code = run_bundle(bundle.folder, new, self.session.supervisor, folder, base)
        fact = {"problem": "", "folder": str(place / "bundle"), "bytes": bundle.bytes, "exit_code": code}
        self._note_found(slower, "bundle", {**fact, "form": "a program for any release"})
        return code == STILL_THERE

    def _note_found(self, slower: Slower, part: str, fields: dict[str, Any]) -> None:
        self.session.log.write("found", {"case": slower.case, "part": part, **fields})

    def _say(self, slower: Slower, text: str) -> None:
        self.session.progress.message(f"{slower.case}: {text}")


def _note_found(found: SlowerSearch) -> dict[str, Any]:
    record: dict[str, Any] = {
        "why": found.why,
        "tried": [{**asdict(suspect), "said": said} for suspect, said in found.tried],
    }
    if found.slow is not None:
        inputs = [kind for kind, _ in found.slow.inputs]
        record |= {**asdict(found.slow.suspect), "inputs": inputs, "times": found.slow.verdict.as_dict()}
    return record


def _make_slower_bundle(slower: Slower, slow: SlowDispatch, irees: tuple[Toolchain, Toolchain], folder: Path) -> Bundle:
    """Write the bundle of a dispatch that B is slower with."""
    values, files = file_values(slow.inputs, "input")
    sides = [flag_files(side.flags) for side in slower.sides]
    # Files that flags name are the same for both, or named by both.
    named = [item for _, found in sides for item in found]
    inputs = [f"--input={value}" for value in values]
    arguments = [[*_list_arguments(measured), *inputs] for measured in slow.measured]
    flags = [texts for texts, _ in sides]
    script = _make_script(slower, slow, irees, (flags, arguments))
    readme = _make_readme(slower, slow, irees, (flags, arguments))
    texts = {"README.md": readme, REPRODUCE: script, PROGRAM: slow.function}
    facts = {
        "title": _format_title(slower, slow, irees),
        "iree": irees[1].as_dict(),
        "base": irees[0].as_dict(),
        "packages": [*packages_of(irees[1]), *(f"{package} (base)" for package in packages_of(irees[0]))],
        "flags": list(flags[1]),
        "base_flags": list(flags[0]),
        "arguments": arguments[1],
        "base_arguments": arguments[0],
        "times": slow.verdict.as_dict(),
        "machine": _format_machine(),
    }
    return pack({name: text.encode() for name, text in texts.items()} | dict([*files, *named]), facts, folder)


def _list_arguments(measured: Measurement) -> list[str]:
    """A round's arguments without the module and the inputs, which are named by paths."""
    assert measured.step.command is not None, "planned with a command"
    argv = measured.command.argv
    # Before it may be taskset.
    begin = argv.index(measured.step.command.argv[0]) + 1
    return [word for word in argv[begin:] if not word.startswith(("--module=", "--input="))]


def _make_script(
    slower: Slower,
    slow: SlowDispatch,
    irees: tuple[Toolchain, Toolchain],
    how: tuple[list[tuple[str, ...]], list[list[str]]],
) -> str:
    (base_flags, flags), (base_arguments, arguments) = how
    base, new = map(packages_of, irees)
    ratio = _compute_ratio(slow)
    pinned = ",".join(map(str, slower.rounds.cpus))
    return _SCRIPT.format(
        new=" and ".join(new),
        base=" and ".join(base),
        new_packages=shlex.join(new),
        base_packages=shlex.join(base),
        program=PROGRAM,
        flags=shlex.join(flags),
        base_flags=shlex.join(base_flags),
        arguments=shlex.join(arguments),
        base_arguments=shlex.join(base_arguments),
        pin=shlex.quote(f"taskset -c {pinned}" if pinned else ""),
        order=" ".join(["base new new base"] * _BLOCKS),
        reported=ratio,
        limit=1 + (ratio - 1) / 2,
    )


def _compute_ratio(slow: SlowDispatch) -> float:
    assert slow.verdict.comparison is not None, "a verdict of slower has figures"
    return slow.verdict.comparison.ratio


def _format_title(slower: Slower, slow: SlowDispatch, irees: tuple[Toolchain, Toolchain]) -> str:
    base, new = (iree.compiler.version for iree in irees)
    change = f"{100 * (_compute_ratio(slow) - 1):+.1f} %"
    return f"{slow.suspect.name} is slower ({change}) with {new} than with {base} ({slower.sides[1].device})"


def _format_machine() -> str:
    facts = read_machine_facts()
    return f"{facts.cpu}, {facts.os}"


def _make_readme(
    slower: Slower,
    slow: SlowDispatch,
    irees: tuple[Toolchain, Toolchain],
    how: tuple[list[tuple[str, ...]], list[list[str]]],
) -> str:
    """IREE's form for issues."""
    flags, arguments = how
    comparison, suspect = slow.verdict.comparison, slow.suspect
    assert comparison is not None, "a verdict of slower has figures"
    times = slow.verdict.as_dict()["time_ms"]
    base, new = irees
    cpus = slower.rounds.cpus
    where = f"CPU {cpus_text(cpus)}" if cpus else "all CPUs"
    commands = [
        " \\\n    ".join(["iree-compile", PROGRAM, *map(shlex.quote, words), f"-o {name}.vmfb"])
        + "\n"
        + " \\\n    ".join(["iree-benchmark-module", f"--module={name}.vmfb", *map(shlex.quote, given)])
        for name, words, given in zip(("base", "new"), flags, arguments, strict=True)
    ]
    change = dispatch_change(suspect.a_ns, suspect.b_ns, suspect.unit)
    return f"""\
# {_format_title(slower, slow, irees)}

## What happened?

{slower.case} got slower ({100 * (slower.verdict["ratio"] - 1):+.1f} %): {slower.reason}.

Of its dispatches `{suspect.name}` went
{change}, which is {100 * suspect.share:.0f} % of the loss. Cut out (`{PROGRAM}`, function
`{CUT_OUT}`), and run on the inputs that it had, it is slower too:

| | {base.compiler.version} | {new.compiler.version} |
| --- | --- | --- |
| ms | {milliseconds(times["A"]["median"])} | {milliseconds(times["B"]["median"])} |

That is {100 * (comparison.ratio - 1):+.1f} % ({100 * (comparison.low - 1):+.1f} to {100 * (comparison.high - 1):+.1f} \
% at {100 * comparison.confidence:g} %), from {comparison.blocks} blocks of four interleaved process starts, on {where}.

## Steps to reproduce your issue

With {base.compiler.version}:

```
{commands[0]}
```

With {new.compiler.version}:

```
{commands[1]}
```

`./{REPRODUCE}` does both in turn and prints both times with their ratio: exit code 1 where the new one is slower by
more than half of the above, 0 where it is not, 125 where it cannot be judged. It installs the versions below, or takes
those that `IREE_COMPILE`, `IREE_BENCHMARK_MODULE`, `BASE_IREE_COMPILE` and `BASE_IREE_BENCHMARK_MODULE` name.

## What component(s) does this issue relate to?

{"Runtime" if base.compiler.identity == new.compiler.identity else "Compiler"}

## Version information

iree-base-compiler {new.compiler.version} ({new.compiler.commit}), iree-base-runtime {new.runtime.version}; held against
iree-base-compiler {base.compiler.version} ({base.compiler.commit}), iree-base-runtime {base.runtime.version}

## Additional context

Seen on {_format_machine()}.
"""
