"""Trains an image classifier on ImageNet, or on any folder like it. One page, to be copied and changed.

    python examples/imagenet.py DATA --arch resnet50 --precision bf16 --channels-last
    torchrun --nproc-per-node=8 examples/imagenet.py DATA --batch-size 2048 --resume

DATA contains train/CLASS/*.JPEG and val/CLASS/*.JPEG. SIGTERM and SIGUSR1 (exit code 75) and Ctrl-C (130)
stop it with a checkpoint; --resume continues with the next image, also on another number of GPUs. `headrace
train` has more options and trains bit-identical weights (test_example_imagenet.py).
"""

import argparse
import atexit
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import headrace

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
TRY_AGAIN, INTERRUPTED = 75, 130  # EX_TEMPFAIL: start the same command again; a shell's code for Ctrl-C
LOG_EVERY = 50


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/imagenet"))
    parser.add_argument("--arch", default="resnet50", help="a torchvision model")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="images per step, over all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="gradient-accumulation steps")
    parser.add_argument("--lr", type=float, help="peak learning rate; default: 0.1 × batch / 256")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--warmup-epochs", type=float, help="default: 5, or half of the epochs")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0, help="decay of a weight average, such as 0.9998")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--val-resize", type=int, default=256)
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="resume from OUT/last.pt, if it exists")
    return parser.parse_args()


def loaders(args: argparse.Namespace, part: int, device: torch.device) -> tuple[Any, Any]:
    """The loaders for training and validation; `part` is the batch size of one forward pass of one rank."""
    crop = [transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(args.val_resize), transforms.CenterCrop(args.size)]
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    train = ImageFolder(str(args.data / "train"), transforms.Compose(crop + end))
    val = ImageFolder(str(args.data / "val"), transforms.Compose(centre + end))
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    ours = {"rank": "auto", "device": device, "memory_format": layout}  # not arguments of torch's loader
    return (
        headrace.DataLoader(train, part, shuffle=True, drop_last=True, seed=args.seed, **ours),
        headrace.DataLoader(val, part, remainder="exact", **ours),  # every image once, over all ranks
    )


def start() -> tuple[int, int, torch.device]:
    """(rank, world size, device) of this process; torchrun starts one for each GPU."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device("cpu")
    if kind is not None:
        device = torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))
        torch.accelerator.set_device_index(device.index)
    if "WORLD_SIZE" not in os.environ:
        return 0, 1, device
    # gloo for decisions made on the CPU, and the device's own backend for gradients
    both = kind and f"cpu:gloo,{kind.type}:{dist.get_default_backend_for_device(device)}"
    dist.init_process_group(both or "gloo")
    atexit.register(dist.destroy_process_group)
    return dist.get_rank(), dist.get_world_size(), device


class StopSignal:
    """A stop signal to any rank. All ranks ask, and later get the same answer, while the GPU works."""

    def __init__(self) -> None:
        self.flag, self.came, self.work = torch.zeros((), dtype=torch.int32), 0, None
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self.note)

    def note(self, number: int, _: object) -> None:
        self.came = max(self.came, number)  # Ctrl-C's is the lowest
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one ends the run immediately

    def ask(self) -> None:
        self.flag.fill_(self.came)
        if dist.is_initialized():
            self.work = dist.all_reduce(self.flag, dist.ReduceOp.MAX, async_op=True)

    def answer(self) -> bool:
        if self.work is not None:
            self.work.wait()
        return bool(self.flag.item() if dist.is_initialized() else self.came)


class Training:
    """The state that is saved, and one optimizer step."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
        parts = world * args.accumulate
        if args.batch_size % parts:
            sys.exit(f"--batch-size {args.batch_size} must divide by ranks × --accumulate ({parts})")
        self.args, self.rank, self.world, self.device = args, rank, world, device
        self.train, self.val = loaders(args, args.batch_size // parts, device)
        self.steps_per_epoch = len(self.train.dataset) // args.batch_size
        self.step = self.epoch = 0
        self.best = 0.0

        torch.manual_seed(args.seed)
        model = models.get_model(args.arch, num_classes=len(self.train.dataset.classes)).to(device)
        if args.channels_last:
            model = model.to(memory_format=torch.channels_last)
        moving = get_ema_multi_avg_fn(args.ema)
        self.average = AveragedModel(model, multi_avg_fn=moving, use_buffers=True) if args.ema else None
        self.model = model
        weights = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]  # biases and norms don't decay
        groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
        lr = args.lr or 0.1 * args.batch_size / 256
        self.optimizer = torch.optim.SGD(groups, lr, 0.9, weight_decay=args.weight_decay, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.lr_factor)
        self.scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else None
        self.forward = torch.compile(self.ddp or model) if args.compile else self.ddp or model
        torch.manual_seed(args.seed + 1_000_003 * rank)  # dropout differs between ranks

    def lr_factor(self, step: int) -> float:
        """The learning rate: linear warm-up, then half a cosine."""
        epochs = self.args.warmup_epochs
        warmup = round((min(5, self.args.epochs / 2) if epochs is None else epochs) * self.steps_per_epoch)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        left = self.args.epochs * self.steps_per_epoch - warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, left))))

    def autocast(self) -> torch.autocast:
        dtype = DTYPES[self.args.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def optimizer_step(self, batches: Iterator[Any]) -> torch.Tensor:
        """Trains on the next batch, part by part, and returns its loss."""
        loss_of_all = torch.zeros((), device=self.device)
        for part in range(self.args.accumulate):
            images, labels = next(batches)  # already on the device
            last = part == self.args.accumulate - 1
            # Ranks exchange gradients once per step, with the last part.
            with contextlib.nullcontext() if last or self.ddp is None else self.ddp.no_sync():
                with self.autocast():
                    loss = self.criterion(self.forward(images), labels) / self.args.accumulate
                self.scaler.scale(loss).backward()
            loss_of_all += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        return loss_of_all

    @torch.no_grad()
    def evaluate(self, stop: StopSignal) -> list[float] | None:
        """(top-1, top-5) in percent, exact over all ranks, or None if a signal arrived."""
        model = self.model if self.average is None else self.average.module
        model.eval()
        if dist.is_initialized():
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)  # BatchNorm's means differ by rank
        right = torch.zeros(3, dtype=torch.int64, device=self.device)
        batches = iter(self.val)
        for _ in range(math.ceil(len(self.val.dataset) / (self.val.batch_size * self.world))):
            stop.ask()
            batch = next(batches, None)  # some ranks may have one fewer
            if batch is not None:
                with self.autocast():
                    logits = model(batch[0])
                hits = logits.topk(min(5, logits.shape[1])).indices == batch[1][:, None]
                right += torch.stack([hits[:, 0].sum(), hits.sum(), torch.ones_like(batch[1]).sum()])
            if stop.answer():
                return None
        model.train()
        if dist.is_initialized():
            dist.all_reduce(right)
        top1, top5, images = right.tolist()
        return [100 * top1 / images, 100 * top5 / images]

    def save(self, name: str) -> None:
        """Writes atomically: to a temporary file, flushed to disk, then renamed."""
        mine = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            mine["cuda"] = torch.cuda.get_rng_state(self.device)
        random: list[Any] = [mine] * self.world
        if self.world > 1:
            dist.all_gather_object(random, mine)
        if self.rank != 0:
            return
        state = {key: value.state_dict() for key, value in self.kept().items()}
        state |= {"step": self.step, "epoch": self.epoch, "best": self.best, "random": random}
        temporary = self.args.out / f".{name}"
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.args.out / name)

    def load(self) -> None:
        state = torch.load(self.args.out / "last.pt", map_location="cpu", weights_only=True)
        for key, value in self.kept().items():
            value.load_state_dict(state[key])
        self.step, self.epoch, self.best = state["step"], state["epoch"], state["best"]
        random = state["random"][self.rank % len(state["random"])]
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def kept(self) -> dict[str, Any]:
        kept = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        kept |= {"scaler": self.scaler, "loader": self.train}
        return kept if self.average is None else {**kept, "average": self.average}


