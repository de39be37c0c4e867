"""The training loop: torch's own optimizers, schedule and averages, with the recipe's figures."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace
from headrace.export import MetricsServer
from headrace.recipes import checkpoint, data, model, ranks
from headrace.recipes.config import DTYPES, Recipe

CPU_ALLOCATOR = "DefaultCPUAllocator"


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
        HeadraceError: the memory doesn't suffice, or the loss is not a number any more.
    """
    device = ranks.choose_device(recipe.device)
    with warnings.catch_warnings(), ranks.process_group(device), ranks.StopSignal() as stop:
        if recipe.precision == "fp16":
            # The scaler skips first steps, until the scale fits, but not those of the schedule.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        try:
            return Trainer(recipe, device, stop).run()
        except (RuntimeError, MemoryError) as error:
            # torch's own error on the CPU is a RuntimeError like any other.
            if not (isinstance(error, (torch.OutOfMemoryError, MemoryError)) or CPU_ALLOCATOR in str(error)):
                raise
            reason = str(error).partition("\n")[0][:300] or type(error).__name__
            raise headrace.HeadraceError(
                f"Out of memory on {device}: {reason}\nWhat helps, cheapest first: --precision bf16;"
                f" --accumulate {2 * recipe.accumulate}; a smaller --batch-size, --size or --arch; ending"
                " other processes that use the memory."
            ) from error


