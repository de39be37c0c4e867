"""Opinions on what a survey found, from records made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from headrace.doctor.data import duplicates, files, formats, judge_folder, judge_pack, sizes
from headrace.doctor.data_classes import classes, imagenet
from headrace.doctor.naming import listed, plural, shortened
from headrace.doctor.records import Finding
from headrace.measure.images import Images, Split, State
from headrace.measure.tree import Place

ROOT = "/data"


def split_of_counts(name: str, counts: dict[str, int], extension: str = ".JPEG") -> Split:
    """Good images, so many of each class."""
    names = [f"{each}/{i}{extension}" for each in sorted(counts) for i in range(counts[each])]
    labels = np.repeat(np.arange(len(counts)), [counts[each] for each in sorted(counts)])
    n = len(names)
    images = Images(
        names,
        labels.astype(np.int32),
        np.full(n, 1000, np.int64),
        np.full(n, State.GOOD, np.uint8),
    )
    images.kind_names = [("JPEG", "RGB")]
    images.kinds[:] = 0
    images.widths[:] = images.heights[:] = 300
    images.digests[:] = np.arange(1, n + 1) + hash(name) % 1000 * 1_000_000
    return Split(name, f"{ROOT}/{name}" if name else ROOT, tuple(sorted(counts)), images)


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


def bad(findings: Sequence[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.judgement == "bad"]


def test_a_sound_set_is_healthy_and_its_checkup_is_json() -> None:
    splits = [split_of_counts(name, {"cat": 5, "dog": 6}) for name in ("train", "val")]
    place = Place(ROOT, "splits", tuple((s.name, Place(s.path, "classes", folders=2)) for s in splits))
    checkup = judge_folder(place, splits, decoded=True)
    assert checkup.healthy
    assert {f.judgement for f in checkup.findings} == {"good"}
    assert [heading for heading, _ in checkup.sections] == [
        "Folder",
        "Classes",
        "Files",
        "Images",
        "Duplicates",
    ]
    assert json.loads(json.dumps(checkup.to_json()))["subject"] == ROOT


def test_what_was_not_decoded_is_unknown_not_good() -> None:
    split = split_of_counts("train", {"cat": 5})
    split.images.states[:] = State.UNSEEN
    found = by_name(files(ROOT, [split], decoded=False))
    assert (found["not decoded"].judgement, found["not decoded"].value) == (
        "unknown",
        "5 images, because of --quick",
    )
    assert "every image" not in found
    checkup = judge_folder(Place(ROOT, "classes", folders=1), [split], decoded=False)
    assert "Duplicates" not in [heading for heading, _ in checkup.sections]


def test_empty_classes_are_named() -> None:
    found = by_name(classes(ROOT, [split_of_counts("train", {"cat": 5, "dog": 0, "emu": 0})]))
    assert found["empty classes"].judgement == "bad"
    assert found["empty classes"].value.endswith("FileNotFoundError\ntrain/dog\ntrain/emu")
    assert "allow_empty=True" in found["empty classes"].remedy


def test_a_closed_class_is_not_called_empty() -> None:
    split = split_of_counts("train", {"cat": 5, "dog": 0})
    split.closed.append(("dog", "Permission denied"))
    assert by_name(classes(ROOT, [split]))["empty classes"].judgement == "good"


def test_folders_of_tools_are_no_classes() -> None:
    found = by_name(classes(ROOT, [split_of_counts("", {".ipynb_checkpoints": 0, "cat": 5, "dog": 5})]))
    assert found["folders of tools"].remedy == "Remove them: rm -r '/data/.ipynb_checkpoints'"
    assert found["empty classes"].judgement == "good"  # it isn't reported twice


def test_a_single_class_is_worth_a_word() -> None:
    found = by_name(classes(ROOT, [split_of_counts("train", {".cache": 0, "images": 5})]))
    assert found["a single class"].value == "train/images: every image gets the same label"
    assert found["a single class"].remedy.endswith("use /data/train/images.")


def test_classes_of_splits_must_be_the_same() -> None:
    train = split_of_counts("train", {"ant": 5, "bee": 5, "cat": 5})
    same = by_name(classes(ROOT, [train, split_of_counts("val", {"ant": 1, "bee": 1, "cat": 1})]))
    assert same["classes of val"].judgement == "good"
    other = by_name(classes(ROOT, [train, split_of_counts("val", {"ant": 1, "cat": 1, "dog": 1})]))
    assert other["classes of val"].judgement == "bad"
    assert other["classes of val"].value == (
        "1 class only in train: bee\n1 class only in val: dog\nanother label in val: 1 class of both"
    )
    flat = by_name(classes(ROOT, [train, split_of_counts("val", {"images": 9})]))
    assert flat["classes of val"].remedy.startswith("All images of val lie in one folder, images: sort")


def test_the_balance_of_classes_is_described() -> None:
    split = split_of_counts("", {"ant": 10, "bee": 100, "cat": 20, "dog": 1000})
    found = by_name(classes(ROOT, [split]))["balance"]
    assert found.judgement == "note"
    assert found.value == (
        "1,130 images in 4 classes: 10 to 1,000 each, median 60; the largest is 100 times the smallest."
        " Smallest: ant (10), cat (20), bee (100), dog (1,000); largest: dog (1,000)"
    )
    assert found.details["counts"] == {"ant": 10, "bee": 100, "cat": 20, "dog": 1000}


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (State.LINK, "broken links"),
        (State.UNREADABLE, "unreadable files"),
        (State.EMPTY, "empty files"),
        (State.CUT, "cut short"),
        (State.DAMAGED, "damaged"),
        (State.ALIEN, "not images"),
        (State.HUGE, "too large for Pillow"),
        (State.BROKEN, "silently damaged"),
    ],
)
def test_every_bad_state_is_a_finding_that_names_ten_and_keeps_all(state: State, name: str) -> None:
    split = split_of_counts("train", {"cat": 30})
    split.images.states[:12] = state
    split.images.reasons[0] = "why it is so"
    found = files(ROOT, [split], decoded=True)
    assert bad(found) == [name]
    lines = by_name(found)[name].value.splitlines()
    assert lines[0].startswith("12 ")
    assert lines[1].startswith("train/cat/0.JPEG")
    assert lines[10:] == ["train/cat/9.JPEG", "and 2 more"]
    assert len(by_name(found)[name].details["files"]) == 12
    assert by_name(found)[name].remedy


def test_odd_data_is_a_note() -> None:
    split = split_of_counts("train", {"cat": 3})
    split.images.states[1] = State.DOUBTFUL
    found = files(ROOT, [split], decoded=True)
    assert bad(found) == []
    assert "train/cat/1.JPEG" in by_name(found)["odd data"].value


def test_letter_case_is_a_note_as_imagefolder_takes_all() -> None:
    splits = [split_of_counts("train", {"a": 3}, ".JPEG"), split_of_counts("val", {"a": 2}, ".jpeg")]
    found = by_name(files(ROOT, splits, decoded=True))["extensions"]
    assert found.judgement == "note"
    assert found.value.startswith(".JPEG 3, .jpeg 2: in different letter case")
    assert by_name(files(ROOT, splits[:1], decoded=True))["extensions"].judgement == "good"


def test_pictures_that_imagefolder_passes_over() -> None:
    split = split_of_counts("", {"a": 3})
    split.ignored = ["a/1.heic", "a/2.gif", "a/notes.txt", "a/3"]
    split.ignored_images = ["a/1.heic", "a/2.gif", "a/3"]
    found = by_name(files(ROOT, [split], decoded=True))
    assert found["images passed over"].judgement == "bad"
    assert "(.heic 1, .gif 1, no extension 1)" in found["images passed over"].value
    assert found["other files"].value == "1 file that ImageFolder passes over: .txt 1"


def test_names_that_belie_the_content() -> None:
    split = split_of_counts("", {"a": 4})
    split.images.kind_names = [("JPEG", "RGB"), ("PNG", "RGB"), ("progressive JPEG", "RGB")]
    split.images.kinds[:] = [0, 1, 2, -1]
    found = by_name(formats(ROOT, [split]))
    assert found["misnamed"].value.endswith("says\na/1.JPEG: is PNG")
    assert found["formats"].value == "JPEG RGB 1, PNG RGB 1, progressive JPEG RGB 1"
    assert "--optimize" in found["formats"].remedy
    assert "--reencode" not in found["formats"].remedy  # PNG is decoded natively
    split.images.kind_names[0] = ("GIF", "P")
    assert "--reencode" in by_name(formats(ROOT, [split]))["formats"].remedy


def test_sizes_and_the_few_that_cost_most() -> None:
    split = split_of_counts("", {"a": 100})
    split.images.widths[7], split.images.heights[7] = 8000, 6000
    found = by_name(sizes(ROOT, [split]))
    assert found["bytes"].value == ("100 kB in 100 files; 1 kB to 1 kB each, median 1 kB")
    assert found["edges, in pixels"].value.startswith("shorter 300 to 6,000, median 300; longer 300 to 8,000")
    large = found["large images"]
    assert large.judgement == "note"
    assert "1 image of more than 4.0 megapixels, 1.0 % of all, with 84 % of all pixels" in large.value
    assert large.value.endswith("a/7.JPEG: 48.0 megapixels")
    assert "large images" not in by_name(sizes(ROOT, [split_of_counts("", {"a": 9})]))


def test_duplicates_by_where_they_are() -> None:
    train, val = split_of_counts("train", {"a": 9, "b": 9}), split_of_counts("val", {"a": 3, "b": 3})
    assert bad(duplicates(ROOT, [train, val])) == []
    train.images.digests[[0, 1]] = 7  # in one class
    train.images.digests[[2, 10]] = 8  # in two
    train.images.digests[3] = val.images.digests[0] = 9
    train.images.digests[4] = val.images.digests[5] = 0  # not made
    train.images.digests[5] = val.images.digests[2] = 11
    val.images.sizes[2] = 5  # by chance: it has another size
    found = by_name(duplicates(ROOT, [train, val]))
    assert {name: f.judgement for name, f in found.items()} == {
        "in two splits": "bad",
        "in two classes": "bad",
        "in one class": "note",
    }
    assert found["in two splits"].details["groups"] == [["train/a/3.JPEG", "val/a/0.JPEG"]]
    assert found["in two classes"].details["groups"] == [["train/a/2.JPEG", "train/b/1.JPEG"]]
    assert found["in one class"].details["groups"] == [["train/a/0.JPEG", "train/a/1.JPEG"]]


WNIDS = [f"n{i:08}" for i in range(1000)]


def test_a_whole_imagenet_is_complete() -> None:
    counts = dict.fromkeys(WNIDS, 1281)
    counts[WNIDS[0]] += 1_281_167 - 1_281_000
    train, val = split_of_counts("train", counts), split_of_counts("val", dict.fromkeys(WNIDS, 50))
    found = by_name(imagenet(ROOT, [train]))
    assert found["ImageNet's train"].judgement == "bad"  # one class has more than 1300
    assert found["ImageNet's train"].value == (
        "1,281,167 images, as there should be, but not where they should be\n1 class with another"
        " number than 732 to 1,300\nn00000000: 1,448"
    )
    found = by_name(imagenet(ROOT, [val], known=WNIDS))
    assert {f.judgement for f in found.values()} == {"good"}
    assert found["wnids of val"].value == "1,000 class folders, all of them the devkit's"
    assert found["ImageNet's val"].value == "50,000 images, 50 in each class: complete"


def test_an_incomplete_imagenet_says_what_is_missing() -> None:
    counts = dict.fromkeys(WNIDS, 50)
    counts[WNIDS[3]] = 41
    found = by_name(imagenet(ROOT, [split_of_counts("val", counts)]))["ImageNet's val"]
    assert found.value == "49,991 images, 9 too few\n1 class with another number than 50\nn00000003: 41"
    assert "29b22e2961454d5413ddabcf34fc5622" in found.remedy
    counts = dict.fromkeys(WNIDS[:-2], 50)
    found = by_name(imagenet(ROOT, [split_of_counts("val", counts)], known=WNIDS))["wnids of val"]
    assert found.judgement == "bad"
    assert found.value == ("998 class folders, 2 fewer than ImageNet has: n00000998, n00000999")


def test_folders_that_are_no_wnids_are_bad() -> None:
    counts = dict.fromkeys([*WNIDS[:-1], "n0144076"], 50)
    found = by_name(imagenet(ROOT, [split_of_counts("val", counts)]))["wnids of val"]
    assert found.judgement == "bad"
    assert found.value == "1 class folder not named by a wnid (n and 8 digits): n0144076"
    counts = dict.fromkeys([*WNIDS[:-1], "n99999999"], 50)
    found = by_name(imagenet(ROOT, [split_of_counts("val", counts)], known=WNIDS))["wnids of val"]
    assert found.value == "1 wnid that the devkit doesn't have: n99999999"


def test_parts_of_imagenet_and_other_sets_are_left_alone() -> None:
    (found,) = imagenet(ROOT, [split_of_counts("train", dict.fromkeys(WNIDS[:100], 5))])
    assert (found.judgement, found.name) == ("note", "wnids of train")
    assert imagenet(ROOT, [split_of_counts("train", {"cat": 5, "dog": 5, "n00000001": 5})]) == ()
    _, found = imagenet(ROOT, [split_of_counts("train", dict.fromkeys(WNIDS, 13))])
    assert (found.judgement, found.value) == (
        "note",
        "13,000 images; the whole has 1,281,167: another set, or a part of it",
    )
    _, found = imagenet(ROOT, [split_of_counts("", dict.fromkeys(WNIDS, 50))])  # no name, but val's number
    assert found.value.endswith("complete")


def test_a_packs_problems_come_first() -> None:
    split = split_of_counts("", {"a": 3})
    checkup = judge_pack(
        ROOT, split, ["shard-0.tar: a/0: its bytes have changed"], ["no checksums"], decoded=True
    )
    assert checkup.sections[0][0] == "Pack"
    assert [f.judgement for f in checkup.sections[0][1]] == ["bad", "note"]
    assert checkup.findings[0].value == "1 record not as packed\nshard-0.tar: a/0: its bytes have changed"
    assert judge_pack(ROOT, split, [], [], decoded=True).findings[0].value == "all 3 are as they were packed"


def test_names() -> None:
    assert listed("file", "of 0 bytes", ["a", "b"]) == "2 files of 0 bytes\na\nb"
    assert listed("class", "here", ["a"] * 12).endswith("a\nand 2 more")
    assert (plural(1, "class"), plural(2, "class"), plural(1000, "file")) == (
        "1 class",
        "2 classes",
        "1,000 files",
    )
    assert shortened("one\n  two") == "one two"
    assert len(shortened("x" * 500)) == 120
