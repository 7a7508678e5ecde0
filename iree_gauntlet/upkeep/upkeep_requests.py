"""Requests to keep caches, goldens and expected failures in order."""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.requests import SEVERAL, CacheRequest, FormatRequest, option


@dataclass(frozen=True, slots=True)
class VerifyRequest(CacheRequest):
    """The options of `cache.verify`."""

    check_only: bool = option(False, "Report damage, and change nothing.")
    offline: bool = option(
        False, "Never use the network: damaged files stay, unless they can be built on this machine."
    )


@dataclass(frozen=True, slots=True)
class BuildRequest(CacheRequest):
    """The options of `toolchain.build`."""

    commit: str = option("", "Build this commit, tag or branch, in place of the work tree.")
    runtime_only: bool = option(False, "Build only the runtime, for use with another compiler.")
    bindings: bool = option(False, "Also build the Python bindings, which import ONNX programs.")
    # This field must be the last field, because it hides the function `option`.
    option: tuple[str, ...] = option((), "An option of CMake, such as -DIREE_TARGET_BACKEND_CUDA=ON (repeatable).")


@dataclass(frozen=True, slots=True)
class CollectRequest(CacheRequest):
    """The options of `cache.gc`: its limits."""

    older_than: str = option("", "Remove what was not used for this time: 12h, 30d, 8w.")
    max_size: str = option("", "Remove the least recently used until the rest fits: 500MB, 50GB, 1.5TiB.")
    delete: bool = option(False, "Delete; without this, only show what would be deleted.")
    board: str = option("", "Free space on this board, in place of this machine: 'ssh HOST', as its `runner`.")


@dataclass(frozen=True, slots=True)
class LockRequest(CacheRequest):
    """The options of `cache.lock`."""

    refresh: tuple[str, ...] = option(
        (), "Fetch this URL again although it is pinned, and pin its current content (repeatable)."
    )
    prune: bool = option(False, "Drop entries that no spec of the project names.")
    dry_run: bool = option(False, "Show what would change, and change nothing.")


@dataclass(frozen=True, slots=True)
class GoldenShowRequest(FormatRequest):
    """The runs whose figures `golden.show` shows beside goldens."""

    last: int = option(20, "Number of newest runs to search.", unit="a number of runs")


@dataclass(frozen=True, slots=True)
class GoldenUpdateRequest:
    """The runs whose figures `golden.update` proposes as goldens, and the use of the diff."""

    run: tuple[str, ...] = option(
        (), "Run whose figures are used: its folder or name (repeatable; default: the newest)."
    )
    last: int = option(1, "Number of newest runs to use.", unit="a number of runs")
    match: str = option("", "Only chains that match this glob, such as 'dtln/*@cpu'.")
    size_headroom: float = option(0.0, "Headroom for sizes, for the code of other CPUs: 1.25 for a quarter.")
    to_release: bool = option(False, "Move counts and sizes to the release that was measured.")
    from_history: bool = option(
        False, "Golden times from the runs since the last change of each series in the history, instead of from runs."
    )
    rule: str = option(
        "",
        "How a golden time follows from the history: mean*1.1, p99 or '1 in 1000', for the limit (default: the golden "
        "is the mean).",
    )
    summary: str = option("", "Write a table for a pull request to this Markdown file.")
    output: str = option("", "Write the diff to this file, to apply it later.")
    write: bool = option(False, "Change the spec files.")


@dataclass(frozen=True, slots=True)
class GoldenSetRequest(GoldenUpdateRequest):
    """The runs whose figures become the first goldens, and what else is written."""

    time_tolerance: float = option(0.0, "Tolerance multiplier of new golden times: 1.1 allows a tenth more.")
    update: bool = option(False, "Also update the goldens that are there, as golden.update does.")


@dataclass(frozen=True, slots=True)
class XfailUpdateRequest:
    """The run whose expected failures `xfail.update` proposes, and the use of the diff."""

    run: str = option("", "Run to use: its folder or name (default: the newest).")
    suite: str = option("", "Suite to change (default: the run's).")
    rerun: int = option(
        3,
        "How many times operator cases with unexpected results are run again; one whose results differ is reported "
        "and left as it is. 0 trusts the run.",
    )
    output: str = option("", "Write the diff to this file, to apply it later.")
    write: bool = option(False, "Change the suite or the configs.")


@dataclass(frozen=True, slots=True)
class ReferenceRequest:
    """The places of references of programs in MLIR."""

    reference_python: str = option(
        "", "Python that has JAX, PyTorch and iree-turbine, or LiteRT, for programs of these (default: this one)."
    )
    reference_iree: str = option(
        "",
        "Another IREE, such as 3.9.0, which computes programs that no reference can (default: other backends of the "
        "same one).",
    )


