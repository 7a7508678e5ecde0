"""The document of a module's entry (`entry.json`): sealed with its own checksum, checked before it is believed."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from iree_gauntlet.engine.modules.module_key import canonical_json, make_key

ENTRY_FORMAT = 1
ENTRY_FILE = "entry.json"

_ROLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}(?:\.[a-z0-9_-]{1,30}){0,3}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"format", "key", "name", "created", "ingredients", "metadata", "files"}
_MOST_FILES = 16


class DamageError(Exception):
    """An entry is not what was written, or not what it should be; the text says what is wrong."""


def is_key(text: str) -> bool:
    """Whether a text can be a key."""
    return _KEY.fullmatch(text) is not None


def is_role(text: str) -> bool:
    """Whether a text can be the role, and so the name, of a file in an entry."""
    return _ROLE.fullmatch(text) is not None and text != ENTRY_FILE


def sealed(document: dict[str, Any]) -> bytes:
    """The content of entry.json: the entry, and its checksum."""
    checksum = hashlib.sha256(canonical_json(document)).hexdigest()
    return canonical_json({"checksum": checksum, "entry": document}) + b"\n"


def open_sealed(data: bytes, key: str) -> dict[str, Any]:
    """The entry that this machine has sealed.

    Raises:
        DamageError: it is not what was written, or another one's.
    """
    try:
        document = json.loads(data)["entry"]
        # The bytes themselves are compared, so that no changed byte is overlooked.
        intact = data == sealed(document)
        ours = intact and document["format"] == ENTRY_FORMAT and document["key"] == key
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = ours = False
    if not intact:
        raise DamageError(f"{ENTRY_FILE} is not as it was written")
    if not ours:
        raise DamageError(f"{ENTRY_FILE} belongs to another key or format")
    for role in document["files"]:
        if not is_role(role):
            raise DamageError(f"{ENTRY_FILE} names {role!r} as a file")
    found: dict[str, Any] = document
    return found


def open_foreign(data: bytes, key: str) -> dict[str, Any]:
    """The entry that some machine has sealed: a seal anybody can make, so that every field is looked at.

    Raises:
        DamageError: a field is not as this toolkit writes it, or the ingredients make another key.
    """
    try:
        document = open_sealed(data, key)
        # Lone surrogates, which JSON can write and no file system and no terminal takes.
        json.dumps(document, ensure_ascii=False).encode()
        valid = _is_valid(document)
        made = valid and make_key(document["ingredients"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        valid, made = False, ""
    if not valid:
        raise DamageError(f"{ENTRY_FILE} has fields that are not as they should be")
    if made != key:
        raise DamageError(f"{ENTRY_FILE} names ingredients that make another key")
    return document


def _is_valid(document: dict[str, Any]) -> bool:
    files, metadata, ingredients = document["files"], document["metadata"], document["ingredients"]
    texts = [document["name"], document["created"], metadata.get("diagnostics", ""), metadata.get("command", "")]
    statistics, notes = metadata.get("statistics", {}), metadata.get("notes", [])
    return (
        document.keys() == _FIELDS
        and all(isinstance(text, str) for text in (*texts, *notes, *ingredients.values()))
        and all(value is None or type(value) in (int, float) for value in statistics.values())
        and isinstance(notes, list)
        and 0 < len(files) <= _MOST_FILES
        and all(file.keys() == {"sha256", "bytes"} for file in files.values())
        and all(_SHA256.fullmatch(file["sha256"]) for file in files.values())
        and all(type(file["bytes"]) is int and file["bytes"] >= 0 for file in files.values())
    )
