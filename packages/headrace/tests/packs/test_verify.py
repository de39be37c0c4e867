"""Damage to a pack is found, and told by file and key; a whole one passes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace
from headrace.packs.info import info
from headrace.packs.stored import StoredPack
from headrace.packs.verify import verify
from headrace.sources.pack_index import PackIndex
from support.jpegs import image_folder
from support.pack_folders import FORMATS, odd_folder

SHARD_SIZE = 60_000


@pytest.fixture(params=FORMATS)
def dest(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    odd_folder(tmp_path / "src")
    headrace.pack(tmp_path / "src", tmp_path / "dest", shard_size=SHARD_SIZE, format=request.param)
    return tmp_path / "dest"


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    image_folder(tmp_path / "src", 12)
    headrace.pack(tmp_path / "src", tmp_path / "dest", shard_size=SHARD_SIZE)
    return tmp_path / "dest"


def problems(dest: Path, against: Path | None = None) -> list[str]:
    return [str(problem) for problem in verify(dest, against=against).problems]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def place(dest: Path, row: int) -> tuple[Path, int, int]:
    """(file, offset, size) of an image."""
    index = PackIndex(dest / "index.arrow")
    shard, offset, size = (int(index.numbers(name)[row]) for name in ("shard", "offset", "size"))
    return dest / index.about.shards[shard].name, offset, size


def test_a_whole_pack_passes_and_equals_its_source(dest: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verdict = verify(dest, against=tmp_path / "src", progress=lambda *counts: seen.append(counts))
    assert (verdict.problems, verdict.notes) == ((), ())
    assert seen[-1] == (verdict.samples, verdict.samples)


def test_a_flipped_byte_names_the_record(dest: Path) -> None:
    image, index = StoredPack.open(dest).sample(7).image, PackIndex(dest / "index.arrow")
    path = dest / index.about.shards[int(index.numbers("shard")[7])].name
    flip(path, path.read_bytes().index(image) + len(image) // 2)
    assert problems(dest) == [
        f"{path.name}: {index.text('key', 7)}: the image's bytes aren't those that were packed"
    ]


def test_every_byte_of_the_members_headers_matters(tars: Path) -> None:
    path, offset, _ = place(tars, 0)
    for at in (offset - 512, offset - 512 + 130, offset - 512 + 150):  # name, size, checksum
        before = path.read_bytes()
        flip(path, at)
        (problem,) = problems(tars)
        assert problem.startswith("shard-000000.tar: class0/00000: ")
        path.write_bytes(before)


def test_a_changed_label_is_found_on_either_side(tars: Path, tmp_path: Path) -> None:
    path, offset, size = place(tars, 0)
    label = offset + size + -size % 512 + 512
    assert path.read_bytes()[label : label + 1] == b"0"
    flip(path, label)
    assert problems(tars) == ["shard-000000.tar: class0/00000: its label is b' ', not a number from 0 on"]
    flip(path, label)
    (tmp_path / "src" / "class0" / "00000.jpg").rename(tmp_path / "src" / "class1" / "00000.jpg")
    assert problems(tars, tmp_path / "src") == [
        "shard-000000.tar: class0/00000: isn't in the source",
        "class1/00000: is missing from the pack",
    ]


def test_a_truncated_shard_is_named_with_all_that_it_lost(tars: Path) -> None:
    path, offset, _ = place(tars, 3)
    path.write_bytes(path.read_bytes()[: offset + 10])
    found = problems(tars)
    assert found[0].startswith(f"{path.name}: has {offset + 10:,} bytes, and its index was made for")
    index = PackIndex(tars / "index.arrow")
    lost = [i for i in range(len(index)) if place(tars, i)[0] == path and place(tars, i)[1] >= offset]
    assert [line.split(": ")[1] for line in found[1:]] == [index.text("key", i) for i in lost]
    assert all("ends at byte" in line for line in found[1:])
    with pytest.raises(headrace.PackError, match=rf"{path.name} has .* bytes"):
        headrace.PackedDataset(tars)


def test_a_missing_shard_is_named(tars: Path) -> None:
    path, _, _ = place(tars, 0)
    path.unlink()
    found = problems(tars)
    assert found[0] == f"{path.name}: is missing"
    assert "No such file" in found[1]


def test_an_index_of_another_pack_is_noticed(tars: Path, tmp_path: Path) -> None:
    headrace.pack(tmp_path / "src", tmp_path / "other", shard_size=SHARD_SIZE, shuffle=1)
    shutil.copy(tmp_path / "other" / "index.arrow", tars / "index.arrow")
    assert len(problems(tars)) >= 6


def test_a_changed_index_is_noticed(tars: Path) -> None:
    index = tars / "index.arrow"
    data = index.read_bytes()
    flip(index, data.index(PackIndex(index).numbers("width").tobytes()))
    assert problems(tars) == ["index.arrow: its rows have changed since it was made"]
    index.write_bytes(data[: len(data) // 2])
    with pytest.raises(headrace.PackError, match=r"index\.arrow can't be read as a pack's index"):
        verify(tars)


def test_an_extent_outside_its_sample_is_refused(tars: Path, tmp_path: Path) -> None:
    path = tars / "index.arrow"
    index = PackIndex(path)
    columns = list(index.batch.columns)
    at = index.batch.schema.names.index("offset")
    columns[at] = pa.array(np.append(index.numbers("offset")[:-1], np.uint64(1 << 40)))
    schema = index.batch.schema.with_metadata(index.about.to_metadata())
    changed = pa.record_batch(columns, schema=schema)
    with pa.OSFile(str(tmp_path / "new"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(changed)
    (tmp_path / "new").rename(path)
    found = problems(tars)
    assert len(found) == 2
    assert found[1].endswith("the index puts its image outside its sample")


def test_differences_from_another_source_are_reported_record_by_record(tars: Path, tmp_path: Path) -> None:
    file = tmp_path / "src" / "class1" / "00001.jpg"
    file.write_bytes(file.read_bytes() + b"more")
    (tmp_path / "src" / "class1" / "00004.json").write_text("{}")
    assert problems(tars, tmp_path / "src") == [
        "shard-000000.tar: class1/00001: its image's bytes differ from the source's",
        "shard-000000.tar: class1/00004: its further fields differ from the source's",
    ]


def test_info_counts_samples_bytes_and_formats(dest: Path) -> None:
    found = info(dest)
    index = PackIndex(dest / "index.arrow")
    assert found.samples == found.labelled == len(index)
    assert found.shard_bytes == sum(p.stat().st_size for p in dest.iterdir()) - found.index_bytes
    assert found.image_bytes == int(index.numbers("size").sum())
    assert sum(count for _, count in found.formats) == len(index)
    assert sum(count for _, count in found.sides) == len(index)
    assert sum(count for _, count in found.sizes) == len(index)
    assert dict(found.formats)["png"] == 2
    assert found.classes == ("__names__", "class0", "class1", "class2", "odd.files")


def test_any_damage_to_an_index_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    pack = Path(headrace.pack(image_folder(tmp_path / "folder", 3), tmp_path / "pack").path)
    index = pack / "index.arrow"
    whole = index.read_bytes()
    noticed = 0
    for at in range(64, len(whole), 53):
        index.unlink()  # the old one is mapped
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            noticed += bool(verify(pack, workers=1).problems)
        except headrace.PackError:
            noticed += 1
    assert noticed > 20


def test_a_source_without_images_lacks_every_sample(tars: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "class0").mkdir(parents=True)
    found = problems(tars, tmp_path / "empty")
    assert sum("isn't in the source" in line for line in found) == 12
