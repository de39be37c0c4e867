"""Opinions on a machine, from figures made by hand: what is good, what is bad, and what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_doctor.doctor import host
from headrace_doctor.doctor.host import examine, storage_findings
from headrace_doctor.doctor.records import Finding
from headrace_doctor.errors import size
from headrace_doctor.machine import FileLimit, Space
from headrace_doctor.measure.storage import Mount, Rates, Reads, Storage
from headrace_doctor.measure.survey import Cores, Decoding, Machine, Memory, TorchBuild

GB = 10**9
MB = 10**6

CORES = Cores("AMD EPYC", host=16, affinity=16, quota=None, usable=16, busy=0.02)
MEMORY = Memory(total=64 * GB, limit=None, available=50 * GB)
DECODING = Decoding(
    width=500,
    height=375,
    image_bytes=100_000,
    pillow_per_core=1000,
    pillow_turbo="3.1.0",
    headrace_per_core=1600,
)
LOCAL = Mount(Path("/data"), "ext4", "local", "/dev/nvme0n1")
TORCH = TorchBuild("2.15.0+cu132", cuda="13.2", devices=1, accelerator="cuda")


def storage(megabytes_per_second: float, **changes: object) -> Storage:
    """100 GB of files of 100 kB, of which so much is read in a second."""
    count = round(megabytes_per_second * 10)
    reads = Reads(count, count * 100_000, 1.0)
    whole = Storage(
        path=Path("/data"),
        mount=LOCAL,
        files=1_000_000,
        bytes=100 * GB,
        complete=True,
        rates=Rates(direct=True, random=reads, parallel=reads, failures=()),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def machine(**changes: object) -> Machine:
    healthy = Machine(
        cores=CORES,
        memory=MEMORY,
        shared=Space(32 * GB, 32 * GB),
        files=FileLimit(65536, 65536),
        decoding=DECODING,
        storages=(storage(5000),),
        torch=TORCH,
        gpus=1,
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    checkup = examine(machine())
    assert {finding.judgement for finding in checkup.findings} == {"good"}
    assert {finding.remedy for finding in checkup.findings} == {""}
    assert [heading for heading, _ in checkup.sections] == [
        "AMD EPYC",
        "decoding",
        "/data",
        "torch and GPU",
    ]
    assert json.loads(json.dumps(checkup.to_json()))["subject"] == "machine"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"memory": replace(MEMORY, available=GB)}, "memory"),
        ({"shared": Space(64 * MB, 64 * MB)}, "shared memory"),
        ({"shared": None}, "shared memory"),
        ({"files": FileLimit(256, 4096)}, "open files"),
        ({"decoding": replace(DECODING, pillow_turbo=None)}, "Pillow"),
        ({"decoding": replace(DECODING, headrace_per_core=None, headrace_missing="no file")}, "Headrace"),
        ({"storages": (storage(200),)}, "random reads"),
        ({"torch": replace(TORCH, accelerator="", devices=0)}, "torch"),
    ],
)
def test_each_illness_is_bad_alone_and_comes_with_a_remedy(change: dict[str, object], name: str) -> None:
    checkup = examine(machine(**change))
    bad = [finding for finding in checkup.findings if finding.judgement == "bad"]
    assert [finding.name for finding in bad] == [name]
    assert bad[0].remedy
    assert not checkup.healthy


def test_cores_beyond_the_quota() -> None:
    inside = replace(CORES, host=64, affinity=64, quota=3.5, usable=4)
    found = host.cores_finding(inside)
    assert (found.judgement, found.value) == ("note", "4 of 64 (cgroup quota 3.5)")
    assert "num_workers=4: os.cpu_count() is 16 times as many." in found.remedy
    assert "OMP_NUM_THREADS=4" in found.remedy
    pinned = host.cores_finding(replace(CORES, affinity=8, usable=8))
    assert pinned.value == "8 of 16 (affinity 8)"
    assert "OMP" not in pinned.remedy


def test_cores_that_others_use() -> None:
    found = host.cores_finding(replace(CORES, busy=0.5))
    assert (found.judgement, found.value) == ("note", "16 of 16, 50% busy before measuring")


def test_memory_for_forked_and_for_spawned_workers() -> None:
    # 16 workers, 2 batches of 38.5 MB each: 2.03 GB forked, 8.27 GB spawned.
    judged = [
        host.memory_finding(replace(MEMORY, available=available), 16).judgement
        for available in (2_000 * MB, 2_100 * MB, 8_200 * MB, 8_300 * MB)
    ]
    assert judged == ["bad", "note", "note", "good"]
    limited = host.memory_finding(replace(MEMORY, limit=8 * GB), 16)
    assert limited.value == "50 GB available of 8 GB (cgroup limit; the host has 64 GB)"


def test_shared_memory_for_one_and_for_two_workers_a_core() -> None:
    # 4 cores × 2 batches × 38.5 MB = 308 MB, twice that for 8 workers.
    found = [host.shared_memory_finding(Space(GB, free * MB), 4) for free in (300, 320, 600, 620)]
    assert [one.judgement for one in found] == ["bad", "note", "note", "good"]
    assert "docker run --shm-size=1g" in found[0].remedy
    # Docker's default never suffices.
    assert host.shared_memory_finding(Space(64 * MB, 64 * MB), 1).judgement == "bad"


def test_open_files() -> None:
    # 200 + 9 for each worker: 776 with 64, 1352 with 128.
    found = [host.files_finding(FileLimit(soft, 1_048_576), 64) for soft in (700, 1024, 1400, None)]
    assert [one.judgement for one in found] == ["bad", "note", "good", "good"]
    assert found[1].remedy == "ulimit -n 65536, before the training starts: 128 workers need 1,352."
    assert found[1].value == "1,024 a process (may be raised to 1,048,576)"
    assert "--ulimit nofile=65536" in host.files_finding(FileLimit(1024, 4096), 64).remedy


def test_decoding_that_is_slower_than_it_should_be() -> None:
    slow = host.decoding_findings(replace(DECODING, pillow_per_core=200))
    assert by_name(slow)["Pillow"].judgement == "note"


def test_a_quota_within_a_core_is_no_slow_machine() -> None:
    half = replace(CORES, quota=0.5, usable=1)
    found = by_name(examine(machine(cores=half, storages=(storage(90),))).findings)
    assert found["Headrace"].judgement == "good"
    assert found["Headrace"].value == "1,600 per second and core"
    # 0.5 cores × 1,600 × 100 kB: 80 MB/s.
    assert found["random reads"].judgement == "good"


def reads(of: Storage, available: int = 50 * GB) -> Finding:
    return by_name(storage_findings(of, DECODING, 16, available))["random reads"]


def test_storage_against_what_the_cores_decode() -> None:
    # 16 cores × 100 kB × 1,000 per second by Pillow: 1.6 GB/s; × 1,600 by Headrace: 2.56 GB/s.
    found = [reads(storage(speed)) for speed in (1500, 1700, 2500, 2600)]
    assert [one.judgement for one in found] == ["bad", "note", "note", "good"]
    assert "16 cores decode 1.6 GB/s with Pillow" in found[0].remedy
    assert "16 cores decode 2.56 GB/s with Headrace" in found[1].remedy
    assert "headrace pack" in found[0].remedy


def test_slow_storage_is_no_illness_where_memory_keeps_the_files() -> None:
    assert reads(storage(200, bytes=20 * GB)).judgement == "note"
    assert reads(storage(200, bytes=20 * GB), available=30 * GB).judgement == "bad"
    assert reads(storage(200, bytes=20 * GB, complete=False)).judgement == "bad"
    files = by_name(storage_findings(storage(200), DECODING, 16, 300 * GB))["files"]
    assert (files.judgement, files.value) == ("good", "100 GB in 1,000,000; they fit into memory")


def test_large_files_are_not_to_be_packed_again() -> None:
    assert reads(storage(200, files=1000)).remedy.endswith(
        "Copy the data to a faster disk before the training."
    )


def test_too_little_to_measure_is_no_verdict() -> None:
    found = by_name(storage_findings(storage(1, bytes=MB), DECODING, 16, GB))
    assert found["reads"].judgement == "unknown"
    assert "random reads" not in found
    empty = storage(1, files=0, bytes=0, rates=None)
    assert by_name(storage_findings(empty, DECODING, 16, GB))["files"].judgement == "unknown"


@pytest.mark.parametrize(
    ("mount", "judgement", "value"),
    [
        (LOCAL, "good", "ext4 of /dev/nvme0n1 at /data"),
        (
            Mount(Path("/d"), "nfs4", "network", "filer:/d"),
            "note",
            "nfs4 of filer:/d at /d (over the network)",
        ),
        (
            Mount(Path("/"), "overlay", "layers", "overlay"),
            "note",
            "overlay of overlay at / (the container's layers)",
        ),
        (None, "unknown", "unknown"),
    ],
)
def test_kinds_of_file_systems(mount: Mount | None, judgement: str, value: str) -> None:
    found = by_name(storage_findings(storage(5000, mount=mount), DECODING, 16, GB))["file system"]
    assert (found.judgement, found.value) == (judgement, value)
    assert bool(found.remedy) == (judgement == "note")


def test_files_that_cannot_be_read_are_bad() -> None:
    rates = storage(5000).rates
    assert rates is not None
    failures = tuple(f"/data/{i}.jpg: Permission denied" for i in range(5))
    found = by_name(
        storage_findings(storage(5000, rates=replace(rates, failures=failures)), DECODING, 16, GB)
    )["unreadable files"]
    assert found.judgement == "bad"
    assert found.value.endswith("/data/2.jpg: Permission denied, and 2 more")


NOT_REACHED = replace(TORCH, accelerator="", devices=0)


@pytest.mark.parametrize(
    ("build", "gpus", "judgement", "remedy"),
    [
        (replace(NOT_REACHED, cuda=None, version="2.15.0+cpu"), 1, "bad", "built without CUDA"),
        (replace(NOT_REACHED, visible="-1"), 1, "bad", "unset CUDA_VISIBLE_DEVICES: it is '-1'"),
        (replace(NOT_REACHED, reason="driver too old"), 1, "bad", "driver too old"),
        (replace(TORCH, visible="1"), 2, "note", "CUDA_VISIBLE_DEVICES=1 hides"),
        (NOT_REACHED, 0, "note", "docker run --gpus all"),
        (replace(TORCH, accelerator="xpu", cuda=None), 0, "good", ""),
    ],
)
def test_torch_and_its_gpus(build: TorchBuild, gpus: int, judgement: str, remedy: str) -> None:
    found = host.torch_finding(build, gpus)
    assert found.judgement == judgement
    assert remedy in found.remedy
    assert bool(found.remedy) == (judgement != "good")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (25_276_502_016, "25.3 GB"),
        (999_600_000, "1 GB"),
        (123_456_789, "123 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_as_people_read_them(count: float, text: str) -> None:
    assert size(count) == text
