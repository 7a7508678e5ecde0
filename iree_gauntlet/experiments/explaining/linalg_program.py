"""A dispatch as a function on tensors: what it computes, without the phase of the compiler that made it.

The text of the `flow` phase belongs to one release; `linalg`, `arith` and `tensor` are read by all of them. What a
dispatch loads becomes a slice of an argument, what it stores becomes a result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, with_aliases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.experiments.explaining.flow_program import Dispatch, FlowProgram


_FUNCTION = re.compile(
    r"^      func\.func @(?:[\w$.]+|\"[^\"]*\")\((?P<arguments>.*?)\)(?: attributes \{.*\})? \{$", re.MULTILINE
)
_ARGUMENT = re.compile(r"(%\w+): !\w+\.dispatch\.tensor<(readonly|writeonly|readwrite):(tensor<[^{}]*?>)>")
_PLACE = r"offsets = \[(?P<offsets>[^]]*)\], sizes = \[(?P<sizes>[^]]*)\], strides = \[(?P<strides>[^]]*)\]"
_LOAD = re.compile(
    r"^(?P<indent> *)(?P<value>%\w+) = \w+\.dispatch\.tensor\.load (?P<of>%\w+), "
    rf"{_PLACE} : .* -> (?P<type>tensor<.*>)$"
)
_STORE = re.compile(
    r"^(?P<indent> *)\w+\.dispatch\.tensor\.store (?P<value>%\w+), (?P<to>%\w+), "
    rf"{_PLACE} : (?P<type>tensor<.*>) -> .*$"
)
# What belongs to the phase, or to sizes that are not known.
_FOREIGN = re.compile(r"\bflow\.|\biree_\w+\.|\butil\.|\bhal\.|\?")


def as_function(program: FlowProgram, dispatch: Dispatch) -> str:
    """The program of a dispatch as a function; empty where it cannot be one: dynamic sizes, operations of IREE."""
    executable = program.executable(dispatch)
    head = _FUNCTION.search(executable)
    if head is None:
        return ""
    arguments = _ARGUMENT.findall(head["arguments"])
    if len(arguments) != head["arguments"].count("%"):
        return ""
    types = {name: kind for name, _, kind in arguments}
    given = [name for name, access, _ in arguments if access != "writeonly"]
    outputs = {name: (name if access == "readwrite" else "") for name, access, _ in arguments if access != "readonly"}
    if len(given) != len(dispatch.tensors) or len(outputs) != len(dispatch.results):
        return ""
    lines = executable[head.end() + 1 :].split("\n      }\n")[0].splitlines()
    body: list[str] = []
    for number, line in enumerate(lines[:-1]):
        if load := _LOAD.match(line):
            body.append(_slice(load, types[load["of"]]))
        elif store := _STORE.match(line):
            body += _insert(store, types[store["to"]], outputs, number)
        elif _FOREIGN.search(line):
            return ""
        else:
            body.append(line)
    if not all(outputs.values()):
        return ""
    return with_aliases(program.text, _function(given, outputs, types, body))


def _function(given: Sequence[str], outputs: dict[str, str], types: dict[str, str], body: Sequence[str]) -> str:
    arguments = ", ".join(f"{name}: {types[name]}" for name in given)
    results = ", ".join(types[name] for name in outputs)
    values = ", ".join(outputs.values())
    text = "\n".join(line.removeprefix("      ") for line in body)
    return f"func.func @{CUT_OUT}({arguments}) -> ({results}) {{\n{text}\n  return {values} : {results}\n}}\n"


def _slice(load: re.Match[str], kind: str) -> str:
    place = f"[{load['offsets']}] [{load['sizes']}] [{load['strides']}]"
    return f"{load['indent']}{load['value']} = tensor.extract_slice {load['of']}{place} : {kind} to {load['type']}"


def _insert(store: re.Match[str], kind: str, outputs: dict[str, str], number: int) -> list[str]:
    """What a store becomes: the result with a slice of it replaced."""
    lines = []
    before = outputs[store["to"]]
    if not before:
        before = f"%empty_{number}"
        lines.append(f"{store['indent']}{before} = tensor.empty() : {kind}")
    after = outputs[store["to"]] = f"%stored_{number}"
    place = f"[{store['offsets']}] [{store['sizes']}] [{store['strides']}]"
    insert = f"tensor.insert_slice {store['value']} into {before}{place} : {store['type']} into {kind}"
    return [*lines, f"{store['indent']}{after} = {insert}"]
