"""Findings on a data set: a folder of images, or a pack of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.doctor.data_classes import classes, imagenet
from headrace.doctor.data_layout import layout
from headrace.doctor.naming import below, in_a_row, listed, plural, some, with_reasons
from headrace.doctor.records import Checkup, Finding, Judgement
from headrace.doctor.wording import percent
from headrace.errors import size
from headrace.measure.pictures import Split, State
from headrace.measure.tree import Place

Numbers = npt.NDArray[np.int64]

# Formats by the extensions that promise them, in lower case.
PROMISED = {
    **dict.fromkeys((".jpg", ".jpeg"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{f".{name.lower()}": name for name in ("PNG", "BMP", "WEBP")},
}
AGAIN = "Copy or download them again, or remove them."
# (state, title, noun, what of it, what to do) of the files that need something done.
TROUBLES = (
    (
        State.LINK,
        "broken links",
        "link",
        "to files that aren't there",
        "Mount what they point to (in a container, links are followed inside of it), or copy with cp -rL.",
    ),
    (
        State.UNREADABLE,
        "unreadable files",
        "file",
        "closed to this user",
        "As their owner: chmod -R a+rX {path}. In a container: docker run --user $(id -u):$(id -g).",
    ),
    (State.EMPTY, "empty files", "file", "of 0 bytes", AGAIN),
    (State.CUT, "cut short", "image", "cut off too early: Pillow raises an error", AGAIN),
    (State.DAMAGED, "damaged", "image", "beyond decoding: Pillow raises an error", AGAIN),
    (
        State.ALIEN,
        "not images",
        "file",
        "of another kind with an image's extension",
        "Replace or remove them.",
    ),
    (
        State.HUGE,
        "too large for Pillow",
        "image",
        "of more pixels than Pillow takes: it raises DecompressionBombError",
        "Make them smaller (headrace pack --max-side N), or raise PIL.Image.MAX_IMAGE_PIXELS if you trust"
        " where they come from.",
    ),
)
# An image is large if it has so many times the pixels of the median one, and this many at least. Large ones
# are reported if they hold this share of all pixels.
LARGE, LARGE_PIXELS, LARGE_SHARE = 4, 4_000_000, 0.2
# Edges that nearly every recipe scales down to, and up from.
USUAL_EDGE, SMALL_EDGE = 256, 64


def judge_folder(
    place: Place, splits: Sequence[Split], *, decoded: bool, known_wnids: Sequence[str] = ()
) -> Checkup:
    """The checkup of a folder.

    Args:
        place: the folder that was given.
        splits: the splits below `place` that hold class folders or images, as listed.
        decoded: whether their images were read and decoded.
        known_wnids: of ImageNet's classes, where a devkit has them.
    """
    return _checkup(place.path, ("Folder", layout(place)), splits, decoded=decoded, known=known_wnids)


def judge_pack(
    path: str, split: Split, problems: Sequence[str], notes: Sequence[str], *, decoded: bool
) -> Checkup:
    """The checkup of a pack.

    Args:
        path: of its folder.
        split: its samples.
        problems: found in verifying it, a line each.
        notes: what couldn't be verified.
        decoded: whether its images were decoded.
    """
    remedy = "Copy the pack again, or make it again: headrace pack. headrace verify names all."
    found = some("records", "record", "not as packed", problems, "bad", remedy, "problems")
    found = found or [Finding("records", f"all {len(split.pictures):,} are as they were packed", "good")]
    found += [Finding("not checked", note, "note") for note in notes]
    return _checkup(path, ("Pack", tuple(found)), [split], decoded=decoded)


def _checkup(
    subject: str,
    first: tuple[str, tuple[Finding, ...]],
    splits: Sequence[Split],
    *,
    decoded: bool,
    known: Sequence[str] = (),
) -> Checkup:
    sections = [first]
    if splits:
        sections += [
            ("Classes", (*classes(subject, splits), *imagenet(subject, splits, known))),
            ("Files", files(subject, splits, decoded=decoded)),
            ("Images", (*pictures(subject, splits), *sizes(subject, splits))),
        ]
        if decoded:
            sections.append(("Duplicates", duplicates(subject, splits)))
    return Checkup(subject, tuple(section for section in sections if section[1]))


def _in_states(subject: str, splits: Iterable[Split], *states: State) -> dict[str, str]:
    """Reason by path of the images in one of these states; the reason may be empty."""
    wanted = [int(state) for state in states]
    return {
        below(subject, split) + split.pictures.name(row): split.pictures.reasons.get(row, "")
        for split in splits
        for row in np.flatnonzero(np.isin(split.pictures.states, wanted)).tolist()
    }


def _extensions_of(names: Iterable[str]) -> str:
    count = Counter(os.path.splitext(name)[1] or "no extension" for name in names)
    return in_a_row([f"{name} {n:,}" for name, n in count.most_common()])


def files(subject: str, splits: Sequence[Split], *, decoded: bool) -> tuple[Finding, ...]:
    """Findings on single files."""

    def paths(kind: str) -> list[str]:
        return [below(subject, split) + name for split in splits for name in getattr(split, kind)]

    closed = {below(subject, split) + name: why for split in splits for name, why in split.closed}
    images, loops = paths("images_passed_over"), paths("loops")
    others = sorted(set(paths("passed_over")) - set(images))
    found = [
        *_spellings(splits),
        *some(
            "images passed over",
            "image",
            f"with extensions that ImageFolder doesn't take ({_extensions_of(images)})",
            images,
            "bad",
            "Rename those that are JPEG or PNG inside (.jfif → .jpg); convert the others (HEIC, GIF, AVIF).",
        ),
    ]
    if others:
        value = f"{plural(len(others), 'file')} that ImageFolder passes over: {_extensions_of(others)}"
        found.append(Finding("other files", value, "note", details={"files": others}))
    found += [
        *some(
            "closed folders",
            "folder",
            "closed to this user: empty, for ImageFolder",
            with_reasons(closed),
            "bad",
            f"As their owner: chmod -R a+rX {subject}. In a container: docker run --user $(id -u):$(id -g).",
            details={"folders": closed},
        ),
        *some(
            "links in a circle",
            "link",
            "back to a folder above: ImageFolder goes round and round, and takes each image up to 40 times",
            loops,
            "bad",
            "Remove them: rm " + " ".join(repr(os.path.join(subject, name)) for name in loops[:3]),
            "links",
        ),
        *_troubles(subject, splits, decoded=decoded),
        *some(
            "silently damaged",
            "JPEG",
            "with missing or impossible data: Pillow goes on without a word, and part of the image is gray,"
            " shifted or noise",
            list(_in_states(subject, splits, State.BROKEN)),
            "bad",
            AGAIN,
        ),
        *some(
            "odd data",
            "JPEG",
            "with more or less data than the image needs: harmless, or a sign of damage; Pillow goes on"
            " without a word",
            list(_in_states(subject, splits, State.DOUBTFUL)),
            "note",
            "Look at some of them; where they look damaged, copy or download them again.",
        ),
    ]
    return tuple(found)


def _spellings(splits: Sequence[Split]) -> Iterator[Finding]:
    spelt: Counter[str] = sum((split.pictures.extensions() for split in splits), Counter())
    kinds = ", ".join(f"{extension} {count:,}" for extension, count in spelt.most_common())
    mixed = len(spelt) > len({extension.lower() for extension in spelt})
    if spelt:
        yield Finding(
            "extensions",
            kinds + (": in different letter case, all of which ImageFolder takes" if mixed else ""),
            "note" if mixed else "good",
            "A pattern such as glob('*.jpg') finds only one spelling." if mixed else "",
            {"extensions": dict(spelt)},
        )


def _troubles(subject: str, splits: Sequence[Split], *, decoded: bool) -> Iterator[Finding]:
    clean = True
    for state, title, noun, what, remedy in TROUBLES:
        found = _in_states(subject, splits, state)
        clean = clean and not found
        names, remedy = with_reasons(found), remedy.format(path=subject)
        yield from some(title, noun, what, names, "bad", remedy, details={"files": found})
    good = sum(int((split.pictures.states == State.GOOD).sum()) for split in splits)
    unseen = _in_states(subject, splits, State.UNSEEN)
    if clean and good and not unseen:
        yield Finding("every image", f"{good:,} read and decoded to the last pixel", "good")
    if unseen and decoded:
        value = listed("image", "that could not be opened", with_reasons(unseen))
        yield Finding("not decoded", value, "unknown", "", {"files": unseen})
    elif unseen:
        value = f"{plural(len(unseen), 'image')}, as --quick was asked for"
        yield Finding("not decoded", value, "unknown", "Run it without --quick.")


def pictures(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on the formats of what could be decoded."""
    if not any((split.pictures.kinds >= 0).any() for split in splits):
        return ()
    misnamed: dict[str, str] = {}
    for split in splits:
        held = split.pictures
        names = [name.removeprefix("progressive ") for name, _ in held.kind_names]
        for row, (name, kind) in enumerate(zip(held.each_name(), held.kinds.tolist(), strict=True)):
            promised = PROMISED.get(os.path.splitext(name)[1].lower())
            if kind >= 0 and promised is not None and names[kind] and promised != names[kind]:
                misnamed[below(subject, split) + held.name(row)] = f"is {names[kind]}"
    return (
        _formats(splits),
        *some(
            "misnamed",
            "image",
            "of another format than the extension says",
            with_reasons(misnamed),
            "note",
            "Pillow and Headrace go by the content; readers that go by the name fail. Rename them if you use"
            " such.",
            details={"files": misnamed},
        ),
    )


