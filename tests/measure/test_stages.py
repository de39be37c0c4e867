"""Which stage a stack shows, on stacks made by hand."""

from __future__ import annotations

import sysconfig

import pytest

from headrace.measure.stages import Blocked, Frame, Stage, classify, is_users
from headrace.measure.thread_state import call_table, of_call, of_letter

SITE = "/env/lib/python3.11/site-packages"
STDLIB = sysconfig.get_paths()["stdlib"]
TORCH = f"{SITE}/torch/utils/data"

# The frames that loading consists of, by a short name.
FRAMES = {
    "script": Frame("/home/u/train.py", "<module>", 1, 80),
    "train": Frame("/home/u/train.py", "train", 40, 41),
    "model": Frame(f"{SITE}/torchvision/models/resnet.py", "forward", 280, 285),
    "iter": Frame(f"{TORCH}/dataloader.py", "__iter__", 490, 495),
    "multi init": Frame(f"{TORCH}/dataloader.py", "__init__", 1100, 1160),
    "next": Frame(f"{TORCH}/dataloader.py", "__next__", 720, 725),
    "next data": Frame(f"{TORCH}/dataloader.py", "_next_data", 783, 785),
    "next index": Frame(f"{TORCH}/dataloader.py", "_next_index", 714, 715),
    "try get": Frame(f"{TORCH}/dataloader.py", "_try_get_data", 1280, 1290),
    "shutdown": Frame(f"{TORCH}/dataloader.py", "_shutdown_workers", 1608, 1656),
    "sampler": Frame(f"{TORCH}/sampler.py", "__iter__", 160, 165),
    "worker": Frame(f"{TORCH}/_utils/worker.py", "_worker_loop", 224, 330),
    "fetch": Frame(f"{TORCH}/_utils/fetch.py", "fetch", 49, 54),
    "fetch collates": Frame(
        f"{TORCH}/_utils/fetch.py", "fetch", 49, 57, source="return self.collate_fn(data)"
    ),
    "listcomp": Frame(f"{TORCH}/_utils/fetch.py", "<listcomp>", 54, 54),
    "timed": Frame("/x/headrace/measure/fetch_times.py", "__getitem__", 120, 122),
    "timed collate": Frame("/x/headrace/measure/fetch_times.py", "__call__", 170, 172),
    "sampled": Frame("/x/headrace/measure/worker_sampling.py", "sampled_worker_loop", 50, 60),
    "popen": Frame(f"{STDLIB}/multiprocessing/popen_fork.py", "_launch", 62, 66),
    "default collate": Frame(f"{TORCH}/_utils/collate.py", "default_collate", 350, 360),
    "user collate": Frame("/home/u/train.py", "pad", 20, 25),
    "getitem": Frame("/home/u/data.py", "__getitem__", 12, 15, source="x = self.images[index]"),
    "augment": Frame("/home/u/data.py", "mix", 30, 33, source="return a * b"),
    "opens": Frame("/home/u/data.py", "__getitem__", 12, 15, source="with open(path, 'rb') as f:"),
    "memmap": Frame("/home/u/data.py", "__getitem__", 12, 15, source="return np.load(path)"),
    "imdecode": Frame("/home/u/data.py", "__getitem__", 12, 15, source="x = cv2.imdecode(data, 1)"),
    "imread": Frame("/home/u/data.py", "read_image", 30, 31, source="return cv2.imread(path)"),
    "read_label": Frame("/home/u/data.py", "read_label", 30, 31, source="time.sleep(0.1)"),
    "slow read": Frame("/home/u/slow.py", "read", 7, 9, source="time.sleep(self.seconds)"),
    "readout": Frame("/home/u/data.py", "readout", 7, 9, source="return x @ w"),
    "folder": Frame(f"{SITE}/torchvision/datasets/folder.py", "__getitem__", 230, 245),
    "pil open": Frame(f"{SITE}/PIL/Image.py", "open", 3400, 3490),
    "pil convert": Frame(f"{SITE}/PIL/Image.py", "convert", 900, 950),
    "pil load": Frame(f"{SITE}/PIL/ImageFile.py", "load", 200, 300, source="n, e = decoder.decode(b)"),
    "pil load reads": Frame(f"{SITE}/PIL/ImageFile.py", "load", 200, 290, source="s = read(self.block)"),
    "tv decode": Frame(f"{SITE}/torchvision/io/image.py", "decode_jpeg", 150, 170),
    "tv read": Frame(f"{SITE}/torchvision/io/image.py", "read_file", 50, 60),
    "h5": Frame(f"{SITE}/h5py/_hl/dataset.py", "__getitem__", 700, 760),
    "zip": Frame(f"{STDLIB}/zipfile.py", "_read1", 1000, 1010),
    "compose": Frame(f"{SITE}/torchvision/transforms/transforms.py", "__call__", 93, 95, container=True),
    "compose lambda": Frame("/home/u/compose.py", "__call__", 93, 95, container=True),
    "jitter call": Frame(
        f"{SITE}/torch/nn/modules/module.py", "_wrapped_call_impl", 1770, 1779, owner="ColorJitter"
    ),
    "blur call": Frame(
        f"{SITE}/torch/nn/modules/module.py", "_wrapped_call_impl", 1770, 1779, owner="GaussianBlur"
    ),
    "sequential call": Frame(
        f"{SITE}/torch/nn/modules/module.py", "_wrapped_call_impl", 1770, 1779, owner="Sequential"
    ),
    "call impl": Frame(f"{SITE}/torch/nn/modules/module.py", "_call_impl", 1780, 1790, owner="Module"),
    "sequential": Frame(f"{SITE}/torch/nn/modules/container.py", "forward", 240, 245, container=True),
    "jitter": Frame(
        f"{SITE}/torchvision/transforms/transforms.py", "forward", 1270, 1290, owner="ColorJitter"
    ),
    "v2 transform": Frame(
        f"{SITE}/torchvision/transforms/v2/_transform.py", "forward", 40, 50, owner="Transform"
    ),
    "heavy": Frame("/home/u/data.py", "__call__", 50, 52, owner="Heavy"),
    "lambda": Frame("/home/u/train.py", "<lambda>", 12, 12),
    "v2 resize": Frame(f"{SITE}/torchvision/transforms/v2/functional/_geometry.py", "resize", 190, 200),
    "feed": Frame(f"{STDLIB}/multiprocessing/queues.py", "_feed", 216, 244),
    "queue get": Frame(f"{STDLIB}/multiprocessing/queues.py", "get", 98, 113),
    "queue loads": Frame(
        f"{STDLIB}/multiprocessing/queues.py", "get", 98, 122, source="return _ForkingPickler.loads(res)"
    ),
    "poll": Frame(f"{STDLIB}/selectors.py", "select", 400, 415, source="events = self._selector.poll(t)"),
    "recv": Frame(f"{STDLIB}/multiprocessing/connection.py", "_recv", 380, 390),
    "rebuild": Frame(f"{SITE}/torch/multiprocessing/reductions.py", "rebuild_storage_fd", 510, 515),
    "reduce": Frame(f"{SITE}/torch/multiprocessing/reductions.py", "reduce_storage", 580, 590),
    "condition": Frame(f"{STDLIB}/threading.py", "wait", 295, 320, source="waiter.acquire()"),
    "pin loop": Frame(f"{TORCH}/_utils/pin_memory.py", "_pin_memory_loop", 18, 50),
    "pin": Frame(f"{TORCH}/_utils/pin_memory.py", "pin_memory", 52, 55),
    "thread": Frame(f"{STDLIB}/threading.py", "run", 970, 980),
    "user thread": Frame("/home/u/train.py", "prepare", 60, 66, source="x = x + 1"),
    "user lock": Frame("/home/u/train.py", "prepare", 60, 66, source="with self.lock:"),
    "synchronise": Frame("/home/u/train.py", "train", 40, 44, source="total += loss.item()"),
}
IN_WORKER = "sampled worker fetch listcomp timed "

