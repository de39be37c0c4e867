"""Lightning: a LightningDataModule of an image folder, and Trainer.fit."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


class Images(lightning.LightningDataModule):
    def __init__(self, folder: str, batch_size: int, workers: int) -> None:
        super().__init__()
        self.folder, self.batch_size, self.workers = folder, batch_size, workers

    def setup(self, stage: str) -> None:
        steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
        normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        self.dataset = ImageFolder(self.folder, transforms.Compose([*steps, normalize]))

    def train_dataloader(self) -> DataLoader:
        order = torch.Generator().manual_seed(0)
        return DataLoader(
            self.dataset, self.batch_size, shuffle=True, generator=order, num_workers=self.workers
        )

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, self.batch_size, num_workers=self.workers)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = models.shufflenet_v2_x0_5(num_classes=10)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        if self.global_rank == 0:
            print(f"step {index} loss {loss.item():.6f}", flush=True)
        return loss

    def validation_step(self, batch, index):
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            print(f"accuracy {self.trainer.callback_metrics['accuracy']:.6f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.ranks,
        strategy="ddp" if options.ranks > 1 else "auto",
        max_epochs=options.epochs,
        limit_train_batches=options.steps,
        limit_val_batches=options.steps,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=Images(options.data, options.batch_size, options.workers))


if __name__ == "__main__":
    main()
