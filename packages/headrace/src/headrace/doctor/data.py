"""Findings on a data set: a folder of images, or a pack of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.doctor.data_classes import classes, imagenet
from headrace.doctor.data_layout import AS_USER, layout
from headrace.doctor.naming import below, in_a_row, paths_of, plural, removal, some
from headrace.doctor.records import Checkup, Finding, Judgement
from headrace.doctor.wording import percent
from headrace.errors import size
from headrace.measure.images import Split, State
from headrace.measure.tree import Place

Numbers = npt.NDArray[np.int64]
# Formats by the extensions that imply them, in lower case.
IMPLIED = {
    **dict.fromkeys((".jpg", ".jpeg"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{f".{name.lower()}": name for name in ("PNG", "BMP", "WEBP")},
}
BOMB = "of more pixels than Pillow accepts: it raises DecompressionBombError"
GRAY = "Pillow reports no error, and part of the image is gray, shifted or noise"
SURPLUS = (
    "with more or less data than the image needs: harmless, or a sign of damage; Pillow reports no error"
)
AGAIN = "Copy or download them again, or remove them."
MOUNT = "Mount what they point to (in a container, links are followed inside of it), or copy with cp -rL."
REPLACE = "Replace or remove them."
SHRINK = (
    "Make them smaller (headrace pack --max-side N), or raise PIL.Image.MAX_IMAGE_PIXELS if you trust their"
    " source."
)
INSPECT = "Inspect some of them; if they look damaged, copy or download them again."
ACCESS = f"As their owner: chmod -R a+rX {{path}}. In a container: {AS_USER}."
# (state, title, noun, what of it, judgement, remedy) of the files that need attention.
TROUBLES: tuple[tuple[State, str, str, str, Judgement, str], ...] = (
    (State.LINK, "broken links", "link", "whose target doesn't exist", "bad", MOUNT),
    (State.UNREADABLE, "unreadable files", "file", "not readable by this user", "bad", ACCESS),
    (State.EMPTY, "empty files", "file", "of 0 bytes", "bad", AGAIN),
    (State.CUT, "cut short", "image", "truncated: Pillow raises an error", "bad", AGAIN),
    (State.DAMAGED, "damaged", "image", "that can't be decoded: Pillow raises an error", "bad", AGAIN),
    (State.ALIEN, "not images", "file", "of another kind with an image's extension", "bad", REPLACE),
    (State.HUGE, "too large for Pillow", "image", BOMB, "bad", SHRINK),
    (State.BROKEN, "silently damaged", "JPEG", f"with missing or impossible data: {GRAY}", "bad", AGAIN),
    (State.DOUBTFUL, "odd data", "JPEG", SURPLUS, "note", INSPECT),
)
# An image is large if it has so many times the pixels of the median one, and this many at least. Large ones
# are reported if they hold this share of all pixels.
LARGE, LARGE_PIXELS, LARGE_SHARE = 4, 4_000_000, 0.2
USUAL_EDGE = 256  # that nearly every recipe scales down to


def judge_folder(
    place: Place, splits: Sequence[Split], *, decoded: bool, known_wnids: Sequence[str] = ()
) -> Checkup:
    """The checkup of a folder.

    Args:
        place: the given folder.
        splits: the splits below `place` that hold class folders or images, as listed.
        decoded: whether their images were read and decoded.
        known_wnids: of ImageNet's classes, where a devkit has them. Default: there is none.
    """
    return _checkup(place.path, ("Folder", layout(place)), splits, decoded=decoded, known=known_wnids)


def judge_pack(
    path: str, split: Split, problems: Sequence[str], notes: Sequence[str], *, decoded: bool
) -> Checkup:
    """The checkup of a pack.

    Args:
        path: of its folder.
        split: its samples.
        problems: what verifying it found, one per line.
        notes: what couldn't be verified, and why.
        decoded: whether its images were decoded.
    """
    remedy = "Copy the pack again, or make it again: headrace pack. headrace verify lists all."
    details = {"problems": list(problems)}
    found = some("records", "record", "not as packed", problems, "bad", remedy, details)
    found = found or [Finding("records", f"all {len(split.images):,} are as they were packed", "good")]
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
            ("Images", (*formats(subject, splits), *sizes(subject, splits))),
        ]
        if decoded:
            sections.append(("Duplicates", duplicates(subject, splits)))
    return Checkup(subject, tuple(section for section in sections if section[1]))


def files(subject: str, splits: Sequence[Split], *, decoded: bool) -> tuple[Finding, ...]:
    """Findings on single files."""
    closed = {below(subject, split) + name: why for split in splits for name, why in split.closed}
    images, loops = (paths_of(subject, splits, name) for name in ("ignored_images", "loops"))
    others = sorted(set(paths_of(subject, splits, "ignored")) - set(images))
    found = list(_spellings(splits))
    what = f"with extensions that ImageFolder doesn't take ({_extensions_of(images)})"
    remedy = "Rename those that are JPEG or PNG inside (.jfif → .jpg); convert the others (HEIC, GIF, AVIF)."
    found += some("images passed over", "image", what, images, "bad", remedy)
    if others:
        value = f"{plural(len(others), 'file')} that ImageFolder passes over: {_extensions_of(others)}"
        found.append(Finding("other files", value, "note", details={"files": others}))
    what, remedy = "not listable by this user: empty, for ImageFolder", ACCESS.format(path=subject)
    found += some("closed folders", "folder", what, closed, "bad", remedy, {"folders": closed})
    what = "back to a folder above: ImageFolder follows them, and takes each image up to 40 times"
    remedy = removal(subject, loops)
    found += some("links in a circle", "link", what, loops, "bad", remedy, {"links": loops})
    return (*found, *_troubles(subject, splits, decoded=decoded))


def _extensions_of(names: Iterable[str]) -> str:
    count = Counter(os.path.splitext(name)[1] or "no extension" for name in names)
    return in_a_row([f"{name} {n:,}" for name, n in count.most_common()])


def _spellings(splits: Sequence[Split]) -> Iterator[Finding]:
    spelt: Counter[str] = sum((split.images.extensions() for split in splits), Counter())
    kinds = ", ".join(f"{extension} {count:,}" for extension, count in spelt.most_common())
    details = {"extensions": dict(spelt)}
    if len(spelt) > len({extension.lower() for extension in spelt}):
        value = f"{kinds}: in different letter case, all of which ImageFolder takes"
        remedy = "A pattern such as glob('*.jpg') finds only one spelling."
        yield Finding("extensions", value, "note", remedy, details)
    elif spelt:
        yield Finding("extensions", kinds, "good", details=details)


def _troubles(subject: str, splits: Sequence[Split], *, decoded: bool) -> Iterator[Finding]:
    for state, title, noun, what, judgement, remedy in TROUBLES:
        found = _in_state(subject, splits, state)
        yield from some(title, noun, what, found, judgement, remedy.format(path=subject), {"files": found})
    states = np.concatenate([split.images.states for split in splits])
    if len(states) and np.isin(states, (State.GOOD, State.BROKEN, State.DOUBTFUL)).all():
        good = int((states == State.GOOD).sum())
        yield Finding("every image", f"{good:,} read and decoded to the last pixel", "good")
    unseen = _in_state(subject, splits, State.UNSEEN)
    if unseen and decoded:
        yield from some("not decoded", "image", "that could not be opened", unseen, "unknown")
    elif unseen:
        value = f"{plural(len(unseen), 'image')}, because of --quick"
        yield Finding("not decoded", value, "unknown", "Run it without --quick.")


def _in_state(subject: str, splits: Iterable[Split], state: State) -> dict[str, str]:
    """Reason by path of the images in a state; the reason may be empty."""
    return {
        below(subject, split) + split.images.names[row]: split.images.reasons.get(row, "")
        for split in splits
        for row in np.flatnonzero(split.images.states == state).tolist()
    }


def formats(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on the formats of the decoded images."""
    if not any((split.images.kinds >= 0).any() for split in splits):
        return ()
    found: Counter[str] = Counter()
    misnamed: dict[str, str] = {}
    for split in splits:
        for number, (name, mode) in enumerate(split.images.kind_names):
            found[f"{name} {mode}".strip()] += int((split.images.kinds == number).sum())
        names = [name.removeprefix("progressive ") for name, _ in split.images.kind_names]
        for path, kind in zip(split.images.names, split.images.kinds.tolist(), strict=True):
            implied = IMPLIED.get(os.path.splitext(path)[1].lower())
            if kind >= 0 and implied is not None and names[kind] and implied != names[kind]:
                misnamed[below(subject, split) + path] = f"is {names[kind]}"
    what = "of another format than the extension says"
    remedy = "Pillow and Headrace go by the content; readers that go by the name fail. Rename them for those."
    return (_formats(found), *some("misnamed", "image", what, misnamed, "note", remedy))


