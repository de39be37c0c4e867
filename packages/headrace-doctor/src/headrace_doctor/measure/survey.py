"""All numbers about a machine that matter to feeding its GPUs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image, features

from headrace_doctor import machine
from headrace_doctor.measure.storage import Storage, measure_storage

# Seconds for which the machine is watched before it is made to work.
QUIET = 0.5
# ImageNet's most common size.
WIDTH, HEIGHT = 500, 375
# A single image, repeated, decodes a quarter faster than photos do, as branch prediction learns it. With 24
# different ones, pixels per second are within 5 % of those of 150 photos (Zen 4).
IMAGES = 24
QUALITY = 88
DECODING_SECONDS = 0.3
SEED = 0


@dataclass(frozen=True)
class Cores:
    """The cores of this machine and process.

    Attributes:
        processor: the model's name.
        host: what `os.cpu_count()` says.
        affinity: that this process may be put on.
        quota: cores' worth of time that the cgroup allows, or None without a limit.
        usable: of all this, for workers and threads.
        busy: 0 to 1: of the host's cores, what was in use over half a second before anything was measured.
    """

    processor: str
    host: int
    affinity: int
    quota: float | None
    usable: int
    busy: float

    @property
    def worth(self) -> float:
        """Cores' worth of work: a quota may end within a core."""
        return self.usable if self.quota is None else min(self.usable, self.quota)


