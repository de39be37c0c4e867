"""Members of tar files, as Python's tarfile and other programs read them."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from headrace.packs import tar
from headrace.packs.samples import Sample
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


@pytest.mark.parametrize("key", NAMES)
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


@pytest.mark.parametrize("value_size", [1, 80, 85, 90, 91, 92, 93, 94, 95, 980, 990, 991, 992])
def test_extended_records_count_their_own_length(value_size: int) -> None:
    record = tar._pax_record(b"path", b"v" * value_size)
    assert int(record.split(b" ")[0]) == len(record)


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