@dataclass(frozen=True, slots=True)
class InitRequest(ReferenceRequest):
    """A new project, or an existing project that gets another model."""

    folder: str = option("", "Folder, if no word follows the task (default: the current one).", takes="folder")
    program: str = option(
        "",
        "A file of ONNX, TFLite or MLIR (also StableHLO), an export of JAX or PyTorch (.pt2), or a function of these, "
        "module.py:function: its spec is written instead of an example's.",
    )
    function: str = option("", "Function of a program in MLIR, if several are public.")
    name: str = option("", "Name of the program's model (default: that of its file).")
    shape: tuple[str, ...] = option(
        (),
        "Sizes of an input that the file leaves open, x=1x3x96x320 (repeatable; default: the first that it runs on).",
    )
    data: str = option(
        "", "Folder with inputs, and expected outputs, of the program: ONNX's test_data_set_*, .npy or .npz files."
    )
    edges: bool = option(
        False,
        "Add specs whose inputs touch edges: equal, least and largest values, zeros of both signs (edges); the first "
        "and the last index (indices); indices out of range that operators define (outside); open sizes of 1 and 3.",
    )
    no_record: bool = option(False, "Record no expected outputs, and try no inputs.")
    goldens: bool = option(False, "Run the program's model, and write the figures of this run as its goldens.")
    again: bool = option(
        False, "Overwrite what an earlier `init` wrote: the model's specs and outputs, or a project's files."
    )


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A JSON Schema of hand-written files."""

    name: str = option("", "Name, if no word follows the task (default: list them).", takes="name")
    output_dir: str = option("", "Write all of them into this folder.")


@dataclass(frozen=True, slots=True)
class HistoryRequest(CacheRequest):
    """The choice of a history."""

    store: str = option(
        "",
        "The history: a folder, git:REPOSITORY#BRANCH, az://…, s3://… or gs://… (default: [history] of gauntlet.toml, "
        "else history/ of the project).",
    )


@dataclass(frozen=True, slots=True)
class AddRequest(HistoryRequest):
    """The runs that are added."""

    runs: tuple[str, ...] = option((), "Folders of runs, or their names in runs/ (default: the latest).", takes=SEVERAL)
    new_sku: bool = option(False, "Also add a run with a SKU that neither its goldens nor the history has.")


@dataclass(frozen=True, slots=True)
class ImportRequest(HistoryRequest):
    """The files of other tools that are added, and facts that these files lack."""

    files: tuple[str, ...] = option(
        (), "Files: job_summary.json, Google Benchmark's JSON, data.js, asv's results, JUnit.", takes=SEVERAL
    )
    date: str = option("", "Time of the run, if the file does not have it: 2026-04-24T10:00:00Z.")
    commit: str = option("", "Commit of IREE, if the file does not have it.")
    machine: str = option("", "CPU of the machine, if the file does not have it.")
    sku: str = option("", "SKU of the device, such as mi325.")


@dataclass(frozen=True, slots=True)
class ArtifactsRequest(HistoryRequest):
    """The artifacts of CI that are added."""

    source: str = option(
        "",
        "Where CI has kept them: github:OWNER/REPO, or a folder or bucket (az://…, s3://…, gs://…) of artifacts.",
        takes="source",
    )
    workflow: str = option("", "File of the workflow on GitHub, such as benchmarks.yml.")
    artifact: str = option("*", "Only artifacts whose name matches this glob.")
    branch: str = option("", "Only runs of CI on this branch.")
    since: str = option("", "Only runs of CI since this day: 2026-11-01.")
    sku: str = option("", "SKU of the device, for files that do not have it.")
    max_wait: float = option(60.0, "Longest wait in minutes that GitHub's rate limit may ask for.", unit="minutes")
    max_download: str = option("256MB", "Maximum size of an archive.")


@dataclass(frozen=True, slots=True)
class SeriesRequest(HistoryRequest):
    """The choice of series of a history."""

    series: str = option("", "Only series that match this glob, such as 'dtln/*' or '* time_ms'.", takes="series")
    sku: str = option("", "Only series of this device.")
    marks: str = option("", "File of marks (default: history_marks.toml of the project).")


@dataclass(frozen=True, slots=True)
class CheckRequest(SeriesRequest):
    """The choice of changes of a history."""

    since: str = option("", "Only changes that came with runs since this day: 2026-11-01.")


@dataclass(frozen=True, slots=True)
class ConfirmRequest(SeriesRequest):
    """The choice of a step to confirm, and the time limit."""

    budget: float = option(30.0, "Minutes for the rounds.", unit="minutes")


@dataclass(frozen=True, slots=True)
class PageRequest(SeriesRequest):
    """The series of a page, and its file."""

    output: str = option("", "File to write (default: history.html).")


@dataclass(frozen=True, slots=True)
class ExportRequest(HistoryRequest):
    """The destination of all figures of a history."""

    output: str = option("", "CSV file to write (default: standard output).")
    series: str = option("", "Only series that match this glob, such as 'dtln/*' or '* time_ms'.")


@dataclass(frozen=True, slots=True)
class PruneRequest(HistoryRequest):
    """The runs that are removed from a history."""

    before: str = option("", "Runs before this day: 2026-01-31.")
    delete: bool = option(False, "Delete them; without this, only show what would be deleted.")
