"""timm's train.py in short: create_dataset, create_loader and its prefetcher, RandAugment, erasing, mixup."""

import argparse

import timm
import torch
from timm.data import Mixup, create_dataset, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, accuracy, random_seed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--model", default="test_vit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--aa", default="rand-m9-mstd0.5-inc1")
    parser.add_argument("--reprob", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random_seed(args.seed, 0)
    device = torch.device("cpu")
    model = timm.create_model(args.model, num_classes=10, img_size=64)
    config = resolve_data_config({"img_size": 64}, model=model)
    train = create_dataset("", root=args.data, split="train")
    evaluation = create_dataset("", root=args.data, split="val")
    shared = {"input_size": (3, 64, 64), "batch_size": args.batch_size, "num_workers": args.workers}
    shared |= {"mean": config["mean"], "std": config["std"], "device": device, "use_prefetcher": True}
    shared["persistent_workers"] = args.workers > 0
    loader = create_loader(
        train,
        **shared,
        is_training=True,
        re_prob=args.reprob,
        re_mode="pixel",
        auto_augment=args.aa,
        interpolation="random",
        color_jitter=0.4,
    )
    loader_eval = create_loader(evaluation, **shared, interpolation=config["interpolation"], crop_pct=0.9)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=10, label_smoothing=0.1)
    criterion = SoftTargetCrossEntropy()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)

    def validate():
        model.eval()
        top1 = AverageMeter()
        with torch.inference_mode():
            for images, target in loader_eval:
                top1.update(accuracy(model(images), target)[0].item(), len(images))
        print(f"Test: Acc@1: {top1.avg:.4f} of {top1.count}")

    validate()
    for epoch in range(args.epochs):
        model.train()
        for step, (images, target) in zip(range(args.steps), loader):
            images, target = mixup(images, target)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"Train: {epoch} [{step:>4d}/{len(loader)}] Loss: {loss.item():.5f}")
        validate()


if __name__ == "__main__":
    main()
