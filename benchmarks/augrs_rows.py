"""Images per second of a row of `pipelines.py` with augrs, which has albumentations' API in Rust.

    ENVIRONMENT/bin/python benchmarks/augrs_rows.py --row 'RandomResizedCrop, flip' --folder FOLDER

Its import takes that of albumentations' place, and a function that of `ToTensorV2`, which it hasn't got. It
draws its own numbers, and resizes to other pixels than OpenCV. `pipelines.py --peers` starts this.
"""

import augrs
import torch

from albumentations_rows import main


def by_augrs(operations):
    chain = augrs.Compose(operations)
    return lambda pixels: torch.from_numpy(chain(image=pixels)["image"].transpose(2, 0, 1).copy())


if __name__ == "__main__":
    main(augrs, by_augrs)
