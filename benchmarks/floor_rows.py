"""The loads of `floor.py`: datasets that Headrace has little or nothing native for, one row each.

Everything is at the level of a module, so that spawned workers can have it.
"""

from __future__ import annotations

import io
import random
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

Make = Callable[[Path], Dataset[Any]]


@dataclass(frozen=True)
class Row:
    """One load.

    Attributes:
        name: what the table shows.
        make: the dataset; it may keep files in the folder that it is given.
        workers: num_workers.
        batch_size: None turns batching off.
        start: start method of the workers.
        persistent: whether workers are kept from epoch to epoch.
        collate_fn: None for the default.
        weighted: whether a `WeightedRandomSampler` chooses the samples.
        new_loaders: whether each epoch gets a loader of its own.
        native: whether Headrace makes the samples natively, so that the row says something of starting only,
            and is left out of the means.
        needs: the package that the row imports besides torchvision.
    """

    name: str
    make: Make
    workers: int = 2
    batch_size: int | None = 32
    start: str = "fork"
    persistent: bool = True
    collate_fn: Callable[[list[Any]], Any] | None = None
    weighted: bool = False
    new_loaders: bool = False
    native: bool = False
    needs: str | None = None

    def options(self, dataset: Any, workers: int | None = None) -> dict[str, Any]:
        """Keyword arguments for either loader."""
        workers = self.workers if workers is None else workers
        options: dict[str, Any] = {"batch_size": self.batch_size, "num_workers": workers}
        if workers:
            options |= {"persistent_workers": self.persistent, "multiprocessing_context": self.start}
        if self.collate_fn is not None:
            options["collate_fn"] = self.collate_fn
        if self.weighted:
            options["sampler"] = WeightedRandomSampler([1.0] * len(dataset), len(dataset))
        return options


class Sized(Dataset[Any]):
    """A dataset of `size` samples."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class Made(Sized):
    """What a function makes of each index."""

    def __init__(self, size: int, function: Callable[[int], Any]) -> None:
        super().__init__(size)
        self.function = function

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


class Numbers(Sized):
    def __getitem__(self, index: int) -> int:
        return index


class NumbersInBatches(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class TinyTensors(Sized):
    """A tensor of 16 floats and a label."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rows = torch.arange(16.0 * 64).view(64, 16)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index % 64], index


class TinyArrays(Sized):
    """An array of 8 floats and a label."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rows = np.arange(8.0 * 64, dtype=np.float32).reshape(64, 8)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self.rows[index % 64], index % 10


def record(index: int) -> dict[str, Any]:
    """A dict of numbers, like a table's row."""
    return {"user": index, "age": index % 90, "score": index / 7, "clicked": index % 2 == 0, "shop": 3}


def text(index: int) -> tuple[str, int]:
    """A string and a label."""
    return f"the quick brown fox number {index} jumps over the lazy dog", index % 5


class Tokens(Sized):
    """The output of a tokenizer: ids and a mask, int64 [256] each."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.ids = torch.arange(512 * 256).view(512, 256)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index % 512]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index)}


def sequence(index: int) -> list[int]:
    """A list of 10 to 200 numbers, for `padded`."""
    return list(range(10 + index * 37 % 191))


def padded(samples: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate function that pads."""
    tensors = [torch.tensor(sample) for sample in samples]
    return pad_sequence(tensors, batch_first=True), torch.tensor([len(sample) for sample in samples])


