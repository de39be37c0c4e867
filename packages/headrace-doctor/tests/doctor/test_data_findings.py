"""Opinions on what a survey found, from records made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from headrace_doctor.doctor.data import files, judge_folder
from headrace_doctor.doctor.data_classes import classes
from headrace_doctor.doctor.naming import listed, plural, shortened
from headrace_doctor.doctor.records import Finding
from headrace_doctor.measure.images import Images, Split, State
from headrace_doctor.measure.tree import Place

ROOT = "/data"


def split_of_counts(name: str, counts: dict[str, int], extension: str = ".JPEG") -> Split:
    """Good images, so many of each class."""
    names = [f"{each}/{i}{extension}" for each in sorted(counts) for i in range(counts[each])]
    labels = np.repeat(np.arange(len(counts)), [counts[each] for each in sorted(counts)])
    n = len(names)
    images = Images(names, labels.astype(np.int32), np.full(n, State.GOOD, np.uint8))
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
    split.images.misnamed = {1: "PNG"}
    found = by_name(files(ROOT, [split], decoded=True))
    assert found["misnamed"].judgement == "note"
    assert found["misnamed"].value.endswith("says\na/1.JPEG: is PNG")


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
