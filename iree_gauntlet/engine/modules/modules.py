"""Import, parameters, compile and reference steps: from the cache where it has them, by the tools where not."""

from __future__ import annotations

import itertools
import json
import mmap
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.onnx_data import count_operators
from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.commands import makes_dumps
from iree_gauntlet.engine.judging import find_first_error, judge_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError, Lookup, ModuleEntry
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.modules.shared_modules import SharedLookup
from iree_gauntlet.engine.plan import FILE_ROLE
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.instructions.counters import read_counts
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import CacheUse, Result, UnsupportedOperator, shorten
from iree_gauntlet.stages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step


# Bytes of compiler output that are kept with a module, so that a cached compile reports the same warnings.
_MOST_DIAGNOSTICS = 64 * 1024
# The importer's exit code for a file that cannot be used.
_UNUSABLE_INPUT = 2
_PLACED_ERROR = re.compile(r"(:\d+:\d+|<unknown>:0): error: ")
# Of a linker or a machine that was out of something for a moment.
_PASSING = re.compile(r"link|Resource temporarily unavailable|Cannot allocate memory|error opening|Permission denied")
_FAILED = re.compile(r"(?::(\d+):\d+: error: )?failed to legalize operation '([\w$.-]+)'")
# An operation that is called by the attribute behind its operands.
_NAMED = "torch.operator"
_NAME = re.compile(r"\"torch\.operator\"\([^)]*\) <\{name = \"([\w.:-]+)\"")
_ONNX = "onnx."
_ONNX_LINE = re.compile(rb"torch\.operator \"(onnx\.\w+)\"")
# What the default domain of ONNX is called.
_DEFAULT_DOMAIN = "ai.onnx"
_DIALECTS = frozenset({"chlo", "mhlo", "stablehlo", "tfl", "tm_tensor", "torch", "torchvision", "tosa"})
_VERSION = re.compile(rb"torch\.onnx_meta\.opset_version = (\d+)")
_VERSIONS = re.compile(rb"torch\.onnx_meta\.opset_versions = \{([^}]*)\}")
_BYTECODE = b"ML\xefR"


@dataclass(frozen=True, slots=True)
class KeptFailure(Recorded):
    """What a compiler had against a program."""

    reason: str
    exit_code: int
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept(Recorded):
    """What the cache keeps with what a step has made, or why it made nothing; `diagnostics` ends what the tool said."""

    statistics: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    diagnostics: str = ""
    failure: KeptFailure | None = None


