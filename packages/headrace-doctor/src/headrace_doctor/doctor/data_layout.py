"""Whether the given folder is the one that ImageFolder needs, with all of its splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from headrace_doctor.doctor.naming import in_a_row, listed, plural
from headrace_doctor.doctor.records import Finding, Judgement
from headrace_doctor.measure.tree import Place

UNPACK = {
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), "tar xf"),
    ".zip": "unzip",
    ".rar": "unrar x",
    ".7z": "7z x",
}
ILSVRC = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
AS_USER = "docker run --user $(id -u):$(id -g)"
MOUNT = "In a container: was it mounted? docker run -v /path/on/the/host:{path}"


def layout(place: Place) -> tuple[Finding, ...]:
    """The findings on `place` as a whole, then on each of its splits."""
    findings = [_of_place(place)]
    if place.kind == "splits":
        findings += _missing_splits(place)
    if place.inside:
        findings += [_of_leaf(place, split, leaf) for split, leaf in place.leaves() if leaf is not place]
    if place.archives and place.kind not in ("archives", "file"):
        findings.append(_archives(place, "archives", "note"))
    return tuple(findings)


def _of_place(place: Place) -> Finding:
    details: dict[str, Any] = {"kind": place.kind, "entries": list(place.entries)}
    match place.kind:
        case "splits":
            found = ", ".join(os.path.basename(inner.path) for _, inner in place.inside)
            remedy = (
                f"ImageFolder takes one of them: ImageFolder({place.inside[0][1].path!r}). Given {place.path}"
                " it would take the splits for classes. torchvision's ImageNet takes the folder itself."
            )
            return Finding("folder", f"holds the splits {found}", "good", remedy, details)
        case "above":
            return _above(place)
        case "pack":
            return Finding("folder", "is a pack", "note", f"headrace verify {place.path} checks it.", details)
        case "classes":
            value = f"holds {plural(place.folders, 'class folder')}"
            return Finding("folder", value, "good", details=details)
        case "images" if place.siblings:
            above = os.path.dirname(os.path.abspath(place.path))
            value = f"{_unsorted(place)}. It is one of {place.siblings + 1:,} such folders in {above}"
            details = {"kind": place.kind, "images": place.images}
            return Finding("folder", f"{value}: a class itself?", "bad", f"Use {above}.", details)
        case _:
            return _unusable(place, "folder")


def _of_leaf(place: Place, split: str, leaf: Place) -> Finding:
    """On one of the folders inside of the given one."""
    name = os.path.relpath(leaf.path, place.path)
    if leaf.kind == "classes":
        return Finding(name, plural(leaf.folders, "class folder"), "good")
    if leaf.kind == "pack":
        return Finding(name, "a pack", "note", f"headrace verify {leaf.path} checks it.")
    if leaf.kind == "images" and split == "test":
        value = f"{plural(leaf.images, 'image')} in no class folders: no labels"
        return Finding(name, value, "note", "ImageFolder can't read it; headrace.ImageDataset(paths) can.")
    return _unusable(leaf, name)


def _above(place: Place) -> Finding:
    paths = [inner.path for _, inner in place.inside]
    ends = sorted({leaf.path for _, leaf in place.leaves()})
    names = in_a_row([os.path.relpath(end, place.path) for end in ends])
    details = {"kind": place.kind, "below": ends}
    if len(paths) > 1:
        value = f"holds no class folders, but {len(paths)} folders with images further down: {names}"
        return Finding("folder", value, "bad", "Use the one that you mean.", details)
    inner = place.inside[0][1]
    while inner.kind == "above" and len(inner.inside) == 1:
        inner = inner.inside[0][1]
    value = (
        f"is the wrong level: the images lie in {names}. ImageFolder would take"
        f" {plural(place.folders, 'folder')} of {place.path} for classes"
    )
    remedy = f"Use {inner.path}" + (", or its splits, with ImageFolder." if inner.kind == "splits" else ".")
    return Finding("folder", value, "bad", remedy, details)


def _unsorted(place: Place) -> str:
    return f"holds {plural(place.images, 'image')} and no class folders: ImageFolder finds no classes"


def _unusable(place: Place, name: str) -> Finding:
    """On a place without anything that ImageFolder could read."""
    path = place.path
    match place.kind:
        case "images":
            value = _unsorted(place)
            remedy = (
                "Put each image into a folder named after its class, or pass paths and labels to"
                " headrace.ImageDataset(paths, labels)."
            )
            if any(entry.startswith("ILSVRC2012_val") for entry in place.entries):
                by = "which sorts them by the devkit next to it"
                remedy += f" Or: headrace pack {ILSVRC[1]} val.pack, {by}."
        case "missing":
            value, remedy = _missing(place)
        case "file":
            ending = next((end for end in UNPACK if path.lower().endswith(end)), "")
            value, remedy = "is a file, not a folder", _unpacking(path, [path], ending)
        case "unreadable":
            value = f"can't be listed: {place.why}"
            remedy = f"As its owner: chmod -R a+rX {path}. In a container: {AS_USER}."
        case "archives":
            return _archives(place, name, "bad")
        case "nothing":
            value, remedy = f"holds no images and no folders, only: {in_a_row(list(place.entries))}", ""
        case _ if place.mount:
            value = (
                "is empty, and something is mounted there: the wrong volume, or a folder of the host that"
                " didn't exist, which docker -v creates, empty"
            )
            remedy = f"On the host, check what the left side of -v …:{path} holds; "
            remedy += "a misspelt path is created silently."
        case _:
            value, remedy = "is empty", MOUNT.format(path=os.path.abspath(path))
    return Finding(name, value, "bad", remedy, asdict(place))


def _missing(place: Place) -> tuple[str, str]:
    if place.why:
        value = f"is a link to {place.why}, which doesn't exist"
        if os.path.isabs(place.why):
            return value, (
                "Mount its target as well: in a container, a link is followed inside of it,"
                f" docker run -v {place.why}:{place.why}"
            )
        return value, f"Make the link again: ln -sfn TARGET {place.path}"
    held = in_a_row(list(place.entries)) or "nothing"
    value = f"doesn't exist. {place.nearest} does, and holds {held}"
    if place.similar:
        return value, f"Did you mean {os.path.join(place.nearest, place.similar[0])}?"
    return value, "Correct the path. " + MOUNT.format(path=os.path.abspath(place.path))


def _archives(place: Place, name: str, judgement: Judgement) -> Finding:
    names = list(place.archives)
    ending = next((end for end in UNPACK if names[0].lower().endswith(end)), ".tar")
    rest = "next to them" if judgement == "note" else "and no images: still packed"
    remedy = _unpacking(place.path, names, ending) if judgement == "bad" else ""
    return Finding(name, listed("archive", rest, names), judgement, remedy, {"archives": names})


def _unpacking(folder: str, names: Sequence[str], ending: str) -> str:
    known = [name for name in names if os.path.basename(name) in ILSVRC]
    if known:
        return f"Read it without unpacking: headrace pack {os.path.join(folder, known[0])} {known[0]}.pack"
    if not ending:
        return f"Use the folder that it lies in: {os.path.dirname(os.path.abspath(folder))}"
    if len(names) == 1:
        return f"Unpack it: {UNPACK[ending]} {os.path.join(folder, names[0])}"
    if ending == ".tar":
        return (
            f'One class each? cd {folder} && for t in *.tar; do mkdir "${{t%.tar}}" && tar xf "$t" -C'
            f' "${{t%.tar}}"; done. WebDataset shards? headrace index {folder}, and read them by'
            " headrace.PackedDataset."
        )
    return f"Unpack them: {UNPACK[ending]}"


def _missing_splits(place: Place) -> Iterator[Finding]:
    found = {split for split, _ in place.inside}
    if "train" in found and found & {"val", "test"}:
        return
    absent = "val" if "train" in found else "train"
    there = place.inside[0][1].path
    value = f"no {absent} folder next to {os.path.basename(there)}"
    value += f"; an archive is there: {in_a_row(list(place.archives))}" if place.archives else ""
    remedy = (
        f"Put it into {os.path.join(place.path, absent)}. To check {os.path.basename(there)} alone: headrace"
        f" doctor data {there}"
    )
    yield Finding("missing split", value, "bad", remedy, {"missing": absent})
