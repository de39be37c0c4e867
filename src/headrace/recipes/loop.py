"""The training loop: torch's own optimizers, schedule and averages, with the recipe's figures."""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import headrace
from headrace.export import MetricsServer
from headrace.recipes import checkpoint, data, memory, ranks
from headrace.recipes.config import DTYPES, Recipe
from headrace.recipes.evaluate import evaluate
from headrace.recipes.model import builder, checkpoint_blocks
from headrace.recipes.report import Report


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        steps: number of optimizer steps, those before a resume included.
        epochs: number of epochs trained and evaluated.
        top1: accuracy of the latest evaluation, 0 to 1, or None if there was none.
        best_top1: highest accuracy so far.
        stopped_by: name of the signal that stopped the run, as "SIGTERM", or None.
    """

    steps: int
    epochs: int
    top1: float | None
    best_top1: float
    stopped_by: str | None


def train(recipe: Recipe) -> Outcome:
    """Trains, on every rank alike if torchrun started several.

    In the main thread SIGINT (Ctrl-C, a notebook's interrupt), SIGUSR1 and SIGTERM end it after the current
    step, with a checkpoint; a second SIGINT ends it at once, as KeyboardInterrupt.

    Raises:
        ConfigError: the recipe can't be run here; the message says why.
        OutOfMemory: a step doesn't fit; the message says what would help.
        HeadraceError: the loss is not a number any more.
    """
    device = ranks.choose_device(recipe.device)
    with warnings.catch_warnings(), ranks.process_group(device), ranks.StopSignal() as stop:
        if recipe.precision == "fp16":
            # The scaler skips first steps, until the scale fits, but not those of the schedule.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        trainer = None
        try:
            trainer = Trainer(recipe, device, stop)
            return trainer.run()
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            model = None if trainer is None else trainer.module
            text = memory.advice(error, recipe, device, ranks.world()[1], model)
            raise memory.OutOfMemory(text) from error


class Trainer:
    """One run on one rank.

    Attributes:
        step: number of optimizer steps.
        epoch: number of epochs trained and evaluated.
    """

    def __init__(self, recipe: Recipe, device: torch.device, stop: ranks.StopSignal) -> None:
        self.recipe, self.device, self.stop = recipe, device, stop
        self.rank, self.world_size = ranks.world()
        # What takes no time is looked at before a large folder is listed.
        self.resumed_from = checkpoint.to_resume(recipe.resume, recipe.out)
        state = None if self.resumed_from is None else checkpoint.load(self.resumed_from)
        if state is not None:
            checkpoint.check_same(state["recipe"], recipe, self.resumed_from)
        make_model = builder(recipe.arch)
        recipe.part_size(self.world_size)
        train_set, val_set = data.datasets(recipe)
        self.dataset = train_set
        self.loader = data.train_loader(recipe, train_set, self.world_size, device)
        self.val_loader = data.val_loader(recipe, val_set, self.world_size, device)
        self.steps_per_epoch = len(train_set) // recipe.batch_size
        self._settings()
        torch.manual_seed(recipe.seed)
        self.module = make_model(len(train_set.classes)).to(device)
        if recipe.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.average = make_average(recipe, self.module)
        if recipe.checkpointing:
            checkpoint_blocks(recipe.arch, self.module)  # not the average's: it has no backward pass
        self.optimizer = make_optimizer(recipe, self.module)
        self.scheduler = make_scheduler(recipe, self.optimizer, self.steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        self.ddp = self._wrapped()
        self.forward: Any = self.ddp or self.module
        if recipe.compile:
            self.forward = torch.compile(self.forward)
        torch.manual_seed(recipe.seed + 1_000_003 * self.rank)  # ranks drop out other units
        self.step = self.epoch = 0
        self.top1: float | None = None
        self.best_top1 = 0.0
        if state is not None:
            self._restore(state)

    def run(self) -> Outcome:
        """Trains to the last epoch, or until a signal comes."""
        recipe = self.recipe
        recipe.out.mkdir(parents=True, exist_ok=True)
        preempted = recipe.out / checkpoint.PREEMPTED
        if self.rank == 0:
            preempted.unlink(missing_ok=True)
        with (
            self._metrics(),
            Report(recipe.out, active=self.rank == 0, tensorboard=recipe.tensorboard) as self.report,
        ):
            self._introduce()
            stopped_by = None
            try:
                while self.epoch < recipe.epochs:
                    self._train_epoch()
                    self._end_epoch()
            except ranks.Stopped as stop:
                self._save(checkpoint.LAST)
                stopped_by = stop.signal.name
                # Nobody is to start again what a person ended.
                if self.rank == 0 and stop.signal != signal.SIGINT:
                    preempted.write_text(f"{self.step}\n")
                self.report.say(f"stopped by {stopped_by} at step {self.step}; --resume auto resumes there")
            else:
                best = recipe.out / checkpoint.BEST
                self.report.say(
                    f"finished: {self.epoch} epochs, best top-1 {self.best_top1:.2%}"
                    f"{f': {best}' if best.exists() else ''}"
                )
            outcome = Outcome(self.step, self.epoch, self.top1, self.best_top1, stopped_by)
            self.report.log("end", **asdict(outcome))
        return outcome

    def _train_epoch(self) -> None:
        """What is left of the epoch, to its last whole step."""
        end = (self.epoch + 1) * self.steps_per_epoch
        if self.step == end:
            return
        self.module.train()
        if self.recipe.start_size is not None:
            self.dataset.transform = data.train_transform(self.recipe.size_of(self.epoch))
        with torch.random.fork_rng(devices=[]):
            # torch's loaders draw a seed here, and a resumed run begins to iterate once more.
            batches = iter(self.loader)
        losses = torch.zeros((), device=self.device)
        since, start = 0, time.perf_counter()
        while self.step < end:
            self.stop.ask()
            losses += self._optimizer_step(batches)
            self.step, since = self.step + 1, since + 1
            if self.step % self.recipe.log_every == 0:
                self._log(float(losses.item()) / since, since, time.perf_counter() - start)
                losses.zero_()
                since, start = 0, time.perf_counter()
            self.stop.check()
            every = self.recipe.checkpoint_every
            if every and self.step % every == 0:
                self._save(checkpoint.LAST)

    def _optimizer_step(self, batches: Iterator[Any]) -> torch.Tensor:
        """The loss of this rank's share of the next batch, detached."""
        parts = self.recipe.accumulate
        total = torch.zeros((), device=self.device)
        for part in range(parts):
            images, labels = next(batches)
            # Gradients are added up over ranks once a step, with the last part.
            last = part == parts - 1
            with nullcontext() if last or self.ddp is None else self.ddp.no_sync():
                with self._autocast():
                    loss = self.criterion(self.forward(images), labels) / parts
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.module)
        return total

    def _end_epoch(self) -> None:
        with torch.random.fork_rng(devices=[]):
            score = evaluate(
                self.module if self.average is None else self.average.module,
                self.val_loader,
                self.device,
                self._autocast,
                self.stop,
            )
        self.epoch += 1
        self.top1 = score.top1
        better = score.top1 > self.best_top1 or self.epoch == 1
        self.best_top1 = max(self.best_top1, score.top1)
        self.loader.set_epoch(self.epoch)
        self._save(checkpoint.LAST)
        if better:
            self._save(checkpoint.BEST)
        facts = {"epoch": self.epoch - 1, "step": self.step, **asdict(score), "best_top1": self.best_top1}
        self.report.epoch(facts)

    def _save(self, name: str) -> None:
        """Writes a checkpoint; all ranks take part, rank 0 writes."""
        random = checkpoint.random_states(self.device)
        if self.rank != 0:
            return
        state = {
            "version": checkpoint.VERSION,
            "recipe": self.recipe.to_json(),
            "classes": list(self.dataset.classes),
            "step": self.step,
            "epoch": self.epoch,
            "top1": self.top1,
            "best_top1": self.best_top1,
            "model": self.module.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "random": random,
        }
        checkpoint.save(state, self.recipe.out / name)

    def _restore(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        self.loader.load_state_dict(state["loader"])
        self.step, self.epoch = state["step"], state["epoch"]
        self.top1, self.best_top1 = state["top1"], state["best_top1"]
        checkpoint.set_random_states(state["random"], self.device, self.recipe.seed + self.step)

    def _autocast(self) -> AbstractContextManager[Any]:
        name = DTYPES[self.recipe.precision]
        dtype = None if name is None else getattr(torch, name)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _wrapped(self) -> DistributedDataParallel | None:
        if self.world_size == 1:
            return None
        ids = None if self.device.type == "cpu" else [self.device.index]
        return DistributedDataParallel(self.module, device_ids=ids, gradient_as_bucket_view=True)

    def _metrics(self) -> AbstractContextManager[Any]:
        if self.recipe.metrics_port is None:
            return nullcontext()
        loaders = {"train": self.loader, "val": self.val_loader}
        return MetricsServer(loaders, self.recipe.metrics_port + ranks.local_rank())

    def _settings(self) -> None:
        if self.recipe.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        else:
            torch.backends.cudnn.benchmark = True  # pictures of one size: the choice pays off

    def _introduce(self) -> None:
        where = f"{self.world_size} × {self.device.type}"
        self.report.log("start", recipe=self.recipe.to_json(), ranks=self.world_size, step=self.step)
        begin = "from the beginning"
        if self.resumed_from is not None:
            begin = f"from {self.resumed_from}, step {self.step}"
        if self.epoch == self.recipe.epochs:
            begin = f"{self.resumed_from} is of a finished run: nothing is left to train"
        self.report.say(
            f"{self.recipe.arch} on {len(self.dataset):,} pictures of {len(self.dataset.classes):,} classes;"
            f" {where}, {self.recipe.part_size(self.world_size)} pictures a pass; {begin}"
        )
        idle = 0 if self.device.type == "cpu" else torch.accelerator.device_count() - 1
        if idle > 0 and self.world_size == 1:
            self.report.say(
                f"{idle} more devices are here: torchrun --nproc-per-node={idle + 1} -m headrace train …"
            )

    def _log(self, loss: float, steps: int, seconds: float) -> None:
        if not math.isfinite(loss):
            raise headrace.HeadraceError(
                f"The loss is {loss} at step {self.step}. A lower --lr, more --warmup-epochs, or"
                " --precision bf16 in place of fp16 usually helps."
            )
        left = self.recipe.epochs * self.steps_per_epoch - self.step
        epochs = self.loader.stats().epochs
        facts = {
            "step": self.step,
            "epoch": self.epoch,
            "loss": loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "images_per_second": steps * self.recipe.batch_size / seconds,
            "stall": epochs[-1].stall_share if epochs else 0.0,
            "seconds_left": left * seconds / steps,
            "memory_bytes": memory.used_bytes(self.device),
        }
        self.report.steps(facts, self.loader)


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9, or AdamW; biases and norms (one dimension) don't decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.peak_lr)
    return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=0.9, nesterov=True)


def lr_factor(step: int, *, warmup: int, total: int) -> float:
    """Of the highest learning rate, at optimizer step `step` of `total`: a line from 0 (not reached) to 1
    over `warmup` steps, then half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) to 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def make_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LambdaLR:
    """Advanced once an optimizer step."""
    warmup = round(recipe.warmup * steps_per_epoch)
    return LambdaLR(optimizer, partial(lr_factor, warmup=warmup, total=recipe.epochs * steps_per_epoch))


def make_average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """An exponential moving average of weights and buffers; None where the recipe has none."""
    if recipe.ema == 0:
        return None
    moving = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=moving, use_buffers=True)
