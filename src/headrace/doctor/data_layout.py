"""Whether the folder that was given is the one that ImageFolder needs, and its splits are all there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from headrace.doctor.naming import in_a_row, listed, plural
from headrace.doctor.records import Finding, Judgement
from headrace.measure.tree import Place

UNPACK = {
    ".tar": "tar xf",
    ".tar.gz": "tar xf",
    ".tgz": "tar xf",
    ".tar.bz2": "tar xf",
    ".tar.xz": "tar xf",
    ".zip": "unzip",
    ".rar": "unrar x",
    ".7z": "7z x",
}

ILSVRC = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")

MOUNT = "In a container: was it mounted? docker run -v /where/it/is/on/the/host:{path}"


def layout(place: Place) -> tuple[Finding, ...]:
    """The findings on `place` as a whole, then on each of its splits."""
    findings = [_of_place(place)]
    if place.kind == "splits":
        findings += _missing_splits(place)
    if place.inside:
        findings += [_of_leaf(place, split, leaf) for split, leaf in place.leaves() if leaf is not place]
    if place.archives and place.kind not in ("archives", "file"):
        findings.append(_archives(place, "note"))
    return tuple(findings)


def _of_place(place: Place) -> Finding:
    """The folder that was given."""
    path, details = place.path, {"kind": place.kind, "entries": list(place.entries)}
    if place.kind in ("missing", "file", "unreadable", "empty", "nothing", "archives"):
        return _absent(place)
    if place.kind == "splits":
        found = ", ".join(os.path.basename(inner.path) for _, inner in place.inside)
        return Finding(
            "folder",
            f"holds the splits {found}",
            "good",
            f"ImageFolder takes one of them: ImageFolder({place.inside[0][1].path!r}). Given {path} it would"
            " take the splits for classes. torchvision's ImageNet takes the folder itself.",
            details,
        )
    if place.kind == "above":
        return _above(place)
    if place.kind == "pictures":
        return _pictures(place)
    return Finding("folder", f"holds {plural(place.folders, 'class folder')}", "good", details=details)


def _above(place: Place) -> Finding:
    paths = [inner.path for _, inner in place.inside]
    ends = sorted({leaf.path for _, leaf in place.leaves()})
    names = in_a_row([os.path.relpath(end, place.path) for end in ends])
    if len(paths) > 1:
        return Finding(
            "folder",
            f"holds no class folders, but {len(paths)} folders with images further down: {names}",
            "bad",
            "Give the one that you mean.",
            {"kind": place.kind, "below": ends},
        )
    inner = place.inside[0][1]
    while inner.kind == "above" and len(inner.inside) == 1:
        inner = inner.inside[0][1]
    return Finding(
        "folder",
        f"is the wrong level: the images lie in {names}. ImageFolder would take"
        f" {plural(place.folders, 'folder')} of {place.path} for classes",
        "bad",
        f"Give {inner.path}" + (", or its splits, to ImageFolder." if inner.kind == "splits" else "."),
        {"kind": place.kind, "below": ends},
    )


def _pictures(place: Place) -> Finding:
    above = os.path.dirname(os.path.abspath(place.path))
    details = {"kind": place.kind, "pictures": place.pictures}
    what = f"holds {plural(place.pictures, 'image')} and no class folders: ImageFolder finds no classes"
    if place.siblings:
        return Finding(
            "folder",
            f"{what}. It is one of {place.siblings + 1:,} such folders in {above}: a class itself?",
            "bad",
            f"Give {above}.",
            details,
        )
    return Finding("folder", what, "bad", _sort_into_classes(place), details)


def _sort_into_classes(place: Place) -> str:
    remedy = (
        "Put each image into a folder named after its class, or give paths and labels to"
        " headrace.ImageDataset(paths, labels)."
    )
    if any(name.startswith("ILSVRC2012_val") for name in place.entries):
        remedy += f" Or: headrace pack {ILSVRC[1]} val.pack, which sorts them by the devkit beside it."
    return remedy


def _absent(place: Place, name: str = "folder") -> Finding:
    """There is nothing that could be looked at."""
    path, details = place.path, asdict(place)
    if place.kind == "missing":
        return _missing(place, details)
    if place.kind == "file":
        ending = next((end for end in UNPACK if path.lower().endswith(end)), "")
        return Finding(name, "is a file, not a folder", "bad", _unpacking(path, [path], ending), details)
    if place.kind == "unreadable":
        return Finding(
            name,
            f"can't be listed: {place.why}",
            "bad",
            f"As its owner: chmod -R a+rX {path}. In a container: docker run --user $(id -u):$(id -g).",
            details,
        )
    if place.kind == "archives":
        return _archives(place, "bad", name)
    if place.kind == "nothing":
        held = in_a_row(list(place.entries))
        return Finding(name, f"holds no images and no folders, only: {held}", "bad", "", details)
    if place.mount:
        return Finding(
            name,
            "is empty, and something is mounted there: the wrong volume, or a folder of the host that didn't"
            " exist, which docker -v makes, empty",
            "bad",
            f"On the host, look what the left side of -v …:{path} holds; a misspelt path is made without"
            " a word.",
            details,
        )
    return Finding(name, "is empty", "bad", MOUNT.format(path=os.path.abspath(path)), details)


def _missing(place: Place, details: dict[str, object]) -> Finding:
    held = in_a_row(list(place.entries)) or "nothing"
    value = f"doesn't exist. {place.nearest} does, and holds {held}"
    if place.why:
        value = f"is a link to {place.why}, which isn't there"
        remedy = (
            "Mount what it points to as well: in a container, a link is followed inside of it,"
            f" docker run -v {place.why}:{place.why}"
            if os.path.isabs(place.why)
            else f"Make the link anew: ln -sfn TARGET {place.path}"
        )
    elif place.similar:
        remedy = f"Did you mean {os.path.join(place.nearest, place.similar[0])}?"
    else:
        remedy = "Correct the path. " + MOUNT.format(path=os.path.abspath(place.path))
    return Finding("folder", value, "bad", remedy, details)


def _archives(place: Place, judgement: Judgement, name: str = "archives") -> Finding:
    names = list(place.archives)
    ending = next((end for end in UNPACK if names[0].lower().endswith(end)), ".tar")
    rest = "beside them" if judgement == "note" else "and no images: still packed"
    return Finding(
        name,
        listed("archive", rest, names),
        judgement,
        _unpacking(place.path, names, ending) if judgement == "bad" else "",
        {"archives": names},
    )


def _unpacking(folder: str, names: Sequence[str], ending: str) -> str:
    """What to do with archives."""
    known = [name for name in names if os.path.basename(name) in ILSVRC]
    if known:
        return f"Read it without unpacking: headrace pack {os.path.join(folder, known[0])} {known[0]}.pack"
    if not ending:
        return f"Give the folder that it lies in: {os.path.dirname(os.path.abspath(folder))}"
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
    if "train" in found and not found & {"val", "test"}:
        absent = "val"
    elif "train" not in found:
        absent = "train"
    else:
        return
    there = place.inside[0][1].path
    yield Finding(
        "missing split",
        f"no {absent} folder beside {os.path.basename(there)}"
        + (f"; an archive is there: {in_a_row(list(place.archives))}" if place.archives else ""),
        "bad",
        f"Put it into {os.path.join(place.path, absent)}. To check {os.path.basename(there)} alone: headrace"
        f" doctor data {there}",
        {"missing": absent},
    )


def _of_leaf(place: Place, split: str, leaf: Place) -> Finding:
    name = os.path.relpath(leaf.path, place.path)
    if leaf.kind == "classes":
        return Finding(name, plural(leaf.folders, "class folder"), "good")
    if leaf.kind == "pictures" and split == "test":
        return Finding(
            name,
            f"{plural(leaf.pictures, 'image')} in no class folders: no labels",
            "note",
            "ImageFolder can't read it; headrace.ImageDataset(paths) can.",
        )
    if leaf.kind == "pictures":
        what = f"{plural(leaf.pictures, 'image')} in no class folders: ImageFolder finds no classes"
        return Finding(name, what, "bad", _sort_into_classes(leaf))
    if leaf.kind == "pack":
        return Finding(name, "a pack", "note", f"Look at it by itself: headrace doctor data {leaf.path}")
    return _absent(leaf, name)
