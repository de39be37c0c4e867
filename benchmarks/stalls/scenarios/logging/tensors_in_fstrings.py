"""Faults of motors, with transformers' Trainer. Bottleneck: lines for debugging format tensors, for nobody.

Shows: the loader is quick; most of a step is spent in torch/_tensor_str.py, called by forward. Nothing is
written, as the level is INFO.
Fix: logger.debug("… %s", tensor), which formats what is written only.
"""

# expected: logging
# names: _log.debug | debug | forward
# needs: transformers accelerate
# fix:
# -        _log.debug(f"attention {weights}, from {queries}")
# +        _log.debug("attention %s, from %s", weights, queries)
#
# -        _log.debug(f"block {self.number}: {mixed}, then {x}")
# +        _log.debug("block %d: %s, then %s", self.number, mixed, x)

import argparse
import logging
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

_log = logging.getLogger("motors")
MOTORS, MOMENTS, SENSORS, FAULTS = 1280, 48, 12, 5


class Motors(Dataset):
    """Readings of the sensors of a motor; each fault is a vibration of another frequency."""

    def __init__(self):
        generator = torch.Generator().manual_seed(72)
        self.faults = torch.randint(FAULTS, (MOTORS,), generator=generator)
        clock = torch.arange(MOMENTS)
        waves = torch.sin(clock * (self.faults[:, None] + 1) * 0.2)[:, :, None]
        self.readings = waves + torch.randn(MOTORS, MOMENTS, SENSORS, generator=generator)

    def __len__(self):
        return MOTORS

    def __getitem__(self, index):
        return {"readings": self.readings[index], "labels": self.faults[index]}


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        parts = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        weights = (queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5).softmax(3)
        _log.debug(f"attention {weights}, from {queries}")
        return self.out((weights @ values).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, number, width):
        super().__init__()
        self.number = number
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        mixed = x + self.attention(self.first(x))
        x = mixed + self.mlp(self.second(mixed))
        _log.debug(f"block {self.number}: {mixed}, then {x}")
        return x


class MotorModel(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.embedding = nn.Linear(SENSORS, width)
        self.places = nn.Parameter(0.02 * torch.randn(MOMENTS, width))
        self.blocks = nn.Sequential(*(Block(number, width) for number in range(depth)))
        self.head = nn.Linear(width, FAULTS)

    def forward(self, readings, labels=None):
        logits = self.head(self.blocks(self.embedding(readings) + self.places).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class SpeedCallback(TrainerCallback):
    def on_epoch_begin(self, _args, _state, _control, **_kwargs):
        self.started = time.perf_counter()

    def on_epoch_end(self, _args, state, _control, **_kwargs):
        rate = MOTORS / (time.perf_counter() - self.started)
        print(f"epoch {state.epoch:.0f}: {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING"])
    cli = parser.parse_args()

    logging.basicConfig(level=cli.log_level, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(1)
    set_seed(72)
    if cli.epochs == 0:
        return
    arguments = TrainingArguments(
        output_dir=str(Path(cli.data) / "motor-faults"),
        num_train_epochs=cli.epochs,
        per_device_train_batch_size=cli.batch_size,
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=40,
        save_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(MotorModel(), arguments, train_dataset=Motors(), callbacks=[SpeedCallback()])
    _log.info("%d motors, %d faults", MOTORS, FAULTS)
    trainer.train()


if __name__ == "__main__":
    main()
