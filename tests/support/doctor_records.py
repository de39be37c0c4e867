"""Records made by hand, as the doctor would make them, for what draws them."""

from __future__ import annotations

import math

from headrace_doctor.doctor.records import (
    Advice,
    Cause,
    Checkup,
    Diagnosis,
    Finding,
    Rate,
    StageCost,
    Step,
    Usage,
)

GB = 10**9


def machine() -> Checkup:
    """A container with a small /dev/shm and a slow link to its GPU."""
    return Checkup(
        "machine",
        (
            (
                "CPU and memory",
                (
                    Finding("cores", "6 usable of 64 (cgroup quota)", "good"),
                    Finding("memory limit", "48.0 GB, of which 41.2 GB are free", "good"),
                    Finding(
                        "shared memory",
                        "64 MB free at /dev/shm; four workers with two batches of 64 images each need 308 MB",
                        "bad",
                        "docker run --shm-size=8g …, or --ipc=host",
                    ),
                    Finding("open files", "1,024 (soft), 1,048,576 (hard)", "note", "ulimit -n 65536"),
                ),
            ),
            (
                "GPU 0: NVIDIA H200",
                (
                    Finding(
                        "PCIe link", "generation 5, 8 lanes of 16", "note", "look at the riser or the slot"
                    ),
                    Finding("clocks", "not throttled", "good"),
                    Finding("throttle history", "NVML says: Not Supported", "unknown"),
                ),
            ),
        ),
    )


def timeline(count: int, wait: float, compute: float) -> tuple[tuple[Step, ...], tuple[Usage, ...]]:
    """Steps of both phases and the machine's use each 250 ms; every 97th step waits ten times as long."""
    steps: list[Step] = []
    now = 6.0
    for number in range(count):
        phase = "actual" if number < 0.7 * count else "demand"
        waited = (wait if phase == "actual" else 0.0002) * (1 + 0.3 * math.sin(number / 9))
        waited *= 10 if phase == "actual" and number % 97 == 50 else 1
        taken = compute * (1 + 0.05 * math.sin(number / 5))
        steps.append(Step(phase, now, waited, taken))
        now += waited + taken
    usage = []
    for tick in range(int(4 * (now + 4))):
        time = tick / 4
        phase = next(
            (s.phase for s in reversed(steps) if s.start <= time < now), "supply" if time > now else ""
        )
        busy = {"actual": 4.1, "demand": 1.0, "supply": 4.2, "": 1.2}[phase]
        grown = int(min(1.0, time / 30) * GB)
        usage.append(
            Usage(
                time,
                phase,
                cpu=busy + 0.3 * math.sin(tick / 3),
                disk_read=84e6 * (1 + math.sin(tick / 7)) if phase in ("actual", "supply") else 0.0,
                memory=6 * GB + grown,
                workers_memory=3 * GB + grown,
            )
        )
    return tuple(steps), tuple(usage)