def _formats(splits: Sequence[Split]) -> Finding:
    found: Counter[str] = Counter()
    for split in splits:
        for number, (name, mode) in enumerate(split.pictures.kind_names):
            found[f"{name} {mode}".strip()] += int((split.pictures.kinds == number).sum())
    total = sum(found.values())
    slow = sum(count for kind, count in found.items() if kind.startswith("progressive"))
    odd = sum(count for kind, count in found.items() if kind not in ("JPEG RGB", "JPEG L"))
    remedies = []
    if slow > total / 20:
        remedies.append(
            "Progressive JPEGs decode more slowly: headrace pack --optimize rewrites them, same pixels."
        )
    if odd - slow > total / 20:
        remedies.append(
            "What isn't an RGB or gray JPEG is left to Pillow: headrace pack --reencode png keeps pixels,"
            " --reencode jpeg makes them fast to decode, with loss."
        )
    value = ", ".join(f"{kind} {count:,}" for kind, count in found.most_common())
    return Finding(
        "formats", value, "note" if remedies else "good", " ".join(remedies), {"kinds": dict(found)}
    )


def sizes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on bytes and pixels; none where no size is known."""
    held = [split.pictures for split in splits]
    widths, heights = (
        np.concatenate([getattr(one, name) for one in held]).astype(np.int64)
        for name in ("widths", "heights")
    )
    file_sizes = np.concatenate([one.sizes for one in held])
    if len(file_sizes) == 0:
        return ()
    low, middle, high = _spread(file_sizes)
    total = int(file_sizes.sum())
    value = f"{size(total)} in {plural(len(file_sizes), 'file')}; {size(low)} to {size(high)} each, median"
    spread = {"total": total, "min": low, "median": middle, "max": high}
    findings = [Finding("bytes", f"{value} {size(middle)}", "good", details=spread)]
    known = np.flatnonzero((widths > 0) & (heights > 0))
    if len(known):
        short, long = np.minimum(widths, heights)[known], np.maximum(widths, heights)[known]
        paths = [below(subject, split) + name for split in splits for name in split.pictures.each_name()]
        names = [paths[number] for number in known.tolist()]
        pixels = (widths * heights)[known]
        findings += [_edges(short, long, pixels), *_large(names, pixels), *_small(names, short)]
    return tuple(findings)


def _edges(short: Numbers, long: Numbers, pixels: Numbers) -> Finding:
    shorter, longer, areas = _spread(short), _spread(long), _spread(pixels)
    remedy = ""
    if shorter[1] > 2 * USUAL_EDGE:
        # The longer side at which the median image's shorter one is twice the usual edge.
        side = round(2 * USUAL_EDGE * float(np.median(long / short)) / 32) * 32
        remedy = (
            f"If they are trained on at {USUAL_EDGE} pixels or less: headrace pack --max-side {side} makes"
            " them smaller once, with loss, instead of in each epoch."
        )
    return Finding(
        "edges, in pixels",
        f"shorter {shorter[0]:,} to {shorter[2]:,}, median {shorter[1]:,}; longer {longer[0]:,} to"
        f" {longer[2]:,}, median {longer[1]:,}; {areas[1] / 1e6:.2g} megapixels (median)",
        "note" if remedy else "good",
        remedy,
        {
            name: dict(zip(("min", "median", "max"), spread, strict=True))
            for name, spread in (("shorter", shorter), ("longer", longer), ("pixels", areas))
        },
    )


def _large(names: Sequence[str], pixels: Numbers) -> list[Finding]:
    limit = max(LARGE * float(np.median(pixels)), LARGE_PIXELS)
    order = [i for i in np.argsort(-pixels, kind="stable").tolist() if pixels[i] > limit]
    found = {names[i]: int(pixels[i]) for i in order}
    share = sum(found.values()) / int(pixels.sum())
    if share < LARGE_SHARE:
        return []
    return some(
        "large images",
        "image",
        f"of more than {limit / 1e6:.1f} megapixels, {percent(len(found) / len(pixels))} of all, with"
        f" {percent(share)} of all pixels: about this share of the time to decode",
        [f"{name}: {count / 1e6:.1f} megapixels" for name, count in found.items()],
        "note",
        "Make them smaller once: headrace pack SRC DEST --max-side 1024 (with loss).",
        details={"files": found, "share_of_pixels": share},
    )


def _small(names: Sequence[str], short: Numbers) -> list[Finding]:
    """Where most are large: sets of small images are meant to be so."""
    if np.median(short) < 2 * SMALL_EDGE:
        return []
    order = [i for i in np.argsort(short, kind="stable").tolist() if short[i] < SMALL_EDGE]
    found = {names[i]: int(short[i]) for i in order}
    return some(
        "small images",
        "image",
        f"with an edge below {SMALL_EDGE} pixels",
        [f"{name}: {edge:,} pixels" for name, edge in found.items()],
        "note",
        "Look whether they are thumbnails or icons that came along.",
        details={"files": found},
    )


def _spread(values: Numbers) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())


def duplicates(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on files of the same content: in two classes they contradict, in two splits they leak."""
    groups: dict[str, list[list[str]]] = {"splits": [], "classes": [], "class": []}
    for copies in _copies(splits):
        parts = {which for which, _ in copies}
        labels = {int(splits[which].pictures.labels[row]) for which, row in copies}
        kind = "splits" if len(parts) > 1 else "classes" if len(labels) > 1 else "class"
        paths = [below(subject, splits[which]) + splits[which].pictures.name(row) for which, row in copies]
        groups[kind].append(paths)

    def finding(name: str, kind: str, what: str, judgement: Judgement, remedy: str) -> list[Finding]:
        found = sorted(groups[kind], key=lambda paths: (-len(paths), paths))
        lines = [" = ".join(paths[:4]) for paths in found]
        return some(name, "image", what, lines, judgement, remedy, details={"groups": found})

    found = (
        *finding(
            "in two splits",
            "splits",
            "in more than one split: what is measured on one was trained on in the other",
            "bad",
            "Remove them from one of the splits; from train, to keep results comparable.",
        ),
        *finding(
            "in two classes",
            "classes",
            "in more than one class: their labels contradict each other",
            "bad",
            "Remove all but the right one.",
        ),
        *finding(
            "in one class",
            "class",
            "there more than once in a class, and so drawn more often than others",
            "note",
            "Remove all but one of each.",
        ),
    )
    return found or (Finding("duplicates", "no file has the content of another", "good"),)


def _copies(splits: Sequence[Split]) -> Iterator[list[tuple[int, int]]]:
    """(number of the split, row) of files with one content, for each such content."""
    digests = np.concatenate([split.pictures.digests for split in splits])
    sizes = np.concatenate([split.pictures.sizes for split in splits])
    starts = np.cumsum([0, *(len(split.pictures) for split in splits)])
    made = np.flatnonzero(digests)
    order = made[np.lexsort((made, sizes[made], digests[made]))]
    changes = (np.diff(digests[order]) != 0) | (np.diff(sizes[order]) != 0)
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group) > 1:
            which = np.searchsorted(starts, group, "right") - 1
            yield list(zip(which.tolist(), (group - starts[which]).tolist(), strict=True))