def boxes(index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """An image and as many boxes as it has, as for detection: collated to lists."""
    count = 1 + index % 9
    target = {"boxes": torch.full((count, 4), float(index)), "labels": torch.arange(count)}
    return torch.zeros(3, 100, 100 + index % 50), target


def listed(samples: list[Any]) -> Any:
    """torchvision's collate function for detection."""
    return tuple(zip(*samples, strict=True))


class Arrays(Sized):
    """A NumPy array of `nbytes` bytes, copied from memory."""

    def __init__(self, size: int, nbytes: int) -> None:
        super().__init__(size)
        self.row = np.zeros(nbytes, np.uint8)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self.row.copy(), index


class ArrayFiles(Sized):
    """One .npy of 150 kB a sample."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(size)
        self.folder = folder
        for i in range(64):
            np.save(folder / f"{i}.npy", np.full((224, 224, 3), i, np.uint8))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.folder / f"{index % 64}.npy"))


class Mapped(Sized):
    """Rows of a memory-mapped file, as for language models: int64 [1024] out of uint16."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(size)
        self.path = folder / "tokens.bin"
        np.arange(1 << 22, dtype=np.uint32).astype(np.uint16).tofile(self.path)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = np.memmap(self.path, np.uint16, "r")
        start = index * 977 % (len(tokens) - 1025)
        row = torch.from_numpy(tokens[start : start + 1025].astype(np.int64))
        return row[:-1], row[1:]


class Hdf5(Sized):
    """Rows of an HDF5 file that each process opens for itself."""

    def __init__(self, folder: Path, size: int) -> None:
        import h5py

        super().__init__(size)
        self.path = folder / "images.h5"
        with h5py.File(self.path, "w") as file:
            file["images"] = np.zeros((256, 64, 64, 3), np.uint8)
        self.file: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return torch.from_numpy(self.file["images"][index % 256])


def busy(index: int) -> int:
    """Python that holds the GIL for about a millisecond."""
    total = index
    for i in range(20_000):
        total = (total * 31 + i) & 0xFFFF
    return total


def sleeping(index: int) -> torch.Tensor:
    """Waits as for a store over a network, and gives 10 kB."""
    time.sleep(0.002)
    return torch.full((10_000,), index % 255, dtype=torch.uint8)


def threaded(index: int) -> torch.Tensor:
    """Reads its parts by threads of its own, new ones for every sample."""
    with ThreadPoolExecutor(8) as pool:
        return torch.stack(list(pool.map(torch.tensor, range(index, index + 8))))


class Locking(Sized):
    """Starts a thread for as long as it lives, in each process, and asks it for samples."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.pool: ThreadPoolExecutor | None = None

    def __getitem__(self, index: int) -> int:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(4)
        return self.pool.submit(int, index).result()


class Clips(Sized):
    """16 frames out of a video in memory, cropped at random: float [3, 16, 112, 112]."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.video = torch.zeros(48, 128, 171, 3, dtype=torch.uint8)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        first, top, left = (int(torch.randint(n, ())) for n in (32, 16, 59))
        clip = self.video[first : first + 16, top : top + 112, left : left + 112]
        return clip.permute(3, 0, 1, 2).float() / 255, index


class Augmented(Sized):
    """An array [256, 256, 3] through somebody else's transform."""

    def __init__(self, size: int, transform: Callable[[Any], Any]) -> None:
        super().__init__(size)
        self.transform = transform
        self.image = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.image), index


def albumentations(*steps: tuple[Any, ...]) -> Any:
    """A transform of albumentations: the name of each step and its arguments."""
    import albumentations as A  # noqa: N812  (its own name for it)

    return A.Compose([getattr(A, name)(*arguments) for name, *arguments in steps])


class Albumentations:
    """A training transform of albumentations."""

    def __init__(self) -> None:
        self.steps = albumentations(("RandomResizedCrop", (224, 224)), ("HorizontalFlip",), ("Normalize",))

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(self.steps(image=image)["image"].transpose(2, 0, 1).copy())


class ReadByOpencv(Sized):
    """Image files of a notebook's validation: OpenCV and albumentations."""

    def __init__(self, folder: Path, size: int) -> None:
        super().__init__(size)
        self.files = image_files(folder, size).samples
        self.steps = albumentations(("Resize", 64, 64), ("Normalize",))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import cv2

        path, label = self.files[index]
        image = self.steps(image=cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))["image"]
        return torch.from_numpy(image.transpose(2, 0, 1)), label


class OnTensors:
    """v2 on uint8 tensors."""

    def __init__(self) -> None:
        self.steps = v2.Compose(
            [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, True)]
        )

    def __call__(self, image: Any) -> Any:
        return self.steps(torch.from_numpy(image).permute(2, 0, 1))


