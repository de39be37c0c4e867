"""timm's training loop with Headrace: only the loader's line differs.

    python examples/integrations/timm_loop.py FOLDER      class folders of images

timm's own `create_loader` takes image size, crop and constants from the model's configuration; so does this.
Both torchvision's transforms and what `timm.data.create_transform` returns run natively.
"""

import sys

import timm
import torch
from timm.data import resolve_model_data_config
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace

EPOCHS, SIZE = 2, 64


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = ImageFolder(sys.argv[1])
    model = timm.create_model("test_resnet", num_classes=len(dataset.classes)).to(device)
    config = resolve_model_data_config(model)
    dataset.transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                SIZE, interpolation=transforms.InterpolationMode(config["interpolation"])
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(config["mean"], config["std"]),
        ]
    )
    # was: timm.data.create_loader(dataset, (3, SIZE, SIZE), batch_size=8, is_training=True, device=device)
    loader = headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, rank="auto", device=device)

    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS * len(loader), t_in_epochs=False)
    criterion, ema = LabelSmoothingCrossEntropy(0.1), ModelEmaV3(model, decay=0.99)
    steps = 0
    for _ in range(EPOCHS):
        model.train()
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            steps += 1
            scheduler.step_update(steps)
    print(f"{loader.stats().samples} samples by Headrace, {steps} steps")


if __name__ == "__main__":
    main()
