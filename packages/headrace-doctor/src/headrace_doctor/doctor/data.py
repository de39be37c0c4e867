"""The checkup of a data set: whether ImageFolder finds it, and the files that are bad."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path

from headrace_doctor.doctor.records import Checkup, Finding, Judgement
from headrace_doctor.measure.images import Place, Split, Trouble, is_debris, look_at

NAMED = 10  # files that a finding names; its details name all
REASON = 120  # characters of a reason printed after a name
UNPACK = {
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), "tar xf"),
    ".zip": "unzip",
    ".rar": "unrar x",
    ".7z": "7z x",
}
ILSVRC = ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
ACCESS = "As their owner: chmod -R a+rX {path}. In a container: docker run --user $(id -u):$(id -g)."
MOUNT = "In a container: was it mounted? docker run -v /path/on/the/host:{path}"
AGAIN = "Copy or download them again, or remove them."
# (trouble, title, noun, what of it, judgement, remedy) of the files that need attention.
TROUBLES: tuple[tuple[Trouble, str, str, str, Judgement, str], ...] = (
    (
        Trouble.IGNORED,
        "images passed over",
        "image",
        "with an extension that ImageFolder doesn't take",
        "bad",
        "Rename those that are JPEG or PNG inside (.jfif → .jpg); convert the others (HEIC, GIF, AVIF).",
    ),
    (
        Trouble.CIRCLE,
        "links in a circle",
        "link",
        "back to a folder above: ImageFolder follows them, and takes each image up to 40 times",
        "bad",
        "Remove them.",
    ),
    (
        Trouble.MISNAMED,
        "misnamed",
        "image",
        "of another format than the extension says",
        "note",
        "Pillow and Headrace go by the content; readers that go by the name fail. Rename them for those.",
    ),
    (
        Trouble.LINK,
        "broken links",
        "link",
        "whose target doesn't exist",
        "bad",
        "Mount what they point to (in a container, links are followed inside of it), or copy with cp -rL.",
    ),
    (Trouble.UNREADABLE, "unreadable", "file or folder", "not readable by this user", "bad", ACCESS),
    (Trouble.EMPTY, "empty files", "file", "of 0 bytes", "bad", AGAIN),
    (Trouble.CUT, "cut short", "image", "truncated: Pillow raises an error", "bad", AGAIN),
    (Trouble.DAMAGED, "damaged", "image", "that can't be decoded: Pillow raises an error", "bad", AGAIN),
    (
        Trouble.ALIEN,
        "not images",
        "file",
        "of another kind with an image's extension",
        "bad",
        "Replace or remove them.",
    ),
    (
        Trouble.HUGE,
        "too large for Pillow",
        "image",
        "of more pixels than Pillow accepts: it raises DecompressionBombError",
        "bad",
        "Make them smaller (headrace pack --max-side N), or raise PIL.Image.MAX_IMAGE_PIXELS if you trust"
        " their source.",
    ),
)


def judge_folder(place: Place, splits: Sequence[Split], *, decoded: bool) -> Checkup:
    """The checkup of a folder.

    Args:
        place: the given folder.
        splits: the splits below `place` that hold class folders or images, as listed.
        decoded: whether their images were read and decoded.
    """
    sections = (
        ("Folder", tuple(layout(place))),
        ("Classes", tuple(classes(place.path, [split for split in splits if split.classes]))),
        ("Files", tuple(files(place.path, splits, decoded=decoded))),
    )
    return Checkup(place.path, tuple(section for section in sections if section[1]))


def layout(place: Place) -> Iterator[Finding]:
    """Findings on `place` as a whole, then on each of its splits."""
    details = {"kind": place.kind, "entries": list(place.entries[:NAMED])}
    if place.kind == "splits":
        found = ", ".join(os.path.basename(inner.path) for _, inner in place.inside)
        remedy = (
            f"ImageFolder takes one of them: ImageFolder({place.inside[0][1].path!r}). Given {place.path}"
            " it would take the splits for classes. torchvision's ImageNet takes the folder itself."
        )
        yield Finding("folder", f"holds the splits {found}", "good", remedy, details)
        yield from _missing_splits(place)
    elif place.kind == "above":
        yield _above(place)
    else:
        yield _leaf(place, "folder")
    for split, leaf in place.leaves() if place.inside else ():
        name = os.path.relpath(leaf.path, place.path)
        if leaf.kind == "images" and split == "test":
            value = f"{plural(leaf.images, 'image')} in no class folders: no labels"
            remedy = "ImageFolder can't read it; headrace.ImageDataset(paths) can."
            yield Finding(name, value, "note", remedy)
        else:
            yield _leaf(leaf, name)


def _above(place: Place) -> Finding:
    ends = sorted(leaf.path for _, leaf in place.leaves())
    names = in_a_row([os.path.relpath(end, place.path) for end in ends])
    if len(place.inside) > 1:
        value = f"holds no class folders, but {len(place.inside)} folders with images further down: {names}"
        return Finding("folder", value, "bad", "Use the one that you mean.", {"below": ends})
    inner = place.inside[0][1]
    while inner.kind == "above" and len(inner.inside) == 1:
        inner = inner.inside[0][1]
    value = (
        f"is the wrong level: the images lie in {names}. ImageFolder would take"
        f" {plural(place.folders, 'folder')} of {place.path} for classes"
    )
    remedy = f"Use {inner.path}" + (", or its splits, with ImageFolder." if inner.kind == "splits" else ".")
    return Finding("folder", value, "bad", remedy, {"below": ends})


def _leaf(place: Place, name: str) -> Finding:
    """A finding on a place that holds, or could hold, class folders."""
    path = place.path
    judgement: Judgement = "bad"
    match place.kind:
        case "classes":
            value, remedy, judgement = f"holds {plural(place.folders, 'class folder')}", "", "good"
        case "pack":
            value, remedy, judgement = "is a pack", f"headrace verify {path} checks it.", "note"
        case "images":
            value, remedy = _unsorted(place)
        case "missing":
            value, remedy = _missing(path)
        case "file":
            value, remedy = "is a file, not a folder", _unpacking(path, [path])
        case "unreadable":
            value, remedy = f"can't be listed: {place.why}", ACCESS.format(path=path)
        case "archives":
            value = some("archive", "and no images: still packed", place.archives)
            remedy = _unpacking(path, place.archives)
        case "nothing":
            value, remedy = f"holds no images and no folders, only: {in_a_row(place.entries)}", ""
        case _:
            value, remedy = "is empty", MOUNT.format(path=os.path.abspath(path))
            if os.path.ismount(path):
                value += ", and something is mounted there: the wrong volume, or a folder that docker -v made"
                remedy = f"On the host, check what the left side of -v …:{path} holds."
    return Finding(name, value, judgement, remedy, asdict(place))


def _unsorted(place: Place) -> tuple[str, str]:
    value = f"holds {plural(place.images, 'image')} and no class folders: ImageFolder finds no classes"
    above = look_at(os.path.dirname(os.path.abspath(place.path)), depth=0)
    if above.kind == "classes" and above.folders > 1:
        return f"{value}. Is it a class itself, of {above.folders} in {above.path}?", f"Use {above.path}."
    remedy = (
        "Put each image into a folder named after its class, or pass paths and labels to"
        " headrace.ImageDataset(paths, labels)."
    )
    if any(entry.startswith("ILSVRC2012_val") for entry in place.entries):
        by = "which sorts them by the devkit next to it"
        remedy += f" Or: headrace pack {ILSVRC[1]} val.pack, {by}."
    return value, remedy


def _missing(path: str) -> tuple[str, str]:
    if os.path.islink(path):
        target = os.readlink(path)
        value = f"is a link to {target}, which doesn't exist"
        return value, f"Mount its target as well: docker run -v {target}:{target}; or make the link again."
    absent = Path(path).absolute()
    while not absent.parent.is_dir():
        absent = absent.parent
    near = look_at(str(absent.parent), depth=0)
    value = f"doesn't exist. {near.path} does, and holds {in_a_row(near.entries) or 'nothing'}"
    names = {name.lower(): name for name in near.entries}
    similar = get_close_matches(absent.name.lower(), names, n=1, cutoff=0.7)
    if similar:
        return value, f"Did you mean {os.path.join(near.path, names[similar[0]])}?"
    return value, "Correct the path. " + MOUNT.format(path=os.path.abspath(path))


def _unpacking(folder: str, names: Sequence[str]) -> str:
    known = [name for name in names if os.path.basename(name) in ILSVRC]
    ending = next((end for end in UNPACK if names[0].lower().endswith(end)), "")
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
    splits = {split for split, _ in place.inside}
    if "train" in splits and splits & {"val", "test"}:
        return
    absent = "val" if "train" in splits else "train"
    there = place.inside[0][1].path
    value = f"no {absent} folder next to {os.path.basename(there)}"
    value += f"; an archive is there: {in_a_row(place.archives)}" if place.archives else ""
    remedy = (
        f"Put it into {os.path.join(place.path, absent)}. To check {os.path.basename(there)} alone: headrace"
        f" doctor data {there}"
    )
    yield Finding("missing split", value, "bad", remedy, {"missing": absent})


def classes(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    """Findings on class folders: empty ones, folders of tools, differences between splits."""
    # A folder that can't be listed may hold images; it has a finding of its own.
    closed = [
        (split.path, name)
        for split in splits
        for trouble, name, _ in split.troubles
        if trouble is Trouble.UNREADABLE
    ]
    counts = [(split, name, count) for split in splits for name, count in split.classes.items()]
    empty = [
        below(subject, split) + name
        for split, name, count in counts
        if not count and not is_debris(name) and (split.path, name) not in closed
    ]
    if empty:
        value = some("class folder", "without an image: ImageFolder raises FileNotFoundError", empty)
        remedy = "Fill or remove them; to keep them, and their labels: ImageFolder(…, allow_empty=True)."
        yield Finding("empty classes", value, "bad", remedy, {"folders": empty})
    debris = [below(subject, split) + name for split, name, _ in counts if is_debris(name)]
    if debris:
        value = some("folder", "left behind by tools: a class, for ImageFolder", debris)
        paths = " ".join(repr(os.path.join(subject, path)) for path in debris[:3])
        yield Finding("folders of tools", value, "bad", f"Remove them: rm -r {paths}", {"folders": debris})
    train = next((split for split in splits if split.name == "train"), None)
    for other in splits:
        if train is not None and other.name in ("val", "test"):
            yield _compared(subject, train, other)


def _compared(subject: str, train: Split, other: Split) -> Finding:
    """Labels number the folders' names in sorted order: an additional one shifts those after it."""
    name, ours, theirs = f"classes of {other.name}", list(train.classes), list(other.classes)
    if ours == theirs:
        return Finding(name, f"the same {len(ours):,} as those of train", "good")
    only = {
        "train": [each for each in ours if each not in other.classes],
        other.name: [each for each in theirs if each not in train.classes],
    }
    lines = [
        f"{plural(len(more), 'class')} only in {where}: {in_a_row(more)}"
        for where, more in only.items()
        if more
    ]
    labels = {each: label for label, each in enumerate(ours)}
    shifted = sum(labels.get(each, label) != label for label, each in enumerate(theirs))
    lines += [f"another label in {other.name}: {plural(shifted, 'class')} of both"] if shifted else []
    remedy = (
        f"Add the missing class folders to {below(subject, other) or other.name} (empty ones need"
        " allow_empty=True), or remove the odd ones."
    )
    if len(theirs) == 1 and not set(ours) & set(theirs):
        remedy = (
            f"All images of {other.name} lie in one folder, {theirs[0]}: sort them into classes' folders."
        )
    details = {f"only_{where}": more for where, more in only.items()}
    return Finding(name, "\n".join(lines), "bad", remedy, {**details, "shifted": shifted})


