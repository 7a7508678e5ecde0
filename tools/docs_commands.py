"""Runs the command lines of README and docs as printed, in fresh environments with only the extras that a page names.

    python tools/docs_commands.py [--samples] [PAGE …]

Each page gets its own clone of the checkout and its own empty home. The pages of docs/start form one example, so they
share a clone and a home. A page's `pip install` lines set up its environment; a page without such lines gets
`-e '.[iree]'`. `iree-gauntlet` is installed from this checkout's wheel. `NOT_RUN` lists the commands that are not run,
with the reasons; `--samples` runs commands that download models too, if the page shows their output; they take IREEs
from `$IREE_GAUNTLET_TOOLCHAINS`, if it is set. The samples of output on a page are compared with what the commands
print, except for their figures. Exits with 1 if a command ends with another exit code than its sample says, or if it
prints no line like one of its sample.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from release import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "CHECKOUT",
    "NOT_RUN",
    "PAGES",
    "Command",
    "find_differences",
    "find_exit_code",
    "find_skip_reason",
    "parse_commands",
]

CHECKOUT = Path(__file__).resolve().parent.parent
# These pages form one example, in this order.
_START_PAGES = ("docs/start/first-run.md", "docs/start/own-model.md", "docs/start/goldens-and-ci.md")
_DOC_PAGES = sorted(path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *_START_PAGES, *(page for page in _DOC_PAGES if page not in _START_PAGES))
_NEEDS_MODELS = "downloads models"
_NEEDS_EARLIER_RUN = "needs an earlier run"
_OUTSIDE_FILES = "names files outside of the checkout"
_NEEDS_TORCH = "needs torch, gigabytes of it"
# Each row has a page pattern, a command pattern and a reason; the first match decides.
NOT_RUN = (
    ("*", r"\bnox\b", "nox sessions are run by themselves"),
    ("docs/reference/options.md", "", "is made of the commands' own examples"),
    ("*", r"\.\./|/big/disk|\bonnx_ops\b|\bruns/", _OUTSIDE_FILES),
    ("docs/how-to/cluster.md", r"^(ssh|dask)|gauntlet (worker t|cluster\.)", "runs until it is ended, or needs that"),
    ("docs/how-to/cluster-*.md", "", "needs other machines, or Slurm"),
    ("docs/how-to/boards.md", "", "needs a board"),
    ("docs/how-to/arm64.md", "", "needs an emulator"),
    ("docs/how-to/source.md", "", "clones and builds IREE, which takes hours"),
    ("docs/how-to/bench*.md", "", _NEEDS_TORCH),
    ("docs/how-to/micro.md", "", _NEEDS_TORCH),
    ("docs/how-to/recipes.md", "", _NEEDS_TORCH),
    (
        "*",
        r"gauntlet (run|matrix|compat|compare|qualify) (--resume|--last-failed)|gauntlet (report|xfail\.update)",
        _NEEDS_EARLIER_RUN,
    ),
    ("docs/how-to/cache.md", r"^gauntlet cache\.where", "ends with 3, because the file is not there yet"),
    ("docs/how-to/cache.md", r"^gauntlet cache\.(list|lock|verify|gc)", _NEEDS_EARLIER_RUN),
    ("docs/how-to/cluster.md", "--cluster", "needs a cluster"),
    ("docs/how-to/codegen.md", "--metric compile-time", "measures, on an idle machine"),
    ("docs/how-to/codegen.md", "--model mine", "names a model of the reader's"),
    (
        "docs/how-to/codegen.md",
        "^gauntlet matrix --suite codegen --iree",
        "compiles for each target with three releases",
    ),
    ("docs/how-to/flags.md", "tuning-spec-path", _OUTSIDE_FILES),
    ("docs/how-to/flaky.md", "^pytest", _NEEDS_TORCH),
    ("docs/how-to/goldens.md", r"^gauntlet golden\.(set|update|show)|--sku", _NEEDS_EARLIER_RUN),
    ("docs/how-to/history.md", "^gauntlet matrix", "compiles each model with seven releases, which takes hours"),
    ("docs/start/first-run.md", r"^gauntlet run", _NEEDS_MODELS),
    ("*", r"--program ", "names a model of the reader's"),
    ("docs/start/own-model.md", r"my-models && gauntlet run$", "names a model of the reader's"),
    ("docs/how-to/programs.md", r"&& gauntlet run", "names a program of the reader's"),
    ("docs/start/*.md", r"gauntlet", ""),
    ("README.md", r"^\.venv/bin/gauntlet run", _NEEDS_MODELS),
    (
        "*",
        r"^gauntlet (run|threshold|benchmark|matrix|comp(are|at)|qualify|bisect|code\.diff|cache\.(ex|im)port)\b",
        _NEEDS_MODELS,
    ),
    ("*", r"^gauntlet (explain|bundle\.|history\.|golden\.update --from-history)", _NEEDS_EARLIER_RUN),
    ("*", r"^python benchmarks/", "measures, on an idle machine"),
    ("CONTRIBUTING.md", r"^ruff", "needs the tools of nox's session `lint`"),
    ("*", r"^pytest (?!.*--collect-only)", _NEEDS_MODELS),
    ("*", r"^gauntlet toolchain\.(install|remove)", "downloads IREEs"),
    ("docs/how-to/toolchains.md", r"^gauntlet toolchain\.list", _NEEDS_EARLIER_RUN),
    ("*", r"^(iree-|python -m iree_gauntlet\.artifacts)", "names files that do not exist"),
    ("docs/explanation/disturbance.md", r"^(install|export)", "is for a machine's administrator"),
)
_INSTALL_COMMAND = re.compile(r"^pip install ")
# Lines that differ in a figure's sign or in a mark, such as `(cached)`, are more similar than this.
_SIMILARITY = 0.75
_TOOLCHAINS = "IREE_GAUNTLET_TOOLCHAINS"
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True)
class Command:
    """A command line of a page.

    Attributes:
        text: the command as printed, without the prompt; a continued command has several lines.
        sample: the lines that the page shows as output of the command, and of those before it without a sample.
    """

    page: str
    line: int
    text: str
    sample: tuple[str, ...] = ()


def parse_commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page's `bash` and `console` blocks, in order, with the samples below them."""
    tokens = MarkdownIt().parse((CHECKOUT / page).read_text(encoding="utf-8"))
    for token, next_token in zip_longest(tokens, tokens[1:]):
        if token.type == "fence" and token.info.strip() in ("bash", "console"):
            assert token.map is not None
            commands = [*_split(page, token.map[0] + 2, token.content, prompt=token.info.strip() == "console")]
            if next_token and next_token.type == "fence" and next_token.info.strip() == "text":
                commands[-1] = replace(commands[-1], sample=tuple(next_token.content.splitlines()))
            yield from commands


