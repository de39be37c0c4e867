"""Which files fail, which are passed over, and what the others are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from headrace.doctor.naming import below, files_in, in_a_row, listed, plural, with_reasons
from headrace.doctor.records import Finding
from headrace.measure.pictures import Split, State

# Formats by the extensions that promise them, in lower case.
PROMISED = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".ppm": "PPM",
    ".pgm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}

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
    (State.EMPTY, "empty files", "file", "of 0 bytes", "Copy or download them again, or remove them."),
    (
        State.CUT,
        "cut short",
        "picture",
        "cut off too early: Pillow raises an error",
        "Copy or download them again, or remove them.",
    ),
    (
        State.DAMAGED,
        "damaged",
        "picture",
        "beyond decoding: Pillow raises an error",
        "Copy or download them again, or remove them.",
    ),
    (
        State.ALIEN,
        "not pictures",
        "file",
        "of another kind with a picture's extension",
        "Replace or remove them.",
    ),
    (
        State.HUGE,
        "too large for Pillow",
        "picture",
        "of more pixels than Pillow takes: it raises DecompressionBombError",
        "Make them smaller (headrace pack --max-side N), or raise PIL.Image.MAX_IMAGE_PIXELS if you trust"
        " where they come from.",
    ),
)


def files(subject: str, splits: Sequence[Split], *, decoded: bool) -> tuple[Finding, ...]:
    """The findings on single files."""
    return (
        *_extensions(subject, splits),
        *_folders(subject, splits),
        *_troubles(subject, splits, decoded=decoded),
        *_doubtful(subject, splits),
    )


def pictures(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on formats and sizes of what could be decoded."""
    if not any((split.pictures.kinds >= 0).any() for split in splits):
        return ()
    return (_formats(splits), *_misnamed(subject, splits))


def _extensions(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
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
    images = [below(subject, split) + name for split in splits for name in split.images_passed_over]
    if images:
        count = Counter(os.path.splitext(name)[1] or "no extension" for name in images)
        yield Finding(
            "pictures passed over",
            listed(
                "picture",
                "with extensions that ImageFolder doesn't take"
                f" ({in_a_row([f'{name} {n:,}' for name, n in count.most_common()])})",
                images,
            ),
            "bad",
            "Rename those that are JPEG or PNG inside (.jfif → .jpg); convert the others (HEIC, GIF, AVIF).",
            {"files": images},
        )
    others = [below(subject, split) + name for split in splits for name in split.passed_over]
    rest = sorted(set(others) - set(images))
    if rest:
        count = Counter(os.path.splitext(name)[1] or "no extension" for name in rest)
        named = in_a_row([f"{name} {n:,}" for name, n in count.most_common()])
        yield Finding(
            "other files",
            f"{plural(len(rest), 'file')} that ImageFolder passes over: {named}",
            "note",
            details={"files": rest},
        )


def _folders(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    closed = {below(subject, split) + name: why for split in splits for name, why in split.closed}
    if closed:
        yield Finding(
            "closed folders",
            listed(
                "folder",
                "closed to this user: empty, for ImageFolder",
                with_reasons(closed),
            ),
            "bad",
            f"As their owner: chmod -R a+rX {subject}. In a container: docker run --user $(id -u):$(id -g).",
            {"folders": closed},
        )
    loops = [below(subject, split) + name for split in splits for name in split.loops]
    if loops:
        yield Finding(
            "links in a circle",
            listed(
                "link",
                "back to a folder above: ImageFolder goes round and round, and takes each"
                " picture up to 40 times",
                loops,
            ),
            "bad",
            "Remove them: rm " + " ".join(repr(os.path.join(subject, name)) for name in loops[:3]),
            {"links": loops},
        )


def _troubles(subject: str, splits: Sequence[Split], *, decoded: bool) -> Iterator[Finding]:
    clean = True
    for state, title, noun, what, remedy in TROUBLES:
        found = files_in(subject, splits, [state])
        if found:
            clean = False
            value = listed(noun, what, with_reasons(found))
            yield Finding(title, value, "bad", remedy.format(path=subject), {"files": found})
    good = sum(int((split.pictures.states == State.GOOD).sum()) for split in splits)
    unseen = files_in(subject, splits, [State.UNSEEN])
    if clean and good and not unseen:
        yield Finding("every picture", f"{good:,} read and decoded to the last pixel", "good")
    if unseen and decoded:
        value = listed("picture", "that could not be opened", with_reasons(unseen))
        yield Finding("not decoded", value, "unknown", "", {"files": unseen})
    elif unseen:
        yield Finding(
            "not decoded",
            f"{plural(len(unseen), 'picture')}, as --quick was asked for",
            "unknown",
            "Run it without --quick.",
        )


def _doubtful(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    broken = list(files_in(subject, splits, [State.BROKEN]))
    if broken:
        yield Finding(
            "silently damaged",
            listed(
                "JPEG",
                "with missing or impossible data: Pillow goes on without a word, and part of the picture is"
                " gray, shifted or noise",
                broken,
            ),
            "bad",
            "Copy or download them again, or remove them.",
            {"files": broken},
        )
    odd = list(files_in(subject, splits, [State.DOUBTFUL]))
    if odd:
        yield Finding(
            "odd data",
            listed(
                "JPEG",
                "with more or less data than the picture needs: harmless, or a sign of damage; Pillow goes on"
                " without a word",
                odd,
            ),
            "note",
            "Look at some of them; where they look damaged, copy or download them again.",
            {"files": odd},
        )


def _formats(splits: Sequence[Split]) -> Finding:
    found: Counter[str] = Counter()
    for split in splits:
        kinds = split.pictures.kinds
        for number, (name, mode) in enumerate(split.pictures.kind_names):
            found[f"{name} {mode}".strip()] += int((kinds == number).sum())
    odd = sum(count for kind, count in found.items() if kind not in ("JPEG RGB", "JPEG L"))
    slow = sum(count for kind, count in found.items() if kind.startswith("progressive"))
    total = sum(found.values())
    remedies = []
    if slow > total / 20:
        remedies.append(
            "Progressive JPEGs decode more slowly: headrace pack --optimize rewrites them, same pixels."
        )
    other = odd - slow
    if other > total / 20:
        remedies.append(
            "What isn't an RGB or gray JPEG is left to Pillow: headrace pack --reencode png keeps pixels,"
            " --reencode jpeg makes them fast to decode, with loss."
        )
    return Finding(
        "formats",
        ", ".join(f"{kind} {count:,}" for kind, count in found.most_common()),
        "note" if remedies else "good",
        " ".join(remedies),
        {"kinds": dict(found)},
    )


def _misnamed(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    found: dict[str, str] = {}
    for split in splits:
        pictures = split.pictures
        names = [name.removeprefix("progressive ") for name, _ in pictures.kind_names]
        for row, (name, kind) in enumerate(zip(pictures.each_name(), pictures.kinds.tolist(), strict=True)):
            promised = PROMISED.get(os.path.splitext(name)[1].lower())
            if kind >= 0 and promised is not None and names[kind] and promised != names[kind]:
                found[below(subject, split) + pictures.name(row)] = f"is {names[kind]}"
    if found:
        yield Finding(
            "misnamed",
            listed("picture", "of another format than the extension says", with_reasons(found)),
            "note",
            "Pillow and Headrace go by the content; readers that go by the name fail. Rename them if you use"
            " such.",
            {"files": found},
        )
