"""What the doctor says of folders: whether ImageFolder finds them, and which of their files are bad."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace_doctor.doctor.data import judge_folder
from headrace_doctor.doctor.records import Checkup, Finding
from headrace_doctor.measure import images
from headrace_doctor.measure.images import Split, Trouble, decode_all, image_format, list_split, looks_like
from support.jpegs import image_folder, picture
from support.odd_files import GOOD, ODD_FILES, saved

NOBODY = 65534


def tree(root: Path, *names: str) -> Path:
    """Makes images, and the folders whose name ends in a slash."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(GOOD)
    return root


def checkup(path: Path | str) -> Checkup:
    place = images.look_at(str(path))
    leaves = [leaf for leaf in place.leaves() if leaf[1].kind in ("classes", "images")]
    splits = [list_split(name, leaf.path, flat=leaf.kind == "images", workers=2) for name, leaf in leaves]
    decode_all(splits, workers=2)
    return judge_folder(place, splits, decoded=True)


def findings(path: Path | str) -> dict[str, Finding]:
    return {finding.name: finding for finding in checkup(path).findings}


def examined(root: Path, workers: int = 2) -> Split:
    split = list_split("", str(root), workers=workers)
    decode_all([split], workers=workers)
    return split


def troubles(split: Split) -> dict[str, Trouble]:
    return {name: trouble for trouble, name, _ in split.troubles}


@contextmanager
def as_nobody(root: Path) -> Iterator[None]:
    """Root may read anything: another user may not. pytest's own folders above are closed to others."""
    for folder in (root, *root.parents):
        if folder.owner() == root.owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


# What lies in the folder, its kind, and what the finding on it and its remedy contain.
LAYOUTS: list[tuple[list[str], str, str, str]] = [
    (["cat/1.jpg", "dog/1.JPEG", "notes.txt"], "classes", "holds 2 class folders", ""),
    (["train/1.jpg", "car/1.jpg", "plane/1.jpg"], "classes", "holds 3 class folders", ""),
    (["cat/2020/1.jpg", "dog/2021/1.jpg"], "classes", "holds 2 class folders", ""),
    (
        ["train/a/1.jpg", "val/a/1.jpg"],
        "splits",
        "the splits train, val",
        "it would take the splits for classes",
    ),
    (
        ["imagenet/cat/1.jpg", "imagenet/dog/1.jpg"],
        "above",
        "the wrong level: the images lie in imagenet",
        "Use ",
    ),
    (
        ["I/Data/LOC/train/n1/1.JPEG", "I/Data/LOC/val/n1/1.JPEG", "I/Notes/x/1.xml"],
        "above",
        "I/Data/LOC/train, I/Data/LOC/val",
        "I/Data/LOC, or its splits, with ImageFolder.",
    ),
    (
        ["a/train/x/1.jpg", "a/val/x/1.jpg", "b/train/x/1.jpg", "b/val/x/1.jpg"],
        "above",
        "2 folders with images further down: a/train, a/val, b/train, b/val",
        "Use the one that you mean.",
    ),
    (
        ["1.jpg", "2.jpg"],
        "images",
        "holds 2 images and no class folders",
        "headrace.ImageDataset(paths, labels)",
    ),
    (["ILSVRC2012_val_00000001.JPEG"], "images", "1 image", "headrace pack ILSVRC2012_img_val.tar"),
    (["lost+found/"], "empty", "is empty", "docker run -v"),
    (["a.csv", "b.csv"], "nothing", "holds no images and no folders, only: a.csv, b.csv", ""),
    (["images.zip"], "archives", "1 archive and no images: still packed\nimages.zip", "unzip"),
    (["images.tar.gz"], "archives", "still packed", "tar xf"),
    (["ILSVRC2012_img_train.tar"], "archives", "still packed", "headrace pack"),
    (["n01440764.tar", "n01443537.tar"], "archives", "2 archives", "WebDataset"),
]


@pytest.mark.parametrize(("names", "kind", "value", "remedy"), LAYOUTS)
def test_a_folder_is_what_imagefolder_wants_or_the_remedy_is_named(
    tmp_path: Path, names: list[str], kind: str, value: str, remedy: str
) -> None:
    data = tree(tmp_path / "data", *names)
    found = findings(data)["folder"]
    assert images.look_at(str(data)).kind == kind
    assert value in found.value
    assert remedy in found.remedy
    assert (found.judgement == "good") == (kind in ("classes", "splits"))


