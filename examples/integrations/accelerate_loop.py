"""Accelerate with Headrace: only the loader's line differs, and the loader isn't prepared.

    accelerate launch examples/integrations/accelerate_loop.py FOLDER      class folders of images

`accelerator.prepare(loader)` would make a new loader of torch's own out of it. Headrace's shares the epoch
among processes and brings batches to the device by itself.
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import headrace


def main() -> None:
    accelerator = Accelerator()
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(sys.argv[1], transforms.Compose(crop))
    # was: accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True))
    loader = headrace.DataLoader(
        dataset, batch_size=8, shuffle=True, seed=0, rank="auto", device=accelerator.device
    )

    model = models.shufflenet_v2_x0_5(num_classes=len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)  # save_state() saves its position, too
    steps = 0
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    accelerator.print(f"{loader.stats().samples} samples by Headrace, {steps} steps")


if __name__ == "__main__":
    main()
