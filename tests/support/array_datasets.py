"""torchvision's small data sets, a few images each, from files as its own classes read them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

COUNT = 23


def _pixels(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def _labels() -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(COUNT) * 7 % 10


def _write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    kind = {"uint8": 8, "int32": 12}[values.dtype.name]
    header = bytes([0, 0, kind, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + values.astype(values.dtype.newbyteorder(">")).tobytes())


def _idx_files(root: Path, folder: str, names: tuple[str, str]) -> None:
    images, labels = (root / folder / "raw" / name for name in names)
    _write_idx(images, _pixels(COUNT, 28, 28))
    _write_idx(labels, _labels().astype(np.uint8))


def _mnist(cls: type[Any]) -> Callable[[Path, Any], Any]:
    def make(root: Path, transform: Any) -> Any:
        for part in ("train", "t10k"):
            names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
            _idx_files(root, cls.__name__, names)
        return cls(root, transform=transform)

    return make


def _emnist(root: Path, transform: Any) -> Any:
    names = ("emnist-digits-train-images-idx3-ubyte", "emnist-digits-train-labels-idx1-ubyte")
    _idx_files(root, "EMNIST", names)
    return datasets.EMNIST(root, "digits", transform=transform)


def _qmnist(root: Path, transform: Any) -> Any:
    raw = root / "QMNIST" / "raw"
    _write_idx(raw / "qmnist-train-images-idx3-ubyte", _pixels(COUNT, 28, 28))
    labels = np.stack([_labels()] * 8, axis=1).astype(np.int32)
    _write_idx(raw / "qmnist-train-labels-idx2-int", labels)
    return datasets.QMNIST(root, transform=transform)


def _cifar(cls: type[Any], key: str) -> Callable[[Path, Any], Any]:
    def make(root: Path, transform: Any) -> Any:
        folder = root / cls.base_folder
        folder.mkdir(parents=True)
        for name, _ in cls.test_list:
            entry = {"data": _pixels(COUNT, 3 * 32 * 32), key: _labels().tolist()}
            (folder / name).write_bytes(pickle.dumps(entry))
        names = [f"c{i}" for i in range(10)]
        (folder / cls.meta["filename"]).write_bytes(pickle.dumps({cls.meta["key"]: names}))
        return cls(root, train=False, transform=transform)

    return make


def _svhn(root: Path, transform: Any) -> Any:
    savemat = pytest.importorskip("scipy.io").savemat
    savemat(root / "test_32x32.mat", {"X": _pixels(32, 32, 3, COUNT), "y": _labels()[:, None] + 1})
    return datasets.SVHN(root, split="test", transform=transform)


def _stl10(root: Path, transform: Any) -> Any:
    folder = root / "stl10_binary"
    folder.mkdir()
    (folder / "test_X.bin").write_bytes(_pixels(COUNT, 3, 96, 96).tobytes())
    (folder / "test_y.bin").write_bytes((_labels() + 1).astype(np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join("abcdefghij"))
    return datasets.STL10(str(root), split="test", transform=transform)


def mnist(images: torch.Tensor, transform: Any) -> datasets.MNIST:
    """An MNIST of these images, labelled by their place, without files."""
    dataset = datasets.MNIST.__new__(datasets.MNIST)
    dataset.data, dataset.targets = images, torch.arange(len(images))
    dataset.transform, dataset.target_transform = transform, None
    return dataset


SETS: dict[str, Callable[[Path, Any], Any]] = {
    "MNIST": _mnist(datasets.MNIST),
    "FashionMNIST": _mnist(datasets.FashionMNIST),
    "KMNIST": _mnist(datasets.KMNIST),
    "EMNIST": _emnist,
    "QMNIST": _qmnist,
    "CIFAR10": _cifar(datasets.CIFAR10, "labels"),
    "CIFAR100": _cifar(datasets.CIFAR100, "fine_labels"),
    "SVHN": _svhn,
    "STL10": _stl10,
}


def make_set(name: str, root: Path, transform: Any, patch: pytest.MonkeyPatch) -> Any:
    """A set of `COUNT` images; torchvision would miss the checksums of the real ones."""
    for module in (datasets.cifar, datasets.stl10, datasets.svhn):
        patch.setattr(module, "check_integrity", lambda *_: True)
    return SETS[name](root, transform)