@dataclass(frozen=True, slots=True)
class ModuleMaker:
    """Makes what import, parameters, compile, reference and count steps make.

    Attributes:
        made_again: where it is noted what was made again although it was in the cache, each once for all processes
            of a run, and compared; None to use what is there.
    """

    session: Session[Any]
    workbench: Workbench
    made_again: Path | None

    def make(self, step: Step) -> Result:
        """Has what a step makes at its place: from a cache, or by its tool."""
        ingredients = self._complete_ingredients(step)
        key = make_key(ingredients)
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        dumps = step.command is not None and makes_dumps(step.command.argv)
        cache, cancelled = self.workbench.modules, self.session.cancelled
        if not dumps and not self._is_forced(step, key):
            result = self._use(step, cache.lookup(key).entry, "in the cache")
            if result is not None:
                return result
        # Synthetic weights are large, and made faster than they are fetched. Dumps are in no cache.
        shared = None if dumps or not step.stage.row.makes_modules else self.workbench.shared
        answer, note = SharedLookup(), ""
        with cache.making(key, cancelled) as waited:
            # Again: another process may have made it meanwhile.
            forced, found = self._is_forced(step, key), cache.lookup(key)
            result = None if dumps or forced else self._use(step, found.entry, "in the cache")
            if result is None and shared is not None and not forced:
                roles = [role for role, _ in step.outputs if role != "splat"]
                answer = shared.find(key, cache, step.id, roles, cancelled)
                result = self._use(step, answer.entry, f"from the shared cache {shared.url}")
            made = result is None
            if result is None:
                reason = "--force-recompile" if forced else self._explain_miss(step, found, ingredients, dumps=dumps)
                if answer.asked and not answer.note:
                    reason += "; not in the shared cache"
                for _, path in step.outputs:
                    # One of an earlier attempt may share its bytes with the cache: the tool must not write into it.
                    Path(path).unlink(missing_ok=True)
                outcome = self.session.processes.run(step)
                judge = self._judge if outcome.exit_code != 0 else self._publish_outputs
                result = judge(step, key, ingredients, outcome, found.entry)
                result = replace(result, cache=CacheUse(False, key, reason), log=self.session.processes.log(step))
                result = self.session.processes.complete(step, outcome, result)
            if forced and result.verdict is Verdict.PASSED:
                note_made_again(self.made_again, key)
        if made and shared is not None and result.verdict is Verdict.PASSED:
            # Outside of the lock: nobody here waits for what others will use.
            note = shared.offer(key, cache, cancelled)
        notes = (*result.notes, *filter(None, (answer.note, note)))
        return replace(result, notes=notes, waited_seconds=waited)

    def _complete_ingredients(self, step: Step) -> dict[str, str]:
        """What a step depends on, with the hashes of what was fetched, or made by other steps, since it was planned."""
        ingredients = dict(step.cache.ingredients)
        for item in step.inputs:
            if (item.role == "program" or item.role.startswith(FILE_ROLE)) and not ingredients[item.role]:
                fetched = self.workbench.store.fetch(item.url).sha256 if item.url else hash_file(Path(item.path))
                ingredients[item.role] = fetched
        return ingredients

    def _is_forced(self, step: Step, key: str) -> bool:
        """Whether it is to be made although the cache has it: not twice, and not what no compiler decides."""
        if self.made_again is None or not step.stage.row.makes_modules:
            return False
        return not (self.made_again / key).exists()

    def _use(self, step: Step, entry: ModuleEntry | None, reason: str) -> Result | None:
        """What an entry gives, put where the step wants it; None where it cannot be used."""
        if entry is None:
            return None
        kept = Kept.from_dict(entry.metadata)
        command, failure = self.session.processes.typed(step), kept.failure
        if failure is not None:
            # Of what a tool says, only the end is kept: the text that is expected may be in what is not.
            if step.expect_match not in f"{failure.reason}\n{kept.diagnostics}":
                return None
            for _, path in step.outputs:
                Path(path).unlink(missing_ok=True)
            return Result(
                Verdict.FAILED,
                failure.reason,
                command=command,
                exit_code=failure.exit_code,
                cache=CacheUse(True, entry.key, "failed before; --force-recompile tries again"),
                notes=step.notes,
                tail=failure.tail,
                failure=FailureKind.DOES_NOT_COMPILE,
                unsupported=self._find_unsupported(step, kept.diagnostics.splitlines()),
                said=kept.diagnostics,
            )
        try:
            for role, path in step.outputs:
                if role in entry.files:
                    self.workbench.modules.materialise(entry, role, Path(path))
        except EntryGoneError:
            # Somebody cleared the cache meanwhile.
            return None
        cache, notes = CacheUse(True, entry.key, reason), (*step.notes, *kept.notes)
        return Result(Verdict.PASSED, command=command, cache=cache, statistics=kept.statistics, notes=notes)

    def _explain_miss(self, step: Step, found: Lookup, ingredients: Mapping[str, str], *, dumps: bool) -> str:
        if dumps:
            return step.cache.reason
        if not found.note:
            return self.workbench.modules.explain_miss(step.id, ingredients)
        self.session.progress.message(f"{step.id}: in the cache it is {found.note}: making it again")
        return found.note

    def _publish_outputs(
        self, step: Step, key: str, ingredients: Mapping[str, str], outcome: Outcome, previous: ModuleEntry | None
    ) -> Result:
        """What a tool that ended well has made, put into the cache."""
        missing = [path for role, path in step.outputs if role != "splat" and not Path(path).is_file()]
        if missing:
            return Result(Verdict.ERROR, f"exit code 0, but {Path(missing[0]).name} was not written")
        if is_edited(step):
            return _make_edited_error(step)
        statistics = self._read_statistics(step, outcome)
        notes = [*step.notes]
        if previous is not None:
            role, path = step.outputs[0]
            if role not in previous.files:
                notes.append("made again: it had failed before")
            elif hash_file(Path(path)) == hash_file(previous.files[role]):
                notes.append("made again: the same bytes as in the cache")
            else:
                why = "this compiler is not deterministic here, or the entry is stale"
                notes.append(f"made again: other bytes than in the cache; {why}")
            if Kept.from_dict(previous.metadata).failure is not None:
                # What stands in the store is never written over.
                self.workbench.modules.remove(key)
        files = {role: Path(path) for role, path in step.outputs if Path(path).is_file()}
        note = self._publish(step, files, ingredients, statistics=statistics)
        notes += [note] if note else []
        return Result(Verdict.PASSED, statistics=statistics, notes=tuple(notes), tail=tuple(outcome.tail))

    def _publish(self, step: Step, files: Mapping[str, Path], ingredients: Mapping[str, str], **metadata: Any) -> str:
        """Puts files into the cache, with what the tool said; a note, empty where all is well."""
        processes = self.session.processes
        diagnostics = "\n".join(processes.error_lines(step))[-_MOST_DIAGNOSTICS:]
        published = self.workbench.modules.publish(
            files,
            name=step.id,
            ingredients=ingredients,
            metadata={**metadata, "diagnostics": diagnostics, "command": processes.typed(step)},
            created=datetime.now(UTC),
        )
        return published.note

    def _judge(
        self, step: Step, key: str, ingredients: Mapping[str, str], outcome: Outcome, previous: ModuleEntry | None
    ) -> Result:
        """What a tool that ended badly says, kept where it says it of the program."""
        lines = self.session.processes.error_lines(step)
        prefix = step.stage.row.prefix
        said = next((line for line in lines if prefix and line.startswith(prefix)), "")
        only = [line.strip() for line in lines if line.strip()]
        reason = shorten(said.removeprefix(prefix)) or find_first_error(lines)
        reason = reason or (shorten(only[0]) if len(only) == 1 else "")
        result = judge_process(step, outcome, lines, tool=step.stage.row.maker, reason=reason)
        if result.verdict is not Verdict.FAILED:
            return result
        if said and outcome.exit_code == _UNUSABLE_INPUT:
            # Of the data, not of IREE.
            return replace(result, verdict=Verdict.ERROR, reason=reason, failure=None)
        if not step.stage.row.makes_modules:
            # Not the product under test: our own program, or what the spec asks of it.
            return replace(result, verdict=Verdict.ERROR)
        if is_edited(step):
            return _make_edited_error(step)
        result = replace(result, unsupported=self._find_unsupported(step, lines))
        # Of a place in the program, and not of the linker or of this machine.
        placed = any(map(_PLACED_ERROR.search, lines)) and not any(map(_PASSING.search, lines))
        if not placed:
            return result
        if previous is not None and Kept.from_dict(previous.metadata).failure is None:
            # Made again, with another end: the compiler is not deterministic here, and this end is the news.
            note = "it compiled before: that module was taken out of the cache"
            result = replace(result, notes=(*result.notes, note))
            self.workbench.modules.remove(key)
        failure = {"reason": result.reason, "exit_code": result.exit_code, "tail": list(result.tail)}
        self._publish(step, {}, ingredients, failure=failure)
        return result

    def _find_unsupported(self, step: Step, lines: Sequence[str]) -> UnsupportedOperator | None:
        """What of a model does not compile, where the compiler's words say it."""
        item = next((item for item in step.inputs if item.role == "program"), None)
        if "module" not in dict(step.outputs) or item is None:
            return None
        program = Path(item.path)
        return find_unsupported(lines, program, self.workbench.store.path(item.url) if item.url else program)

    def _read_statistics(self, step: Step, outcome: Outcome) -> dict[str, Any]:
        figures: dict[str, float | str | None]
        figures = {"tool_seconds": outcome.seconds, "peak_rss_bytes": outcome.peak_rss_bytes}
        role, made = step.outputs[0][0], Path(step.outputs[0][1])
        match role:
            case "parameters":
                figures |= {"archive_bytes": made.stat().st_size}
            case "counts":
                # Which CPU and which counter say what the count is worth.
                ingredients = dict(step.cache.ingredients)
                counts = read_counts(made)
                figures |= {"instructions": counts.instructions, "calls": counts.calls}
                figures |= {"instructions_outside": counts.outside} if counts.dispatches else {}
                figures |= {name: ingredients[name] for name in ("counter", "cpu")}
            case "module":
                figures |= {"binary_size_bytes": made.stat().st_size}
                if statistics := dict(step.outputs).get("statistics"):
                    figures |= {"dispatch_count": read_dispatch_count(Path(statistics))}
        return figures