class Trainer:
    """One run on one rank.

    Attributes:
        module: the model.
        step: number of optimizer steps.
        epoch: number of epochs trained and evaluated.
    """

    def __init__(self, recipe: Recipe, device: torch.device, stop: ranks.StopSignal) -> None:
        self.recipe, self.device, self.stop = recipe, device, stop
        self.rank, self.world_size = ranks.world()
        # What takes no time is checked before a large folder is listed.
        self.resumed_from, state = checkpoint.to_resume(recipe)
        make_model = model.builder(recipe.arch)
        recipe.part_size(self.world_size)
        self.dataset, val_set = data.datasets(recipe)
        self.loader = data.train_loader(recipe, self.dataset, self.world_size, device)
        self.val_loader = data.val_loader(recipe, val_set, self.world_size, device)
        self.steps_per_epoch = len(self.dataset) // recipe.batch_size
        if recipe.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not recipe.deterministic  # images of one size: the choice pays off
        torch.manual_seed(recipe.seed)
        self.module = make_model(len(self.dataset.classes)).to(device)
        if recipe.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        self.average = model.make_average(recipe, self.module)
        self.optimizer = model.make_optimizer(recipe, self.module)
        self.scheduler = model.make_scheduler(recipe, self.optimizer, self.steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        self.ddp: DistributedDataParallel | None = None
        if self.world_size > 1:
            ids = None if device.type == "cpu" else [device.index]
            self.ddp = DistributedDataParallel(self.module, device_ids=ids, gradient_as_bucket_view=True)
        self.forward: Any = self.ddp or self.module
        if recipe.compile:
            self.forward = torch.compile(self.forward)
        torch.manual_seed(recipe.seed + 1_000_003 * self.rank)  # ranks drop out other units
        self.step = self.epoch = 0
        self.top1: float | None = None
        self.best_top1 = 0.0
        if state:
            self._restore(state)

    def run(self) -> Outcome:
        """Trains to the last epoch, or until a signal is received."""
        out, stopped_by = self.recipe.out, None
        out.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            (out / checkpoint.PREEMPTED).unlink(missing_ok=True)
        self._introduce()
        with self._metrics():
            try:
                while self.epoch < self.recipe.epochs:
                    self._train_epoch()
                    self._end_epoch()
            except ranks.Stopped as stop:
                self._save(checkpoint.LAST)
                stopped_by = stop.signal.name
                # What a person ended must not be started again.
                if self.rank == 0 and stop.signal != signal.SIGINT:
                    (out / checkpoint.PREEMPTED).write_text(f"{self.step}\n")
                self._say(f"stopped by {stopped_by} at step {self.step}; --resume auto resumes there")
            else:
                best = out / checkpoint.BEST
                self._say(
                    f"finished: {self.epoch} epochs, best top-1 {self.best_top1:.2%}"
                    f"{f': {best}' if best.exists() else ''}"
                )
        outcome = Outcome(self.step, self.epoch, self.top1, self.best_top1, stopped_by)
        self._log("end", asdict(outcome))
        return outcome

    def _train_epoch(self) -> None:
        """What is left of the epoch, to its last whole step."""
        end = (self.epoch + 1) * self.steps_per_epoch
        if self.step == end:
            return
        self.module.train()
        with torch.random.fork_rng(devices=[]):
            # torch's loaders draw a seed here, and a resumed run begins to iterate once more.
            batches = iter(self.loader)
        losses = torch.zeros((), device=self.device)
        since, start = 0, time.perf_counter()
        while self.step < end:
            self.stop.start()
            losses += self._optimizer_step(batches)
            self.step, since = self.step + 1, since + 1
            if self.step % self.recipe.log_every == 0:
                self._report(float(losses.item()) / since, since, time.perf_counter() - start)
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
        evaluated = self.module if self.average is None else self.average.module
        evaluated.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            score = self._evaluate(evaluated)
        self.epoch += 1
        self.top1 = score["top1"]
        better = self.top1 > self.best_top1 or self.epoch == 1
        self.best_top1 = max(self.best_top1, self.top1)
        self.loader.set_epoch(self.epoch)
        self._save(checkpoint.LAST)
        if better:
            self._save(checkpoint.BEST)
        self._say(
            f"epoch {self.epoch - 1}: top-1 {self.top1:.2%}, top-5 {score['top5']:.2%}, loss"
            f" {score['loss']:.4f} on {score['images']:,} images; best top-1 {self.best_top1:.2%}"
        )
        facts = {"epoch": self.epoch - 1, "step": self.step, **score, "best_top1": self.best_top1}
        self._log("epoch", facts)

    def _evaluate(self, evaluated: nn.Module) -> dict[str, Any]:
        """Shares of images, 0 to 1, whose class is the likeliest or among the five likeliest, the mean loss,
        and the number of images: over all ranks, each image counted once."""
        if dist.is_initialized():
            for buffer in evaluated.buffers():  # the BatchNorms of each rank have seen other images
                dist.broadcast(buffer, 0)
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)  # exact: whole numbers, but for losses
        batches = iter(self.val_loader)
        # Some ranks may have a batch fewer; all take part in the exchange of signals equally often.
        per_step = self.val_loader.batch_size * self.world_size
        for _ in range(math.ceil(len(self.val_loader.dataset) / per_step)):
            self.stop.start()
            batch = next(batches, None)
            if batch is not None:
                with self._autocast():
                    logits = evaluated(batch[0])
                sums += counts(logits, batch[1])
            self.stop.check()
        if dist.is_initialized():
            dist.all_reduce(sums)
        top1, top5, loss, images = sums.tolist()
        return {"top1": top1 / images, "top5": top5 / images, "loss": loss / images, "images": int(images)}

    def _save(self, name: str) -> None:
        """Writes a checkpoint; all ranks take part, rank 0 writes."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "version": checkpoint.VERSION,
            "recipe": self.recipe.to_json(),
            "classes": list(self.dataset.classes),
            "random": ranks.gather(random),
            "average": None,
            **{name: getattr(self, name) for name in ("step", "epoch", "top1", "best_top1")},
            **{name: part.state_dict() for name, part in self._parts().items()},
        }
        if self.rank == 0:
            checkpoint.save(state, self.recipe.out / name)

    def _restore(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.step, self.epoch = state["step"], state["epoch"]
        self.top1, self.best_top1 = state["top1"], state["best_top1"]
        if self.rank >= len(state["random"]):
            # What a model draws (dropout) can't be the same on another number of ranks.
            torch.manual_seed(self.recipe.seed + self.step + 1_000_003 * self.rank)
            return
        random = state["random"][self.rank]
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def _parts(self) -> dict[str, Any]:
        """What a checkpoint holds the state of."""
        names = ("optimizer", "scheduler", "scaler", "loader", "average")
        parts = {"model": self.module, **{name: getattr(self, name) for name in names}}
        return {name: part for name, part in parts.items() if part is not None}

    def _autocast(self) -> AbstractContextManager[Any]:
        name = DTYPES[self.recipe.precision]
        dtype = None if name is None else getattr(torch, name)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _metrics(self) -> AbstractContextManager[Any]:
        if self.recipe.metrics_port is None:
            return nullcontext()
        loaders = {"train": self.loader, "val": self.val_loader}
        return MetricsServer(loaders, self.recipe.metrics_port + ranks.local_rank())

    def _introduce(self) -> None:
        self._log("start", {"recipe": self.recipe.to_json(), "ranks": self.world_size, "step": self.step})
        start = "from the beginning"
        if self.epoch == self.recipe.epochs:
            start = f"{self.resumed_from} is of a finished run: nothing is left to train"
        elif self.resumed_from is not None:
            start = f"from {self.resumed_from}, step {self.step}"
        self._say(
            f"{self.recipe.arch} on {len(self.dataset):,} images of {len(self.dataset.classes):,} classes;"
            f" {self.world_size} × {self.device.type},"
            f" {self.recipe.part_size(self.world_size)} images a pass; {start}"
        )
        idle = 0 if self.device.type == "cpu" else torch.accelerator.device_count() - 1
        if idle > 0 and self.world_size == 1:
            command = f"torchrun --nproc-per-node={idle + 1} -m headrace train …"
            self._say(f"{idle} more devices are available: {command}")

    def _report(self, loss: float, steps: int, seconds: float) -> None:
        """The steps since the last report."""
        if not math.isfinite(loss):
            raise headrace.HeadraceError(
                f"The loss is {loss} at step {self.step}. A lower --lr, more --warmup-epochs, or"
                " --precision bf16 in place of fp16 usually helps."
            )
        epochs, lr = self.loader.stats().epochs, self.optimizer.param_groups[0]["lr"]
        left = round((self.recipe.epochs * self.steps_per_epoch - self.step) * seconds / steps)
        rate, stall = steps * self.recipe.batch_size / seconds, epochs[-1].stall_share if epochs else 0.0
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.device.type == "cuda":
            used = torch.cuda.max_memory_allocated(self.device)
        self._say(
            f"epoch {self.epoch}  step {self.step}  loss {loss:.3f}  lr {lr:.2g}  {rate:,.0f} images/s"
            f"  stall {stall:.1%}  {used / 1e9:.1f} GB"
            f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        )
        facts = {"step": self.step, "epoch": self.epoch, "loss": loss, "lr": lr, "images_per_second": rate}
        self._log("step", {**facts, "stall": stall, "seconds_left": left, "memory_bytes": used})

    def _say(self, text: str) -> None:
        """One line for people, by rank 0."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def _log(self, kind: str, facts: dict[str, Any]) -> None:
        """One line for programs, by rank 0."""
        if self.rank == 0:
            with (self.recipe.out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "time": time.time(), **facts}) + "\n")


def counts(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of a batch, [n, classes] and [n]: how often the class was the likeliest, and among the five likeliest,
    the sum of the losses without smoothing, and the number of images: float64 [4]."""
    hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss.double(), loss.new_tensor(len(labels)).double()])
