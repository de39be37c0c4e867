"""What is done to images when it is asked for: transcoding without loss, other formats, smaller images."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import headrace
from headrace.packs.info import info
from headrace.packs.verify import verify
from support.jpegs import image_folder
from support.odd_files import GOOD, ODD_FILES, rotated, saved
from support.pack_folders import contents, odd_folder

# What no decoder takes for whole: kept as it is, never repaired.
DAMAGED = {
    "without its end marker",
    "only the start",
    "cut in its header",
    "cut in its data",
    "zeros from the middle on",
    "4:1:1 by another's blocks",
}


def pixels(data: bytes) -> tuple[tuple[int, int], bytes] | None:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size, image.convert("RGB").tobytes()
    except OSError:
        return None


def images(dest: Path) -> dict[str, bytes]:
    """Stored images by key."""
    pack = headrace.PackedDataset(dest)
    return {pack.key(i): pack.source.open(i).read() for i in range(len(pack))}


def only(tmp_path: Path, name: str, data: bytes) -> Path:
    """A folder of one image."""
    (tmp_path / "src" / "a").mkdir(parents=True, exist_ok=True)
    (tmp_path / "src" / "a" / name).write_bytes(data)
    return tmp_path / "src"


def test_optimized_jpegs_keep_every_pixel_and_get_restart_markers(tmp_path: Path) -> None:
    src = odd_folder(tmp_path / "src")
    summary = headrace.pack(src, tmp_path / "dest", optimize=True, workers=2)
    stored, kept = images(tmp_path / "dest"), dict(summary.kept)
    names = list(ODD_FILES)
    assert {key.rpartition("/")[2] for key in kept} == {f"{names.index(name):02}" for name in DAMAGED}
    pack = headrace.PackedDataset(tmp_path / "dest")
    for (path, label), (key, data) in zip(ImageFolder(str(src)).samples, stored.items(), strict=True):
        original = Path(path).read_bytes()
        assert pixels(data) == pixels(original), key
        if original.startswith(b"\xff\xd8") and key not in kept:
            assert b"\xff\xdd\0\4" in data
        else:
            assert data == original
        assert pack.targets[list(stored).index(key)] == label
    assert verify(tmp_path / "dest", against=src).problems == ()
    assert len(dict(info(tmp_path / "dest").made["kept"])) == len(DAMAGED)


def test_optimized_packs_are_smaller_and_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    src = image_folder(tmp_path / "src", 10, side=400)
    one = headrace.pack(src, tmp_path / "one", optimize=True, workers=1)
    headrace.pack(src, tmp_path / "two", optimize=True, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert one.pack_bytes < headrace.pack(src, tmp_path / "plain").pack_bytes


def test_a_changed_pixel_is_found_in_an_optimized_pack(tmp_path: Path) -> None:
    src = only(tmp_path, "x.png", saved("PNG"))
    headrace.pack(src, tmp_path / "dest", reencode="png", optimize=True)
    other = Image.open(io.BytesIO(saved("PNG"))).convert("RGB")
    other.putpixel((3, 3), (1, 2, 3))
    other.save(src / "a" / "x.png")
    (problem,) = verify(tmp_path / "dest", against=src).problems
    assert problem.what == "its pixels differ from the source's"


def test_metadata_is_kept_unless_stripped(tmp_path: Path) -> None:
    src = only(tmp_path, "x.jpg", rotated())
    headrace.pack(src, tmp_path / "kept", optimize=True)
    headrace.pack(src, tmp_path / "stripped", optimize=True, strip=True)
    assert b"Exif" in images(tmp_path / "kept")["a/x"]
    assert b"Exif" not in images(tmp_path / "stripped")["a/x"]
    assert pixels(images(tmp_path / "stripped")["a/x"]) == pixels(rotated())


def test_other_formats_become_png_without_loss(tmp_path: Path) -> None:
    src = odd_folder(tmp_path / "src")
    summary = headrace.pack(src, tmp_path / "dest", reencode="png")
    undecodable = {name for name in ("empty", "text") if name in ODD_FILES}
    assert len(summary.kept) == len(undecodable)
    assert all("Pillow can't decode it" in why for _, why in summary.kept)
    stored, kept = images(tmp_path / "dest"), dict(summary.kept)
    for (path, _), (key, data) in zip(ImageFolder(str(src)).samples, stored.items(), strict=True):
        original = Path(path).read_bytes()
        if original.startswith((b"\xff\xd8\xff", b"\x89PNG")) or key in kept:
            assert data == original
        else:
            assert data.startswith(b"\x89PNG")
            assert pixels(data) == pixels(original)
    assert verify(tmp_path / "dest", against=src).problems == ()


def test_lossy_changes_are_recorded_and_only_where_needed(tmp_path: Path) -> None:
    src = only(tmp_path, "large.jpg", saved("JPEG", width=300, height=100))
    only(tmp_path, "small.jpg", GOOD)
    only(tmp_path, "large.png", saved("PNG", "RGBA", width=100, height=300))
    headrace.pack(src, tmp_path / "dest", max_side=120, quality=80)
    stored = images(tmp_path / "dest")
    assert stored["a/small"] == GOOD
    assert pixels(stored["a/large.jpg"])[0] == (120, 40)  # type: ignore[index]
    assert pixels(stored["a/large.png"])[0] == (40, 120)  # type: ignore[index]
    with Image.open(io.BytesIO(stored["a/large.png"])) as image:
        assert (image.format, image.mode) == ("PNG", "RGBA")
    made = info(tmp_path / "dest").made
    assert (made["max_side"], made["quality"]) == (120, 80)
    verdict = verify(tmp_path / "dest", against=src)
    assert verdict.problems == ()
    assert verdict.notes == ("2 images were re-encoded with loss: their pixels were not compared.",)


@pytest.mark.parametrize("name", ["png with alpha", "png of 16 bits", "png of 1 bit", "gif", "tiff", "webp"])
def test_other_formats_become_jpeg_with_reencode_jpeg(tmp_path: Path, name: str) -> None:
    src = only(tmp_path, "x.png", ODD_FILES[name]())
    headrace.pack(src, tmp_path / "dest", reencode="jpeg", quality=90)
    pack = headrace.PackedDataset(tmp_path / "dest")
    assert pack.index.text("extension", 0) == "jpg"
    with Image.open(pack.source.open(0)) as image:
        assert (image.format, image.size) == ("JPEG", (80, 60))


def test_exif_survives_scaling_down(tmp_path: Path) -> None:
    src = only(tmp_path, "x.jpg", rotated())
    headrace.pack(src, tmp_path / "dest", max_side=40)
    with Image.open(io.BytesIO(images(tmp_path / "dest")["a/x"])) as image:
        assert image.getexif()[0x0112] == 6
        assert image.size == (40, 30)