@dataclass(frozen=True)
class Memory:
    """Memory, in bytes.

    Attributes:
        total: of the host.
        limit: the cgroup's, or None if none is below the host's.
        available: what can be taken now.
    """

    total: int
    limit: int | None
    available: int


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch.

    Attributes:
        version: "2.15.0+cu132".
        cuda: CUDA that it was built for: "13.2", or None for a build without CUDA.
        devices: number of accelerators that it reaches.
        accelerator: their kind: "cuda", "xpu", "mps", or "" if there is none.
        reason: what torch says of why it reaches none; "" if it does, or says nothing.
        visible: CUDA_VISIBLE_DEVICES, or None if it isn't set.
    """

    version: str
    cuda: str | None
    devices: int
    accelerator: str
    reason: str = ""
    visible: str | None = None


@dataclass(frozen=True)
class Machine:
    """All that was measured.

    Attributes:
        cores: how many there are, and how busy they were before.
        memory: of the host and the cgroup.
        shared: /dev/shm, or None if there is none.
        files: the limits of open files.
        decoding: rates of JPEG decoding.
        storages: one for each path that was asked for.
        torch: the installed one.
        gpus: number of NVIDIA GPUs that the system has device files for.
    """

    cores: Cores
    memory: Memory
    shared: machine.Space | None
    files: machine.FileLimit
    decoding: Decoding
    storages: tuple[Storage, ...]
    torch: TorchBuild
    gpus: int


def survey(paths: Sequence[Path] = (), progress: Callable[[str], None] = lambda _: None) -> Machine:
    """Measures for about five seconds, and one for each path.

    Args:
        paths: files or folders whose storage is measured; only read.
        progress: called with what is being measured.

    Raises:
        OSError: one of the paths isn't there, or can't be listed.
    """
    progress("watching the processor")
    busy = psutil.cpu_percent(interval=QUIET) / 100
    storages = []
    for path in paths:
        progress(f"reading {path}")
        storages.append(measure_storage(path))
    cores = Cores(
        processor=machine.processor_name(),
        host=os.cpu_count() or 1,
        affinity=machine.affine_cores(),
        quota=machine.cpu_quota(),
        usable=machine.usable_cores(),
        busy=busy,
    )
    memory = Memory(psutil.virtual_memory().total, machine.memory_limit(), machine.available_memory())
    progress("decoding JPEGs")
    decoding = measure_decoding()
    progress("asking torch")
    build = torch_build()
    return Machine(
        cores=cores,
        memory=memory,
        shared=machine.shared_memory(),
        files=machine.file_limit(),
        decoding=decoding,
        storages=tuple(storages),
        torch=build,
        gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))),
    )


def torch_build() -> TorchBuild:
    """Imports torch and asks it; a CUDA context is made only to learn why there is no device."""
    # It says by warnings why it finds no device.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.accelerator.is_available()
    reason = "; ".join(str(warning.message) for warning in said)
    kind = torch.accelerator.current_accelerator() if available else None
    if kind is None and not reason and torch.version.cuda is not None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            reason = str(error)
    return TorchBuild(
        version=torch.__version__,
        cuda=torch.version.cuda,
        devices=torch.accelerator.device_count() if kind is not None else 0,
        accelerator="" if kind is None else kind.type,
        reason=reason.partition("\n")[0],
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


@dataclass(frozen=True)
class Decoding:
    """Decoding rates of this machine.

    Attributes:
        width, height: size of the images, in pixels.
        image_bytes: mean size of their files.
        pillow_per_core: images per second by Pillow on one core.
        pillow_turbo: version of Pillow's libjpeg-turbo, or None if it has another, slower libjpeg.
        headrace_per_core: the same by `headrace.decode_image`, or None if it can't be measured.
        headrace_missing: why it can't; "" if it can, or if Headrace isn't installed.
    """

    width: int
    height: int
    image_bytes: float
    pillow_per_core: float
    pillow_turbo: str | None
    headrace_per_core: float | None
    headrace_missing: str = ""


def measure_decoding() -> Decoding:
    """Decodes whole images to RGB on one core for about a second."""
    files = images(IMAGES)
    native, missing = None, ""
    try:
        native = _per_core(_by_headrace, files)
    except ModuleNotFoundError as error:
        if error.name != "headrace":
            raise
    except RuntimeError as error:  # a headrace.NativeError
        missing = str(error)
    return Decoding(
        width=WIDTH,
        height=HEIGHT,
        image_bytes=sum(map(len, files)) / len(files),
        pillow_per_core=_per_core(_by_pillow, files),
        pillow_turbo=features.version_feature("libjpeg_turbo") if features.check("libjpeg_turbo") else None,
        headrace_per_core=native,
        headrace_missing=missing,
    )


def images(count: int) -> list[bytes]:
    """JPEG files with the statistics of photos: 4:2:0, about 90 kB for 500 × 375.

    Amplitudes fall with frequency to the power 1.2, phases are random; photos have about 1 (Field, 1987), and
    1.2 gives the bits a pixel that photos have at this quality. Colours vary less than brightness.
    """
    rng = np.random.default_rng(SEED)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = np.inf

    def plane(deviation: float) -> Image.Image:
        spectrum = np.exp(2j * np.pi * rng.random(frequency.shape)) / frequency**1.2
        values = np.fft.irfft2(spectrum, (HEIGHT, WIDTH))
        return Image.fromarray(np.clip(128 + values / values.std() * deviation, 0, 255).astype(np.uint8))

    files = []
    for _ in range(count):
        file = BytesIO()
        Image.merge("YCbCr", [plane(50.0), plane(12.5), plane(12.5)]).save(file, "JPEG", quality=QUALITY)
        files.append(file.getvalue())
    return files


def _by_pillow(file: bytes) -> None:
    with Image.open(BytesIO(file)) as image:
        image.convert("RGB")


def _by_headrace(file: bytes) -> None:
    import headrace

    headrace.decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8), "RGB")


def _per_core(decode: Callable[[bytes], object], files: Sequence[bytes]) -> float:
    """Images per second of the thread's own processor time, so that others' load doesn't count."""
    for file in files:
        decode(file)
    done, begin = 0, time.thread_time()
    while (spent := time.thread_time() - begin) < DECODING_SECONDS:
        for file in files:
            decode(file)
        done += len(files)
    return done / spent
