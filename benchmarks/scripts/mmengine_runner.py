"""MMEngine: a Runner with a loop by iterations; its loaders are described by dicts."""

import argparse
import logging

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.runner import Runner
from torch import nn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


class Classifier(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = models.shufflenet_v2_x0_5(num_classes=10)

    def forward(self, images, labels, mode):
        scores = self.model(images)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else (scores, labels)


class Accuracy(BaseMetric):
    def process(self, batch, outputs):
        scores, labels = outputs
        self.results.append({"right": (scores.argmax(1) == labels).sum().item(), "size": len(labels)})

    def compute_metrics(self, results):
        return {"accuracy": sum(each["right"] for each in results) / sum(each["size"] for each in results)}


class Printing(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.rank == 0:
            print(f"step {batch_idx} loss {outputs['loss'].item():.6f}", flush=True)

    def after_val_epoch(self, runner, metrics=None):
        if runner.rank == 0:
            print(metrics, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--launcher", default="none")
    options = parser.parse_args()
    if options.launcher != "none":  # or else MMEngine asks for GPUs
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    steps = [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]
    dataset = ImageFolder(options.data, transforms.Compose(steps))
    part = torch.utils.data.Subset(dataset, range(0, len(dataset), 32))
    shared = {"batch_size": options.batch_size, "num_workers": options.workers}
    shared["collate_fn"] = {"type": "default_collate"}
    model = Classifier() if options.launcher == "none" else MMDistributedDataParallel(module=Classifier())
    runner = Runner(
        model=model,
        work_dir="work",
        train_dataloader={
            **shared,
            "dataset": dataset,
            "sampler": {"type": "DefaultSampler", "shuffle": True},
        },
        val_dataloader={**shared, "dataset": part, "sampler": {"type": "DefaultSampler", "shuffle": False}},
        val_evaluator={"type": Accuracy},
        train_cfg={
            "by_epoch": False,
            "max_iters": options.epochs * options.steps,
            "val_interval": options.steps,
        },
        val_cfg={},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9}},
        custom_hooks=[Printing()],
        default_hooks={"checkpoint": None, "logger": None},
        visualizer=None,
        randomness={"seed": 0},
        launcher=options.launcher,
        env_cfg={"dist_cfg": {"backend": "gloo"}},
        log_level=logging.ERROR,
        experiment_name="images",
    )
    runner.train()


if __name__ == "__main__":
    main()
