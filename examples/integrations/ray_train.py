"""Ray Train with Headrace: only the loader's line differs, and the loader isn't prepared.

    python examples/integrations/ray_train.py FOLDER      class folders of images, on every node

`ray.train.torch.prepare_data_loader` would make a new loader of torch's own out of it. Headrace's shares the
epoch among Ray's workers and brings batches to the device by itself; its place belongs into checkpoints.

Where a machine is so busy that workers take more than a minute to start, Ray ends the run: set
RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S to more seconds than 60.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import headrace


def train(config: dict[str, Any]) -> None:
    """Trains in each worker."""
    crop = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(config["folder"], transforms.Compose(crop))
    # was: prepare_data_loader(torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True))
    loader = headrace.DataLoader(
        dataset, batch_size=8, shuffle=True, seed=0, rank="auto", device=get_device()
    )

    # Not `dataset.classes`: Ray's pickle takes that word for the module torch.classes, and can't pickle it.
    model = prepare_model(models.shufflenet_v2_x0_5(num_classes=len(dataset.class_to_idx)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = 0
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    metrics = {"samples": loader.stats().samples, "steps": steps}
    if ray.train.get_context().get_world_rank() > 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:  # metrics without a checkpoint aren't in fit()'s result
        state = {"model": model.state_dict(), "loader": loader.state_dict()}
        torch.save(state, Path(folder, "last.pt"))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    ray.init(include_dashboard=False, configure_logging=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(Path(sys.argv[1]).resolve())},
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
    )
    metrics = trainer.fit().metrics
    print(f"{metrics['samples']} samples by Headrace on worker 0, {metrics['steps']} steps")


if __name__ == "__main__":
    main()