def _split(page: str, first_line: int, block: str, *, prompt: bool) -> Iterator[Command]:
    lines = block.splitlines()
    index = 0
    while index < len(lines):
        start, text = index, lines[index]
        index += 1
        if prompt and not text.startswith("$ "):
            continue
        text = text.removeprefix("$ ") if prompt else text
        while index < len(lines) and _continues(text):
            text += f"\n{lines[index]}"
            index += 1
        sample_end = index
        while prompt and sample_end < len(lines) and not lines[sample_end].startswith("$ "):
            sample_end += 1
        if text.strip() and not text.startswith("#"):
            yield Command(page, first_line + start, text, tuple(lines[index:sample_end]))


def _continues(text: str) -> bool:
    """Return True if a command continues on the next line."""
    heredoc = _HEREDOC.search(text)
    if heredoc:
        return not text.endswith(f"\n{heredoc[1]}")
    uncommented = re.sub(r"\s#.*", "", text)
    return text.endswith("\\") or uncommented.count("'") % 2 == 1


def find_skip_reason(command: Command, *, with_samples: bool = False) -> str:
    """Return the reason why a command is not run, or an empty string.

    `with_samples`: that it downloads models is no reason, if its page shows its output.
    """
    reasons = (
        reason for page, regex, reason in NOT_RUN if fnmatch(command.page, page) and re.search(regex, command.text)
    )
    reason = next(reasons, "")
    return "" if with_samples and command.sample and reason == _NEEDS_MODELS else reason


def find_exit_code(sample: Sequence[str]) -> int:
    """Return the exit code that a sample says: 2 if it begins with an error, 0 if it says nothing."""
    codes = [int(match[1]) for line in sample if (match := re.match(r"exit code (\d+): ", line))]
    return codes[-1] if codes else 2 if sample and sample[0].startswith("error: ") else 0


def find_differences(sample: Sequence[str], output: str) -> list[str]:
    """Return the lines of a sample that resemble no line of an output; figures and widths of columns may differ.

    A sample leaves lines out by a line `…`, and the end of a line by `…` at the end.
    """
    lines = [_mask_figures(line) for line in output.splitlines()]
    differences: list[str] = []
    for line in sample:
        mask = _mask_figures(line.rstrip("…"))
        candidates = [other[: len(mask)] for other in lines] if line.endswith("…") else lines
        if mask and not difflib.get_close_matches(mask, candidates, n=1, cutoff=_SIMILARITY):
            differences.append(line)
    return differences


