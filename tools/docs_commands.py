"""Runs the command lines of README and docs as they are printed, in fresh environments with just the extras they name.

    python tools/docs_commands.py [PAGE …]

Each page has a clone of the checkout, an empty home and an environment of its own, in which its own `pip install`
lines are run, or the README's where it has none. What is not run stands in `NOT_RUN`, with the reason. Exits with 1
where a command fails.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CHECKOUT", "NOT_RUN", "PAGES", "Command", "commands_of", "why_not_run"]

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md"))))
_MODELS = "downloads models"
_EARLIER = "goes on with what an earlier run left"
_BESIDE = "names what lies beside the checkout"
_TORCH = "needs torch, gigabytes of it"
# Pages, commands, and why they are not run; the first that fits counts.
NOT_RUN = (
    ("*", r"\bnox\b", "nox sessions are run by themselves"),
    ("*", r"\.\./|/big/disk|\bonnx_ops\b|\bruns/", _BESIDE),
    ("docs/add-a-model.md", r"gauntlet cache.lock", "finds nothing to record there"),
    ("docs/add-a-recipe.md", "", _TORCH),
    ("docs/add-a-transformers-model.md", "", _TORCH),
    ("docs/add-an-architecture.md", "", _TORCH),
    ("docs/add-a-benchmark-model.md", "", _TORCH),
    ("docs/bench*.md", "", _TORCH),
    ("README.md", r"gauntlet (bench|micro)\b|\bmodels\]", _TORCH),
    (
        "*",
        r"gauntlet (run|matrix) (--resume|--last-failed)|gauntlet (report|xfail\.update)|gauntlet compare --resume",
        _EARLIER,
    ),
    ("docs/add-a-model.md", r"gauntlet", ""),
    ("*", r"^gauntlet (run|threshold|benchmark|matrix|compare|bisect|cache\.(ex|im)port)\b", _MODELS),
    ("*", r"^pytest (?!.*--collect-only)", _MODELS),
    ("*", r"^gauntlet toolchain\.(install|remove)", "downloads IREEs"),
    ("*", r"^(iree-|python -m iree_gauntlet\.artifacts)", "names files that are made up"),
    ("docs/locks.md", r"^(install|export)", "is for a machine's administrator"),
)
_INSTALL = re.compile(r"^pip install ")
_HEREDOC = re.compile(r"<<'(\w+)'")


@dataclass(frozen=True)
class Command:
    """A command line of a page.

    Attributes:
        page: relative to the checkout.
        line: where it begins, 1-based.
        text: as it is printed, without the prompt; over several lines where it goes on.
    """

    page: str
    line: int
    text: str


def commands_of(page: str) -> Iterator[Command]:
    """The commands of a page's blocks of `bash` and `console`, in their order."""
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
        sys.stderr.write(f"error: there is no page {unknown[0]}\n  Pages are README.md, docs/run.md, …\n")
        return 2
    failed = run = 0
    for page in pages or PAGES:
        commands = list(commands_of(page))
        chosen = [command for command in commands if not why_not_run(command)]
        if not [command for command in chosen if not _INSTALL.match(command.text)]:
            continue
        with tempfile.TemporaryDirectory(prefix="docs-commands-") as folder:
            ended = _run(chosen, Path(folder))
        for command, code in ended:
            run += 1
            failed += code != 0
            sys.stdout.write(
                f"{'ok    ' if code == 0 else 'FAILED'} {command.page}:{command.line}: {command.text.splitlines()[0]}\n"
            )
        if len(ended) < len(chosen):
            sys.stdout.write(f"        and {len(chosen) - len(ended)} more were not run\n")
        sys.stdout.flush()
    sys.stdout.write(f"{run} commands run, {failed} failed\n")
    return 1 if failed or not run else 0


def _run(commands: Sequence[Command], folder: Path) -> list[tuple[Command, int]]:
    """Runs the commands of a page in one shell, up to the first that fails."""
    home, clone, environment = folder / "home", folder / "iree-gauntlet", folder / "venv"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(clone)], check=True)
    venv.create(environment, with_pip=True)
    if not any(_INSTALL.match(command.text) for command in commands):
        first = next(command for command in commands_of("README.md") if _INSTALL.match(command.text))
        commands = [first, *commands]
    # A failed one ends the shell; what it is stands in the file of codes.
    codes = folder / "codes"
    after = 'code=$?; echo $code >> "$CODES"; [ $code = 0 ] || exit $code'
    script = "\n".join(f"{command.text}\n{after}" for command in commands)
    kept = ("LANG", "PIP_", "SSL_", "REQUESTS_", "http_proxy", "https_proxy", "no_proxy")
    environ = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    environ |= {"HOME": str(home), "PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin", "CODES": str(codes)}
    subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=clone, env=environ, check=False)
    ended = [int(line) for line in codes.read_text().split()] if codes.exists() else []
    return list(zip(commands, ended, strict=False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
