"""Ray Train: TorchTrainer with prepare_data_loader, as in its documentation."""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


def train(config):
    torch.manual_seed(0)
    steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    dataset = ImageFolder(config["data"], transforms.Compose([*steps, normalize]))
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        dataset, config["batch_size"], shuffle=True, generator=order, num_workers=config["workers"]
    )
    loader = prepare_data_loader(loader)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(models.shufflenet_v2_x0_5(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            if step == config["steps"]:
                break
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(round(loss.item(), 6))
    Path(config["file"]).with_suffix(f".{rank}").write_text(
        str(losses)
    )  # a result without checkpoint is lost
    ray.train.report({"losses": losses})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    ray.init(include_dashboard=False, configure_logging=False, num_cpus=options.ranks)
    scaling = ray.train.ScalingConfig(num_workers=options.ranks, use_gpu=torch.cuda.is_available())
    with tempfile.TemporaryDirectory() as folder:
        config = {**vars(options), "file": f"{folder}/losses"}
        TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()
        for path in sorted(Path(folder).iterdir()):
            print(path.suffix, path.read_text())


if __name__ == "__main__":
    main()
