"""Runs the command lines of README and docs as they are printed, in fresh environments with just the extras they name.

    python tools/docs_commands.py [PAGE …]

Each page has a clone of the checkout and an empty home; the pages of docs/start share one, since they are one example.
Its environment is what its own `pip install` lines make of an empty one, or `-e '.[iree]'` where it has none; where
they name `iree-gauntlet`, pip finds the wheel of this checkout. What is not run is in `NOT_RUN`, with the reason. Exits
with 1 where a command fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from release import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CHECKOUT", "NOT_RUN", "PAGES", "Command", "commands_of", "why_not_run"]

CHECKOUT = Path(__file__).resolve().parent.parent
# One example, in this order.
_START = ("docs/start/first-run.md", "docs/start/own-model.md", "docs/start/goldens-and-ci.md")
_DOCS = sorted(path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *_START, *(page for page in _DOCS if page not in _START))
_MODELS = "downloads models"
_EARLIER = "needs an earlier run"
_OUTSIDE = "names files outside of the checkout"
_TORCH = "needs torch, gigabytes of it"
# Pages, commands, and why they are not run; the first that fits counts.
NOT_RUN = (
    ("*", r"\bnox\b", "nox sessions are run by themselves"),
    ("docs/reference/options.md", "", "is made of the commands' own examples"),
    ("*", r"\.\./|/big/disk|\bonnx_ops\b|\bruns/", _OUTSIDE),
    ("docs/how-to/cluster.md", r"^(ssh|dask)|gauntlet (worker t|cluster\.)", "runs until it is ended, or needs that"),
    ("docs/how-to/cluster-*.md", "", "needs other machines, or Slurm"),
    ("docs/how-to/source.md", "", "clones and builds IREE, which takes hours"),
    ("docs/how-to/bench*.md", "", _TORCH),
    ("docs/how-to/micro.md", "", _TORCH),
    ("docs/how-to/recipes.md", "", _TORCH),
    (
        "*",
        r"gauntlet (run|matrix) (--resume|--last-failed)|gauntlet (report|xfail\.update)|gauntlet compare --resume",
        _EARLIER,
    ),
    ("docs/start/first-run.md", r"^gauntlet run", _MODELS),
    ("*", r"--program ", "names a model of the reader's"),
    ("docs/start/own-model.md", r"my-models && gauntlet run$", "names a model of the reader's"),
    ("docs/start/*.md", r"gauntlet", ""),
    ("README.md", r"^\.venv/bin/gauntlet run", _MODELS),
    ("*", r"^gauntlet (run|threshold|benchmark|matrix|compare|bisect|cache\.(ex|im)port)\b", _MODELS),
    ("*", r"^gauntlet (explain|bundle\.|history\.)", _EARLIER),
    ("*", r"^python benchmarks/", "measures, on an idle machine"),
    ("CONTRIBUTING.md", r"^ruff", "needs the tools of nox's session `lint`"),
    ("*", r"^pytest (?!.*--collect-only)", _MODELS),
    ("*", r"^gauntlet toolchain\.(install|remove)", "downloads IREEs"),
    ("*", r"^(iree-|python -m iree_gauntlet\.artifacts)", "names files that do not exist"),
    ("docs/explanation/disturbance.md", r"^(install|export)", "is for a machine's administrator"),
)
_INSTALL = re.compile(r"^pip install ")
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True)
class Command:
    """A command line of a page.

    Attributes:
        text: as it is printed, without the prompt; over several lines where it goes on.
    """

    page: str
    line: int
    text: str


def commands_of(page: str) -> Iterator[Command]:
    """The commands of a page's blocks of `bash` and `console`, in order."""
    for token in MarkdownIt().parse((CHECKOUT / page).read_text(encoding="utf-8")):
        if token.type == "fence" and token.info.strip() in ("bash", "console"):
            assert token.map is not None
            yield from _split(page, token.map[0] + 2, token.content, prompt=token.info.strip() == "console")


