"""Import, parameters, compile and reference steps: results come from the cache, or are made by the tools."""

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
from iree_gauntlet.engine.judging import find_first_error, find_tuning_spec_error, judge_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError, Lookup, ModuleEntry
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.modules.shared_modules import SharedLookup
from iree_gauntlet.engine.plan import FILE_ROLE_PREFIX
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.measuring.code.module_code import load_module_code
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


# Compiler output of this length is cached with a module, so that a cached compile reports the same warnings.
_MAX_DIAGNOSTICS_CHARS = 64 * 1024
# The importer exits with this code if the input file cannot be used.
_UNUSABLE_INPUT_EXIT_CODE = 2
# The roles of files that a successful compile may lack.
_OPTIONAL_ROLES = ("splat", "code")
_LOCATED_ERROR = re.compile(r"(:\d+:\d+|<unknown>:0): error: ")
# These messages mean that the linker failed, or that the machine was short of something for a moment.
_TRANSIENT = re.compile(r"link|Resource temporarily unavailable|Cannot allocate memory|error opening|Permission denied")
_LEGALIZE_ERROR = re.compile(r"(?::(\d+):\d+: error: )?failed to legalize operation '([\w$.-]+)'")
# This operation has the name of its operator in an attribute after its operands.
_TORCH_OPERATOR = "torch.operator"
_OPERATOR_NAME = re.compile(r"\"torch\.operator\"\([^)]*\) <\{name = \"([\w.:-]+)\"")
_ONNX_PREFIX = "onnx."
_ONNX_OPERATOR = re.compile(rb"torch\.operator \"(onnx\.\w+)\"")
# ONNX's default domain also has this name.
_DEFAULT_DOMAIN = "ai.onnx"
_DIALECTS = frozenset({"chlo", "mhlo", "stablehlo", "tfl", "tm_tensor", "torch", "torchvision", "tosa"})
_OPSET_VERSION = re.compile(rb"torch\.onnx_meta\.opset_version = (\d+)")
_OPSET_VERSIONS = re.compile(rb"torch\.onnx_meta\.opset_versions = \{([^}]*)\}")
_BYTECODE_MAGIC = b"ML\xefR"


@dataclass(frozen=True, slots=True)
class CachedFailure(Recorded):
    """A cached compile failure."""

    reason: str
    exit_code: int
    tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntryMetadata(Recorded):
    """The metadata of a cache entry, with its metrics or its failure; `diagnostics` is the end of the tool's output."""

    statistics: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    diagnostics: str = ""
    failure: CachedFailure | None = None


