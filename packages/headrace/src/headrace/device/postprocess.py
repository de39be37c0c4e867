"""The work that the plan leaves for whole batches of images: the table of levels, and erasing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.plan.segments import ErasingStep, Plan, ValueSegment
from headrace.records import BatchKeys
from headrace.transforms.random_erasing import draw_boxes, draw_noise

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def host_postprocess(plan: Plan) -> Postprocess | None:
    """The work left for batches on the host, before any copy to a device, or None if nothing is."""
    values = plan.values
    return None if values is None or values.where == "device" else Postprocess(values)


class Postprocess:
    """Does `segment` to images, on the device that they are on: one device, and one thread at a time."""

    def __init__(self, segment: ValueSegment) -> None:
        self._segment = segment
        self._values = None if segment.table is None else segment.table.values
        self._table: torch.Tensor | None = None  # `_values` on the device, once that is known
        self._value: torch.Tensor | None = None

    def __call__(self, batch: Any, keys: BatchKeys | None) -> Any:
        """Returns `batch`, a list whose first item is the images, with these steps done."""
        return [self.images(batch[0], keys), *batch[1:]]

    def images(self, images: torch.Tensor, keys: BatchKeys | None) -> torch.Tensor:
        """Images [n, channels, height, width], done; without a table the given tensor may be changed. Erasing
        needs the samples' keys."""
        segment = self._segment
        if self._values is not None:
            if self._table is None or self._table.device != images.device:
                self._table = self._values.to(images.device)
            if images.device.type != "cpu":  # dropped early, perhaps
                self._table.record_stream(torch.accelerator.current_stream(images.device))
            images = look_up_batch(images, self._table, segment.memory_format)
        else:
            images = images.contiguous(memory_format=segment.memory_format)
        if segment.erasing is not None:
            if keys is None or len(keys) != len(images):
                raise ValueError(f"erasing {len(images)} images needs the keys of as many samples")
            self._erase(images, segment.erasing, keys)
        return images

    def _erase(self, images: torch.Tensor, step: ErasingStep, keys: BatchKeys) -> None:
        boxes = draw_boxes(step.erase, keys, step.number, images.shape[2], images.shape[3])
        chosen = np.flatnonzero(boxes[:, 2] * boxes[:, 3]).tolist()
        places = [(i, *boxes[i].tolist()) for i in chosen]
        if step.erase.value is not None:
            if self._value is None or self._value.device != images.device:
                value = torch.tensor(step.erase.value)[:, None, None]
                self._value = value.to(step.dtype).to(images.dtype).to(images.device)
            for i, top, left, height, width in places:
                images[i, :, top : top + height, left : left + width] = self._value
        elif places:
            noise = _noise_for(places, step, keys, images)
            for (i, top, left, height, width), values in zip(places, noise, strict=True):
                shape = step.erase.noise_size(height, width)
                images[i, :, top : top + height, left : left + width] = values.view(3, *shape)


def _noise_for(
    places: list[tuple[int, ...]], step: ErasingStep, keys: BatchKeys, images: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Each box's numbers, flat, on the device of `images`, copied there together."""
    shapes = [step.erase.noise_size(height, width) for _, _, _, height, width in places]
    sizes = [3 * height * width for height, width in shapes]
    pinned = images.device.type != "cpu"
    noise = torch.empty(sum(sizes), dtype=images.dtype, device="cpu", pin_memory=pinned)
    for part, (i, *_), shape in zip(_split(noise, sizes), places, shapes, strict=True):
        drawn = torch.from_numpy(draw_noise(keys[i], step.number, *shape))
        part.copy_(drawn.view(-1).to(step.dtype))
    return _split(noise.to(images.device, non_blocking=pinned), sizes)


def _split(flat: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = flat.split(sizes)  # type: ignore[no-untyped-call]
    return parts


def look_up_batch(
    images: torch.Tensor,
    values: torch.Tensor,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """`images`, uint8 [n, channels, height, width] with any strides, each level replaced by its value, of
    `values`, [channels, 256] on the same device. Bit for bit `headrace.plan.pointwise.look_up`."""
    result = torch.empty(images.shape, dtype=values.dtype, device=images.device, memory_format=memory_format)
    if images.device.type == "cpu":
        _look_up_on_cpu(images, values, result)
        return result
    # A channel at a time: an index takes four bytes, and all of them at once twelve times the images.
    for channel in range(images.shape[1]):
        levels = images[:, channel].to(torch.int32)
        result[:, channel] = values[channel].index_select(0, levels.reshape(-1)).view(levels.shape)
    return result


def _look_up_on_cpu(images: torch.Tensor, values: torch.Tensor, result: torch.Tensor) -> None:
    """By NumPy, in this thread: torch's own threads wait for each other on a machine that is busy loading.
    NumPy has no bfloat16, and needs none to move bits."""
    bits = BITS[values.element_size()]
    levels, table, out = images.numpy(), values.view(bits).numpy(), result.view(bits).numpy()
    for channel in range(images.shape[1]):
        out[:, channel] = np.take(table[channel], levels[:, channel], mode="clip")