def _formats(found: Counter[str]) -> Finding:
    total = sum(found.values())
    slow = sum(count for kind, count in found.items() if kind.startswith("progressive"))
    native = ("JPEG ", "PNG ", "WEBP ", "progressive ")
    odd = sum(count for kind, count in found.items() if not kind.startswith(native))
    remedies = []
    if slow > total / 20:
        remedies.append(
            "Progressive JPEGs decode more slowly: headrace pack --optimize rewrites them, same pixels."
        )
    if odd > total / 20:
        remedies.append(
            "Formats other than JPEG, PNG and WebP are left to Pillow: headrace pack --reencode png keeps"
            " pixels, --reencode jpeg makes them fast to decode, with loss."
        )
    value = ", ".join(f"{kind} {count:,}" for kind, count in found.most_common())
    judgement: Judgement = "note" if remedies else "good"
    return Finding("formats", value, judgement, " ".join(remedies), {"kinds": dict(found)})


def sizes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on bytes and pixels; none where no size is known."""
    widths, heights, file_sizes = (
        np.concatenate([getattr(split.images, name) for split in splits]).astype(np.int64)
        for name in ("widths", "heights", "sizes")
    )
    if len(file_sizes) == 0:
        return ()
    spread, total = _spread(file_sizes), int(file_sizes.sum())
    low, middle, high = (size(value) for value in spread.values())
    value = f"{size(total)} in {plural(len(file_sizes), 'file')}; {low} to {high} each, median {middle}"
    findings = [Finding("bytes", value, "good", details={"total": total, **spread})]
    known = np.flatnonzero((widths > 0) & (heights > 0))
    if len(known):
        short, long = np.minimum(widths, heights)[known], np.maximum(widths, heights)[known]
        paths = [below(subject, split) + name for split in splits for name in split.images.names]
        names = [paths[number] for number in known.tolist()]
        pixels = (widths * heights)[known]
        findings += [_edges(short, long, pixels), *_large(names, pixels)]
    return tuple(findings)


def _spread(values: Numbers) -> dict[str, int]:
    return {"min": int(values.min()), "median": int(np.median(values)), "max": int(values.max())}


def _edges(short: Numbers, long: Numbers, pixels: Numbers) -> Finding:
    details = {"shorter": _spread(short), "longer": _spread(long), "pixels": _spread(pixels)}
    edges = "; ".join(
        f"{name} {one['min']:,} to {one['max']:,}, median {one['median']:,}"
        for name, one in details.items()
        if name != "pixels"
    )
    remedy = ""
    if details["shorter"]["median"] > 2 * USUAL_EDGE:
        # The longer side at which the median image's shorter one is twice the usual edge.
        side = round(2 * USUAL_EDGE * float(np.median(long / short)) / 32) * 32
        remedy = (
            f"If you train on {USUAL_EDGE} pixels or less: headrace pack --max-side {side} makes them"
            " smaller once, with loss, instead of in each epoch."
        )
    value = f"{edges}; {details['pixels']['median'] / 1e6:.2g} megapixels (median)"
    return Finding("edges, in pixels", value, "note" if remedy else "good", remedy, details)


def _large(names: Sequence[str], pixels: Numbers) -> list[Finding]:
    limit = max(LARGE * float(np.median(pixels)), LARGE_PIXELS)
    order = [i for i in np.argsort(-pixels, kind="stable").tolist() if pixels[i] > limit]
    found = {names[i]: int(pixels[i]) for i in order}
    share = sum(found.values()) / int(pixels.sum())
    if share < LARGE_SHARE:
        return []
    what = (
        f"of more than {limit / 1e6:.1f} megapixels, {percent(len(found) / len(pixels))} of all, with"
        f" {percent(share)} of all pixels: about this share of the time to decode"
    )
    lines = [f"{name}: {count / 1e6:.1f} megapixels" for name, count in found.items()]
    remedy = "Make them smaller once: headrace pack SRC DEST --max-side 1024 (with loss)."
    details = {"files": found, "share_of_pixels": share}
    return some("large images", "image", what, lines, "note", remedy, details)


def duplicates(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """Findings on files of the same content: in two classes they contradict, in two splits they leak."""
    groups: dict[str, list[list[str]]] = {"splits": [], "classes": [], "class": []}
    for copies in _copies(splits):
        parts = {which for which, _ in copies}
        labels = {int(splits[which].images.labels[row]) for which, row in copies}
        kind = "splits" if len(parts) > 1 else "classes" if len(labels) > 1 else "class"
        groups[kind].append([below(subject, splits[w]) + splits[w].images.names[row] for w, row in copies])

    def finding(name: str, kind: str, what: str, judgement: Judgement, remedy: str) -> list[Finding]:
        found = sorted(groups[kind], key=lambda paths: (-len(paths), paths))
        lines = [" = ".join(paths[:4]) for paths in found]
        return some(name, "image", what, lines, judgement, remedy, {"groups": found})

    found = (
        *finding(
            "in two splits",
            "splits",
            "in more than one split: what one measures, the other was trained on",
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
            "more than once in a class, and so drawn more often than others",
            "note",
            "Remove all but one of each.",
        ),
    )
    return found or (Finding("duplicates", "no file has the content of another", "good"),)


def _copies(splits: Sequence[Split]) -> Iterator[list[tuple[int, int]]]:
    """(number of the split, row) of the files with one content, for each such content."""
    digests = np.concatenate([split.images.digests for split in splits])
    sizes = np.concatenate([split.images.sizes for split in splits])
    starts = np.cumsum([0, *(len(split.images) for split in splits)])
    made = np.flatnonzero(digests)
    order = made[np.lexsort((made, sizes[made], digests[made]))]
    changes = (np.diff(digests[order]) != 0) | (np.diff(sizes[order]) != 0)
    for group in np.split(order, np.flatnonzero(changes) + 1):
        if len(group) > 1:
            which = np.searchsorted(starts, group, "right") - 1
            yield list(zip(which.tolist(), (group - starts[which]).tolist(), strict=True))
