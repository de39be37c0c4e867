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
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import headrace
from headrace.export import MetricsServer
from headrace.recipes import parts, ranks
from headrace.recipes.config import DTYPES, Recipe, option

CPU_ALLOCATOR = "DefaultCPUAllocator"
# Checkpoints.
VERSION = 1
LAST, BEST, PREEMPTED = "last.pt", "best.pt", "preempted"
# Options that may differ when a run is resumed: where and how, but not what is trained.
MAY_CHANGE = {
    *("data", "out", "accumulate", "channels_last", "compile", "workers", "deterministic"),
    *("device", "resume", "checkpoint_every", "log_every", "metrics_port"),
}


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

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
    """One run on one rank: its parts, and how far it has come. Raises ConfigError if the recipe can't be
    followed with these data, this device or this checkpoint."""

    def __init__(self, recipe: Recipe, device: torch.device, stop: ranks.StopSignal) -> None:
        self.recipe, self.device, self.stop = recipe, device, stop
        self.rank, self.ranks = 0, 1
        if dist.is_initialized():
            self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        # What takes no time is checked before a large folder is listed.
        self.resumed_from, state = to_resume(recipe)
        make_model = parts.builder(recipe.arch)
        recipe.part_size(self.ranks)
        self.dataset, val_set = parts.datasets(recipe)
        self.loader, self.val_loader = parts.loaders(recipe, self.dataset, val_set, self.ranks, device)
        self.steps_per_epoch = len(self.dataset) // recipe.batch_size
        if recipe.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses
            torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = not recipe.deterministic  # images of one size: the choice pays off
        torch.manual_seed(recipe.seed)
        self.model = make_model(len(self.dataset.classes)).to(device)
        if recipe.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self.average = parts.make_average(recipe, self.model)
        self.optimizer = parts.make_optimizer(recipe, self.model)
        self.scheduler = parts.make_scheduler(recipe, self.optimizer, self.steps_per_epoch)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        self.ddp: DistributedDataParallel | None = None
        if self.ranks > 1:
            ids = None if device.type == "cpu" else [device.index]
            self.ddp = DistributedDataParallel(self.model, device_ids=ids, gradient_as_bucket_view=True)
        self.forward: Any = self.ddp or self.model
        if recipe.compile:
            self.forward = torch.compile(self.forward)
        torch.manual_seed(recipe.seed + 1_000_003 * self.rank)  # ranks drop out other units
        self.step = self.epoch = 0  # those that are done
        self.top1: float | None = None  # of the latest evaluation
        self.best_top1 = 0.0
        if state:
            self._restore(state)

    def run(self) -> Outcome:
        """Trains to the last epoch, or until a signal is received."""
        out = self.recipe.out
        stopped_by = None
        out.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            (out / PREEMPTED).unlink(missing_ok=True)
        self._introduce()
        port = self.recipe.metrics_port
        loaders = {"train": self.loader, "val": self.val_loader}
        with nullcontext() if port is None else MetricsServer(loaders, port + ranks.local_rank()):
            try:
                while self.epoch < self.recipe.epochs:
                    self._train_epoch()
                    self._end_epoch()
            except ranks.Stopped as stop:
                self._save(LAST)
                (number,) = stop.args
                stopped_by = number.name
                # What a person ended must not be started again.
                if self.rank == 0 and number != signal.SIGINT:
                    (out / PREEMPTED).write_text(f"{self.step}\n")
                text = f"stopped by {stopped_by} at step {self.step}; --resume auto resumes there"
            else:
                best = out / BEST
                text = f"finished: {self.epoch} epochs, best top-1 {self.best_top1:.2%}"
                text += f": {best}" if best.exists() else ""
        outcome = Outcome(self.step, self.epoch, self.top1, self.best_top1, stopped_by)
        self._say("end", text, **asdict(outcome))
        return outcome

    def _train_epoch(self) -> None:
        """Trains the rest of the epoch, to its last whole step."""
        end = (self.epoch + 1) * self.steps_per_epoch
        every = self.recipe.checkpoint_every
        if self.step == end:
            return
        self.model.train()
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
            if every and self.step % every == 0:
                self._save(LAST)

    def _optimizer_step(self, batches: Iterator[Any]) -> torch.Tensor:
        """The loss of this rank's share of the next batch, detached."""
        total = torch.zeros((), device=self.device)
        for left in reversed(range(self.recipe.accumulate)):
            images, labels = next(batches)
            # Gradients are added up over ranks once a step, with the last part.
            with self.ddp.no_sync() if left and self.ddp is not None else nullcontext():
                with self._autocast():
                    loss = self.criterion(self.forward(images), labels) / self.recipe.accumulate
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        return total

    def _end_epoch(self) -> None:
        evaluated = self.model if self.average is None else self.average.module
        evaluated.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            score = self._evaluate(evaluated)
        self.epoch += 1
        self.top1 = score["top1"]
        better = self.top1 > self.best_top1 or self.epoch == 1
        self.best_top1 = max(self.best_top1, self.top1)
        self.loader.set_epoch(self.epoch)
        for name in (LAST, BEST) if better else (LAST,):
            self._save(name)
        text = (
            f"epoch {self.epoch - 1}: top-1 {self.top1:.2%}, top-5 {score['top5']:.2%}, loss"
            f" {score['loss']:.4f} on {score['images']:,} images; best top-1 {self.best_top1:.2%}"
        )
        self._say("epoch", text, epoch=self.epoch - 1, step=self.step, **score, best_top1=self.best_top1)

    def _evaluate(self, evaluated: nn.Module) -> dict[str, Any]:
        """Shares of images, 0 to 1, whose class is the likeliest or among the five likeliest, the mean loss,
        and the number of images: over all ranks, each image counted once."""
        if dist.is_initialized():
            for buffer in evaluated.buffers():  # the BatchNorms of each rank have seen other images
                dist.broadcast(buffer, 0)
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)  # exact: whole numbers, but for losses
        batches = iter(self.val_loader)
        # Some ranks may have a batch fewer; all take part in the exchange of signals equally often.
        for _ in range(math.ceil(len(self.val_loader.dataset) / (self.val_loader.batch_size * self.ranks))):
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
        if self.device.type != "cpu":
            random[self.device.type] = torch.get_device_module(self.device).get_rng_state(self.device)
        by_rank: list[Any] = [random] * self.ranks
        if dist.is_initialized():
            dist.all_gather_object(by_rank, random)
        state = {
            "version": VERSION,
            "recipe": self.recipe.to_json(),
            "classes": list(self.dataset.classes),
            "random": by_rank,
            **{name: getattr(self, name) for name in ("step", "epoch", "top1", "best_top1")},
            **{name: part if part is None else part.state_dict() for name, part in self._parts().items()},
        }
        if self.rank == 0:
            save(state, self.recipe.out / name)

    def _restore(self, state: dict[str, Any]) -> None:
        for name, part in self._parts().items():
            if part is not None:
                part.load_state_dict(state[name])
        self.step, self.epoch = state["step"], state["epoch"]
        self.top1, self.best_top1 = state["top1"], state["best_top1"]
        if self.rank >= len(state["random"]):
            # What a model draws (dropout) can't be the same on another number of ranks.
            torch.manual_seed(self.recipe.seed + self.step + 1_000_003 * self.rank)
            return
        random = state["random"][self.rank]
        torch.set_rng_state(random["cpu"])
        if self.device.type in random and self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(random[self.device.type], self.device)

    def _parts(self) -> dict[str, Any]:
        """The parts whose states a checkpoint holds."""
        names = ("model", "optimizer", "scheduler", "scaler", "loader", "average")
        return {name: getattr(self, name) for name in names}

    def _autocast(self) -> torch.autocast:
        name = DTYPES[self.recipe.precision]
        dtype = None if name is None else getattr(torch, name)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _introduce(self) -> None:
        start = "from the beginning"
        if self.epoch == self.recipe.epochs:
            start = f"{self.resumed_from} is of a finished run: nothing is left to train"
        elif self.resumed_from is not None:
            start = f"from {self.resumed_from}, step {self.step}"
        text = (
            f"{self.recipe.arch} on {len(self.dataset):,} images of {len(self.dataset.classes):,} classes;"
            f" {self.ranks} × {self.device.type}, {self.recipe.part_size(self.ranks)} images a pass; {start}"
        )
        self._say("start", text, recipe=self.recipe.to_json(), ranks=self.ranks, step=self.step)

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
        text = (
            f"epoch {self.epoch}  step {self.step}  loss {loss:.3f}  lr {lr:.2g}  {rate:,.0f} images/s"
            f"  stall {stall:.1%}  {used / 1e9:.1f} GB"
            f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        )
        facts = {"step": self.step, "epoch": self.epoch, "loss": loss, "lr": lr, "images_per_second": rate}
        self._say("step", text, **facts, stall=stall, seconds_left=left, memory_bytes=used)

    def _say(self, kind: str, text: str, **facts: Any) -> None:
        """One line for people, and one for programs, by rank 0."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)  # noqa: T201
            with (self.recipe.out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "time": time.time(), **facts}) + "\n")


def counts(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Counts of a batch, [n, classes] and [n]: how often the class was the likeliest, and among the five
    likeliest, the sum of the losses without smoothing, and the number of images: float64 [4]."""
    hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    return torch.stack([hits[:, 0].sum(), hits.sum(), loss.double(), loss.new_tensor(len(labels)).double()])


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state` to the disk under another name, then renames it: a failure leaves the one before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote, on the CPU. Raises ConfigError if it is missing or damaged."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise headrace.ConfigError(f"--resume: {path} isn't there.") from error
    except Exception as error:  # a damaged file makes torch raise anything: KeyError, UnicodeDecodeError, …
        raise headrace.ConfigError(f"--resume: {path} isn't a checkpoint, or is damaged: {error}") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise headrace.ConfigError(
            f"--resume: {path} isn't a checkpoint of `headrace train`, version {VERSION}."
        )
    return state


def to_resume(recipe: Recipe) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint to resume from and its state, or None and {} if the run starts from the beginning.

    Raises:
        ConfigError: a run would be overwritten, or the checkpoint is unusable or of another training.
    """
    last = recipe.out / LAST
    # torchrun starts the same command again when a rank was lost.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if recipe.resume not in ("auto", "never"):
        last = Path(recipe.resume)
    elif not last.exists():
        return None, {}
    elif recipe.resume == "never" and not restarted:
        raise headrace.ConfigError(
            f"{last} is there already. Pass --resume auto to resume that run, or another --out."
        )
    state = load(last)
    ours = recipe.to_json()
    for name in sorted(ours.keys() - MAY_CHANGE):
        was, now = (
            f"without {option(name)}" if value is None else f"with {option(name)} {value}"
            for value in (state["recipe"][name], ours[name])
        )
        if was != now:
            raise headrace.ConfigError(
                f"--resume: {last} was made {was}, not {now}. For another training take another --out."
            )
    return last, state
