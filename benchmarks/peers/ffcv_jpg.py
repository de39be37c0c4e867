"""FFCV over its own file of JPEGs, written by its DatasetWriter, which re-encodes every image.

Tried: 2, 3 and 6 batches ahead, the same within noise; os_cache=False is slower; it refuses more threads
than cores.
"""

from pathlib import Path

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder

from peer_run import BATCH_SIZE, MEAN, SIZE, STD

ABOUT = "re-encoded at quality 90 (a quarter fewer bytes); decodes whole images, area resize"
PACKAGES = ("ffcv", "numba", "opencv-python-headless", "torch")


def write(folder: Path, path: Path, mode: str) -> list[Path]:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(partial), fields, num_workers=1).from_indexed_dataset(ImageFolder(folder))
        partial.rename(path)
    return [path]


def prepare(folder, work):
    return write(folder, work / "ffcv" / "jpg.beton", "jpg")


def loader(folder, work, dtype, threads, file="jpg.beton", os_cache=True, batches_ahead=3):
    steps = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    if dtype == "float32":
        steps.append(NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32))
    steps += [ToTensor(), ToTorchImage(convert_back_int16=False)]
    batches = Loader(
        str(work / "ffcv" / file),
        batch_size=BATCH_SIZE,
        num_workers=threads,
        order=OrderOption.RANDOM,
        os_cache=os_cache,
        batches_ahead=batches_ahead,
        drop_last=False,
        pipelines={"image": steps, "label": None},
    )
    return lambda: (batch[0] for batch in batches)