class OpenedInMemory(Sized):
    """Files in memory, decoded whole: Pillow's pixels as an array."""

    def __init__(
        self, size: int, format: str = "JPEG", edges: tuple[int, int] = (160, 120), **options: Any
    ) -> None:
        super().__init__(size)
        image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
        file = io.BytesIO()
        image.resize(edges).save(file, format, **options)
        self.file = file.getvalue()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.file)).convert("RGB")
        return torch.from_numpy(np.array(image)), index


class DrawnOn(OpenedInMemory):
    """The same, changed by Pillow's ImageDraw and ImageOps."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.file)).convert("RGB")
        ImageDraw.Draw(image).rectangle((3, 3, 20, 20))
        return torch.from_numpy(np.array(ImageOps.invert(image))), index


class TransformedByUser(OpenedInMemory):
    """The same through a user class and torchvision's ToTensor."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.file)).convert("L")
        left = random.randrange(40)
        return v1.functional.to_tensor(image.crop((left, 0, left + 120, 120))), index


def tiny_arithmetic(index: int) -> dict[str, torch.Tensor]:
    """A record of a table, normalized by torch."""
    row = torch.arange(16) + index % 64
    row = row.float() / 7
    kind = torch.zeros(4)
    kind[index % 4] = 1
    return {"row": (row - row.mean()).to(torch.float64), "both": torch.cat([row, kind]), "kind": kind.long()}


def tokens(index: int) -> dict[str, torch.Tensor]:
    """Ids of one text, and its label."""
    return {"ids": torch.arange(10 + index % 50), "label": torch.tensor(index)}


