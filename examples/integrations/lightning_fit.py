"""Lightning with Headrace: only the loader's line differs.

    python examples/integrations/lightning_fit.py FOLDER      class folders of images

Lightning moves batches to the device, and saves and restores the loader's position in its checkpoints.
"""

import sys

import lightning
import torch
from torch import nn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import headrace


class Classifier(lightning.LightningModule):
    """A small network and its loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = models.shufflenet_v2_x0_5(num_classes=classes)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(sys.argv[1], transforms.Compose(crop))
    loader = headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, rank="auto")  # was: torch's

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,  # rank="auto" shares the epoch
    )
    trainer.fit(Classifier(len(dataset.classes)), loader)
    print(f"{loader.stats().samples} samples by Headrace, {trainer.global_step} steps")


if __name__ == "__main__":
    main()
