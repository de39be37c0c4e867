"""The state of every kind of file is what Pillow makes of it; the list is ImageFolder's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace_doctor.measure import tree
from headrace_doctor.measure.images import Split, State, decode_all, image_format, list_split, looks_like
from support.jpegs import image_folder, picture
from support.odd_files import GOOD, ODD_FILES, saved

NOBODY = 65534


def survey(root: Path, *, flat: bool = False, workers: int = 2) -> Split:
    split = list_split("", str(root), IMG_EXTENSIONS, flat=flat, workers=workers)
    decode_all([split], workers=workers)
    return split


def states(split: Split) -> dict[str, State]:
    images = split.images
    return {name: State(state) for name, state in zip(images.names, images.states, strict=True)}


@contextmanager
def as_nobody(*warm_up: Callable[[], object]) -> Iterator[None]:
    """Root may read anything: another user may not. Modules of root's must be imported before."""
    for call in warm_up:
        call()
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


def open_to_all(path: Path) -> None:
    """pytest's own folders above `path` are closed to others."""
    for folder in (path, *path.parents):
        if folder.owner() == path.owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)


def test_a_photograph_with_further_images_behind_it_is_a_jpeg(tmp_path: Path) -> None:
    """Phones write them, and Pillow opens them as MPO."""
    (tmp_path / "a").mkdir()
    image = Image.new("RGB", (40, 30), "teal")
    image.save(tmp_path / "a" / "x.jpg", format="MPO", save_all=True, append_images=[image])
    images = survey(tmp_path).images
    assert (images.misnamed, images.states.tolist()) == ({}, [State.GOOD])


def test_a_name_that_stands_for_another_format_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, format_ in (("x.jpg", "PNG"), ("y.JPEG", "JPEG"), ("z.png", "PNG")):
        (tmp_path / "a" / name).write_bytes(saved(format_))
    assert survey(tmp_path).images.misnamed == {0: "PNG"}


def test_every_odd_file_gets_the_state_that_pillow_gives_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, make in ODD_FILES.items():
        (tmp_path / "a" / f"{name}.jpg").write_bytes(make())
    found = states(survey(tmp_path))
    assert len(found) == len(ODD_FILES)
    for name, state in found.items():
        try:
            with Image.open(tmp_path / name) as image:
                image.convert("RGB")
            fine = True
        except (OSError, SyntaxError):
            fine = False
        assert (state == State.GOOD) == fine, (name, state)
    assert found["a/empty.jpg"] == State.EMPTY
    assert found["a/text.jpg"] == State.ALIEN
    for name in (
        "only the start",
        "cut in its header",
        "cut in its data",
        "zeros from the middle on",
        "without its end marker",
    ):
        assert found[f"a/{name}.jpg"] == State.CUT, name