def note_made_again(folder: Path | None, key: str) -> None:
    """Notes in a folder, where there is one, that something was made again in this run, so that it is not once more."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / key).touch()


def read_statistics(path: Path) -> dict[str, Any]:
    """The compiler's statistics.

    Raises:
        GauntletError: the file is missing or no JSON object.
    """
    again = "Run again with --force-recompile."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GauntletError(f"the compile statistics {path} cannot be read: {error}", again) from error
    if not isinstance(content, dict):
        raise GauntletError(f"the compile statistics {path} are no JSON object", again)
    return content


def read_dispatch_count(path: Path) -> int | None:
    """`stream-aggregate / execution / dispatch-count` of the compiler's statistics; None where it gives none."""
    count = read_statistics(path).get("stream-aggregate", {}).get("execution", {}).get("dispatch-count")
    return int(count) if count is not None else None


def is_edited(step: Step) -> bool:
    """Whether a program that is compiled where it lies is not any more what it was when the run was planned."""
    ingredients = dict(step.cache.ingredients)
    if "name" not in ingredients:
        return False
    try:
        return hash_file(Path(step.input("program").path)) != ingredients["program"]
    except OSError:
        return True


def _make_edited_error(step: Step) -> Result:
    what = f"{step.input('program').path} was changed or removed while this ran: what became of it is kept nowhere"
    return Result(Verdict.ERROR, what, notes=step.notes, tail=("Run again.",))