@dataclass(frozen=True, slots=True)
class ModuleMaker:
    """A maker of the outputs of import, parameters, compile, reference and count steps.

    Attributes:
        rebuilt_marks_dir: with --force-recompile, the folder in which all processes of a run mark the outputs that were
            rebuilt, so that each is rebuilt once; otherwise None, and the cache is used.
        ignores_cache: True to rebuild every module, as often as it is requested.
    """

    session: Session[Any]
    workbench: Workbench
    rebuilt_marks_dir: Path | None
    ignores_cache: bool = False

    def make(self, step: Step) -> Result:
        """Put the outputs of a step at their paths, from a cache or by running the step's tool."""
        ingredients = self._complete_ingredients(step)
        key = make_key(ingredients)
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        dumps = step.command is not None and makes_dumps(step.command.argv)
        cache, cancel_event = self.workbench.modules, self.session.cancelled
        if not dumps and not self._is_forced(step, key):
            result = self._use_entry(step, cache.lookup(key).entry, "in the cache")
            if result is not None:
                return result
        # Do not share synthetic weights, which are large and faster to make than to fetch. No cache has dumps.
        shared_store = None if dumps or not step.stage.row.makes_modules else self.workbench.shared_modules
        shared_result, note = SharedLookup(), ""
        with cache.hold_making_lock(key, cancel_event) as delay:
            # Look again, because another process may have made the module during the wait for the lock.
            force, lookup = self._is_forced(step, key), cache.lookup(key)
            result = None if dumps or force else self._use_entry(step, lookup.entry, "in the cache")
            if result is None and shared_store is not None and not force:
                roles = [role for role, _ in step.outputs if role not in _OPTIONAL_ROLES]
                shared_result = shared_store.find(key, cache, step.id, roles, cancel_event)
                result = self._use_entry(step, shared_result.entry, f"from the shared cache {shared_store.url}")
            is_new = result is None
            if result is None:
                reason = "repeated" if self.ignores_cache else "--force-recompile"
                reason = reason if force else self._explain_miss(step, lookup, ingredients, dumps=dumps)
                if shared_result.has_response and not shared_result.note:
                    reason += "; not in the shared cache"
                for _, path in step.outputs:
                    # Remove outputs of an earlier attempt: they may share bytes with the cache, and the tool must not
                    # overwrite those.
                    Path(path).unlink(missing_ok=True)
                outcome = self.session.processes.run(step)
                make_result = self._judge_failure if outcome.exit_code != 0 else self._publish_outputs
                result = make_result(step, key, ingredients, outcome, lookup.entry)
                result = replace(result, cache=CacheUse(False, key, reason), log=self.session.processes.log(step))
                result = self.session.processes.complete(step, outcome, result)
            if force and result.verdict is Verdict.PASSED:
                mark_rebuilt(self.rebuilt_marks_dir, key)
        if is_new and shared_store is not None and result.verdict is Verdict.PASSED:
            # The lock is released before the upload, so no local process waits for the upload.
            note = shared_store.offer(key, cache, cancel_event)
        notes = (*result.notes, *filter(None, (shared_result.note, note)))
        return replace(result, notes=notes, waited_seconds=delay)

    def _complete_ingredients(self, step: Step) -> dict[str, str]:
        """Return a step's ingredients, with the hashes of files that were fetched or made after planning."""
        ingredients = dict(step.cache.ingredients)
        for file in step.inputs:
            if (file.role == "program" or file.role.startswith(FILE_ROLE_PREFIX)) and not ingredients[file.role]:
                sha256 = self.workbench.store.fetch(file.url).sha256 if file.url else hash_file(Path(file.path))
                ingredients[file.role] = sha256
        return ingredients

    def _is_forced(self, step: Step, key: str) -> bool:
        """Return True if the step must run although its result is cached; only modules are forced, once in a run."""
        if self.rebuilt_marks_dir is None or not step.stage.row.makes_modules:
            return self.ignores_cache and step.stage.row.makes_modules
        return not (self.rebuilt_marks_dir / key).exists()

    def _use_entry(self, step: Step, entry: ModuleEntry | None, reason: str) -> Result | None:
        """Put the files of a cache entry at the step's paths, and return the result; None if the entry is unusable."""
        if entry is None:
            return None
        metadata = EntryMetadata.from_dict(entry.metadata)
        command, failure = self.session.processes.format_command(step), metadata.failure
        if failure is not None:
            # Only the end of the tool's output is cached, so the expected text may be in the part that is not.
            if step.expect_match not in f"{failure.reason}\n{metadata.diagnostics}":
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
                unsupported=self._find_unsupported(step, metadata.diagnostics.splitlines()),
                said=metadata.diagnostics,
            )
        try:
            for role, path in step.outputs:
                if role in entry.files:
                    self.workbench.modules.materialise(entry, role, Path(path))
                else:
                    # It may be left from an earlier module of this step.
                    Path(path).unlink(missing_ok=True)
        except EntryGoneError:
            # The cache was cleared after the lookup.
            return None
        cache, notes = CacheUse(True, entry.key, reason), (*step.notes, *metadata.notes)
        statistics = metadata.statistics
        if compiler_file := dict(step.outputs).get("statistics"):
            # The entry may be older than some of the figures.
            statistics = statistics | read_compiler_figures(Path(compiler_file)) | _read_code(step)
        return Result(Verdict.PASSED, command=command, cache=cache, statistics=statistics, notes=notes)

    def _explain_miss(self, step: Step, lookup: Lookup, ingredients: Mapping[str, str], *, dumps: bool) -> str:
        if dumps:
            return step.cache.reason
        if not lookup.note:
            return self.workbench.modules.explain_miss(step.id, ingredients)
        self.session.progress.message(f"{step.id}: its cache entry is {lookup.note}: rebuilding it")
        return lookup.note

    def _publish_outputs(
        self, step: Step, key: str, ingredients: Mapping[str, str], outcome: Outcome, previous: ModuleEntry | None
    ) -> Result:
        """Put the outputs of a successful tool run into the cache; return the result of the run."""
        missing = [path for role, path in step.outputs if role not in _OPTIONAL_ROLES and not Path(path).is_file()]
        if missing:
            return Result(Verdict.ERROR, f"exit code 0, but {Path(missing[0]).name} was not written")
        if is_program_changed(step):
            return _make_change_error(step)
        code = _read_code(step)
        statistics = self._read_statistics(step, outcome)
        notes = [*step.notes]
        if previous is not None:
            role, path = step.outputs[0]
            if role not in previous.files:
                notes.append("rebuilt: it had failed before")
            elif hash_file(Path(path)) == hash_file(previous.files[role]):
                notes.append("rebuilt: the same bytes as in the cache")
            else:
                explanation = "this compiler is not deterministic here, or the entry is stale"
                notes.append(f"rebuilt: different bytes from those in the cache; {explanation}")
            if EntryMetadata.from_dict(previous.metadata).failure is not None:
                # Publishing never overwrites an entry, so remove the old one.
                self.workbench.modules.remove(key)
        files = {role: Path(path) for role, path in step.outputs if Path(path).is_file()}
        note = self._publish(step, files, ingredients, statistics=statistics)
        notes += [note] if note else []
        return Result(Verdict.PASSED, statistics=statistics | code, notes=tuple(notes), tail=tuple(outcome.tail))

    def _publish(self, step: Step, files: Mapping[str, Path], ingredients: Mapping[str, str], **metadata: Any) -> str:
        """Put files and the tool's output into the cache; return a note, which is empty on success."""
        processes = self.session.processes
        diagnostics = "\n".join(processes.error_lines(step))[-_MAX_DIAGNOSTICS_CHARS:]
        publication = self.workbench.modules.publish(
            files,
            name=step.id,
            ingredients=ingredients,
            metadata={**metadata, "diagnostics": diagnostics, "command": processes.format_command(step)},
            created=datetime.now(UTC),
        )
        return publication.note

    def _judge_failure(
        self, step: Step, key: str, ingredients: Mapping[str, str], outcome: Outcome, previous: ModuleEntry | None
    ) -> Result:
        """Turn a failed tool run into a result; cache it if the error has a source location."""
        lines = self.session.processes.error_lines(step)
        prefix = step.stage.row.prefix
        error_line = next((line for line in lines if prefix and line.startswith(prefix)), "")
        last_line = next((line for line in reversed(lines) if line.strip()), "")
        first_error = find_tuning_spec_error(lines) or find_first_error(lines)
        reason = shorten(error_line.removeprefix(prefix)) or first_error or shorten(last_line)
        result = judge_process(step, outcome, lines, tool=step.stage.row.maker, reason=reason)
        if result.verdict is not Verdict.FAILED:
            return result
        if error_line and outcome.exit_code == _UNUSABLE_INPUT_EXIT_CODE:
            # The input file is at fault, not IREE.
            return replace(result, verdict=Verdict.ERROR, reason=reason, failure=None, is_mistake=True)
        if not step.stage.row.makes_modules:
            # The failed program is the toolkit's, or one that the spec names, but not the product under test.
            return replace(result, verdict=Verdict.ERROR)
        if is_program_changed(step):
            return _make_change_error(step)
        result = replace(result, unsupported=self._find_unsupported(step, lines))
        # Cache only errors with a location in the program; errors of the linker or the machine may be temporary.
        has_location = any(map(_LOCATED_ERROR.search, lines)) and not any(map(_TRANSIENT.search, lines))
        if not has_location:
            return result
        if previous is not None and EntryMetadata.from_dict(previous.metadata).failure is None:
            # The rebuild ended differently, so the compiler is not deterministic here; keep the new result.
            note = "it compiled before: that module was removed from the cache"
            result = replace(result, notes=(*result.notes, note))
            self.workbench.modules.remove(key)
        failure = {"reason": result.reason, "exit_code": result.exit_code, "tail": list(result.tail)}
        self._publish(step, {}, ingredients, failure=failure)
        return result

    def _find_unsupported(self, step: Step, lines: Sequence[str]) -> UnsupportedOperator | None:
        """Return the operator that does not compile, if the compiler's messages name it."""
        source = next((source for source in step.inputs if source.role == "program"), None)
        if "module" not in dict(step.outputs) or source is None:
            return None
        program = Path(source.path)
        return find_unsupported(lines, program, self.workbench.store.path(source.url) if source.url else program)

    def _read_statistics(self, step: Step, outcome: Outcome) -> dict[str, Any]:
        metrics: dict[str, float | str | None]
        metrics = {"tool_seconds": outcome.seconds, "peak_rss_bytes": outcome.peak_rss_bytes}
        role, output = step.outputs[0][0], Path(step.outputs[0][1])
        match role:
            case "parameters":
                metrics |= {"archive_bytes": output.stat().st_size}
            case "counts":
                # Record the CPU and the counter, because the value of a count depends on them.
                ingredients = dict(step.cache.ingredients)
                counts = read_counts(output)
                metrics |= {"instructions": counts.instructions, "calls": counts.calls}
                metrics |= {"instructions_outside": counts.outside} if counts.dispatches else {}
                metrics |= {name: ingredients[name] for name in ("counter", "cpu")}
            case "module":
                metrics |= {"binary_size_bytes": output.stat().st_size}
                if path := dict(step.outputs).get("statistics"):
                    metrics |= read_compiler_figures(Path(path))
        return metrics