def input_bound() -> Diagnosis:
    """Decoding starves a GPU; 2,000 steps were watched."""
    steps, usage = timeline(2000, wait=0.107, compute=0.049)
    return Diagnosis(
        command=(
            "python",
            "train.py",
            "--data",
            "/data/imagenet",
            "--arch",
            "resnet50",
            "--batch-size",
            "64",
        ),
        loader="DataLoader(ImageFolder, batch_size=64, shuffle=True, num_workers=4, pin_memory=True)",
        where="train.py:142",
        causes=(
            Cause(
                "decode",
                "4 workers decode 431 images/s, and the step takes 1,306: it waits for 68% of its time.",
                (
                    "decode takes 71% of a worker's time: 6,120 of 8,610 stack samples",
                    "the workers compute all the time: they wait for reads for 3% of it",
                    "images have 2,480 × 1,650 pixels at the median; 224 × 224 are used",
                ),
                cost=0.68,
                margin=0.24,
            ),
            Cause(
                "workers",
                "4 workers use 4.1 of 16 cores.",
                ("12 workers made 1,020 samples/s where 4 made 405",),
                cost=0.61,
            ),
            Cause("copy", "The copy to the device is not overlapped with the step.", (), 0.013),
        ),
        advice=(
            Advice(
                "decode",
                "headrace.DataLoader in place of torch's",
                (
                    "-from torch.utils.data import DataLoader",
                    "+from headrace import DataLoader",
                ),
                predicted=3.1,
                settings={"headrace": True},
                measured=2.9,
            ),
            Advice(
                "workers",
                "num_workers=4 → 12",
                (
                    " loader = DataLoader(dataset, batch_size=64, shuffle=True,",
                    "-                    num_workers=4, pin_memory=True)",
                    "+                    num_workers=12, pin_memory=True)",
                ),
                predicted=2.5,
                settings={"loader": {"num_workers": 12}},
            ),
            Advice("transform", "without RandAugment", (), 2.9, {"without": "RandAugment"}, expected=1.2),
            Advice(
                "memory",
                "prefetch_factor=8 → 2",
                (
                    "-loader = DataLoader(dataset, prefetch_factor=8)",
                    "+loader = DataLoader(dataset, prefetch_factor=2)",
                ),
                1.0,
            ),
        ),
        rates=(
            Rate("supply", 418.2, 409.7, 426.5, 180, 27.6),
            Rate("demand", 1306.1, 1294.0, 1318.4, 600, 29.4),
            Rate("actual", 405.3, 398.8, 411.6, 1400, 221.1),
            Rate("supply num_workers=12", 1020.4, 1001.3, 1040.2, 400, 25.1),
            Rate("supply headrace", 1262.0, 1238.5, 1281.9, 500, 25.4),
        ),
        stall=0.684,
        stages=(
            StageCost("read", "read", "worker", 0.00031, 0.91, 12903.2, 280),
            StageCost("decode", "decode", "worker", 0.00611, 0.0, 654.7, 6120),
            StageCost("transform", "RandomResizedCrop", "worker", 0.00121, 0.0, 3305.8, 1190),
            StageCost("transform", "RandAugment", "worker", 0.00093, 0.0, 4301.1, 870),
            StageCost("transform", "ToTensor", "worker", 0.00011, 0.0, 36363.6, 96),
            StageCost("collate", "collate", "worker", 0.00034, 0.0, 11764.7, 310),
            StageCost("transfer", "transfer", "pin thread", 0.00004, 0.35, 25000.0, 0),
            StageCost("pin", "pin", "pin thread", 0.00009, 0.0, 11111.1, 0),
            StageCost("copy", "copy", "main", 0.00007, 0.0, 14285.7, 0),
        ),
        cores=16,
        memory=(
            Finding(
                "growth of the workers",
                "1.0 GB in 30 s, by copy-on-write of 1,281,167 paths",
                "note",
                "keep paths in one numpy array instead of a list",
            ),
            Finding("batches in flight", "8 per worker: 1.2 GB of 41.2 GB free", "good"),
        ),
        steps=steps,
        usage=usage,
        watching=0.0043,
        notes=(
            "Reads were served from the page cache for 96% of the bytes: a first epoch may be slower.",
            "perf_event_open is not permitted here, so cache misses were not counted.",
        ),
    )


def healthy() -> Diagnosis:
    """The step is the limit."""
    steps, usage = timeline(120, wait=0.0003, compute=0.21)
    return Diagnosis(
        command=("python", "-m", "vit.train"),
        loader="DataLoader(PackedDataset, batch_size=256, num_workers=8)",
        where="vit/train.py:88",
        causes=(
            Cause(
                "healthy",
                "The loader makes 2.9 times what the step takes; it waits for 0.2% of its time.",
                ("actual is within 1% of demand",),
                0.0,
            ),
        ),
        advice=(),
        rates=(
            Rate("supply", 3540.0, 3490.0, 3591.0, 60, 4.3),
            Rate("demand", 1219.0, 1216.0, 1222.0, 36, 7.6),
            Rate("actual", 1214.0, 1207.0, 1221.0, 84, 17.7),
        ),
        stall=0.0018,
        stages=(
            StageCost("read", "read", "worker", 0.00002, 0.6, 400000.0, 31),
            StageCost("dataset", "dataset.__getitem__ (dataset.py:31)", "worker", 0.0022, 0.0, 3636.4, 2310),
            StageCost("copy", "copy", "main", 0.0, 0.0, math.inf, 0),
        ),
        cores=32,
        steps=steps,
        usage=usage,
        watching=0.0,
    )


