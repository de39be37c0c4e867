"""What a recipe may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.recipes import Recipe
from headrace.recipes.parts import lr_factor


def recipe(**values: Any) -> Recipe:
    return Recipe(data=Path("data"), out=Path("out"), **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, r"--epochs \(0\) must be 1 or more"),
        ({"warmup_epochs": -1}, r"--warmup-epochs \(-1\) must be 0 or more"),
        (
            {"warmup_epochs": 5, "epochs": 5},
            r"--warmup-epochs \(5\) must be 0 or more, and less than --epochs \(5\)",
        ),
        ({"weight_decay": -0.1}, r"--weight-decay \(-0\.1\) must be 0 or more"),
        ({"workers": -1}, r"--workers \(-1\) must be 0 or more"),
        ({"precision": "fp8"}, r"--precision \(fp8\) must be one of fp32, bf16, fp16"),
        ({"optimizer": "adam"}, r"--optimizer \(adam\) must be sgd or adamw"),
        ({"lr": 0.0}, r"--lr \(0\.0\) must be above 0"),
        ({"ema": 1.0}, r"--ema \(1\.0\) must be in \[0, 1\)"),
        ({"val_resize": 200}, r"--val-resize \(200\) must be at least --size \(224\)"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        recipe(**values)


def test_learning_rates_follow_the_batch() -> None:
    assert recipe(batch_size=256).peak_lr == pytest.approx(0.1)
    assert recipe(batch_size=1024).peak_lr == pytest.approx(0.4)
    assert recipe(batch_size=512, optimizer="adamw").peak_lr == pytest.approx(5e-4)
    assert recipe(lr=0.3).peak_lr == 0.3


def test_a_short_run_has_a_short_warm_up() -> None:
    assert [recipe(epochs=epochs).warmup for epochs in (1, 4, 10, 90)] == [0.5, 2, 5, 5]
    assert recipe(epochs=4, warmup_epochs=0).warmup == 0


def test_parts_make_up_the_batch() -> None:
    assert recipe(batch_size=48, accumulate=3).part_size(world_size=4) == 4
    with pytest.raises(
        headrace.ConfigError, match=r"--batch-size \(48\) must divide by ranks × --accumulate \(5 × 1\)"
    ):
        recipe(batch_size=48).part_size(world_size=5)


def test_the_rate_rises_and_falls() -> None:
    factors = [lr_factor(step, warmup=4, total=20) for step in range(21)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[12] == pytest.approx(0.5)
    assert factors[20] == pytest.approx(0.0)
