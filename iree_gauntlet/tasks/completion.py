"""Values of options for a shell's completion; Invoke itself completes the names of tasks and options.

A shell hands over the words of the line so far, without the one that is about to begin, and bash takes `--model=x` for
three words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.option import Option, dashed
from iree_gauntlet.settings import project_folder, shipped_folder
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.dialects.spec import Spec


def option_values(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """What may follow, where the last word is an option or the beginning of its value; nothing elsewhere.

    Args:
        words: of the command line, as the shell has split them.
        options: of the task.
    """
    last, before = [*reversed(words), "", ""][:2]
    if "=" in (last, before):
        place = len(words) - 1 - [*reversed(words)].index("=")
        name, prefix = words[place - 1], ""
    elif last.startswith("--"):
        name = last.partition("=")[0]
        prefix = f"{name}=" if last != name else ""
    else:
        name, prefix = before, ""
    option = next((item for item in options if dashed(item.name) == name), None)
    values = _values(option) if option else []
    # A value that is whole: the next word is something else.
    return [] if last in values else [f"{prefix}{value}" for value in values]


def _values(option: Option) -> list[str]:
    match option.name:
        case "model":
            return sorted({spec.model for spec in _specs() if not spec.defines_module})
        case "submodel":
            return sorted({spec.submodel for spec in _specs() if not spec.defines_module})
        case "markers":
            return sorted({word for spec in _specs() for word in spec.words or ()})
        case "suite":
            places = (project_folder() / "suites", shipped_folder() / "suites")
            return sorted({path.stem for place in places for path in place.glob("*.toml")})
        case "target":
            return list(FAMILIES)
    return list(option.choices)


def _specs() -> list[Spec]:
    from iree_gauntlet.dialects.spec import Spec  # noqa: PLC0415 - it brings pydantic
    from iree_gauntlet.dialects.trees import read_specs  # noqa: PLC0415

    folder = project_folder() / "specs"
    return [spec for spec in read_specs([folder]) if isinstance(spec, Spec)] if folder.is_dir() else []
