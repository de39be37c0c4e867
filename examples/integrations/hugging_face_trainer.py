"""Hugging Face's Trainer with Headrace: only the method that makes the loader differs.

    python examples/integrations/hugging_face_trainer.py FOLDER      class folders of images

The Trainer wants dicts: `batch_transform` makes them of Headrace's batches, so that the images remain native.
"""

import sys
import tempfile

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

import headrace


def named(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """The samples under the names that the model's forward() has for them."""
    return {"pixel_values": images, "labels": labels}


class FedTrainer(Trainer):
    """With the loader that the Trainer would otherwise make, and hand to Accelerate, replaced."""

    loader: headrace.DataLoader

    def get_train_dataloader(self) -> headrace.DataLoader:
        self.loader = headrace.DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            shuffle=True,
            seed=self.args.seed,
            rank="auto",
            device=self.args.device,
            batch_transform=named,
        )
        return self.loader


def main() -> None:
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(sys.argv[1], transforms.Compose(crop))
    small = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    model = ResNetForImageClassification(ResNetConfig(num_labels=len(dataset.classes), **small))
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            save_strategy="no",
            report_to=[],
        )
        trainer = FedTrainer(model=model, args=arguments, train_dataset=dataset)
        trainer.train()
    print(f"{trainer.loader.stats().samples} samples by Headrace, {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