def find_unsupported(lines: Sequence[str], program: Path, source: Path) -> UnsupportedOperator | None:
    """The operator that a compile failed for; None where it failed otherwise, or for an operation of no importer's.

    MLIR prints the operation that it cannot legalize. Programs of importers have the model's operators as operations:
    those of ONNX as `torch.operator` with the name in an attribute, those of torch, StableHLO and others under the
    names of their dialects. The domain of an ONNX operator is in the ONNX file alone.

    Args:
        lines: what the compiler wrote.
        program: what was compiled.
        source: the file that it was imported from; the program itself where it was not.
    """
    failed = next(filter(None, map(_FAILED.search, lines)), None)
    if failed is None:
        return None
    place, name = failed.groups()
    if name == _NAMED:
        named = next(filter(None, map(_NAME.search, lines)), None)
        if named is None:
            return None
        name = named[1]
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            # What an ONNX operator has become fails at the place of the operator.
            number = int(place or 0)
            line = itertools.islice(iter(text.readline, b""), number - 1, None) if number else iter(())
            at_place = _ONNX_LINE.search(next(line, b""))
            if at_place or name.startswith(_ONNX):
                return _describe_onnx(at_place[1].decode() if at_place else name, text, source)
            domain, _, operator = name.partition(".")
            return UnsupportedOperator(operator, domain, None, _count(name, text)) if domain in _DIALECTS else None
    except (OSError, ValueError):  # gone, or empty: there is nothing to say of it
        return None


def _describe_onnx(name: str, text: mmap.mmap, source: Path) -> UnsupportedOperator:
    operator = name.removeprefix(_ONNX)
    counts = {domain: count for (domain, other), count in count_operators(source).items() if other == operator}
    default, others = _VERSION.search(text), _VERSIONS.search(text)
    # Without an ONNX file, the one domain that a program has is that of its operators.
    domains = list(counts) or ([""] if default and not others else [])
    if len(domains) != 1:
        return UnsupportedOperator(operator, "", None, sum(counts.values()) or _count(name, text))
    (domain,) = domains
    version = default
    if domain not in ("", _DEFAULT_DOMAIN):
        version = re.search(rb"%b\"? = (\d+)" % re.escape(domain.encode()), others[1]) if others else None
    count = counts.get(domain) or _count(name, text)
    return UnsupportedOperator(operator, domain or _DEFAULT_DOMAIN, int(version[1]) if version else None, count)


def _count(name: str, text: mmap.mmap) -> int | None:
    """How often an operation stands in a program; None where that is no text."""
    if text[: len(_BYTECODE)] == _BYTECODE:
        return None
    return sum(1 for _ in re.finditer(rb"(?<![\w.])%b(?![\w.])" % re.escape(name.encode()), text))
