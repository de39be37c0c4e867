"""transformers: Trainer with an image folder and a collator that names the parts of a batch."""

import argparse

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


def collate(samples):
    images = torch.stack([image for image, _ in samples])
    return {"pixel_values": images, "labels": torch.tensor([label for _, label in samples])}


class Printing(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        known = {name: logs[name] for name in ("loss", "eval_loss") if name in logs}
        if known and state.is_world_process_zero:
            print(f"step {state.global_step} {known}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    dataset = ImageFolder(options.data, transforms.Compose([*steps, normalize]))
    small = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    arguments = TrainingArguments(
        "trained",
        num_train_epochs=options.epochs,
        max_steps=options.epochs * options.steps,
        per_device_train_batch_size=options.batch_size,
        dataloader_num_workers=options.workers,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(
        model=ResNetForImageClassification(ResNetConfig(num_labels=10, **small)),
        args=arguments,
        data_collator=collate,
        train_dataset=dataset,
        eval_dataset=torch.utils.data.Subset(dataset, range(0, len(dataset), 16)),
        callbacks=[Printing()],
    )
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
