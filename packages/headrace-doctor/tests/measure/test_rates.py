"""Rates of decoding and copying: what is decoded, and what happens where something is missing."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import headrace
from headrace_doctor.measure import survey as module
from headrace_doctor.measure.survey import HEIGHT, WIDTH, images, measure_decoding, survey


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECODING_SECONDS", 0.02)
    monkeypatch.setattr(module, "IMAGES", 2)


def test_pictures_are_like_photos() -> None:
    files = images(3)
    assert len(set(files)) == 3
    assert files == images(3), "the same on every machine"
    for file in files:
        with Image.open(BytesIO(file)) as image:
            assert (image.size, image.mode) == ((WIDTH, HEIGHT), "RGB")
            # Components' sampling: brightness in full, colours at half of both sides, as cameras do it.
            assert [component[1:3] for component in image.layer] == [(2, 2), (1, 1), (1, 1)]  # type: ignore[attr-defined]
            assert 0.3 < len(file) / (WIDTH * HEIGHT) < 0.6  # photos of that size: 0.42 bytes a pixel
            gray = np.asarray(image.convert("L"), np.float64)
        # A photo's neighbours are alike, far pixels aren't.
        near = np.corrcoef(gray[:, :-1].ravel(), gray[:, 1:].ravel())[0, 1]
        far = np.corrcoef(gray[:, :-100].ravel(), gray[:, 100:].ravel())[0, 1]
        assert near > 0.9 > 0.6 > far


@pytest.mark.usefixtures("quick")
def test_rates_of_both_decoders() -> None:
    found = measure_decoding()
    assert (found.width, found.height) == (WIDTH, HEIGHT)
    assert found.image_bytes == sum(map(len, images(2))) / 2
    assert found.pillow_per_core > 0
    assert found.headrace_per_core is not None
    assert found.headrace_per_core > 0
    assert found.headrace_missing == ""


@pytest.mark.usefixtures("quick")
def test_without_the_native_library_pillow_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> None:
        raise headrace.NativeError("it isn't there")

    monkeypatch.setattr(headrace, "decode_image", missing)
    found = measure_decoding()
    assert found.headrace_per_core is None
    assert found.headrace_missing == "it isn't there"
    assert found.pillow_per_core > 0


@pytest.mark.usefixtures("quick")
def test_a_survey_measures_everything_and_each_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(bytes(9000))
    said: list[str] = []
    found = survey([tmp_path / "a", tmp_path / "a" / "x.jpg"], said.append)
    assert [(one.files, one.bytes) for one in found.storages] == [(1, 9000)] * 2
    assert f"reading {tmp_path / 'a'}" in said
    assert 1 <= found.cores.usable <= found.cores.affinity <= found.cores.host
    assert 0 <= found.cores.busy <= 1
    assert 0 < found.memory.available <= found.memory.total
    assert found.torch.version == torch.__version__
    with pytest.raises(FileNotFoundError):
        survey([tmp_path / "nowhere"])
