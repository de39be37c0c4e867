"""transformers' example for images: a datasets.Dataset with `set_transform`, a collate_fn and Trainer."""

import argparse
from pathlib import Path

import torch
from datasets import Dataset, Image
from torchvision.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


def collate_fn(examples):
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    return {"pixel_values": pixel_values, "labels": torch.tensor([example["label"] for example in examples])}


class Printing(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        known = {name: logs[name] for name in ("loss", "eval_loss") if name in logs}
        if known:
            print(f"step {state.global_step} {known}", flush=True)


def rows(folder):
    paths = sorted(Path(folder).rglob("*.jpg"))
    names = sorted({path.parent.name for path in paths})
    labels = [names.index(path.parent.name) for path in paths]
    return Dataset.from_dict({"image": [str(path) for path in paths], "label": labels}).cast_column(
        "image", Image()
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    normalize = Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    _train_transforms = Compose([RandomResizedCrop(64), RandomHorizontalFlip(), ToTensor(), normalize])
    _val_transforms = Compose([Resize(64), CenterCrop(64), ToTensor(), normalize])

    def train_transforms(example_batch):
        example_batch["pixel_values"] = [
            _train_transforms(image.convert("RGB")) for image in example_batch["image"]
        ]
        return example_batch

    def val_transforms(example_batch):
        example_batch["pixel_values"] = [
            _val_transforms(image.convert("RGB")) for image in example_batch["image"]
        ]
        return example_batch

    train, evaluation = rows(Path(args.data, "train")), rows(Path(args.data, "val"))
    train.set_transform(train_transforms)
    evaluation.set_transform(val_transforms)
    small = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    arguments = TrainingArguments(
        "trained",
        per_device_train_batch_size=args.batch_size,
        max_steps=args.epochs * args.steps,
        dataloader_num_workers=args.workers,
        remove_unused_columns=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=args.seed,
    )
    trainer = Trainer(
        model=ResNetForImageClassification(ResNetConfig(num_labels=10, **small)),
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=collate_fn,
        callbacks=[Printing()],
    )
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
