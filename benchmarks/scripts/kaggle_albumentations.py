"""A notebook's pipeline: a table of files, OpenCV, albumentations, stratified folds, a loop of epochs."""

import argparse
import csv
import os
import random
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models


class CFG:
    size = 64
    n_fold = 5
    trn_fold = 0
    target_size = 10
    lr = 1e-3


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class TrainDataset(Dataset):
    def __init__(self, rows, transform=None):
        self.file_names = [row["file_name"] for row in rows]
        self.labels = [int(row["label"]) for row in rows]
        self.transform = transform

    def __len__(self):
        return len(self.file_names)

    def __getitem__(self, idx):
        image = cv2.imread(self.file_names[idx])
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if self.transform:
            image = self.transform(image=image)["image"]
        return image, torch.tensor(self.labels[idx]).long()


def get_transforms(*, data):
    end = [A.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]), ToTensorV2()]
    if data == "train":
        steps = [A.RandomResizedCrop((CFG.size, CFG.size)), A.Transpose(p=0.5), A.HorizontalFlip(p=0.5)]
        return A.Compose([*steps, A.VerticalFlip(p=0.5), A.ShiftScaleRotate(p=0.5), *end], seed=0)
    return A.Compose([A.Resize(CFG.size, CFG.size), *end])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with train.csv")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    generator = None
    if args.seed is not None:
        seed_everything(args.seed)
        generator = torch.Generator().manual_seed(args.seed)
    with Path(args.data, "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    folds = [[row for i, row in enumerate(rows) if i % CFG.n_fold == fold] for fold in range(CFG.n_fold)]
    valid = folds.pop(CFG.trn_fold)
    train_dataset = TrainDataset([row for fold in folds for row in fold], get_transforms(data="train"))
    valid_dataset = TrainDataset(valid, get_transforms(data="valid"))
    shared = {"batch_size": args.batch_size, "num_workers": args.num_workers, "pin_memory": True}
    train_loader = DataLoader(train_dataset, **shared, shuffle=True, drop_last=True, generator=generator)
    valid_loader = DataLoader(valid_dataset, **shared, shuffle=False, drop_last=False)
    model = models.shufflenet_v2_x0_5(num_classes=CFG.target_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=CFG.lr, weight_decay=1e-6)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        model.train()
        for step, (images, labels) in zip(range(args.steps), train_loader):
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"Epoch: [{epoch + 1}][{step}/{len(train_loader)}] Loss: {loss.item():.4f}")
        model.eval()
        with torch.no_grad():
            losses = [criterion(model(images), labels).item() for images, labels in valid_loader]
        print(f"Epoch {epoch + 1} - avg_val_loss: {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
