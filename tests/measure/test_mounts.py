"""Where a path's bytes are kept, by what Linux writes about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.measure.mounts import Mount, mount_of

# As proc(5) lays it out; from a virtual machine, a container and a workstation.
MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:27 / /dev/shm rw,relatime shared:4 - tmpfs tmpfs rw,size=65536k
31 27 8:17 / /disk rw,relatime shared:2 master:1 - xfs /dev/sdb1 rw
32 27 0:50 / /data rw - nfs4 filer:/export/data rw,vers=4.2
33 32 0:51 / /data/my\040photos rw - fuse.sshfs me@host:/photos rw
34 27 0:52 / /layers rw - overlay overlay rw,lowerdir=/a,upperdir=/b
35 27 0:53 / /odd rw - fuse.unheard-of odd rw
36 27 259:3 / /data/deep/er rw - ext4 /dev/nvme0n1p3 rw
37 32 0:54 / /data rw - cifs //server/share rw
38 27 0:55 / /host rw - virtiofs share rw
""".lstrip()


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    return tmp_path / "mountinfo"


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """As in /sys/dev/block: links to devices; a partition lies inside its disk, which has the queue."""
    for disk, partition, number, turns in (
        ("sdb", "sdb1", "8:17", "1"),
        ("nvme0n1", "nvme0n1p3", "259:3", "0"),
        ("vda", "", "254:0", "1"),
    ):
        queue = tmp_path / "devices" / disk / "queue"
        queue.mkdir(parents=True)
        (queue / "rotational").write_text(f"{turns}\n")
        folder = tmp_path / "devices" / disk / partition
        folder.mkdir(exist_ok=True)
        (tmp_path / "block").mkdir(exist_ok=True)
        (tmp_path / "block" / number).symlink_to(folder)
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
    mounts: Path, devices: Path, path: str, kind: str, place: str, source: str
) -> None:
    mount = mount_of(Path(path), mounts, devices)
    assert mount is not None
    assert (mount.kind, mount.place, mount.source) == (kind, place, source)


def test_what_the_disk_below_is(mounts: Path, devices: Path) -> None:
    assert mount_of(Path("/disk/x"), mounts, devices) == Mount(
        Path("/disk"), "xfs", "local", "/dev/sdb1", rotational=True, virtual=False
    )
    fast = mount_of(Path("/data/deep/er"), mounts, devices)
    assert fast is not None
    assert (fast.rotational, fast.virtual) == (False, False)
    virtual = mount_of(Path("/"), mounts, devices)
    assert virtual is not None
    assert (virtual.rotational, virtual.virtual) == (True, True)
    network = mount_of(Path("/data"), mounts, devices)
    assert network is not None
    assert network.rotational is None


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert mount_of(Path("/"), tmp_path / "nothing") is None


def test_links_are_followed_to_what_they_point_at(tmp_path: Path, devices: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "info").write_text(
        f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:9 / {tmp_path.resolve()}/real rw - nfs filer:/x rw\n"
    )
    mount = mount_of(tmp_path / "link", tmp_path / "info", devices)
    assert mount is not None
    assert mount.kind == "nfs"


def test_this_machine_has_a_root() -> None:
    mount = mount_of(Path("/"))
    assert mount is not None
    assert mount.point == Path("/")
