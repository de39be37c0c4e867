"""Checks that the installed package works: loads JPEG, PNG and WebP files natively and compares them with
torchvision.

It uses public names only, so that it can test a wheel in an environment without the repository.
"""

import tempfile
from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

import headrace
import headrace.testing

COUNT = 9
EXTENSIONS = ("jpg", "png", "webp")


def main() -> None:
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{i}.{EXTENSIONS[i % 3]}") for i in range(COUNT)]
        for path in paths:
            Image.effect_noise((320, 240), 60).convert("RGB").save(path, quality=90)
        dataset = headrace.ImageDataset(paths, list(range(COUNT)), transform)
        loader = headrace.DataLoader(dataset, batch_size=COUNT, seed=0)
        images, labels = next(iter(loader))
        assert "plan: native" in loader.explain(), loader.explain()
        assert labels.tolist() == list(range(COUNT))
        assert all(torch.equal(images[i], headrace.testing.replay(loader, i)) for i in range(COUNT))
        decoded = {name: count for name, count in loader.stats().decoded_by.items() if count}
    assert sum(decoded.values()) == COUNT, decoded
    assert (decoded.get("libdeflate"), decoded.get("libwebp"), decoded.get("pillow")) == (3, 3, None), decoded
    print(f"{COUNT} images decoded natively and equal to torchvision's: {decoded}")


if __name__ == "__main__":
    main()
