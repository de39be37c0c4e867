"""Images per second of a row of `pipelines.py` as albumentations has it, in albumentations' environment.

    ENVIRONMENT/bin/python benchmarks/albumentations_rows.py --row 'RandomResizedCrop, flip' --folder FOLDER

OpenCV decodes and albumentations augments in the workers of torch's DataLoader, as the documentation of
albumentations shows it. The operations have torchvision's arguments and OpenCV's arithmetic.
`pipelines.py --peers` starts this; augrs_rows.py runs the same with another library of the same names.
"""

import argparse
import json
import time
from pathlib import Path

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 64
SIZE = (224, 224)


def rows(A):  # noqa: N803  (the library's own name for it)
    """The operations of each row, in a library with albumentations' names."""

    def jitter(change, hue=0.0):
        """ColorJitter(change, change, change, hue), always applied as torchvision's is."""
        limits = dict.fromkeys(("brightness", "contrast", "saturation"), (1 - change, 1 + change))
        return A.ColorJitter(**limits, hue=(-hue, hue), p=1.0)

    crop = (A.RandomResizedCrop(SIZE), A.HorizontalFlip())
    return {
        "RandomResizedCrop, flip": crop,
        "crop, ColorJitter(.4, .4, .4)": (*crop, jitter(0.4)),
        "crop, ColorJitter with hue": (*crop, jitter(0.4, 0.1)),
        "Resize, RandomRotation, ColorJitter": (
            *(A.Resize(*SIZE), A.Rotate((-15, 15), p=1.0), jitter(0.2, 0.1)),
        ),
    }


class Images(Dataset):
    def __init__(self, folder, chain):
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.chain = chain

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        pixels = cv2.imread(self.paths[index], cv2.IMREAD_COLOR_RGB)
        return self.chain(pixels), 0


def one_thread(_worker):
    """OpenCV's own threads compete with the workers: without them it is faster here."""
    cv2.setNumThreads(0)


def main(A, tensor_of):  # noqa: N803
    """Measures the row of the command line. `tensor_of` makes a function of an array from operations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Images(arguments.folder, tensor_of([*rows(A)[arguments.row], A.Normalize()]))
    batches = DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
        worker_init_fn=one_thread,
    )
    rates = []
    for _ in range(arguments.epochs + 1):
        start = time.perf_counter()
        for _batch in batches:
            pass
        rates.append(len(dataset) / (time.perf_counter() - start))
    print(json.dumps({"rates": rates[1:]}))


if __name__ == "__main__":
    import albumentations
    from albumentations.pytorch import ToTensorV2

    def by_albumentations(operations):
        chain = albumentations.Compose([*operations, ToTensorV2()])
        return lambda pixels: chain(image=pixels)["image"]

    main(albumentations, by_albumentations)
