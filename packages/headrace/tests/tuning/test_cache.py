"""What was found is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.tuning import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache.cache_file()


def test_what_is_saved_is_found() -> None:
    assert cache.load("a") is None
    cache.save("a", {"settings": {"threads": 3}})
    cache.save("b", {"settings": {"threads": 4}})
    cache.save("a", {"settings": {"threads": 5}})
    assert cache.load("a") == {"settings": {"threads": 5}}
    assert cache.load("b") == {"settings": {"threads": 4}}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', "\x00"])
def test_a_damaged_file_is_replaced(own_cache: Path, text: str) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text(text)
    assert cache.load("a") is None
    cache.save("a", {"settings": {}})
    assert cache.load("a") == {"settings": {}}


def test_it_does_not_grow_for_ever(own_cache: Path) -> None:
    for i in range(cache.MOST_ENTRIES + 10):
        cache.save(str(i), {"settings": {"threads": i}})
    entries = json.loads(own_cache.read_text())
    assert len(entries) == cache.MOST_ENTRIES
    assert "9" not in entries


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache.save("a", {"settings": {}})
    assert cache.load("a") is None


def test_keys_depend_on_values_not_on_their_order() -> None:
    assert cache.key_of({"a": 1, "b": 2}) == cache.key_of({"b": 2, "a": 1})
    assert cache.key_of({"a": 1}) != cache.key_of({"a": 2})
