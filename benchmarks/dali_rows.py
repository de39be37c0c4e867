"""Images per second of a row of `pipelines.py` as NVIDIA DALI has it on the CPU, in DALI's environment.

    ENVIRONMENT/bin/python benchmarks/dali_rows.py --row 'crop, RandAugment' --folder FOLDER

DALI's augmentations are its own: the same operations with its own arithmetic and, in `auto_aug`, with the
policies of the papers. `pipelines.py --peers` starts this.
"""

import argparse
import json
import time
from pathlib import Path

from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment

BATCH_SIZE = 64
SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def factor(change):
    """A random factor of brightness, contrast or saturation, as ColorJitter(change) draws it."""
    return fn.random.uniform(range=(1 - change, 1 + change))


def jitter(change, hue=0.0):
    """ColorJitter(change, change, change, hue): in DALI one linear map, in one order."""

    def augment(images):
        degrees = fn.random.uniform(range=(-360 * hue, 360 * hue)) if hue else 0.0
        names = ("brightness", "contrast", "saturation")
        return fn.color_twist(images, hue=degrees, **{name: factor(change) for name in names})

    return augment


def rotated(images):
    return fn.rotate(images, angle=fn.random.uniform(range=(-15.0, 15.0)), keep_size=True, fill_value=0)


SHAPE = [SIZE, SIZE]
# For each row: whether a random window is cut out, or else all of the image is resized; what follows.
ROWS = {
    "RandomResizedCrop, flip": (True, ()),
    "crop, ColorJitter(.4, .4, .4)": (True, (jitter(0.4),)),
    "crop, ColorJitter with hue": (True, (jitter(0.4, 0.1),)),
    "crop, RandAugment": (True, (lambda images: rand_augment.rand_augment(images, n=2, m=9, shape=SHAPE),)),
    "crop, AutoAugment": (
        True,
        (lambda images: auto_augment.auto_augment(images, "image_net", shape=SHAPE),),
    ),
    "crop, TrivialAugmentWide, RandomErasing": (
        True,
        (lambda images: trivial_augment.trivial_augment_wide(images, shape=SHAPE),),
    ),
    "Resize, RandomRotation, ColorJitter": (False, (rotated, jitter(0.2, 0.1))),
}


@pipeline_def(enable_conditionals=True)
def pipeline(folder, row):
    crops, augmentations = ROWS[row]
    encoded, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="files")
    if crops:
        images = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
    else:
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    images = fn.resize(images, size=SHAPE, interp_type=types.INTERP_LINEAR, antialias=True)
    if crops:
        images = fn.flip(images, horizontal=fn.random.coin_flip())
    for augment in augmentations:
        images = augment(images)
    if "RandomErasing" in row:
        anchor = fn.random.uniform(range=(0, 0.5), shape=2)
        side = fn.random.uniform(range=(0.1, 0.5), shape=2)
        erased = fn.erase(images, anchor=anchor, shape=side, normalized=True, axis_names="HW", fill_value=0)
        if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
            images = erased
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
    )
    return images, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2, help="threads")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    made = pipeline(
        str(arguments.folder),
        arguments.row,
        batch_size=BATCH_SIZE,
        num_threads=arguments.workers,
        device_id=None,
    )
    made.build()
    count = made.epoch_size("files")
    rates = []
    for _ in range(arguments.epochs + 1):
        start = time.perf_counter()
        for _ in range(-(-count // BATCH_SIZE)):
            made.run()[0].as_array()
        rates.append(-(-count // BATCH_SIZE) * BATCH_SIZE / (time.perf_counter() - start))
    print(json.dumps({"rates": rates[1:]}))


if __name__ == "__main__":
    main()
