"""The doctor says which folder should have been given, and what is missing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace_doctor.doctor.data_layout import layout
from headrace_doctor.doctor.records import Finding
from headrace_doctor.measure.tree import Place, look_at, split_of, with_surroundings


def tree(root: Path, *names: str) -> Path:
    """Makes the files, and the folders where a name ends in a slash."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(b"x")
    return root


def seen(path: Path | str) -> Place:
    return with_surroundings(look_at(str(path), IMG_EXTENSIONS), IMG_EXTENSIONS)


def findings(path: Path | str) -> dict[str, Finding]:
    return {finding.name: finding for finding in layout(seen(path))}


def leaves(path: Path) -> list[tuple[str, str]]:
    return [(split, os.path.relpath(leaf.path, path)) for split, leaf in seen(path).leaves()]


def test_a_folder_of_classes_is_what_imagefolder_wants(tmp_path: Path) -> None:
    tree(tmp_path, "cat/1.jpg", "dog/1.JPEG", "notes.txt")
    (folder,) = findings(tmp_path).values()
    assert (folder.judgement, folder.value) == ("good", "holds 2 class folders")
    assert leaves(tmp_path) == [("", ".")]


def test_a_folder_of_splits_is_looked_at_split_by_split(tmp_path: Path) -> None:
    tree(tmp_path, "train/cat/1.jpg", "Validation/cat/1.jpg", "test/1.jpg", "annotations/a.xml")
    assert leaves(tmp_path) == [("val", "Validation"), ("test", "test"), ("train", "train")]
    found = findings(tmp_path)
    assert found["folder"].judgement == "good"
    assert "Given" in found["folder"].remedy
    assert "it would take the splits for classes" in found["folder"].remedy
    assert found["test"].judgement == "note"
    assert found["test"].value == "1 image in no class folders: no labels"
    assert "missing split" not in found


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    tree(tmp_path, "train/1.jpg", "car/1.jpg", "plane/1.jpg")
    assert seen(tmp_path).kind == "classes"


def test_one_level_too_high(tmp_path: Path) -> None:
    tree(tmp_path / "data", "imagenet/cat/1.jpg", "imagenet/dog/1.jpg", "readme.md")
    assert ImageFolder(tmp_path / "data").classes == ["imagenet"]  # without a word
    (folder,) = (f for f in findings(tmp_path / "data").values() if f.name == "folder")
    assert folder.judgement == "bad"
    assert folder.value.startswith("is the wrong level: the images lie in imagenet. ImageFolder would take 1")
    assert folder.remedy == f"Use {tmp_path / 'data' / 'imagenet'}."


def test_far_too_high(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "ILSVRC/Data/CLS-LOC/train/n01440764/1.JPEG",
        "ILSVRC/Data/CLS-LOC/val/n01440764/1.JPEG",
        "ILSVRC/Annotations/x/1.xml",
        "ILSVRC/ImageSets/1.txt",
    )
    below = tmp_path / "ILSVRC/Data/CLS-LOC"
    folder = findings(tmp_path)["folder"]
    assert folder.judgement == "bad"
    assert folder.remedy == f"Use {below}, or its splits, with ImageFolder."
    assert [split for split, _ in leaves(tmp_path)] == ["train", "val"]


def test_two_sets_in_a_folder(tmp_path: Path) -> None:
    tree(tmp_path, "a/train/x/1.jpg", "a/val/x/1.jpg", "b/train/x/1.jpg", "b/val/x/1.jpg")
    folder = findings(tmp_path)["folder"]
    assert "2 folders with images further down: a/train, a/val, b/train, b/val" in folder.value
    assert (folder.judgement, folder.remedy) == ("bad", "Use the one that you mean.")


def test_classes_may_have_folders_of_their_own(tmp_path: Path) -> None:
    tree(tmp_path, "cat/2020/1.jpg", "dog/2021/1.jpg")
    assert seen(tmp_path).kind == "classes"


