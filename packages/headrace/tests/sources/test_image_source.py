"""ImageSource: paths and labels in flat arrays give back exactly what went in."""

from __future__ import annotations

import os
import pickle
import string
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sources import folder
from headrace.sources.folder import ImageSource
from headrace.sources.source import EXTENSIONS

# Every path that a Linux file system can hold: any bytes but zero, decoded as Python does it.
paths = st.binary(max_size=40).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"x")))
samples = st.lists(st.tuples(paths, st.integers(-(2**63), 2**63 - 1)), max_size=30)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 7 entries, so that small tests cross their borders."""
    monkeypatch.setattr(folder, "CHUNK", 7)


def listed(source: ImageSource) -> list[tuple[str, int]]:
    return [(source.path(i), source.label(i)) for i in range(len(source))]


@given(samples, st.data())
def test_entries_survive_flat_storage(entries: list[tuple[str, int]], data: st.DataObject) -> None:
    """Paths are kept as the file system's bytes, each with a zero; `take` is indexing."""
    source, n = ImageSource.from_samples(entries), len(entries)
    assert listed(source) == entries
    assert source.paths.tobytes() == b"".join(os.fsencode(path) + b"\0" for path, _ in entries)
    ends = source.offsets[1:].astype(int) - 1
    assert (source.paths[ends] == 0).all()
    indices = data.draw(st.lists(st.integers(-n, n - 1), max_size=40)) if n else []
    assert listed(source.take(indices)) == [entries[i] for i in indices]


@settings(max_examples=30)
@given(st.lists(st.text(alphabet=string.printable.replace("\0", ""), max_size=8), max_size=30))
def test_count_extensions_is_lower_and_endswith(names: list[str]) -> None:
    names += ["a.JPG", "b.jpeg", "c.png", ".jpg", "jpg", "x.jpgx", "d.JPe", "e.jfif"]
    source = ImageSource.from_samples([(name, 0) for name in names])
    expected = sum(name.lower().endswith(EXTENSIONS["JPEG"]) for name in names)
    assert source.count_extensions(EXTENSIONS["JPEG"]) == expected


def test_a_path_shorter_than_an_extension_doesnt_borrow_from_its_neighbour() -> None:
    assert ImageSource.from_samples([(".jp", 0), ("g", 0), ("a.jpg", 0)]).count_extensions((".jpg",)) == 1


def test_bytes_and_pathlike_paths_are_taken() -> None:
    source = ImageSource.from_samples([(b"a/b", 0), (Path("c"), 1), ("d", 2)])
    assert listed(source) == [("a/b", 0), ("c", 1), ("d", 2)]


@pytest.mark.parametrize("target", [True, 1.0, np.int64(3), "1", None])
def test_only_ints_are_labels(target: object) -> None:
    with pytest.raises(ValueError, match=rf"the target of sample 8 is {type(target).__name__}, not int"):
        ImageSource.from_samples([("a", 0)] * 8 + [("b", target)])


def test_labels_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="a target doesn't fit in 64 bits"):
        ImageSource.from_samples([("a", 2**63)])


def test_a_zero_byte_in_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a path among samples 7 to 8 holds a zero byte"):
        ImageSource.from_samples([("a", 0)] * 7 + [("b", 0), ("c\0d", 0)])


def test_a_path_must_be_a_path() -> None:
    with pytest.raises(ValueError, match=r"a path isn't a str, bytes or os\.PathLike"):
        ImageSource.from_samples([(3, 0)])


@pytest.mark.parametrize("index", [3, -4])
def test_take_names_an_index_out_of_range(index: int) -> None:
    source = ImageSource.from_samples([("a", 0), ("b", 1), ("c", 2)])
    with pytest.raises(IndexError, match=f"index {index} is out of range for 3 samples"):
        source.take([0, index])


def test_indices_are_checked_and_negative_ones_count_from_the_end() -> None:
    source = ImageSource.from_samples([("a", 0), ("b", 1), ("c", 2)])
    assert (source.path(-1), source.label(-1)) == ("c", 2)
    for index in (3, -4):
        with pytest.raises(IndexError):
            source.path(index)
        with pytest.raises(IndexError):
            source.label(index)


def test_entries_survive_pickling() -> None:
    source = ImageSource.from_samples([("a", 0), ("bc", 1)])
    assert listed(pickle.loads(pickle.dumps(source))) == listed(source)
