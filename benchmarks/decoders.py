"""Images per second of decoding whole JPEGs to RGB: Headrace's decoder and those that Python programs use.

    benchmarks/install-peers.sh .venv-peers .venv decoders
    .venv-peers/decoders/bin/python benchmarks/decoders.py --data data

Two tables. In the first, files lie in memory and one thread decodes them, one after another; decoders take
turns in each round, and the median of the rounds counts. In the second, torch's DataLoader reads and decodes
them in 0, 2 and 8 worker processes; samples are the lengths of decoded arrays, so that the transport of
pixels doesn't count. Decoders that aren't installed are named and left out.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from machine import describe, foreign_load, keep

WORKERS = (0, 2, 8)
Decode = Callable[[bytes], Any]


def headrace() -> Decode:
    decode = importlib.import_module("headrace").decode_image
    return lambda data: decode(torch.frombuffer(data, dtype=torch.uint8), mode="RGB")


def torchvision() -> Decode:
    decode = importlib.import_module("torchvision.io").decode_jpeg
    mode = importlib.import_module("torchvision.io").ImageReadMode.RGB
    return lambda data: decode(torch.frombuffer(data, dtype=torch.uint8), mode=mode)


def torchcodec() -> Decode:
    decode = importlib.import_module("torchcodec.decoders").decode_image
    return lambda data: decode(torch.frombuffer(data, dtype=torch.uint8))


def pillow() -> Decode:
    image, io = importlib.import_module("PIL.Image"), importlib.import_module("io")
    return lambda data: np.asarray(image.open(io.BytesIO(data)).convert("RGB"))


def opencv() -> Decode:
    cv2 = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def simplejpeg() -> Decode:
    decode = importlib.import_module("simplejpeg").decode_jpeg
    return lambda data: decode(data, colorspace="RGB")


def turbojpeg() -> Decode:
    module = importlib.import_module("turbojpeg")
    decoder = module.TurboJPEG()
    return lambda data: decoder.decode(data, pixel_format=module.TJPF_RGB)


def imagecodecs() -> Decode:
    return importlib.import_module("imagecodecs").jpeg8_decode


def kornia() -> Decode:
    module = importlib.import_module("kornia_rs")
    decode = (
        getattr(module, "decode_image_jpeg", None)
        or importlib.import_module("kornia_rs.io").decode_image_jpeg
    )
    return lambda data: np.asarray(decode(data))


DECODERS: dict[str, Callable[[], Decode]] = {
    "Headrace": headrace,
    "torchvision": torchvision,
    "torchcodec": torchcodec,
    "Pillow": pillow,
    "OpenCV": opencv,
    "simplejpeg": simplejpeg,
    "PyTurboJPEG": turbojpeg,
    "imagecodecs": imagecodecs,
    "kornia-rs": kornia,
}


class Decoded(Dataset[int]):
    """The lengths of decoded files, which stand for their pixels.

    Args:
        paths: the files.
        name: of the decoder, which each worker process sets up for itself.
    """

    def __init__(self, paths: list[Path], name: str) -> None:
        self._paths, self._name = paths, name
        self._decode: Decode | None = None

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> int:
        if self._decode is None:
            torch.set_num_threads(1)
            self._decode = DECODERS[self._name]()
        return len(self._decode(self._paths[index].read_bytes()))


def in_memory(decoders: dict[str, Decode], files: list[bytes], rounds: int) -> dict[str, list[float]]:
    """Images per second of each round."""
    rates: dict[str, list[float]] = {name: [] for name in decoders}
    for round_ in range(rounds + 1):
        for name, decode in decoders.items():
            start = time.perf_counter()
            for data in files:
                decode(data)
            if round_:  # the first one warms up
                rates[name].append(len(files) / (time.perf_counter() - start))
    return rates


def in_loader(names: list[str], paths: list[Path], workers: int, epochs: int) -> dict[str, list[float]]:
    """Images per second of each epoch but the first one of the worker processes."""
    rates: dict[str, list[float]] = {}
    for name in names:
        loader = DataLoader(
            Decoded(paths, name), batch_size=32, num_workers=workers, persistent_workers=workers > 0
        )
        rates[name] = []
        for epoch in range(epochs + 1):
            start = time.perf_counter()
            for _ in loader:
                pass
            if epoch:
                rates[name].append(len(paths) / (time.perf_counter() - start))
        del loader
    return rates


def show(title: str, rates: dict[str, list[float]]) -> None:
    """Prints a table of medians, the fastest one first."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"\n{title}\n")
    for name, rate in sorted(medians.items(), key=lambda item: -item[1]):
        spread = (max(rates[name]) - min(rates[name])) / rate
        print(
            f"{name:14}{rate:9.0f} images/s   {rate / medians['Pillow']:5.2f} of Pillow   spread {spread:.0%}"
        )


def main() -> None:
    """Measures and prints both tables, and writes them to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="pictures-2000/ below it is read")
    parser.add_argument("--count", type=int, default=500, help="images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON of all rates")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given buffer is not writable|.*worker processes in total")
    paths = sorted((arguments.data / "pictures-2000").rglob("*.jpg"))[: arguments.count]
    if not paths:
        parser.error(f"there are no JPEGs in {arguments.data}/pictures-2000; make pictures makes them")
    files = [path.read_bytes() for path in paths]
    decoders, missing = {}, []
    for name, make in DECODERS.items():
        try:
            decoders[name] = make()
            decoders[name](files[0])
        except (ImportError, OSError, RuntimeError) as error:
            missing.append(f"{name} ({error})")
    nbytes = sum(map(len, files)) / len(files)
    print(f"{len(files)} JPEGs of {nbytes / 1000:.0f} kB, other load {foreign_load():.2f} cores")
    for each in missing:
        print("left out:", each)
    results = {"one thread, files in memory": in_memory(decoders, files, arguments.rounds)}
    for workers in WORKERS:
        title = f"torch's DataLoader, num_workers={workers}"
        results[title] = in_loader([*decoders], paths, workers, arguments.rounds)
    for title, rates in results.items():
        show(title, rates)
    if arguments.out:
        recorded = {"machine": describe(), "files": len(files), "rates": results, "left_out": missing}
        keep(recorded, arguments.out)


if __name__ == "__main__":
    main()
