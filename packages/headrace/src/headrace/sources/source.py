"""The places that native code reads samples from."""

from PIL import Image, ImageOps

from headrace.records import Mode
from headrace.sources.arrays import ArraySource
from headrace.sources.folder import ImageSource
from headrace.sources.image import load_file
from headrace.sources.pack import PackSource

# All have labels, len(), path(i), label(i) and take(); those of files open(i) and count_extensions().
Source = ImageSource | PackSource | ArraySource


def load_image(source: Source, i: int, mode: Mode = "RGB", *, upright: bool = False) -> Image.Image:
    """Sample `i` as the image that the transforms get; raises whatever Pillow does.

    Args:
        mode: of the image.
        upright: whether it is turned as its EXIF data say.
    """
    if isinstance(source, ArraySource):
        image = source.image(i) if mode == "RGB" else source.image(i).convert(mode)
    else:
        image = load_file(source.open(i), mode)
    return ImageOps.exif_transpose(image) if upright else image