CASES: list[tuple[str, Blocked, str, Stage | None]] = [
    # stack, blocked, thread, what it is
    ("", "running", "", None),
    ("script train model", "running", "", Stage("step", "step", False)),
    ("script synchronise", "futex", "", Stage("step", "step", False)),
    ("script train iter multi-init popen", "running", "", Stage("wait", "start", False)),
    ("script train next next-data next-index sampler", "running", "", Stage("wait", "index", False)),
    ("script train next try-get queue-get poll", "waiting", "", Stage("wait", "wait", True)),
    ("script train next try-get condition", "futex", "", Stage("wait", "wait", True)),
    ("script train next try-get queue-get recv", "reading", "", Stage("wait", "receive", True)),
    ("script train next try-get queue-loads rebuild", "running", "", Stage("wait", "receive", False)),
    ("script train next next-data pin", "running", "", Stage("wait", "pin", False)),
    ("script train shutdown popen", "waiting", "", Stage("wait", "stop", True)),
    ("script train next next-data fetch listcomp getitem", "running", "",
     Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    ("sampled", "reading", "", Stage("fetch", "start", True)),
    ("sampled worker queue-get poll", "waiting", "", Stage("fetch", "idle", True)),
    ("script train iter multi-init popen sampled worker queue-get poll", "waiting", "",
     Stage("fetch", "idle", True)),
    ("worker getitem", "running", "", Stage("fetch", "start", False)),
    (IN_WORKER + "getitem", "running", "", Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    (IN_WORKER + "getitem augment", "running", "", Stage("fetch", "dataset:mix (data.py:30)", False)),
    (IN_WORKER + "getitem augment", "futex", "", Stage("fetch", "dataset:mix (data.py:30)", False)),
    (IN_WORKER + "getitem augment", "sleeping", "", Stage("fetch", "dataset:mix (data.py:30)", True)),
    (IN_WORKER + "getitem augment", "reading", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem readout", "running", "", Stage("fetch", "dataset:readout (data.py:7)", False)),
    (IN_WORKER + "folder", "running", "", Stage("fetch", "dataset:__getitem__ (folder.py:230)", False)),
    (IN_WORKER, "running", "", Stage("fetch", "dataset:__getitem__", False)),
    (IN_WORKER + "opens", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "memmap", "reading", "", Stage("fetch", "read", True)),
    (IN_WORKER + "memmap", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem slow-read", "sleeping", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem read_label", "sleeping", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem h5", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem zip", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem tv-read", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem pil-open", "running", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem pil-convert pil-load", "running", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem pil-convert pil-load-reads", "running", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem pil-convert pil-load", "reading", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem pil-convert pil-load slow-read", "sleeping", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem tv-decode", "running", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "imdecode", "running", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem imread", "running", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "folder compose jitter-call call-impl jitter", "running", "",
     Stage("fetch", "transform:ColorJitter", False)),
    (IN_WORKER + "folder compose jitter-call call-impl jitter pil-convert", "running", "",
     Stage("fetch", "transform:ColorJitter", False)),
    (IN_WORKER + "folder compose jitter-call call-impl jitter pil-load", "running", "",
     Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem compose-lambda lambda", "running", "",
     Stage("fetch", "transform:<lambda> (train.py:12)", False)),
    (IN_WORKER + "getitem compose sequential-call call-impl sequential blur-call v2-transform", "running", "",
     Stage("fetch", "transform:GaussianBlur", False)),
    (IN_WORKER + "getitem compose heavy sequential blur-call", "running", "",
     Stage("fetch", "transform:Heavy", False)),
    (IN_WORKER + "getitem compose heavy", "sleeping", "", Stage("fetch", "transform:Heavy", True)),
    (IN_WORKER + "getitem blur-call call-impl v2-transform", "running", "",
     Stage("fetch", "transform:GaussianBlur", False)),
    (IN_WORKER + "getitem v2-resize", "running", "", Stage("fetch", "transform:resize", False)),
    (IN_WORKER + "read_label v2-resize", "running", "", Stage("fetch", "transform:resize", False)),
    ("sampled worker fetch timed-collate default-collate", "running", "", Stage("fetch", "collate", False)),
    ("sampled worker fetch timed-collate user-collate", "reading", "", Stage("fetch", "collate", True)),
    ("worker fetch-collates user-collate", "running", "", Stage("fetch", "collate", False)),
    ("thread feed condition", "futex", "QueueFeederThread", Stage("send", "idle", True)),
    ("thread feed reduce", "running", "QueueFeederThread", Stage("send", "send", False)),
    ("thread feed", "waiting", "QueueFeederThread", Stage("send", "send", True)),
    ("thread pin-loop queue-get poll", "waiting", "Thread", Stage("pin", "idle", True)),
    ("thread pin-loop queue-loads rebuild", "running", "Thread", Stage("pin", "receive", False)),
    ("thread pin-loop pin", "running", "Thread", Stage("pin", "pin", False)),
    ("thread user-thread", "futex", "Prefetch", Stage("other:Prefetch", "code:prepare (train.py:60)", False)),
    ("thread user-lock", "futex", "Prefetch", Stage("other:Prefetch", "idle", True)),
    ("thread user-thread pil-load", "running", "Prefetch", Stage("other:Prefetch", "decode", False)),
]  # fmt: skip


def frames(names: str) -> list[Frame]:
    """By names in which hyphens stand for spaces, or for none."""
    return [FRAMES[name] if name in FRAMES else FRAMES[name.replace("-", " ")] for name in names.split()]


@pytest.mark.parametrize(("stack", "blocked", "thread", "stage"), CASES, ids=lambda value: str(value)[-60:])
def test_stack_shows_its_stage(stack: str, blocked: Blocked, thread: str, stage: Stage | None) -> None:
    assert classify(frames(stack), blocked, thread) == stage


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        ("/home/u/train.py", True),
        ("<ipython-input-3>", True),
        (f"{SITE}/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        (f"{STDLIB}/random.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/x/headrace/measure/fetch_times.py", False),
    ],
)
def test_code_is_the_users_unless_installed(filename: str, users: bool) -> None:
    assert is_users(filename) == users


@pytest.mark.parametrize(
    ("machine", "text", "blocked"),
    [
        ("x86_64", b"0 0x3 0x7f5 0x20000 0x0 0x0 0x0 0x7ff 0x7f5", "reading"),
        ("x86_64", b"257 0xffffff9c", "reading"),
        ("x86_64", b"230 0x1", "sleeping"),
        ("x86_64", b"202 0x7f", "futex"),
        ("x86_64", b"7 0x7f", "waiting"),
        ("aarch64", b"63 0x3", "reading"),
        ("aarch64", b"115 0x1", "sleeping"),
        ("aarch64", b"98 0x1", "futex"),
        ("aarch64", b"0 0x3", "waiting"),
        ("x86_64", b"-1 0x7ffc 0x7f50", "reading"),
        ("x86_64", b"running\n", "running"),
    ],
)
def test_calls_are_told_by_number(machine: str, text: bytes, blocked: Blocked) -> None:
    assert of_call(text, call_table(machine)) == blocked


def test_state_letter_tells_less() -> None:
    assert [of_letter(letter) for letter in (b"R", b"D", b"S", b"T")] == [
        "running",
        "reading",
        "blocked",
        "blocked",
    ]