def files(subject: str, splits: Sequence[Split], *, decoded: bool) -> Iterator[Finding]:
    """Findings on single files."""
    for kind, title, noun, what, judgement, remedy in TROUBLES:
        paths = {
            below(subject, split) + path: reason
            for split in splits
            for trouble, path, reason in split.troubles
            if trouble is kind
        }
        if paths:
            lines = [f"{path}: {shortened(why)}" if why else path for path, why in paths.items()]
            yield Finding(
                title, some(noun, what, lines), judgement, remedy.format(path=subject), {"files": paths}
            )
    images = sum(len(split.images) for split in splits)
    if images and decoded:
        yield Finding("images", f"{images:,} read and decoded to the last pixel", "good")
    elif images:
        value = f"{plural(images, 'image')}, because of --quick"
        yield Finding("not decoded", value, "unknown", "Run it without --quick.")


def below(subject: str, split: Split) -> str:
    """The split's folder relative to the given one: "train/", or "" if it is the same."""
    path = os.path.relpath(split.path, subject)
    return "" if path == "." else f"{path}/"


def some(noun: str, what: str, names: Sequence[str]) -> str:
    r"""Counts them, and lists the first, one per line: ``12 files of 0 bytes\na.jpg\n…``."""
    more = [f"and {len(names) - NAMED:,} more"] if len(names) > NAMED else []
    return "\n".join([f"{plural(len(names), noun)} {what}", *names[:NAMED], *more])


def in_a_row(names: Sequence[str]) -> str:
    """``a, b, c and 7 more``."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def shortened(text: str) -> str:
    """The text in one line of at most REASON characters."""
    line = " ".join(text.split())
    return line if len(line) <= REASON else line[: REASON - 1] + "…"


def plural(count: int, noun: str) -> str:
    """``1 class``, ``1,000 classes``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun.replace(' or ', 's or ')}{'es' if noun.endswith(('s', 'x')) else 's'}"
