"""Paths in workers' messages: replaced by those of the machine where the run was started."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cluster.link import RunProcessError, decode, encode, replace_paths

WORDS = st.text("ab", min_size=1, max_size=2)
PATHS = st.lists(WORDS, min_size=1, max_size=3).map(lambda words: "/" + "/".join(words))


def test_each_path_is_replaced_once_and_the_longer_one_is_meant() -> None:
    renamed = {"/data": "/home/me/cache", "/data/runs/r": "/data/project/run"}
    said = "cd /data/runs/r/steps && /data/tool /data2/x /data.old/y '/data'"
    assert replace_paths(said, renamed) == (
        "cd /data/project/run/steps && /home/me/cache/tool /data2/x /data.old/y '/home/me/cache'"
    )


def test_what_lies_below_a_copy_is_what_it_was() -> None:
    renamed = {"/w/projects/1/files": "", "/w": "/cache"}
    assert replace_paths("/w/projects/1/files/home/me/x.mlir:3 of /w/y", renamed) == "/home/me/x.mlir:3 of /cache/y"
    assert replace_paths("/w/y", {}) == "/w/y"


def test_addresses_of_files_are_paths_too() -> None:
    said = "file:///w/x http://host/w/x a//w/x"
    assert replace_paths(said, {"/w": "/c"}) == "file:///c/x http://host/w/x a//w/x"
    escaped = "file:///my%20w/%C3%A9 /my w/é file:///my%20w%20too"
    assert replace_paths(escaped, {"/my w": "/a c"}) == "file:///a%20c/%C3%A9 /a c/é file:///my%20w%20too"


def test_every_text_of_an_object_is_looked_through_and_nothing_else() -> None:
    said = {"log": "a\n/w/x", "checks": [{"note": "in /w/y", "measured": 1.5}], "tail": ("/w",), "cache": None}
    assert replace_paths(said, {"/w": "/c"}) == {
        "log": "a\n/c/x",
        "checks": [{"note": "in /c/y", "measured": 1.5}],
        "tail": ["/c"],
        "cache": None,
    }


@given(renamed=st.dictionaries(PATHS, PATHS, max_size=4), path=PATHS)
def test_a_path_becomes_what_the_longest_folder_above_it_is(renamed: dict[str, str], path: str) -> None:
    above = [folder for folder in renamed if path == folder or path.startswith(f"{folder}/")]
    folder = max(above, key=len, default="")
    assert replace_paths(path, renamed) == renamed.get(folder, "") + path[len(folder) :]


def test_a_message_is_what_was_said() -> None:
    number, error = decode(encode((3, RunProcessError("it ended"))))
    assert (number, str(error)) == (3, "it ended")


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"a library's warning\n",
        encode((3, "whole"))[:-6],
        base64.b64encode(b"no pickle") + b"\n",
        # Of another version: a name that is not there.
        base64.b64encode(b"cpathlib\nNothing\n.") + b"\n",
    ],
)
def test_what_is_no_message_is_said_to_be_none(line: bytes) -> None:
    with pytest.raises(ValueError, match="is not a message"):
        decode(line)