def test_the_list_is_that_of_imagefolder(tmp_path: Path) -> None:
    assert tree.IMG_EXTENSIONS == IMG_EXTENSIONS
    image_folder(tmp_path, 12)
    for name in ("class1/deep/er/x.JPEG", "class1/deep/b.PNG", "class1/Z.webp", "class0/é.tiff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(GOOD)
    for name in ("class0/x.gif", "class0/x.heic", "class0/x.txt", "loose.jpg"):
        (tmp_path / name).write_bytes(GOOD)
    split = list_split("", str(tmp_path), IMG_EXTENSIONS, workers=3)
    expected = ImageFolder(tmp_path)
    names = [os.path.join(tmp_path, name) for name in split.images.names]
    assert names == [path for path, _ in expected.samples]
    assert split.images.labels.tolist() == expected.targets
    assert list(split.classes) == expected.classes
    assert split.counts().tolist() == np.bincount(expected.targets).tolist()
    assert sorted(split.ignored) == ["class0/x.gif", "class0/x.heic", "class0/x.txt"]
    assert sorted(split.ignored_images) == sorted(split.ignored)  # by what they hold
    assert split.loose == ["loose.jpg"]


def test_links_that_lead_nowhere_or_in_a_circle(tmp_path: Path) -> None:
    image_folder(tmp_path, 6)
    (tmp_path / "class0" / "gone.jpg").symlink_to("/nowhere/gone.jpg")
    (tmp_path / "class0" / "itself.jpg").symlink_to("itself.jpg")
    (tmp_path / "class1" / "round").symlink_to(tmp_path / "class1")
    (tmp_path / "class2" / "other").symlink_to(tmp_path / "class0")  # read twice, as ImageFolder does
    (tmp_path / "lost").symlink_to("/nowhere/lost")
    split = survey(tmp_path)
    found = states(split)
    assert {name for name, state in found.items() if state == State.LINK} == {
        "class0/gone.jpg",
        "class0/itself.jpg",
        "class2/other/gone.jpg",
        "class2/other/itself.jpg",
    }
    row = list(found).index("class0/gone.jpg")
    assert split.images.reasons[row] == "→ /nowhere/gone.jpg: No such file or directory"
    assert split.loops == ["class1/round"]
    assert split.lost_folders == ["lost"]
    assert len(ImageFolder(tmp_path)) > len(found)  # it does go round


def test_what_this_user_cannot_read(tmp_path: Path) -> None:
    image_folder(tmp_path, 9)
    closed, secret = tmp_path / "class1", tmp_path / "class0" / "00000.jpg"
    open_to_all(tmp_path)
    secret.chmod(0)
    closed.chmod(0)
    try:
        with as_nobody(lambda: survey(tmp_path)):
            split = survey(tmp_path)
    finally:
        closed.chmod(0o755)
    found = states(split)
    assert found["class0/00000.jpg"] == State.UNREADABLE
    assert "---------- of " in split.images.reasons[0]
    assert "this process is " in split.images.reasons[0]
    assert [name for name, _ in split.closed] == ["class1"]
    assert split.closed[0][1].startswith("Permission denied: d--------- of ")
    assert split.counts().tolist() == [3, 0, 3]
    assert list(found.values()).count(State.GOOD) == 5


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    assert states(survey(tmp_path)) == {"a/pipe.jpg": State.ALIEN}


def test_the_number_of_threads_and_chunks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder(tmp_path, 30)
    (tmp_path / "class2" / "bad.jpg").write_bytes(GOOD[:300])
    one = survey(tmp_path, workers=1).images
    monkeypatch.setattr("headrace_doctor.measure.images.CHUNK", 3)
    many = survey(tmp_path, workers=4).images
    assert one.states.tolist() == many.states.tolist()
    assert one.reasons == many.reasons


def test_progress_ends_at_the_number_of_images(tmp_path: Path) -> None:
    image_folder(tmp_path, 10)
    (tmp_path / "class0" / "empty.jpg").touch()  # nothing to decode
    split = list_split("", str(tmp_path), IMG_EXTENSIONS)
    seen: list[tuple[int, int]] = []
    decode_all([split], progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (10, 10)


def test_too_many_pixels_are_reported_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    (tmp_path / "a").mkdir()
    for name, side in (("fits.jpg", 44), ("not.jpg", 60), ("not.png", 60)):
        picture(np.random.default_rng(0), side, side).save(tmp_path / "a" / name)
    assert states(survey(tmp_path)) == {
        "a/fits.jpg": State.GOOD,
        "a/not.jpg": State.HUGE,
        "a/not.png": State.HUGE,
    }


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"\n<!DOCTYPE HTML PUBLIC", "an HTML page"),
        (b"PK\x03\x04....", "a zip file"),
        (bytes(100), "nothing but zero bytes"),
        (b"hello there", "text"),
        (bytes(range(1, 100)), "unknown data"),
    ],
)
def test_what_is_not_an_image_is_named(head: bytes, what: str) -> None:
    assert looks_like(head).startswith(what)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000"])
def test_formats_are_known_by_their_beginnings(format_: str) -> None:
    assert image_format(saved(format_)[:64]) == format_
    assert image_format(b"x" + saved(format_)[:63]) == ""
