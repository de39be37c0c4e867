"""Where a path's bytes are kept: the kind of file system, and of the device below it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MOUNTS = Path("/proc/self/mountinfo")
BLOCK_DEVICES = Path("/sys/dev/block")

Place = Literal["local", "memory", "network", "host", "fuse", "layers"]

# Kinds of file system by where reads go; what isn't named is local. "host": a folder of the machine that runs
# this one (virtual machine, WSL, Docker Desktop), by way of a protocol as over a network.
PLACES: dict[str, Place] = {
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
    **dict.fromkeys(("overlay", "aufs"), "layers"),
    **dict.fromkeys(("9p", "virtiofs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse"), "host"),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "glusterfs"), "network"),
    **dict.fromkeys(("ceph", "lustre", "beegfs", "gpfs", "wekafs", "pvfs2"), "network"),
    # FUSE programs that are known to read over a network.
    **dict.fromkeys(
        (
            "fuse.sshfs",
            "fuse.s3fs",
            "fuse.mountpoint-s3",
            "fuse.mount-s3",
            "fuse.gcsfuse",
            "fuse.goofys",
            "fuse.rclone",
            "fuse.blobfuse2",
            "fuse.juicefs",
            "fuse.JuiceFS",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.glusterfs",
            "fuse.seaweedfs",
        ),
        "network",
    ),
}

# FUSE programs that keep their files on a disk of this machine.
LOCAL_FUSE = ("fuseblk", "fuse.ntfs-3g", "fuse.exfat", "fuse.mergerfs", "fuse.fuse-overlayfs")


@dataclass(frozen=True)
class Mount:
    """A mounted file system.

    Attributes:
        point: where it is mounted.
        kind: as the kernel names it: "ext4", "nfs4", "fuse.sshfs".
        place: where its reads go.
        source: the device, the server's path, or whatever the file system calls its source.
        rotational: the disk says that it turns, which virtual disks often say wrongly; None: no block device,
            or not known.
        virtual: the block device is a hypervisor's, which may be of any kind and may keep a cache.
    """

    point: Path
    kind: str
    place: Place
    source: str
    rotational: bool | None = None
    virtual: bool = False


def mount_of(path: Path, mounts: Path = MOUNTS, devices: Path = BLOCK_DEVICES) -> Mount | None:
    """The file system that holds `path`; None where the system doesn't say (not Linux)."""
    path = path.resolve()
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    best: tuple[Path, list[str], list[str]] | None = None
    for line in lines:
        # proc(5): id, parent, major:minor, root, mount point, options, optional ones - type, source, options.
        left, _, right = line.partition(" - ")
        fields, about = left.split(" "), right.split(" ")
        point = Path(_unescape(fields[4]))
        # Of mounts on one point the last is on top of the others.
        if path.is_relative_to(point) and (best is None or len(point.parts) >= len(best[0].parts)):
            best = (point, fields, about)
    if best is None:
        return None
    point, fields, about = best
    kind = about[0]
    device = devices / fields[2]
    return Mount(
        point=point,
        kind=kind,
        place=_place(kind),
        source=_unescape(about[1]),
        rotational=_rotational(device),
        virtual=re.match(r"(vd|xvd)[a-z]", device.resolve().name) is not None,
    )


def _place(kind: str) -> Place:
    if kind in PLACES:
        return PLACES[kind]
    return "fuse" if kind.startswith("fuse.") and kind not in LOCAL_FUSE else "local"


def _rotational(device: Path) -> bool | None:
    """By sysfs; a partition has no queue of its own, its disk, one folder up, has."""
    for folder in (device.resolve(), device.resolve().parent):
        try:
            return (folder / "queue" / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


def _unescape(text: str) -> str:
    """Spaces, tabs, line ends and backslashes are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