def train_epoch(training: Training, stop: StopSignal) -> bool:
    """Trains for the rest of the epoch. Returns whether a signal arrived."""
    args, end = training.args, (training.epoch + 1) * training.steps_per_epoch
    if training.step == end:
        return False
    training.model.train()
    with torch.random.fork_rng(devices=[]):
        batches = iter(training.train)  # draws a seed, as torch's loader does
    losses, since, start = torch.zeros((), device=training.device), 0, time.perf_counter()
    while training.step < end:
        stop.ask()
        losses, since = losses + training.optimizer_step(batches), since + 1
        if training.step % LOG_EVERY == 0 and training.rank == 0:
            rate = since * args.batch_size / (time.perf_counter() - start)
            stall = training.train.stats().epochs[-1].stall_share
            loss, lr = losses.item() / since, training.scheduler.get_last_lr()[0]
            print(f"step {training.step} loss {loss:.3f} lr {lr:.2g} {rate:,.0f} images/s stall {stall:.1%}")
            losses, since, start = torch.zeros_like(losses), 0, time.perf_counter()
        if stop.answer():
            return True
    return False


def main() -> int:
    args = parse()
    rank, world, device = start()
    stop = StopSignal()
    torch.backends.cudnn.benchmark = True  # images of one size: the search pays off
    try:
        training = Training(args, rank, world, device)
    except FileNotFoundError as error:
        sys.exit(f"{error}\nDATA must hold train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    args.out.mkdir(parents=True, exist_ok=True)
    if (args.out / "last.pt").exists():
        if not args.resume:
            sys.exit(f"{args.out} has a run already: pass --resume, or another --out")
        training.load()
    while training.epoch < args.epochs:
        stopped = train_epoch(training, stop)
        with torch.random.fork_rng(devices=[]):
            score = None if stopped else training.evaluate(stop)
        if score is None:
            training.save("last.pt")
            return INTERRUPTED if stop.came == signal.SIGINT else TRY_AGAIN
        training.epoch += 1
        training.train.set_epoch(training.epoch)
        training.best = max(training.best, score[0])
        for name in ["last.pt", "best.pt"] if score[0] == training.best else ["last.pt"]:
            training.save(name)
        if rank == 0:
            print(f"epoch {training.epoch}: top-1 {score[0]:.2f} %, top-5 {score[1]:.2f} %")
    if rank == 0:
        print(f"finished: {training.epoch} epochs, best top-1 {training.best:.2f} %: {args.out / 'best.pt'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
