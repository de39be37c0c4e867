"""Where a path's bytes are kept, by the system's list of mounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_doctor.measure.storage import mount_of

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


@pytest.mark.parametrize(
    ("path", "kind", "place", "source"),
    [
        ("/data2/x", "ext4", "local", "/dev/vda"),
        ("/dev/shm/x", "tmpfs", "memory", "tmpfs"),
        ("/data/my photos/1", "fuse.sshfs", "fuse", "me@host:/photos"),
        ("/data/other", "cifs", "network", "//server/share"),
        ("/layers/usr", "overlay", "layers", "overlay"),
        ("/odd/x", "fuse.unheard-of", "fuse", "odd"),
        ("/host/x", "virtiofs", "host", "share"),
        ("/data/deep/er/x", "ext4", "local", "/dev/nvme0n1p3"),
    ],
)
def test_the_deepest_and_last_mount_holds_a_path(path: str, kind: str, place: str, source: str) -> None:
    mount = mount_of(Path(path))
    assert mount is not None
    assert (mount.kind, mount.place, mount.source) == (kind, place, source)


def test_a_system_without_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.disk_partitions", partitions(()))
    assert mount_of(Path("/")) is None


def test_links_are_followed_to_what_they_point_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    rows = (("/dev/vda", "/", "ext4"), ("filer:/x", f"{tmp_path.resolve()}/real", "nfs"))
    monkeypatch.setattr("psutil.disk_partitions", partitions(rows))
    mount = mount_of(tmp_path / "link")
    assert mount is not None
    assert mount.kind == "nfs"


def test_this_machine_has_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mount = mount_of(Path("/"))
    assert mount is not None
    assert mount.point == Path("/")
