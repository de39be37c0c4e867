"""Nothing is sent anywhere: an ordinary run opens no socket but those of this machine and this user."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from headrace._native import ffi
from support.jpegs import image_folder
from support.python import run_python

# Every way by which Python code comes to talk to somebody else raises one of these events.
SCRIPT = """
import json, sys

seen = []

def note(event, arguments):
    if event == "socket.__new__":
        seen.append([event, int(arguments[1])])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        seen.append([event, repr(arguments)])

sys.addaudithook(note)

import torch, headrace
from torchvision import transforms
from torchvision.datasets import ImageFolder

def python_step(image):
    return image

def main():
    native = [transforms.RandomResizedCrop(16), transforms.ToTensor()]
    steps = (native, [native[0], transforms.Lambda(python_step), native[1]])
    for transform in steps:
        dataset = ImageFolder(sys.argv[1], transforms.Compose(transform))
        for workers in (0, 2, "auto"):
            loader = headrace.DataLoader(dataset, 4, shuffle=True, num_workers=workers)
            for epoch in range(2):
                for images, labels in loader:
                    pass
            loader.state_dict(), loader.explain(), str(loader.stats())
    packed = headrace.pack(sys.argv[1], sys.argv[2]).path
    list(headrace.DataLoader(headrace.PackedDataset(packed, dataset.transform), 4))
    print(json.dumps(seen))

main()
"""


def test_an_ordinary_run_talks_to_nobody(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", 12, side=40)
    done = run_python(SCRIPT, folder, tmp_path / "pack", fresh=True, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    # The one that `headrace top` asks is seen; sockets of that family end at this machine.
    assert seen
    assert {tuple(each) for each in seen} == {("socket.__new__", int(socket.AF_UNIX))}


def test_native_code_knows_no_sockets() -> None:
    library = ffi._find().read_bytes()
    assert b"\0pread" in library, "names of what it calls can be seen"
    for name in (b"socket", b"connect", b"getaddrinfo", b"sendto", b"sendmsg", b"gethostbyname"):
        assert b"\0" + name + b"\0" not in library
