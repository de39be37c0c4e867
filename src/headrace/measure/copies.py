"""How fast batches reach the accelerator: from pinned and from ordinary memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

# A batch of 256 × 3 × 224 × 224 uint8 is 38.5 MB; beyond it the rate grows no more.
COPY_BYTES = 64 << 20
COPIES = 10


@dataclass(frozen=True)
class Copies:
    """Bytes per second from the host to one device.

    Attributes:
        device: its index in torch.
        uuid: "GPU-…" as NVML names it; "": not told.
        pinned: from page-locked memory.
        pageable: from ordinary memory, which the driver copies to a pinned buffer first.
    """

    device: int
    uuid: str
    pinned: float
    pageable: float


def measure_copies(device: int) -> Copies:
    """Copies for well under a second.

    Args:
        device: index of torch's current kind of accelerator, which must be there.

    Raises:
        RuntimeError: no room for 64 MiB on the device, or it fails.
    """
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        raise RuntimeError("torch reaches no accelerator to copy to.")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=torch.device(kind.type, device))
    rates = []
    for pinned in (True, False):
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        target.copy_(source)
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        for _ in range(COPIES):
            target.copy_(source, non_blocking=pinned)
        torch.accelerator.synchronize(device)
        rates.append(COPIES * COPY_BYTES / (time.perf_counter() - begin))
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if kind.type == "cuda" else ""
    return Copies(device, uuid, *rates)
