"""Fields of an entry of `model_params` that say several things, or name a file."""

from __future__ import annotations

import json
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from iree_gauntlet.bench.registry import shown

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.micro.lookup import AskedArchitecture
    from iree_gauntlet.micro.yaml_fields import Fields

__all__ = ["read_config", "read_torch_compile"]

_MODES = {mode: mode for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")}
_COMPILE: dict[str, str | bool] = {**_MODES, "true": True, "false": False}


def read_torch_compile(fields: Fields) -> tuple[bool, str]:
    """Whether and how torch.compile is measured; `compile` is either, and all three names have been torchao's."""
    mode = fields.choice("torch_compile_mode", _MODES, "")
    used = fields.flag("use_torch_compile", default=True)
    value = fields.take("compile")
    if value is None:
        return used, mode or "default"
    asked = value.content if isinstance(value.content, bool) else fields.choice("compile", _COMPILE, default=True)
    if isinstance(asked, str) and mode and asked != mode:
        fields.add("compile", f"it says {asked}, and torch_compile_mode {mode}", "Remove one of them.")
    return asked is not False and used, asked if isinstance(asked, str) else mode or "default"


def read_config(fields: Fields, file: Path, model_type: AskedArchitecture | None) -> Path | None:
    """The model configuration of an entry: a `config.json` in the folder of the YAML file, or below it."""
    name = fields.text("config", "")
    if model_type is None:
        return None
    takes = model_type.architecture.takes.config
    if not name:
        if takes == "must":
            fields.add("config", f"{model_type.text} needs one: the path of a config.json, from {file.parent}")
        return None
    if takes == "no":
        fields.add("config", f"{model_type.text} takes none", "Remove it, or write model_type: transformers.")
        return None
    folder = file.parent.resolve()
    found = (folder / name).resolve()
    found = found / "config.json" if found.is_dir() else found
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or "\\" in name or not found.resolve().is_relative_to(folder):
        fields.add("config", f"{name!r} leaves the folder of the configuration", "Put the file there, or below it.")
        return None
    return found if _is_object(found, fields) else None


def _is_object(path: Path, fields: Fields) -> bool:
    """Whether a file is there and holds a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fields.add("config", f"{shown(path)} cannot be read: {error.strerror}", "It is relative to the configuration.")
        return False
    except (ValueError, RecursionError) as error:
        fields.add("config", f"{shown(path)} is no JSON: {error}", "It is the config.json of a model of transformers.")
        return False
    if not isinstance(content, dict):
        fields.add("config", f"{shown(path)} holds no JSON object", "It is the config.json of a model of transformers.")
    return isinstance(content, dict)