def test_splits_are_looked_at_one_by_one(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat/1.jpg", "Validation/cat/1.jpg", "test/1.jpg", "annotations/a.xml")
    found = findings(tmp_path)
    assert found["test"].judgement == "note"
    assert found["test"].value == "1 image in no class folders: no labels"
    assert "missing split" not in found
    assert found["classes of val"].judgement == "good"
    assert checkup(tmp_path).healthy
    assert json.loads(json.dumps(checkup(tmp_path).to_json()))["subject"] == str(tmp_path)


@pytest.mark.parametrize(
    ("names", "missing"), [(["train/a/1.jpg"], "val"), (["val/a/1.jpg", "test/1.jpg"], "train")]
)
def test_a_missing_split_is_named(tmp_path: Path, names: list[str], missing: str) -> None:
    found = findings(tree(tmp_path, *names, "val.zip"))["missing split"]
    assert found.judgement == "bad"
    assert found.value.startswith(f"no {missing} folder next to ")
    assert "an archive is there: val.zip" in found.value
    assert str(tmp_path / missing) in found.remedy


def test_a_class_folder_given_as_the_root_is_bad(tmp_path: Path) -> None:
    tree(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    found = findings(tmp_path / "cat")["folder"]
    assert found.judgement == "bad"
    assert found.value.endswith(f"Is it a class itself, of 2 in {tmp_path}?")
    assert found.remedy == f"Use {tmp_path}."


def test_a_missing_folder_and_what_is_there_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "ImageNet/train/a/1.jpg", "other/")
    found = findings(tmp_path / "imagenet" / "train")["folder"]
    assert found.value == f"doesn't exist. {tmp_path} does, and holds ImageNet, other"
    assert found.remedy == f"Did you mean {tmp_path / 'ImageNet'}?"
    assert "was it mounted?" in findings(tmp_path / "nothing like it")["folder"].remedy
    (tmp_path / "data").symlink_to("/mnt/of-the-host")
    assert findings(tmp_path / "data")["folder"].value == "is a link to /mnt/of-the-host, which doesn't exist"
    monkeypatch.chdir(tmp_path / "other")
    assert f"{tmp_path / 'other'} does, and holds nothing" in findings("data/train")["folder"].value
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "other"))
    assert "something is mounted there" in findings(tmp_path / "other")["folder"].value


def test_empty_classes_and_folders_of_tools(tmp_path: Path) -> None:
    tree(tmp_path, "cat/1.jpg", "dog/", "emu/", ".ipynb_checkpoints/")
    found = findings(tmp_path)
    assert found["empty classes"].value.endswith("FileNotFoundError\ndog\nemu")
    assert "allow_empty=True" in found["empty classes"].remedy
    assert found["folders of tools"].remedy == f"Remove them: rm -r '{tmp_path}/.ipynb_checkpoints'"


def test_classes_of_splits_must_be_the_same(tmp_path: Path) -> None:
    tree(tmp_path, *(f"train/{name}/1.jpg" for name in ("ant", "bee", "cat")))
    tree(tmp_path, *(f"val/{name}/1.jpg" for name in ("ant", "cat", "dog")), "test/images/1.jpg")
    found = findings(tmp_path)
    assert found["classes of val"].judgement == "bad"
    assert found["classes of val"].value == (
        "1 class only in train: bee\n1 class only in val: dog\nanother label in val: 1 class of both"
    )
    assert found["classes of test"].remedy.startswith("All images of test lie in one folder, images: sort")


def test_a_finding_names_ten_files_and_keeps_all(tmp_path: Path) -> None:
    tree(tmp_path, *(f"train/cat/{number:02}.JPEG" for number in range(30)), "val/cat/1.jpg")
    for number in range(12):
        (tmp_path / "train" / "cat" / f"{number:02}.JPEG").write_bytes(GOOD[:300])
    found = findings(tmp_path)
    lines = found["cut short"].value.splitlines()
    assert lines[0].startswith("12 images truncated")
    assert lines[1].startswith("train/cat/00.JPEG: ")
    assert lines[11:] == ["and 2 more"]
    assert len(found["cut short"].details["files"]) == 12
    assert found["images"].value == "19 read and decoded to the last pixel"


def test_the_list_is_that_of_imagefolder(tmp_path: Path) -> None:
    assert images.IMG_EXTENSIONS == IMG_EXTENSIONS
    image_folder(tmp_path, 12)
    tree(tmp_path, "class1/deep/er/x.JPEG", "class1/deep/b.PNG", "class1/Z.webp", "class0/é.tiff")
    tree(tmp_path, "class0/x.gif", "class0/x.heic", "class0/x", "loose.jpg")
    (tmp_path / "class0" / "x.txt").write_text("BMW, a note")
    split = list_split("", str(tmp_path), workers=3)
    expected = ImageFolder(tmp_path)
    assert [os.path.join(tmp_path, name) for name in split.images] == [path for path, _ in expected.samples]
    assert list(split.classes) == expected.classes
    assert list(split.classes.values()) == np.bincount(expected.targets).tolist()
    assert set(troubles(split)) == {"class0/x.gif", "class0/x.heic", "class0/x"}  # by what they hold


