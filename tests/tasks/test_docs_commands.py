"""Every command line that README and docs print can be read by the program that it names."""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatch

import pytest
from _pytest.config import get_config
from docs_commands import NOT_RUN, PAGES, Command, commands_of, why_not_run
from invoke.exceptions import Exit

from iree_gauntlet.tasks.program import _Gauntlet as Gauntlet
from iree_gauntlet.tasks.program import namespace
from tests.support.places import ROOT

COMMANDS = [command for page in PAGES for command in commands_of(page)]
# Where a command begins, in another one too.
_PROGRAM = re.compile(r"(?:^|^\w+=\S+ |[|(&]\s*)(?=(?:gauntlet|pytest|(?:\.venv/bin/)?nox) )")
SESSIONS = set(re.findall(r"^@nox\.session\n(?:@.*\n)*def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))


class _Parsing(Gauntlet):
    """The command line, which stops where it would begin to work."""

    def execute(self) -> None:
        raise Exit(code=0)


def _read(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a command line cannot be read."""
    match words:
        case ["gauntlet", *_]:
            monkeypatch.setattr("sys.argv", words)
            with pytest.raises(SystemExit) as ended:
                _Parsing(name="gauntlet", binary="gauntlet", namespace=namespace).run(words)
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
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    capsys.readouterr()


def test_what_is_not_run_is_there() -> None:
    for page, words, why in NOT_RUN:
        fitting = [item for item in COMMANDS if fnmatch(item.page, page) and re.search(words, item.text)]
        assert any(why_not_run(item) == why for item in fitting), (page, words)
    assert sum(not why_not_run(command) for command in COMMANDS) > 30