def padded_tokens(samples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate function that puts ids into zeros."""
    ids = torch.zeros(len(samples), max(len(sample["ids"]) for sample in samples), dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["ids"])] = sample["ids"]
    return ids, torch.stack([sample["label"] for sample in samples])


PIXELS = np.random.default_rng(0).integers(0, 255, (64, 32, 32, 3), np.uint8)
SMALL_V1 = v1.Compose(
    [v1.RandomCrop(32, 4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.2,) * 3)]
)
SMALL_V2 = v2.Compose(
    [v2.ToImage(), v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
)
GRAY = v1.Compose([v1.ToTensor(), v1.Normalize((0.13,), (0.31,))])


def small_v1(index: int) -> torch.Tensor:
    """CIFAR's images through torchvision's v1."""
    return SMALL_V1(Image.fromarray(PIXELS[index % 64]))


def small_v2(index: int) -> torch.Tensor:
    """The same through its v2."""
    return SMALL_V2(Image.fromarray(PIXELS[index % 64]))


def small_gray(index: int) -> torch.Tensor:
    """MNIST's images."""
    return GRAY(Image.fromarray(PIXELS[index % 64, :28, :28, 0]))


def small_by_opencv(index: int) -> np.ndarray[Any, Any]:
    """CIFAR's images by OpenCV."""
    import cv2

    resized = cv2.resize(PIXELS[index % 64], (40, 40))
    return np.asarray(cv2.cvtColor(cv2.flip(resized, 1), cv2.COLOR_RGB2HSV))


class SmallByAlbumentations:
    """The same by albumentations."""

    def __init__(self) -> None:
        self.steps = albumentations(("RandomCrop", 28, 28), ("HorizontalFlip",), ("Normalize",))

    def __call__(self, index: int) -> Any:
        return self.steps(image=PIXELS[index % 64])["image"]


class ReadTwice:
    """Tensors of torchvision's `decode_image`, read once as they are and once as floats."""

    def __init__(self, folder: Path) -> None:
        self.paths = [path for path, _ in image_files(folder, 64).samples]

    def __call__(self, index: int) -> torch.Tensor:
        image = decode_image(self.paths[index % 64], ImageReadMode.RGB)
        return image.float().mean((1, 2)) - image.amax((1, 2))


class ReadGray(ReadTwice):
    """Color files that OpenCV reads as gray."""

    def __call__(self, index: int) -> Any:
        import cv2

        return cv2.resize(cv2.imread(self.paths[index % 64], cv2.IMREAD_GRAYSCALE), (64, 64))


def image_files(folder: Path, size: int) -> ImageFolder:
    """An ImageFolder of JPEGs of 320 × 240, whose steps are native in Headrace and draw nothing."""
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    image = Image.fromarray(pixels).resize((320, 240))
    for i in range(size):
        path = folder / f"class-{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    return ImageFolder(folder, v1.Compose([v1.Resize(224), v1.CenterCrop(224), v1.ToTensor()]))


class Streamed(IterableDataset[Any]):
    """A stream of its samples, shared among workers."""

    def __init__(self, samples: Dataset[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, len(self), step):
            yield self.samples[index]


def web_dataset(folder: Path) -> Any:
    """WebDataset's own loader of tar shards of 20 kB arrays."""
    import webdataset

    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(500):
                for name, content in ((f"{shard}-{i}.bin", bytes(20_000)), (f"{shard}-{i}.cls", b"3")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    shards = [str(folder / f"{shard}.tar") for shard in range(4)]
    dataset = webdataset.WebDataset(shards, shardshuffle=False).to_tuple("bin", "cls").map(_as_tensors)
    return dataset.with_length(2000)


def _as_tensors(sample: tuple[bytes, bytes]) -> tuple[torch.Tensor, int]:
    return torch.frombuffer(bytearray(sample[0]), dtype=torch.uint8), int(sample[1])


ROWS = (
    Row("numbers, in the caller", lambda _: Numbers(300_000), workers=0),
    Row("numbers, in the caller, batches of 1", lambda _: Numbers(20_000), workers=0, batch_size=1),
    Row("numbers, in the caller, batches of 1,024", lambda _: Numbers(1_000_000), workers=0, batch_size=1024),
    Row("numbers, unbatched, in the caller", lambda _: Numbers(40_000), workers=0, batch_size=None),
    Row("numbers by __getitems__, in the caller", lambda _: NumbersInBatches(500_000), workers=0),
    Row("numbers", lambda _: Numbers(30_000)),
    Row("numbers, batches of 1", lambda _: Numbers(4_000), batch_size=1),
    Row("numbers, batches of 1,024", lambda _: Numbers(300_000), batch_size=1024),
    Row("numbers, 4 workers", lambda _: Numbers(30_000), workers=4),
    Row("numbers, 20 batches, new workers", lambda _: Numbers(640), persistent=False),
    Row("numbers by a weighted sampler, in the caller", lambda _: Numbers(300_000), workers=0, weighted=True),
    Row("tiny tensors, in the caller", lambda _: TinyTensors(150_000), workers=0),
    Row("tiny arrays, in the caller", lambda _: TinyArrays(150_000), workers=0),
    Row(
        "tiny arrays, in the caller, 3 batches, new loaders",
        lambda _: TinyArrays(96),
        workers=0,
        new_loaders=True,
    ),
    Row("tiny tensors", lambda _: TinyTensors(30_000)),
    Row("tiny tensors, spawn", lambda _: TinyTensors(30_000), start="spawn"),
    Row("dicts of numbers, in the caller", lambda _: Made(100_000, record), workers=0),
    Row("dicts of numbers", lambda _: Made(20_000, record)),
    Row("strings", lambda _: Made(30_000, text)),
    Row("tokenized text", lambda _: Tokens(20_000)),
    Row("sequences, padded by collate_fn", lambda _: Made(6_000, sequence), collate_fn=padded),
    Row(
        "detection: lists of images and boxes", lambda _: Made(2_000, boxes), collate_fn=listed, batch_size=8
    ),
    Row("arrays of 150 kB", lambda _: Arrays(4_000, 150_000)),
    Row("arrays of 2 MB", lambda _: Arrays(300, 2_000_000), batch_size=8),
    Row("arrays of 2 MB, in the caller", lambda _: Arrays(300, 2_000_000), batch_size=8, workers=0),
    Row("arrays of 2 MB, spawn", lambda _: Arrays(300, 2_000_000), batch_size=8, start="spawn"),
    Row("files of 150 kB (.npy)", lambda folder: ArrayFiles(folder, 3_000)),
    Row("rows of a memory-mapped file", lambda folder: Mapped(folder, 8_000)),
    Row("HDF5", lambda folder: Hdf5(folder, 4_000), needs="h5py"),
    Row("Python that holds the GIL", lambda _: Made(600, busy)),
    Row("Python that holds the GIL, in the caller", lambda _: Made(300, busy), workers=0),
    Row("sleeping, 4 workers", lambda _: Made(1_000, sleeping), workers=4, batch_size=16),
    Row("threads of its own for every sample", lambda _: Made(1_000, threaded)),
    Row("threads of its own, kept", lambda _: Locking(8_000)),
    Row("video-like clips", lambda _: Clips(200), batch_size=4),
    Row("albumentations and OpenCV", lambda _: Augmented(600, Albumentations()), needs="albumentations"),
    Row(
        "image files, OpenCV and albumentations, 4 batches, new workers",
        lambda folder: ReadByOpencv(folder, 128),
        persistent=False,
        needs="albumentations",
    ),
    Row("v2 on tensors", lambda _: Augmented(300, OnTensors())),
    Row("v2 on tensors, in the caller", lambda _: Augmented(150, OnTensors()), workers=0),
    Row("JPEGs in memory, whole, as arrays", lambda _: OpenedInMemory(2_000)),
    Row("JPEGs in memory, drawn on", lambda _: DrawnOn(2_000)),
    Row("JPEGs in memory, progressive", lambda _: OpenedInMemory(2_000, progressive=True)),
    Row("PNGs of 28 × 28", lambda _: OpenedInMemory(8_000, "PNG", (28, 28))),
    Row("PNGs of 64 × 64", lambda _: OpenedInMemory(4_000, "PNG", (64, 64))),
    Row("JPEGs of 64 × 64, as arrays", lambda _: OpenedInMemory(8_000, edges=(64, 64))),
    Row("images of 32 × 32 from arrays, v1", lambda _: Made(6_000, small_v1)),
    Row("images of 32 × 32 from arrays, v2", lambda _: Made(4_000, small_v2)),
    Row("gray images of 28 × 28 from arrays", lambda _: Made(12_000, small_gray)),
    Row("arrays of 32 × 32, OpenCV", lambda _: Made(30_000, small_by_opencv), needs="cv2"),
    Row(
        "arrays of 32 × 32, albumentations",
        lambda _: Made(8_000, SmallByAlbumentations()),
        needs="albumentations",
    ),
    Row("decode_image, read twice", lambda folder: Made(1_000, ReadTwice(folder))),
    Row("color files, read gray by OpenCV", lambda folder: Made(1_500, ReadGray(folder)), needs="cv2"),
    Row("arithmetic on tiny tensors", lambda _: Made(15_000, tiny_arithmetic)),
    Row("tokens, put into zeros", lambda _: Made(30_000, tokens), collate_fn=padded_tokens),
    Row("PNGs in memory, drawn on", lambda _: DrawnOn(2_000, "PNG")),
    Row("WebPs in memory, drawn on", lambda _: DrawnOn(2_000, "WEBP")),
    Row("JPEGs in memory, cropped, grayscale", lambda _: TransformedByUser(2_000)),
    Row("image files, native", lambda folder: image_files(folder, 640), native=True),
    Row(
        "image files, native, in the caller", lambda folder: image_files(folder, 320), workers=0, native=True
    ),
    Row(
        "image files, native, 4 batches, new loaders",
        lambda folder: image_files(folder, 128),
        new_loaders=True,
        native=True,
    ),
    Row("numbers, 20 batches, new loaders", lambda _: Numbers(640), new_loaders=True),
    Row("IterableDataset of numbers, in the caller", lambda _: Streamed(Numbers(300_000)), workers=0),
    Row("IterableDataset of numbers", lambda _: Streamed(Numbers(30_000))),
    Row("IterableDataset of 150 kB", lambda _: Streamed(Arrays(4_000, 150_000))),
    Row("WebDataset", web_dataset, needs="webdataset"),
)