def test_every_odd_file_has_the_trouble_that_pillow_has(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, make in ODD_FILES.items():
        (tmp_path / "a" / f"{name}.jpg").write_bytes(make())
    found = troubles(examined(tmp_path))
    for name in ODD_FILES:
        try:
            with Image.open(tmp_path / "a" / f"{name}.jpg") as image:
                image.convert("RGB")
            fine = True
        except (OSError, SyntaxError):
            fine = False
        assert (found.get(f"a/{name}.jpg", Trouble.MISNAMED) is Trouble.MISNAMED) == fine, name
    assert found["a/empty.jpg"] is Trouble.EMPTY
    assert found["a/text.jpg"] is Trouble.ALIEN
    cut = ("only the start", "cut in its header", "cut in its data", "zeros from the middle on")
    for name in (*cut, "without its end marker"):
        assert found[f"a/{name}.jpg"] is Trouble.CUT, name


def test_names_that_stand_for_another_format_are_noted(tmp_path: Path) -> None:
    tree(tmp_path, "a/y.JPEG")
    (tmp_path / "a" / "x.jpg").write_bytes(saved("PNG"))
    image = Image.new("RGB", (40, 30), "teal")  # as phones write them
    image.save(tmp_path / "a" / "mpo.jpg", format="MPO", save_all=True, append_images=[image])
    found = findings(tmp_path)["misnamed"]
    assert (found.judgement, found.details["files"]) == ("note", {"a/x.jpg": "is PNG"})


def test_links_that_lead_nowhere_or_in_a_circle(tmp_path: Path) -> None:
    image_folder(tmp_path, 6)
    (tmp_path / "class0" / "gone.jpg").symlink_to("/nowhere/gone.jpg")
    (tmp_path / "class0" / "itself.jpg").symlink_to("itself.jpg")
    (tmp_path / "class1" / "round").symlink_to(tmp_path / "class1")
    (tmp_path / "class2" / "other").symlink_to(tmp_path / "class0")  # read twice, as ImageFolder does
    (tmp_path / "lost").symlink_to("/nowhere/lost")
    split = examined(tmp_path)
    names = ("class0/gone", "class0/itself", "class2/other/gone", "class2/other/itself")
    broken = {f"{name}.jpg": Trouble.LINK for name in names}
    assert troubles(split) == {**broken, "lost": Trouble.LINK, "class1/round": Trouble.CIRCLE}
    assert (Trouble.LINK, "class0/gone.jpg", "→ /nowhere/gone.jpg") in split.troubles
    assert len(ImageFolder(tmp_path)) > len(split.images) + len(broken)  # it does go round


def test_what_this_user_cannot_read(tmp_path: Path) -> None:
    image_folder(tmp_path, 9)
    closed, secret = tmp_path / "class1", tmp_path / "class0" / "00000.jpg"
    examined(tmp_path)  # imports Pillow's modules, which are root's
    with as_nobody(tmp_path):
        pass
    secret.chmod(0)
    closed.chmod(0)
    try:
        with as_nobody(tmp_path):
            found = findings(tmp_path)
            folder = findings(closed)["folder"]
    finally:
        closed.chmod(0o755)
    files = found["unreadable"].details["files"]
    assert files["class0/00000.jpg"].startswith("Permission denied: ---------- of ") or "this process" in str(
        files
    )
    assert files["class1"].startswith("Permission denied: d--------- of ")
    assert "empty classes" not in found
    assert found["images"].value.startswith("5 ")
    assert folder.value.startswith("can't be listed: Permission denied: d--------- of ")
    assert f"chmod -R a+rX {closed}" in folder.remedy


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    assert troubles(examined(tmp_path)) == {"a/pipe.jpg": Trouble.ALIEN}


def test_progress_and_threads_change_nothing(tmp_path: Path) -> None:
    image_folder(tmp_path, 200)
    (tmp_path / "class2" / "bad.jpg").write_bytes(GOOD[:300])
    (tmp_path / "class0" / "empty.jpg").touch()  # nothing to decode
    one, many = examined(tmp_path, 1), list_split("", str(tmp_path), workers=4)
    seen: list[tuple[int, int]] = []
    decode_all([many], workers=4, progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (201, 201)
    assert (one.troubles, one.images) == (many.troubles, many.images)


def test_too_many_pixels_are_reported_and_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    (tmp_path / "a").mkdir()
    for name, side in (("fits.jpg", 44), ("not.jpg", 60), ("not.png", 60)):
        picture(np.random.default_rng(0), side, side).save(tmp_path / "a" / name)
    assert troubles(examined(tmp_path)) == {"a/not.jpg": Trouble.HUGE, "a/not.png": Trouble.HUGE}


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
    assert image_format(saved(format_)) == format_
    assert image_format(b"x" + saved(format_)) == ""