def _split(page: str, first: int, block: str, *, prompt: bool) -> Iterator[Command]:
    lines = block.splitlines()
    index = 0
    while index < len(lines):
        begin, text = index, lines[index]
        index += 1
        if prompt and not text.startswith("$ "):
            continue
        text = text.removeprefix("$ ") if prompt else text
        while index < len(lines) and _goes_on(text):
            text += f"\n{lines[index]}"
            index += 1
        if text.strip() and not text.startswith("#"):
            yield Command(page, first + begin, text)


def _goes_on(text: str) -> bool:
    """Whether a command is not over at the end of its line."""
    heredoc = _HEREDOC.search(text)
    if heredoc:
        return not text.endswith(f"\n{heredoc[1]}")
    without_comment = re.sub(r"\s#.*", "", text)
    return text.endswith("\\") or without_comment.count("'") % 2 == 1


def why_not_run(command: Command) -> str:
    """The reason; empty where it is run."""
    fitting = (why for page, words, why in NOT_RUN if fnmatch(command.page, page) and re.search(words, command.text))
    return next(fitting, "")


def main(pages: Sequence[str]) -> int:
    """Runs the commands and says what came of them; the exit code."""
    unknown = [page for page in pages if page not in PAGES]
    if unknown:
        sys.stderr.write(f"error: there is no page {unknown[0]}\n  Pages are README.md, docs/how-to/run.md, …\n")
        return 2
    run = lost = 0
    with tempfile.TemporaryDirectory(prefix="docs-commands-") as folder:
        wheel, _ = build(CHECKOUT, Path(folder) / "dist")
        os.environ["PIP_FIND_LINKS"] = f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}"
        environments = _Environments(Path(folder))
        for together in _together(pages or PAGES):
            commands = [command for page in together for command in commands_of(page) if not why_not_run(command)]
            installs = [command for command in commands if _INSTALL.match(command.text)]
            others = [command for command in commands if command not in installs]
            if not others:
                continue
            environment = environments.made_by(installs)
            done = _run(others, environment, Path(tempfile.mkdtemp(dir=folder))) if environment else 0
            run, lost = run + done, lost + len(others) - done
    sys.stdout.write(f"{run} commands of {run + lost} did what they should\n")
    return 1 if lost or not run else 0


def _together(pages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Pages by the clone that they share; a later page of an example brings those before it along."""
    last = max((_START.index(page) for page in pages if page in _START), default=-1)
    if last >= 0:
        yield _START[: last + 1]
    yield from ((page,) for page in pages if page not in _START)


class _Environments:
    """Environments by the lines that install into them, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], Path | None] = {}

    def made_by(self, installs: Sequence[Command]) -> Path | None:
        """The environment; None where a line failed."""
        installs = installs or [Command("README.md", 0, "pip install -q -e '.[iree]'")]
        key = tuple(re.sub(r"\s+#.*", "", command.text) for command in installs)
        if key not in self._made:
            place = Path(tempfile.mkdtemp(dir=self._folder))
            environment = place / "venv"
            venv.create(environment, with_pip=True)
            self._made[key] = environment if _run(installs, environment, place) == len(installs) else None
        return self._made[key]


def _run(commands: Sequence[Command], environment: Path, place: Path) -> int:
    """Runs commands in one shell and a clone, up to the first that fails, and prints them; how many were right."""
    home, clone, codes = place / "home", place / "iree-gauntlet", place / "codes"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(clone)], check=True)
    after = 'code=$?; echo $code >> "$CODES"; [ $code = 0 ] || exit $code'
    script = "\n".join(f"{command.text}\n{after}" for command in commands)
    kept = ("LANG", "PIP_", "UV_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "no_proxy")
    environ = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environ |= {"HOME": str(home), "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin", "CODES": str(codes)}
    subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=clone, env=environ, check=False)
    ended = [int(line) for line in codes.read_text().split()] if codes.exists() else []
    for index, command in enumerate(commands):
        word = "not run" if index >= len(ended) else "ok" if ended[index] == 0 else f"exit code {ended[index]}"
        sys.stdout.write(f"{word:<12} {command.page}:{command.line}: {command.text.splitlines()[0]}\n")
    sys.stdout.flush()
    return ended.count(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
