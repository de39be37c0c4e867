"""Where a path's bytes are kept, by the system's list of mounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.measure.storage import Mount, mount_of

# As psutil lists them: of a virtual machine, a container and a workstation.
MOUNTS = (
    ("proc", "/proc", "proc"),
    ("/dev/vda", "/", "ext4"),
    ("tmpfs", "/dev/shm", "tmpfs"),
    ("/dev/sdb1", "/disk", "xfs"),
    ("filer:/export/data", "/data", "nfs4"),
    ("me@host:/photos", "/data/my photos", "fuse.sshfs"),
    ("overlay", "/layers", "overlay"),
    ("odd", "/odd", "fuse.unheard-of"),
    ("/dev/nvme0n1p3", "/data/deep/er", "ext4"),
    ("//server/share", "/data", "cifs"),
    ("share", "/host", "virtiofs"),
)


def partitions(mounts: Sequence[tuple[str, str, str]]) -> Callable[..., list[Any]]:
    rows = [SimpleNamespace(device=device, mountpoint=at, fstype=kind) for device, at, kind in mounts]
    return lambda **_: rows


@pytest.fixture(autouse=True)
def _mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.disk_partitions", partitions(MOUNTS))


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """As in /sys/class/block: links to devices; a partition lies inside its disk, which has the queue."""
    for disk, partition, turns in (("sdb", "sdb1", "1"), ("nvme0n1", "nvme0n1p3", "0"), ("vda", "", "1")):
        queue = tmp_path / "devices" / disk / "queue"
        queue.mkdir(parents=True)
        (queue / "rotational").write_text(f"{turns}\n")
        folder = tmp_path / "devices" / disk / partition
        folder.mkdir(exist_ok=True)
        (tmp_path / "block").mkdir(exist_ok=True)
        (tmp_path / "block" / (partition or disk)).symlink_to(folder)
    return tmp_path / "block"


@pytest.mark.parametrize(
    ("path", "kind", "place", "source"),
    [
        ("/data2/x", "ext4", "local", "/dev/vda"),
        ("/dev/shm/x", "tmpfs", "memory", "tmpfs"),
        ("/data/my photos/1", "fuse.sshfs", "network", "me@host:/photos"),
        ("/data/other", "cifs", "network", "//server/share"),
        ("/layers/usr", "overlay", "layers", "overlay"),
        ("/odd/x", "fuse.unheard-of", "fuse", "odd"),
        ("/host/x", "virtiofs", "host", "share"),
        ("/data/deep/er/x", "ext4", "local", "/dev/nvme0n1p3"),
    ],
)
def test_the_deepest_and_last_mount_holds_a_path(
    devices: Path, path: str, kind: str, place: str, source: str
) -> None:
    mount = mount_of(Path(path), devices)
    assert mount is not None
    assert (mount.kind, mount.place, mount.source) == (kind, place, source)


def test_what_the_disk_below_is(devices: Path) -> None:
    assert mount_of(Path("/disk/x"), devices) == Mount(
        Path("/disk"), "xfs", "local", "/dev/sdb1", rotational=True, virtual=False
    )
    fast = mount_of(Path("/data/deep/er"), devices)
    assert fast is not None
    assert (fast.rotational, fast.virtual) == (False, False)
    virtual = mount_of(Path("/"), devices)
    assert virtual is not None
    assert (virtual.rotational, virtual.virtual) == (True, True)
    network = mount_of(Path("/data"), devices)
    assert network is not None
    assert network.rotational is None


def test_a_system_without_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.disk_partitions", partitions(()))
    assert mount_of(Path("/")) is None


def test_links_are_followed_to_what_they_point_at(
    tmp_path: Path, devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    rows = (("/dev/vda", "/", "ext4"), ("filer:/x", f"{tmp_path.resolve()}/real", "nfs"))
    monkeypatch.setattr("psutil.disk_partitions", partitions(rows))
    mount = mount_of(tmp_path / "link", devices)
    assert mount is not None
    assert mount.kind == "nfs"


def test_this_machine_has_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mount = mount_of(Path("/"))
    assert mount is not None
    assert mount.point == Path("/")
