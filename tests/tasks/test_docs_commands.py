"""Every command line in README and docs is parsed by the program that it names, up to the call of its task.

The toolkit's commands that only read are also run.
"""

from __future__ import annotations

import os
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest
from _pytest.config import get_config
from docs_commands import NOT_RUN, PAGES, Command, find_differences, find_exit_code, find_skip_reason, parse_commands

from iree_gauntlet.tasks.program import namespace
from tests.support.command_line import ParseOnlyProgram, parse_requests, run_in_process
from tests.support.places import ROOT

COMMANDS = [command for page in PAGES for command in parse_commands(page)]
# Where a command begins, in another one too.
_PROGRAM = re.compile(r"(?:^|^\w+=\S+ |[|(&]\s*)(?=(?:gauntlet|pytest|(?:\.venv/bin/)?nox) )")
SESSIONS = set(re.findall(r"^@nox\.session\n(?:@.*\n)*def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))


def _make_named_folders(words: list[str]) -> None:
    """Makes the folders that a command line names, below this one and beside it."""
    for word in words:
        path = Path(re.sub(r"^(?:build|source|wheels|venv):|@.*$", "", word))
        if not word.startswith("-") and "*" not in word and not path.is_absolute() and "://" not in word:
            path.mkdir(parents=True, exist_ok=True)


def _read(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a command line cannot be read."""
    match words:
        case ["gauntlet", task, *_] if task in namespace.task_names:
            parse_requests(words[1:])
        case ["gauntlet", *_]:
            monkeypatch.setattr("sys.argv", words)
            with pytest.raises(SystemExit) as ended:
                ParseOnlyProgram(name="gauntlet", binary="gauntlet", namespace=namespace).run(words)
            assert ended.value.code == 0
        case ["pytest", *options]:
            config = get_config(options)
            for plugin in ("xdist.plugin", "pytest_timeout", "iree_gauntlet.pytest_plugin"):
                config.pluginmanager.import_plugin(plugin)
            _, unknown = config._parser.parse_known_and_unknown_args(options)
            assert not unknown
        case [_, "-s", *names]:
            given = names[: names.index("--")] if "--" in names else names
            assert {name.partition("(")[0] for name in given} <= SESSIONS
        case _:
            pytest.fail(f"of which program is {words}?")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}:{command.line}")
def test_each_line_can_be_read(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "a" / "project"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    text = re.sub(r"\s#\s.*", "", command.text.partition("<<")[0])
    for begin in (match.end() for match in _PROGRAM.finditer(text)):
        # Up to a pipe or a parenthesis outside of quotes.
        lexer = shlex.shlex(text[begin:], posix=True, punctuation_chars="|&;()")
        lexer.whitespace_split = True
        words = []
        for word in lexer:
            if set(word) <= set("|&;()"):
                break
            words.append(word)
        _read(words, monkeypatch)
        # Whether or not there is what they name.
        _make_named_folders(words[2:])
        _read(words, monkeypatch)
    capsys.readouterr()


_LOOKS = re.compile(
    r"gauntlet (?:--|list\b|lint\b|plan\b|schema\b(?!.*--output)|(?:toolchain|cache)\.list|golden\.show)[^|>&;$]*"
)
_LINES = {command.text.partition(" #")[0].strip() for command in COMMANDS}
# What some of them name, and a clone does not have.
_READERS_OWN = ("no case matches --model tiny", "--match *.irpa matches nothing")
LOOKING = sorted(line for line in _LINES if _LOOKS.fullmatch(line) and "../" not in line and "--board" not in line)


@pytest.mark.iree
@pytest.mark.parametrize("line", LOOKING)
def test_what_only_looks_is_run(line: str, tmp_path: Path) -> None:
    # The specs of a clone, without the runs and settings of who works in it.
    for name in ("specs", "suites"):
        (tmp_path / name).symlink_to(ROOT / name)
    environ = {**os.environ, "IREE_GAUNTLET_CACHE": str(tmp_path / "cache")}
    done = run_in_process(shlex.split(line)[1:], tmp_path, environ)
    assert done.code == 0 or (done.code == 5 and any(name in done.err for name in _READERS_OWN)), done.text


def test_there_are_lines_that_only_look() -> None:
    assert len(LOOKING) > 5


def test_what_is_not_run_is_there() -> None:
    for page, words, why in NOT_RUN:
        fitting = [item for item in COMMANDS if fnmatch(item.page, page) and re.search(words, item.text)]
        assert any(find_skip_reason(item) == why for item in fitting), (page, words)
    assert sum(not find_skip_reason(command) for command in COMMANDS) > 30


def test_a_sample_is_like_the_output_but_for_figures() -> None:
    output = (
        "verdict   model  compile  bytes\n✓ passed  tiny/classifier@cpu  0.91 s (cached)  13,356\n6 steps: 6 passed\n"
    )
    sample = ("verdict  model    compile    bytes", "✓ passed  tiny/classifier@cpu  4.67 s  9,000", "…", "6 st…")
    assert find_differences(sample, output) == []
    assert find_differences((*sample, "next: gauntlet report"), output) == ["next: gauntlet report"]
    assert find_differences(sample, "") == [line for line in sample if line != "…"]


def test_commands_with_a_prompt_stand_in_blocks_that_are_read() -> None:
    unread = [page for page in PAGES if re.search(r"^```(?!console$).*\n\$ ", (ROOT / page).read_text(), re.MULTILINE)]
    assert unread == []


def test_a_sample_says_the_exit_code() -> None:
    assert find_exit_code(("1 loss in 4 models", "exit code 1: something got worse")) == 1
    assert find_exit_code(("error: variant x: iree-compile does not know --iree-opt-levl=O3", "…")) == 2
    assert find_exit_code(("14 of 50 run",)) == find_exit_code(()) == 0


def test_samples_that_need_models_are_compared_too_if_wanted() -> None:
    pages = {
        command.page.rpartition("/")[2]
        for command in COMMANDS
        if find_skip_reason(command) and not find_skip_reason(command, with_samples=True)
    }
    assert {"bisect.md", "codegen.md", "compare.md", "compat.md", "flags.md", "qualify.md"} <= pages
    (hours,) = [command for command in COMMANDS if command.text.startswith("gauntlet matrix --iree 3.5.0 --iree 3.6.0")]
    assert find_skip_reason(hours, with_samples=True)


def test_samples_belong_to_the_commands_above_them() -> None:
    samples = {command.text: command.sample for command in COMMANDS if command.sample}
    assert samples["gauntlet golden.record --model tiny"][0].endswith(": running a reference")
    assert any(sample for text, sample in samples.items() if text.startswith("gauntlet bisect --flags"))
    assert sum(bool(command.sample) and not find_skip_reason(command) for command in COMMANDS) > 5
