"""A bundle's `repro.sh`: it compiles, runs where that is what fails, and judges by how it ends and what it says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.symptom import CRASH, FAILURE, HANG, WRONG, Symptom

if TYPE_CHECKING:
    from collections.abc import Sequence


# What the script ends with.
FIXED, STILL_THERE, CANNOT_BE_JUDGED = 0, 1, 125

_HEAD = """\
#!/bin/sh
# Exit codes: 0 fixed, 1 still there, 125 cannot be judged: as `git bisect run` takes them.
#
# {named} the tools; without, {versions} are installed into env/.
set -u
cd "$(dirname "$0")" || exit 125
if [ -z "${{IREE_COMPILE:-}}${{IREE_RUN_MODULE:-}}" ]; then
    if [ ! -x env/bin/iree-run-module ]; then
        python3 -m venv env && env/bin/python -m pip install -q {packages} || exit 125
    fi
    IREE_COMPILE=$PWD/env/bin/iree-compile IREE_RUN_MODULE=$PWD/env/bin/iree-run-module
fi
for tool in {tools}; do
    command -v "$tool" > /dev/null || {{ echo "cannot be judged: there is no tool '$tool': {named} them"; exit 125; }}
done
work=$(mktemp -d) || exit 125
trap 'rm -rf "$work"' EXIT
"""
_NEEDS_TIMEOUT = """\
command -v timeout > /dev/null || { echo "cannot be judged: this needs timeout, of GNU coreutils"; exit 125; }
"""
_RUN = """\
{limit}{command} > "$work/said.txt" 2>&1
code=$?
cat "$work/said.txt"
"""
_COMPILED = """\
if [ $code -ne 0 ]; then
    echo "cannot be judged: it does not compile"
    exit 125
fi
"""
_JUDGE = """\
if [ $code -eq 0 ]; then
    echo "fixed: {fixed}"
    exit 0
fi
if {condition}; then
    echo "still there: {still}"
    exit 1
fi
echo "cannot be judged: it fails in another way"
exit 125
"""
# What is said where it is fixed; and what there is to see where it is not, as a condition and in words.
_ENDINGS = {
    WRONG: ("the outputs are as expected", "true", "the outputs are not as expected"),
    FAILURE: ("it does not fail", "[ $code -lt 124 ]", "it fails as it did"),
    CRASH: ("it does not crash", "[ $code -ge 128 ]", "it crashes as it did"),
    HANG: ("it ends", "[ $code -eq 124 ] || [ $code -eq 137 ]", "it does not end"),
}


def repro_script(packages: Sequence[str], before: Sequence[str], lines: tuple[str, str], symptom: Symptom) -> str:
    """The script.

    `lines`: commands that compile and run, in which `$IREE_COMPILE` and `$IREE_RUN_MODULE` are the tools and `$work` a
    folder; the second is empty where it is the compile that fails.
    """
    compile_line, run_line = lines
    limit = f"timeout -k 10 {symptom.seconds:.0f} " if symptom.ending == HANG else ""
    fixed, condition, still = _ENDINGS[symptom.ending]
    if symptom.ending == WRONG:
        condition += """ && grep -q '^\\[FAILED\\]' "$work/said.txt\""""
    elif symptom.pattern:
        # Releases break a diagnostic's lines at different places.
        condition += f""" && tr '\\n' ' ' < "$work/said.txt" | grep -qE {shlex.quote(symptom.pattern)}"""
    parts = [
        _HEAD.format(
            versions=" and ".join(packages),
            packages=shlex.join(packages),
            named="IREE_COMPILE and IREE_RUN_MODULE name" if run_line else "IREE_COMPILE names",
            tools='"${IREE_COMPILE:-}" "${IREE_RUN_MODULE:-}"' if run_line else '"${IREE_COMPILE:-}"',
        ),
        _NEEDS_TIMEOUT if limit else "",
        *(f"{line} || exit 125\n" for line in before),
        _RUN.format(limit="" if run_line else limit, command=compile_line),
    ]
    if run_line:
        parts += [_COMPILED, _RUN.format(limit=limit, command=run_line)]
    return "".join((*parts, _JUDGE.format(fixed=fixed, condition=condition, still=still)))