def test_a_class_folder_given_as_the_root_is_bad(tmp_path: Path) -> None:
    tree(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    with pytest.raises(FileNotFoundError):
        ImageFolder(tmp_path / "cat")
    folder = findings(tmp_path / "cat")["folder"]
    assert folder.judgement == "bad"
    assert folder.value == (
        "holds 2 images and no class folders: ImageFolder finds no classes. It is one of 2 such folders in"
        f" {tmp_path}: a class itself?"
    )
    assert folder.remedy == f"Use {tmp_path}."


def test_pictures_that_nobody_sorted(tmp_path: Path) -> None:
    tree(tmp_path, "train/a/1.jpg", "val/ILSVRC2012_val_00000001.JPEG", "val/ILSVRC2012_val_00000002.JPEG")
    found = findings(tmp_path)["val"]
    assert found.judgement == "bad"
    assert "headrace pack ILSVRC2012_img_val.tar" in found.remedy


@pytest.mark.parametrize(
    ("names", "missing"), [(["train/a/1.jpg"], "val"), (["val/a/1.jpg", "test/1.jpg"], "train")]
)
def test_a_missing_split_is_named(tmp_path: Path, names: list[str], missing: str) -> None:
    found = findings(tree(tmp_path, *names, "val.zip"))["missing split"]
    assert found.judgement == "bad"
    assert found.value.startswith(f"no {missing} folder next to ")
    assert "an archive is there: val.zip" in found.value
    assert str(tmp_path / missing) in found.remedy


def test_an_empty_split_is_bad(tmp_path: Path) -> None:
    found = findings(tree(tmp_path, "train/a/1.jpg", "val/"))
    assert (found["val"].judgement, found["val"].value) == ("bad", "is empty")


def test_a_missing_folder_and_what_is_there_instead(tmp_path: Path) -> None:
    tree(tmp_path, "ImageNet/train/a/1.jpg", "other/")
    folder = findings(tmp_path / "imagenet" / "train")["folder"]
    assert folder.value == f"doesn't exist. {tmp_path} does, and holds ImageNet, other"
    assert folder.remedy == f"Did you mean {tmp_path / 'ImageNet'}?"
    folder = findings(tmp_path / "nothing like it")["folder"]
    assert folder.remedy == (
        "Correct the path. In a container: was it mounted? docker run -v /path/on/the/host:"
        f"{tmp_path / 'nothing like it'}"
    )
    assert folder.judgement == "bad"


def test_a_relative_path_is_looked_for_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path} does, and holds nothing" in findings("data/train")["folder"].value


def test_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/mnt/imagenet-of-the-host")
    folder = findings(tmp_path / "data")["folder"]
    assert folder.value == "is a link to /mnt/imagenet-of-the-host, which doesn't exist"
    assert folder.remedy.endswith("-v /mnt/imagenet-of-the-host:/mnt/imagenet-of-the-host")


def test_an_empty_folder_and_an_empty_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "data/lost+found/")
    folder = findings(tmp_path / "data")["folder"]
    assert (folder.judgement, folder.value) == ("bad", "is empty")
    assert f":{tmp_path / 'data'}" in folder.remedy
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "data"))
    assert "something is mounted there" in findings(tmp_path / "data")["folder"].value


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("images.zip", "unzip"),
        ("images.tar.gz", "tar xf"),
        ("ILSVRC2012_img_train.tar", "headrace pack"),
    ],
)
def test_archives_are_still_to_be_unpacked(tmp_path: Path, name: str, remedy: str) -> None:
    tree(tmp_path, name)
    (found,) = findings(tmp_path).values()
    assert found.judgement == "bad"
    assert found.value == f"1 archive and no images: still packed\n{name}"
    assert remedy in found.remedy
    assert str(tmp_path / name) in found.remedy
    (found,) = findings(tmp_path / name).values()
    assert (found.judgement, found.value) == ("bad", "is a file, not a folder")
    assert remedy in found.remedy


def test_an_archive_for_each_class(tmp_path: Path) -> None:
    tree(tmp_path, "train/n01440764.tar", "train/n01443537.tar", "val/n01440764/1.JPEG")
    found = findings(tmp_path)["train"]
    assert found.judgement == "bad"
    assert "tar xf" in found.remedy
    assert "WebDataset" in found.remedy


def test_archives_beside_the_folders_are_a_note(tmp_path: Path) -> None:
    found = findings(tree(tmp_path, "cat/1.jpg", "all.tar"))
    assert found["archives"].judgement == "note"


def test_a_folder_closed_to_this_user(tmp_path: Path) -> None:
    closed = tree(tmp_path, "data/a/1.jpg") / "data"
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if folder.owner() == tmp_path.owner():
            folder.chmod(folder.stat().st_mode | 0o055)  # pytest's own are closed to others
    closed.chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # root may list anything
    try:
        finding = findings(closed)["folder"]
    finally:
        os.seteuid(me)
        closed.chmod(0o755)
    assert finding.judgement == "bad"
    assert finding.value.startswith("can't be listed: Permission denied: d--------- of ")
    assert f"chmod -R a+rX {closed}" in finding.remedy


def test_other_files_alone(tmp_path: Path) -> None:
    folder = findings(tree(tmp_path, "a.csv", "b.csv"))["folder"]
    assert (folder.judgement, folder.value) == ("bad", "holds no images and no folders, only: a.csv, b.csv")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    tree(tmp_path, "a/")
    (tmp_path / "a" / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("c")
    assert seen(tmp_path).kind == "classes"


@pytest.mark.parametrize(
    ("name", "split"),
    [("train", "train"), ("Training", "train"), ("VAL", "val"), ("valid", "val"), ("tests", "")],
)
def test_names_of_splits(name: str, split: str) -> None:
    assert split_of(name) == split
