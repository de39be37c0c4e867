"""Pairs of images and captions from a CSV file, as open_clip trains on them."""

import argparse
import csv
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models
from torchvision.transforms import (
    CenterCrop,
    Compose,
    InterpolationMode,
    Normalize,
    RandomResizedCrop,
    Resize,
    ToTensor,
)


def _convert_to_rgb(image):
    return image.convert("RGB")


def image_transform(size, is_train):
    normalize = Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    bicubic = InterpolationMode.BICUBIC
    if is_train:
        crop = RandomResizedCrop(size, scale=(0.9, 1.0), interpolation=bicubic)
        return Compose([crop, _convert_to_rgb, ToTensor(), normalize])
    return Compose([Resize(size, bicubic), CenterCrop(size), _convert_to_rgb, ToTensor(), normalize])


def tokenize(texts, length=32):
    tokens = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(tokens, texts):
        encoded = text.encode()[:length]
        row[: len(encoded)] = torch.tensor(list(encoded))
    return tokens


class CsvDataset(Dataset):
    def __init__(self, input_filename, transforms, img_key, caption_key, sep=",", tokenizer=None):
        with open(input_filename, newline="") as file:
            rows = list(csv.DictReader(file, delimiter=sep))
        self.images = [row[img_key] for row in rows]
        self.captions = [row[caption_key] for row in rows]
        self.transforms, self.tokenize = transforms, tokenizer

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, idx):
        images = self.transforms(Image.open(str(self.images[idx])))
        return images, self.tokenize([str(self.captions[idx])])[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with captions.csv")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    generator = None
    if args.seed is not None:
        torch.manual_seed(args.seed)
        generator = torch.Generator().manual_seed(args.seed)
    file = Path(args.data, "captions.csv")
    dataset = CsvDataset(file, image_transform(64, True), "filepath", "title", tokenizer=tokenize)
    dataloader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        generator=generator,
    )
    vision, text = models.shufflenet_v2_x0_5(num_classes=32), nn.EmbeddingBag(256, 32)
    scale = nn.Parameter(torch.tensor(2.6593))
    optimizer = torch.optim.AdamW([*vision.parameters(), *text.parameters(), scale], 5e-4)
    for epoch in range(args.epochs):
        for step, (images, tokens) in zip(range(args.steps), dataloader):
            features = (nn.functional.normalize(each, dim=-1) for each in (vision(images), text(tokens)))
            image_features, text_features = features
            logits = scale.exp() * image_features @ text_features.T
            labels = torch.arange(len(images))
            loss = (
                nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)
            ) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"Train Epoch: {epoch} [{step}/{len(dataloader)}] Loss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
