"""Which samples come into which shard, and members of tar files as other programs read them."""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from headrace.packs import tar
from headrace.packs.samples import Item, Listing, Sample, make_layout
from headrace.packs.tar import END, member_stem, members

NAMES = [
    "a",
    "n01/n01_5",
    "x" * 95,
    "x" * 96,
    "x" * 97,
    "y" * 200,
    "ü/é",
    "deep/" * 40 + "name",
    "with space",
]


# A record of an extended header counts its own length, which has one digit more from some length on.
@pytest.mark.parametrize("key", [*NAMES, *("z" * length for length in range(975, 990))], ids=len)
def test_tarfile_reads_the_members(key: str) -> None:
    sample = Sample(key, "jpg", b"image" * 300, 12, (("json", b"{}"), ("txt", b""), ("seg.png", bytes(512))))
    pieces, begin = members(sample)
    data = b"".join(pieces)
    assert data[begin : begin + 1500] == sample.image
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data + END)) as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    expected = {"jpg": sample.image, "cls": b"12", "json": b"{}", "txt": b"", "seg.png": bytes(512)}
    assert read == {f"{key}.{extension}": content for extension, content in expected.items()}


def test_a_size_that_ustar_has_no_room_for() -> None:
    header = tar._header("a.jpg", 1 << 34)
    info = tarfile.TarFile(fileobj=io.BytesIO(header), mode="r").next()
    assert info is not None
    assert (info.name, info.size) == ("a.jpg", 1 << 34)


def test_gnu_tar_reads_them_without_complaint(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("tar is not installed")
    pieces = [piece for key in NAMES for piece in members(Sample(key, "jpg", b"x" * 700, 1))[0]]
    blob = b"".join(pieces) + END
    (tmp_path / "x.tar").write_bytes(blob)
    done = subprocess.run(
        ["tar", "--extract", "--file", "x.tar"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for key in NAMES:
        assert (tmp_path / f"{key}.jpg").read_bytes() == b"x" * 700
        assert (tmp_path / f"{key}.cls").read_bytes() == b"1"


def test_names_differ_where_keys_do() -> None:
    keys = [
        "a.b",
        "a%2Eb",
        "a%252Eb",
        "a%b",
        "__a",
        "%5F_a",
        "__a__/b",
        "%5F_a__/b",
        "d.e/f",
        "d%2Ee/f",
        ".x",
        "%.",
    ]
    stems = [member_stem(key) for key in keys]
    assert len(set(stems)) == len(keys)
    for stem in stems:
        folder, _, base = stem.rpartition("/")
        assert base
        assert "." not in base
        assert not base.startswith("__")
        assert not folder.startswith("__")
    assert member_stem("50%off") == "50%off"


ODD = [
    Item("n01/plain", 10, 1_700_000_000_000_000_000, 3, ("n01/plain.JPEG", "n01/plain.txt")),
    Item("", 0, 0, 0),
    Item("\u00e9\u4e2d\0binary", 1, -5, (1 << 63) - 1, ("un\udcffdecodable.jpg",)),
]


def numbered(count: int, size: int = 10) -> Listing:
    return Listing.of(Item(f"key{i}", size, i, i, (f"{i}.jpg",)) for i in range(count))


def test_items_come_back_as_they_were_given() -> None:
    items = Listing.of(ODD)
    assert list(items) == ODD
    assert list(items[1:]) == ODD[1:]
    assert list(items[1:][1:]) == ODD[2:]
    assert list(items.take([2, 0])) == [ODD[2], ODD[0]]


def test_sizes_and_times_beyond_63_bits_are_limited() -> None:
    (item,) = Listing.of([Item("key", 1 << 64, 1 << 70, 0)])
    assert item.size == item.stamp == (1 << 63) - 1


def test_a_pickled_part_holds_its_own_items_only() -> None:
    whole = numbered(10_000)
    part = whole.shuffled(7)[100:110]
    data = pickle.dumps(part)
    assert len(data) < 2000
    assert list(pickle.loads(data)) == list(part)


def test_a_shuffled_order_is_that_of_the_keys_digests() -> None:
    items = numbered(1000)
    seed = hashlib.sha256(b"7").digest()
    expected = sorted(items, key=lambda item: hashlib.sha256(seed + item.key.encode()).digest())
    assert list(items.shuffled(7)) == expected
    other_way_round = Listing.of(reversed(list(items)))
    assert list(other_way_round.shuffled(7)) == expected


def test_plans_cut_items_where_a_shard_would_become_too_large() -> None:
    sizes = [0, 0, 7, 3, 5, 5, 12, 0, 1]
    plan = make_layout(Listing.of(Item(str(i), size, 0, i) for i, size in enumerate(sizes)), 10, None)
    assert [[item.size for item in plan.of(i)] for i in range(plan.shards)] == [
        [0, 0, 7, 3],
        [5, 5],
        [12],
        [0, 1],
    ]
    assert plan.source_bytes == sum(sizes)
