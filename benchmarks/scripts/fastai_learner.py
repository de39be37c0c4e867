"""fastai: ImageDataLoaders.from_folder and fit_one_cycle, and a Learner of torch's DataLoaders."""

import argparse

import torch
from fastai.vision.all import DataLoaders, ImageDataLoaders, Learner, Resize, accuracy, set_seed
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--torch", action="store_true", help="give the Learner torch's DataLoaders")
    options = parser.parse_args()
    set_seed(0, reproducible=True)
    sizes = {"bs": options.batch_size, "num_workers": options.workers}
    if options.torch:
        steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
        dataset = ImageFolder(options.data, transforms.Compose(steps))
        dataset = Subset(dataset, range(0, len(dataset), len(dataset) // options.images))
        order = torch.Generator().manual_seed(0)
        train = DataLoader(
            dataset, options.batch_size, shuffle=True, generator=order, num_workers=options.workers
        )
        classes = 10
        loaders = DataLoaders(train, DataLoader(dataset, options.batch_size, num_workers=options.workers))
    else:
        loaders = ImageDataLoaders.from_folder(
            options.data, valid_pct=0.5, seed=0, item_tfms=Resize(64), **sizes, device="cpu"
        )
        classes = loaders.c
    model = models.shufflenet_v2_x0_5(num_classes=classes)
    learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), metrics=accuracy)
    with learner.no_bar(), learner.no_logging():
        learner.fit(options.epochs, 0.01)
    print([round(float(value), 6) for row in learner.recorder.values for value in row])
    print([round(float(loss), 6) for loss in learner.recorder.losses])


if __name__ == "__main__":
    main()