def cpu_only() -> Diagnosis:
    """No GPU; the step's own threads fight with the workers."""
    steps, usage = timeline(75, wait=0.04, compute=0.3)
    return Diagnosis(
        command=("python", "fit.py"),
        loader="DataLoader(CIFAR10, batch_size=128, num_workers=2)",
        where="fit.py:20",
        causes=(
            Cause(
                "oversubscribed",
                "10 threads compute on 4 cores.",
                ("2 workers have 4 OpenMP threads each",),
                0.22,
            ),
        ),
        advice=(
            Advice(
                "oversubscribed",
                "torch.set_num_threads(1) in the workers",
                ("+    worker_init_fn=lambda _: torch.set_num_threads(1),",),
                1.28,
                {"threads": 1},
            ),
        ),
        rates=(
            Rate("supply", 612.0, 590.0, 634.0, 40, 8.4),
            Rate("demand", 427.0, 421.0, 433.0, 22, 6.6),
            Rate("actual", 376.0, 361.0, 391.0, 52, 17.7),
            Rate("demand threads=1", 455.0, 447.0, 462.0, 20, 5.6),
        ),
        stall=0.117,
        stages=(StageCost("transform", "ToTensor", "worker", 0.0031, 0.0, 645.2, 410),),
        cores=4,
        steps=steps,
        usage=usage,
        notes=("No GPU was found: device times are not known.",),
    )


def empty() -> Diagnosis:
    """The script ended before anything was measured but one rate."""
    return Diagnosis(
        command=("train.py",),
        loader="DataLoader(list, batch_size=1)",
        where="train.py:3",
        causes=(Cause("unexplained", "The script ended within its first batch.", (), 0.0),),
        advice=(),
        rates=(Rate("demand", 427.0, 421.0, 433.0, 22, 6.6),),
        stall=0.0,
        stages=(),
        cores=1,
        notes=("the loop ended after 1 step.",),
    )


HOSTILE = (
    "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">"
    "&amp;[red]\x1b[31m\u2028\udc80{{7*7}}$title<!--"
)


def hostile() -> Diagnosis:
    """Everything that a user can name is named to break a page or a terminal."""
    steps, usage = timeline(40, wait=0.1, compute=0.1)
    return Diagnosis(
        command=("python", HOSTILE),
        loader=HOSTILE,
        where=HOSTILE,
        causes=(
            Cause("decode", HOSTILE, (HOSTILE,), 0.5, 0.2),
            Cause("dataset", HOSTILE, (HOSTILE,), 0.1),
        ),
        advice=(
            Advice(
                "decode", HOSTILE, (f"-{HOSTILE}", f"+{HOSTILE}", f" {HOSTILE}"), 1.5, {"without": HOSTILE}
            ),
        ),
        rates=(
            Rate("supply", 100.0, 90.0, 110.0, 10, 1.0),
            Rate("demand", 200.0, 190.0, 210.0, 10, 1.0),
            Rate("actual", 95.0, 90.0, 100.0, 10, 1.0),
            Rate(HOSTILE, 150.0, 140.0, 160.0, 10, 1.0),
        ),
        stall=0.5,
        stages=(StageCost("dataset", HOSTILE, HOSTILE, 0.01, 0.5, 100.0, 50),),
        cores=4,
        memory=(Finding(HOSTILE, HOSTILE, "bad", HOSTILE, {HOSTILE: HOSTILE}),),
        steps=tuple(Step(HOSTILE, s.start, s.wait, s.compute) for s in steps),
        usage=tuple(Usage(u.time, HOSTILE, u.cpu, u.disk_read, u.memory, u.workers_memory) for u in usage),
        notes=(HOSTILE,),
    )


ALL = {
    "input_bound": input_bound,
    "healthy": healthy,
    "cpu_only": cpu_only,
    "empty": empty,
    "hostile": hostile,
}
