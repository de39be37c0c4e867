"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.deferred.images import install, uninstall
from headrace.records import DeferralCounts

__all__ = ["install", "uninstall"]

# OpenCV has it since 4.11; older ones run as written.
NEWEST_FLAG = "IMREAD_COLOR_RGB"


def prepare() -> None:
    """Imports what `start_worker` needs, once for all processes that are forked from this one."""
    from headrace.deferred import recording

    recording.prepare()
    _recorders()


def learn(counts: DeferralCounts) -> None:
    """Notes what a worker process has found out, for those that are forked from this one later."""
    if counts.alike and (recorders := _recorders()):
        recorders[0].learn(counts.alike)


def _recorders() -> list[Any]:
    """The modules that record the functions of libraries which the program has imported."""
    if not hasattr(sys.modules.get("cv2"), NEWEST_FLAG):
        return []
    recorders: list[Any] = [importlib.import_module(f"{__name__}.opencv")]
    if "albumentations" in sys.modules:
        with suppress(ImportError, AttributeError):  # other versions have other modules, and run as written
            recorders.append(importlib.import_module(f"{__name__}.albumentations"))
    return recorders


def start_worker() -> tuple[Callable[[], DeferralCounts], Callable[[], None]]:
    """For a worker process: images are deferred, and torchvision's transforms record what is done to
    them, but for what the program has replaced itself.

    Returns:
        A function that says how samples were made since, to be called once; and one that ends what was of no
        use since, to be called after some samples.
    """
    from headrace.deferred import (  # what they bring takes long to import
        batches,
        conversion,
        images,
        own_code,
        recording,
        tensors,
    )
    from headrace.transforms.origin import patched_text
    from headrace.transforms.patches import IMAGES, RECORDING, find_patched, stopped_by

    patched = find_patched()
    install(patched)
    recording.start(patched)
    recorders = [] if images.problem() else _recorders()
    for each in recorders:
        each.start()
    stopped, texts = stopped_by(patched), tuple(patched_text(*each) for each in patched)
    allowed = IMAGES not in stopped, RECORDING not in stopped
    notes = own_code.start()
    counters = images.opened, conversion.made, batches.in_batches
    before = [each.count for each in counters]

    def counts() -> DeferralCounts:
        own_code.stop()
        opened, made, stacked = (each.count - n for each, n in zip(counters, before, strict=True))
        seen = dict(+notes.pixels), dict(+notes.tensors)  # without what was forgotten
        done = opened, max(made, stacked)
        compared = (recorders[0].differing(), recorders[0].alike()) if recorders else ()
        return DeferralCounts(*done, *seen, texts, *allowed, images.problem() or "", *compared)

    gains = conversion.made, batches.in_batches, images.large
    kept = conversion.made, batches.in_batches, tensors.used
    decoded = tensors.decoded.count
    gained, used = (sum(each.count for each in of) for of in (gains, kept))

    def stop_useless() -> None:
        if sum(each.count for each in gains) == gained:
            recording.stop()
            images.uninstall()
            for each in recorders[:1]:
                each.stop()
        elif tensors.decoded.count > decoded and sum(each.count for each in kept) == used:
            recording.stop_decoding()  # what reads a tensor twice has it decoded twice

    return counts, stop_useless