def _mask_figures(line: str) -> str:
    return re.sub(r"[0-9][0-9.,]*", "0", " ".join(line.split()))


def main(pages: Sequence[str]) -> int:
    """Run the commands, print their results and return the exit code."""
    with_samples = "--samples" in pages
    pages = [page for page in pages if page != "--samples"]
    unknown = [page for page in pages if page not in PAGES]
    if unknown:
        sys.stderr.write(f"error: there is no page {unknown[0]}\n  Pages are README.md, docs/how-to/run.md, …\n")
        return 2
    successes = failures = 0
    with tempfile.TemporaryDirectory(prefix="docs-commands-") as directory:
        wheel, _ = build(CHECKOUT, Path(directory) / "dist")
        os.environ["PIP_FIND_LINKS"] = f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}"
        environments = _Environments(Path(directory))
        for group in _group_by_clone(pages or PAGES):
            commands = [
                command
                for page in group
                for command in parse_commands(page)
                if not find_skip_reason(command, with_samples=with_samples)
            ]
            installs = [command for command in commands if _INSTALL_COMMAND.match(command.text)]
            runnable = [command for command in commands if command not in installs]
            if not runnable:
                continue
            environment = environments.get_or_create(installs)
            count = _run(runnable, environment, Path(tempfile.mkdtemp(dir=directory))) if environment else 0
            successes, failures = successes + count, failures + len(runnable) - count
    sys.stdout.write(f"{successes} commands of {successes + failures} did what they should\n")
    return 1 if failures or not successes else 0


def _group_by_clone(pages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield groups of pages that share a clone; the group of the example starts with its first page."""
    last_index = max((_START_PAGES.index(page) for page in pages if page in _START_PAGES), default=-1)
    if last_index >= 0:
        yield _START_PAGES[: last_index + 1]
    yield from ((page,) for page in pages if page not in _START_PAGES)


class _Environments:
    """A cache of environments, one for each list of install commands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_installs: dict[tuple[str, ...], Path | None] = {}

    def get_or_create(self, installs: Sequence[Command]) -> Path | None:
        """Return the environment, or None if an install command failed."""
        installs = installs or [Command("README.md", 0, "pip install -q -e '.[iree]'")]
        key = tuple(re.sub(r"\s+#.*", "", command.text) for command in installs)
        if key not in self._by_installs:
            work_dir = Path(tempfile.mkdtemp(dir=self._directory))
            environment = work_dir / "venv"
            venv.create(environment, with_pip=True)
            self._by_installs[key] = environment if _run(installs, environment, work_dir) == len(installs) else None
        return self._by_installs[key]


def _run(commands: Sequence[Command], environment: Path, work_dir: Path) -> int:
    """Run commands in one shell and clone until a command fails; print all results; return the number of successes."""
    home, clone, codes_file = work_dir / "home", work_dir / "iree-gauntlet", work_dir / "codes"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(clone)], check=True)
    outputs = [work_dir / f"output-{index}" for index in range(len(commands))]
    check = 'code=$?; echo $code >> "$CODES"; [ $code = {} ] || exit 1'
    script = "\n".join(
        f"exec > {shlex.quote(str(output))} 2>&1\n{command.text}\n{check.format(find_exit_code(command.sample))}"
        for command, output in zip(commands, outputs, strict=True)
    )
    # IREEs that are installed already need no download.
    prefixes = ("LANG", "PIP_", "UV_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "no_proxy", _TOOLCHAINS)
    environ = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    environ |= {"HOME": str(home), "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin", "CODES": str(codes_file)}
    subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=clone, env=environ, check=False)
    codes = [int(line) for line in codes_file.read_text().split()] if codes_file.exists() else []
    successes = 0
    printed = ""
    for index, command in enumerate(commands):
        is_ok = index < len(codes) and codes[index] == find_exit_code(command.sample)
        status = "ok" if is_ok else f"exit code {codes[index]}" if index < len(codes) else "not run"
        printed += outputs[index].read_text(encoding="utf-8", errors="replace") if outputs[index].exists() else ""
        differences = find_differences(command.sample, printed) if status == "ok" else ()
        successes += status == "ok" and not differences
        sys.stdout.write(
            f"{printed if status != 'ok' or differences else ''}"
            f"{'other output' if differences else status:<12} {command.page}:{command.line}: "
            f"{command.text.splitlines()[0]}\n"
        )
        sys.stdout.writelines(f"    no line is like: {line}\n" for line in differences)
        printed = "" if command.sample else printed
    sys.stdout.flush()
    return successes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
