"""How large pictures are, and which of them take most of the time to decode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.doctor.naming import below, listed, plural
from headrace.doctor.records import Finding
from headrace.doctor.wording import percent
from headrace.errors import size
from headrace.measure.pictures import Split

Numbers = npt.NDArray[np.int64]

# A picture is large if it has so many times the pixels of the median one, and this many at least.
LARGE, LARGE_PIXELS = 4, 4_000_000

# Large ones are worth a word if they hold this share of all pixels.
WORTH = 0.2

# A longer shorter edge than this is scaled down by nearly every recipe.
USUAL_EDGE = 256

# A shorter edge that nearly every recipe scales up.
SMALL_EDGE = 64


def sizes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on bytes and pixels; none where no size is known."""
    widths = np.concatenate([split.pictures.widths for split in splits]).astype(np.int64)
    heights = np.concatenate([split.pictures.heights for split in splits]).astype(np.int64)
    file_sizes = np.concatenate([split.pictures.sizes for split in splits])
    if len(file_sizes) == 0:
        return ()
    findings = [_bytes(file_sizes)]
    known = np.flatnonzero((widths > 0) & (heights > 0))
    if len(known):
        short, long = np.minimum(widths, heights)[known], np.maximum(widths, heights)[known]
        pixels = (widths * heights)[known]
        findings += [_edges(short, long, pixels), *_large(subject, splits, known, pixels)]
        findings += _small(subject, splits, known, short)
    return tuple(findings)


def _bytes(file_sizes: Numbers) -> Finding:
    total = int(file_sizes.sum())
    low, middle, high = _spread(file_sizes)
    return Finding(
        "bytes",
        f"{size(total)} in {plural(len(file_sizes), 'file')}; {size(low)} to {size(high)} each,"
        f" median {size(middle)}",
        "good",
        details={"total": total, "min": low, "median": middle, "max": high},
    )


def _edges(short: Numbers, long: Numbers, pixels: Numbers) -> Finding:
    shorter, longer, areas = _spread(short), _spread(long), _spread(pixels)
    remedy = ""
    if shorter[1] > 2 * USUAL_EDGE:
        remedy = (
            f"If they are trained on at {USUAL_EDGE} pixels or less: headrace pack --max-side"
            f" {_side_for(short, long)} makes them smaller once, with loss, instead of in each epoch."
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


def _large(subject: str, splits: Sequence[Split], known: Numbers, pixels: Numbers) -> list[Finding]:
    limit = max(LARGE * float(np.median(pixels)), LARGE_PIXELS)
    large = np.flatnonzero(pixels > limit)
    share = float(pixels[large].sum() / pixels.sum())
    if share < WORTH:
        return []
    order = large[np.argsort(-pixels[large], kind="stable")]
    found = {_name(subject, splits, int(known[i])): int(pixels[i]) for i in order.tolist()}
    return [
        Finding(
            "large pictures",
            listed(
                "picture",
                f"of more than {limit / 1e6:.1f} megapixels, {percent(len(found) / len(pixels))} of all, with"
                f" {percent(share)} of all pixels: about this share of the time to decode",
                [f"{name}: {count / 1e6:.1f} megapixels" for name, count in found.items()],
            ),
            "note",
            "Make them smaller once: headrace pack SRC DEST --max-side 1024 (with loss).",
            {"files": found, "share_of_pixels": share},
        )
    ]


def _small(subject: str, splits: Sequence[Split], known: Numbers, short: Numbers) -> list[Finding]:
    """Where most are large: sets of small pictures are meant to be so."""
    small = np.flatnonzero(short < SMALL_EDGE)
    if len(small) == 0 or np.median(short) < 2 * SMALL_EDGE:
        return []
    found = {
        _name(subject, splits, int(known[i])): int(short[i])
        for i in small[np.argsort(short[small], kind="stable")].tolist()
    }
    lines = [f"{name}: {edge:,} pixels" for name, edge in found.items()]
    return [
        Finding(
            "small pictures",
            listed("picture", f"with an edge below {SMALL_EDGE} pixels", lines),
            "note",
            "Look whether they are thumbnails or icons that came along.",
            {"files": found},
        )
    ]


def _name(subject: str, splits: Sequence[Split], number: int) -> str:
    """Of the picture with this number, counted through all splits."""
    for split in splits:
        if number < len(split.pictures):
            return below(subject, split) + split.pictures.name(number)
        number -= len(split.pictures)
    raise IndexError(number)


def _side_for(short: Numbers, long: Numbers) -> int:
    """The longer side at which the median picture's shorter one is twice the usual edge."""
    return round(2 * USUAL_EDGE * float(np.median(long / short)) / 32) * 32


def _spread(values: Numbers) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())
