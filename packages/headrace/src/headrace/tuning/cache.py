"""Settings that were found, kept for the next run: one small JSON file in the user's cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from headrace._files import cache_folder, whole_file

log = logging.getLogger("headrace")
VERSION = 1
MOST_ENTRIES = 500


def cache_file() -> Path:
    """Of all settings of this user."""
    return cache_folder() / "tuning.json"


def key_of(parts: Mapping[str, Any]) -> str:
    """What an entry is found by: the same for the same dataset, plan and machine."""
    text = json.dumps({**parts, "version": VERSION}, sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def load(key: str) -> dict[str, Any] | None:
    """The entry of `key`; None where there is none, or nothing that can be read."""
    entry = _entries().get(key)
    return entry if isinstance(entry, dict) else None


def save(key: str, entry: dict[str, Any]) -> None:
    """Puts the entry in the place of an older one. A cache that can't be written is logged, no more: it only
    makes the next start faster. Of two processes that save at once, one may be forgotten."""
    entries = _entries()
    entries.pop(key, None)
    entries[key] = entry
    kept = dict(list(entries.items())[-MOST_ENTRIES:])
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, contended=True) as file:
            file.write(json.dumps(kept, indent=1).encode())
    except OSError as error:
        log.info("the settings found can't be kept in %s: %s", path, error)


def _entries() -> dict[str, Any]:
    try:
        entries = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or not ours: the next save makes a new one
        return {}
    return entries if isinstance(entries, dict) else {}
