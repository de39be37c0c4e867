"""U-Net on images and masks: a dataset that makes NumPy arrays, random_split, batches of dicts."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


def load_image(filename):
    return Image.open(filename)


class BasicDataset(Dataset):
    def __init__(self, images_dir, mask_dir, scale=1.0):
        self.images = sorted(Path(images_dir).rglob("*.jpg"))
        self.mask_dir, self.scale = Path(mask_dir), scale
        self.mask_values = [0, 1, 2, 3]

    def __len__(self):
        return len(self.images)

    @staticmethod
    def preprocess(mask_values, pil_img, scale, is_mask):
        newW, newH = int(scale * 320), int(scale * 240)
        pil_img = pil_img.resize((newW, newH), resample=Image.NEAREST if is_mask else Image.BICUBIC)
        img = np.asarray(pil_img)
        if is_mask:
            mask = np.zeros((newH, newW), dtype=np.int64)
            for i, v in enumerate(mask_values):
                mask[img == v] = i
            return mask
        img = img[np.newaxis, ...] if img.ndim == 2 else img.transpose((2, 0, 1))
        return img / 255.0 if (img > 1).any() else img

    def __getitem__(self, idx):
        img = load_image(self.images[idx]).convert("RGB")
        mask = load_image(self.mask_dir / f"{self.images[idx].stem}.png")
        img = self.preprocess(self.mask_values, img, self.scale, is_mask=False)
        mask = self.preprocess(self.mask_values, mask, self.scale, is_mask=True)
        return {
            "image": torch.as_tensor(img.copy()).float().contiguous(),
            "mask": torch.as_tensor(mask.copy()).long().contiguous(),
        }


class DoubleConv(nn.Sequential):
    def __init__(self, inside, outside):
        layers = [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.inc, self.down, self.up = DoubleConv(3, 8), DoubleConv(8, 16), DoubleConv(24, 8)
        self.outc = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        first = self.inc(x)
        second = self.down(nn.functional.max_pool2d(first, 2))
        return self.outc(self.up(torch.cat([first, nn.functional.interpolate(second, scale_factor=2)], 1)))


def dice_loss(predicted, target):
    inter = 2 * (predicted * target).sum((-1, -2))
    return 1 - ((inter + 1e-6) / (predicted.sum((-1, -2)) + target.sum((-1, -2)) + 1e-6)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with train, and masks by the names of its images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    order = None
    if args.seed is not None:
        torch.manual_seed(args.seed)
        order = torch.Generator().manual_seed(args.seed)
    dataset = BasicDataset(Path(args.data, "train"), Path(args.data, "masks"), args.scale)
    n_val = int(len(dataset) * 0.1)
    parts = [len(dataset) - n_val, n_val]
    train_set, val_set = random_split(dataset, parts, generator=torch.Generator().manual_seed(0))
    loader_args = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": True}
    train_loader = DataLoader(train_set, shuffle=True, generator=order, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    model = UNet(4)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def loss_of(batch):
        predicted, masks = model(batch["image"]), batch["mask"]
        hot = nn.functional.one_hot(masks, 4).permute(0, 3, 1, 2).float()
        return criterion(predicted, masks) + dice_loss(nn.functional.softmax(predicted, dim=1), hot)

    for epoch in range(args.epochs):
        model.train()
        for step, batch in zip(range(args.steps), train_loader):
            loss = loss_of(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step} loss (batch) {loss.item():.6f}")
        model.eval()
        with torch.no_grad():
            print(f"validation {sum(loss_of(batch).item() for batch in val_loader):.6f}")


if __name__ == "__main__":
    main()
