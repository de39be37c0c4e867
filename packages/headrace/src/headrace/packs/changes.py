"""Changes to images while they are packed; none by default."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from PIL import Image

from headrace._native import ffi
from headrace.errors import ConfigError, NativeError
from headrace.packs.samples import JPEG_START, PILLOW_ERRORS, Sample

Encoding = Literal["png", "jpeg"]

# Quality of re-encoded JPEGs by default.
DEFAULT_QUALITY = 95

# What Pillow's writers take as it is; the rest becomes RGB, as ImageFolder's loader makes it.
_MODES = {"jpeg": ("L", "RGB", "CMYK"), "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")}


@dataclass(frozen=True)
class Changes:
    """The options of `headrace.pack` that change images. Raises ConfigError if a value is invalid."""

    optimize: bool = False
    strip: bool = False
    reencode: Encoding | None = None
    max_side: int | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.reencode not in (None, *get_args(Encoding)):
            raise ConfigError(f"reencode ({self.reencode!r}) must be 'png' or 'jpeg', or None for no change.")
        if self.strip and not self.optimize:
            raise ConfigError("strip drops metadata while optimize rewrites a JPEG: it needs optimize=True.")
        if self.max_side is not None and self.max_side < 1:
            raise ConfigError(f"max_side ({self.max_side}) must be at least 1 pixel, or None for no limit.")
        if self.quality is not None:
            if not 1 <= self.quality <= 100:
                raise ConfigError(f"quality ({self.quality}) must be 1 to 100.")
            if self.max_side is None and self.reencode != "jpeg":
                raise ConfigError(
                    "quality is that of images which are re-encoded: it needs max_side or reencode='jpeg'."
                )

    def apply(self, sample: Sample) -> tuple[Sample, str | None]:
        """Returns the sample to pack, and the reason why its image is kept unchanged, or None if it isn't."""
        is_jpeg = sample.image.startswith(JPEG_START)
        if self.max_side is not None or (self.reencode is not None and not is_jpeg):
            try:
                sample = self._encoded(sample, is_jpeg)
            except PILLOW_ERRORS as error:
                return sample, f"Pillow can't decode it: {error}"
        if self.optimize and sample.image.startswith(JPEG_START):
            try:
                image = ffi.jpeg_transcode(sample.image, copy_markers=not self.strip)
            except NativeError as error:
                return sample, f"it can't be transcoded without loss: {error}"
            return replace(sample, image=image), None
        return sample, None

    def _encoded(self, sample: Sample, is_jpeg: bool) -> Sample:
        with Image.open(io.BytesIO(sample.image)) as image:
            smaller = None if self.max_side is None else _fit(image, self.max_side)
            encoding: Encoding = "jpeg" if is_jpeg else self.reencode or "png"
            wanted = not is_jpeg and self.reencode is not None and image.format != encoding.upper()
            if smaller is None and not wanted:
                return sample
            kept = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
            data = encoded(image if smaller is None else smaller, encoding, self.quality, **kept)
        return replace(sample, image=data, extension="jpg" if encoding == "jpeg" else "png")


def encoded(image: Image.Image, encoding: Encoding, quality: int | None = None, **kept: Any) -> bytes:
    """An image file. Lossless as PNG, except that modes which PNG doesn't have become RGB."""
    if image.mode not in _MODES[encoding]:
        image = image.convert("RGB")
    options = {"quality": quality or DEFAULT_QUALITY} if encoding == "jpeg" else {}
    file = io.BytesIO()
    image.save(file, encoding, **options, **kept)
    return file.getvalue()


def _fit(image: Image.Image, side: int) -> Image.Image | None:
    """The image with its longer side scaled down to `side` pixels, or None if it is no longer than that."""
    if max(image.size) <= side:
        return None
    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    if image.mode not in ("L", "RGB", "CMYK", "RGBA", "LA"):
        image = image.convert("RGB")
    return image.resize((width, height), Image.Resampling.LANCZOS)
