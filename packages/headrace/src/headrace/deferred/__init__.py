"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

import sys
from collections.abc import Callable

from headrace.deferred.images import install, uninstall
from headrace.records import DeferralCounts

__all__ = ["install", "uninstall"]

# OpenCV has it since 4.11; older ones run as written.
NEWEST_FLAG = "IMREAD_COLOR_RGB"


def start_worker() -> Callable[[], DeferralCounts]:
    """For a worker process: images are deferred, and torchvision's transforms record what is done to
    them, but for what the program has replaced itself.

    Returns:
        A function that says how samples were made since; to be called once.
    """
    from headrace.deferred import (  # what they bring takes long to import
        arrays,
        conversion,
        images,
        own_code,
        recording,
    )
    from headrace.transforms.origin import patched_text
    from headrace.transforms.patches import IMAGES, RECORDING, find_patched, stopped_by

    install()
    recording.start()
    differing: Callable[[], tuple[str, ...]] = tuple
    if hasattr(sys.modules.get("cv2"), NEWEST_FLAG) and not images.problem():
        from headrace.deferred import opencv

        opencv.start()
        differing = opencv.differing
        if "albumentations" in sys.modules:
            from headrace.deferred import albumentations

            albumentations.start()
    patched = find_patched()
    stopped, texts = stopped_by(patched), tuple(patched_text(*each) for each in patched)
    allowed = IMAGES not in stopped, RECORDING not in stopped
    notes = own_code.start()
    counters = images.opened, conversion.made, arrays.in_batches
    before = [each.count for each in counters]

    def counts() -> DeferralCounts:
        own_code.stop()
        opened, made, stacked = (each.count - n for each, n in zip(counters, before, strict=True))
        seen = dict(notes.pixels), dict(notes.tensors)
        done = opened, max(made, stacked)
        return DeferralCounts(*done, *seen, texts, *allowed, images.problem() or "", differing())

    return counts
