"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

from collections.abc import Callable

from headrace.lazy.image import (
    LazyImage,
    LazyJpegFile,
    LazyPngFile,
    LazyWebpFile,
    install,
    open,
    uninstall,
)
from headrace.records import LazyCounts

__all__ = ["LazyImage", "LazyJpegFile", "LazyPngFile", "LazyWebpFile", "install", "open", "uninstall"]


def start_worker() -> Callable[[], LazyCounts]:
    """For a worker process: images are opened lazily, and torchvision's transforms record what is done to
    them, but for what the program has replaced itself.

    Returns:
        A function that says how samples were made since; to be called once.
    """
    from headrace.lazy import conversion, image, own_code, recording  # what they bring takes long to import
    from headrace.transforms.origin import patched_text
    from headrace.transforms.patches import IMAGES, RECORDING, find_patched, stopped_by

    install()
    recording.start()
    patched = find_patched()
    stopped, texts = stopped_by(patched), tuple(patched_text(*each) for each in patched)
    allowed = IMAGES not in stopped, RECORDING not in stopped
    opened, made, notes = image.opened, conversion.made, own_code.start()
    first_opened, first_made = opened.count, made.count

    def counts() -> LazyCounts:
        own_code.stop()
        done = opened.count - first_opened, made.count - first_made
        return LazyCounts(*done, dict(notes.pixels), dict(notes.tensors), texts, *allowed)

    return counts
