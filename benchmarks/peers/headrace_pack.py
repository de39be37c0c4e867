"""Headrace over a pack of the same images (`headrace pack`): their own bytes in tar shards, an index."""

from headrace_folder import BATCH_SIZE, PACKAGES, transform

import headrace

__all__ = ["ABOUT", "PACKAGES", "loader", "prepare"]

ABOUT = "bit for bit Pillow's antialiased bilinear; tar shards of the unchanged files"


def prepare(folder, work):
    target = work / "pack"
    if not target.exists():
        headrace.pack(folder, target)
    return sorted(target.iterdir())


def loader(folder, work, dtype, threads, **settings):
    dataset = headrace.PackedDataset(work / "pack", transform(dtype))
    batches = headrace.DataLoader(
        dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=threads, **settings
    )
    return lambda: (images for images, _ in batches)