def _read_code(step: Step) -> dict[str, object]:
    """Return the statistics of the code that a step has compiled; empty for a step that keeps none."""
    if all(role != "code" for role, _ in step.outputs):
        return {}
    return load_module_code(Path(step.find_output("module")), Path(step.find_output("code"))).statistics


def mark_rebuilt(folder: Path | None, key: str) -> None:
    """Mark an output in `folder`, if any, as rebuilt, so that no process of this run rebuilds the output again."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / key).touch()


def read_statistics(path: Path) -> dict[str, Any]:
    """Read the compiler's statistics.

    Raises:
        GauntletError: the file is missing, or is not a JSON object.
    """
    hint = "Run again with --force-recompile."
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GauntletError(f"the compile statistics {path} cannot be read: {error}", hint) from error
    if not isinstance(content, dict):
        raise GauntletError(f"the compile statistics {path} are not a JSON object", hint)
    return content


def read_compiler_figures(path: Path) -> dict[str, float | str | None]:
    """Return the figures in the compiler's statistics by their names in a result; a missing figure is None."""
    values, rows = list_statistics(read_statistics(path)), (figure.row for figure in Figure)
    return {row.statistic: values.get(row.compiler_path) for row in rows if row.compiler_path}


def list_statistics(statistics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of the compiler's statistics by their paths, such as `execution/dispatch-count`."""
    values: dict[str, float] = {}
    for key, value in statistics.items():
        path = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, dict):
            values |= list_statistics(value, "" if path == "stream-aggregate" else path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values[path] = value
    return values


def is_program_changed(step: Step) -> bool:
    """Return True if a program that is read from the spec's folder, not the store, has changed since planning."""
    ingredients = dict(step.cache.ingredients)
    if "name" not in ingredients:  # only such programs have the ingredient
        return False
    try:
        return hash_file(Path(step.find_input("program").path)) != ingredients["program"]
    except OSError:
        return True


def _make_change_error(step: Step) -> Result:
    message = f"{step.find_input('program').path} was changed or removed while this ran: its result is not kept"
    return Result(Verdict.ERROR, message, notes=step.notes, tail=("Run again.",))


def find_unsupported(lines: Sequence[str], program: Path, source: Path) -> UnsupportedOperator | None:
    """Return the operator that a compile failed on; None if another cause or another kind of operation failed.

    MLIR prints the operation that it cannot legalize. In imported programs these operations are the model's operators.
    ONNX operators are `torch.operator` with the name in an attribute; operators of torch, StableHLO and others have the
    names of their dialects. Only the ONNX file has the domain of an ONNX operator.

    Args:
        lines: the compiler's output.
        program: the compiled program.
        source: the file that the program was imported from; the program itself if it was not imported.
    """
    error_match = next(filter(None, map(_LEGALIZE_ERROR.search, lines)), None)
    if error_match is None:
        return None
    line_number, name = error_match.groups()
    if name == _TORCH_OPERATOR:
        name_match = next(filter(None, map(_OPERATOR_NAME.search, lines)), None)
        if name_match is None:
            return None
        name = name_match[1]
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            # The operations made from an ONNX operator keep the operator's location.
            number = int(line_number or 0)
            line = itertools.islice(iter(text.readline, b""), number - 1, None) if number else iter(())
            onnx_match = _ONNX_OPERATOR.search(next(line, b""))
            if onnx_match or name.startswith(_ONNX_PREFIX):
                return _describe_onnx(onnx_match[1].decode() if onnx_match else name, text, source)
            domain, _, operator = name.partition(".")
            return UnsupportedOperator(operator, domain, None, _count(name, text)) if domain in _DIALECTS else None
    except (OSError, ValueError):  # the file is gone, or empty: there is nothing to report
        return None


def _describe_onnx(name: str, text: mmap.mmap, source: Path) -> UnsupportedOperator:
    operator = name.removeprefix(_ONNX_PREFIX)
    counts = {domain: count for (domain, op_type), count in count_operators(source).items() if op_type == operator}
    default, versions = _OPSET_VERSION.search(text), _OPSET_VERSIONS.search(text)
    # Without an ONNX file, take the default domain if the program names no other.
    domains = list(counts) or ([""] if default and not versions else [])
    if len(domains) != 1:
        return UnsupportedOperator(operator, "", None, sum(counts.values()) or _count(name, text))
    (domain,) = domains
    version = default
    if domain not in ("", _DEFAULT_DOMAIN):
        version = re.search(rb"%b\"? = (\d+)" % re.escape(domain.encode()), versions[1]) if versions else None
    count = counts.get(domain) or _count(name, text)
    return UnsupportedOperator(operator, domain or _DEFAULT_DOMAIN, int(version[1]) if version else None, count)


def _count(name: str, text: mmap.mmap) -> int | None:
    """Return the number of occurrences of an operation in a program; None if the program is bytecode, not text."""
    if text[: len(_BYTECODE_MAGIC)] == _BYTECODE_MAGIC:
        return None
    return sum(1 for _ in re.finditer(rb"(?<![\w.])%b(?![\w.])" % re.escape(name.encode()), text))
