"""The places that native code reads samples from."""

from PIL import Image

from headrace.sources.arrays import ArraySource
from headrace.sources.folder import ImageSource
from headrace.sources.image import load_rgb
from headrace.sources.pack import PackSource

# All have labels, len(), path(i), label(i) and take(); those of files open(i) and count_extensions().
Source = ImageSource | PackSource | ArraySource


def load_image(source: Source, i: int) -> Image.Image:
    """Sample `i` as the RGB image that torchvision's transforms get; raises whatever Pillow does."""
    return source.image(i) if isinstance(source, ArraySource) else load_rgb(source.open(i))
