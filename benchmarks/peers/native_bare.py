"""Headrace's native batch function alone: four batches in flight, always the same memory, no loader."""

from collections import deque

import numpy as np
import torch
from headrace_folder import PACKAGES, make, prepare

import headrace
from headrace._native import abi, ffi
from headrace._native.decoders import decoder_bits
from headrace.config import READ_THREADS
from headrace.engine.lower import lower_pipeline
from peer_run import BATCH_SIZE

__all__ = ["ABOUT", "PACKAGES", "loader", "prepare"]

ABOUT = "the same work as Headrace's loader, without the loader: what there is to reach"
IN_FLIGHT = 4


def loader(folder, work, dtype, threads):
    plan = make(headrace.DataLoader, folder, dtype, threads).plan().native
    pipeline = lower_pipeline(plan, decoder_bits())
    source = ffi.Source.of_paths(plan.source.paths, plan.source.offsets)
    pool = ffi.Pool(threads, READ_THREADS)
    shape = (BATCH_SIZE, 3, plan.height, plan.width)
    slots = [torch.empty(shape, dtype=plan.dtype) for _ in range(IN_FLIGHT)]
    numbers = iter(range(1 << 30))

    def epoch():
        order = np.random.default_rng(next(numbers)).permutation(len(plan.source)).astype(np.int64)
        flying = deque()
        for number, start in enumerate(range(0, len(order), BATCH_SIZE)):
            if len(flying) == IN_FLIGHT:
                yield finish(*flying.popleft())
            indices, images = order[start : start + BATCH_SIZE], slots[number % IN_FLIGHT]
            batch = pool.submit(pipeline, source, indices, seed=0, epoch=0, output=images.data_ptr())
            flying.append((batch, images[: len(indices)]))
        while flying:
            yield finish(*flying.popleft())

    return epoch


def finish(batch, images):
    while not batch.wait(100):
        pass
    if (batch.statuses["code"] != abi.OK).any():
        raise RuntimeError("the native batch function left an image to Pillow")
    return images
