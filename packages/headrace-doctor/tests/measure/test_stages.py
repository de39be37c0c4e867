"""Which stage a stack shows, on stacks made by hand."""

from __future__ import annotations

import sys
import sysconfig
import types
from pathlib import Path

import pytest
from torchvision import transforms
from torchvision.transforms import v2

from headrace_doctor.measure.stages import TORCHS, Frame, Stage, classify, is_users, stage_of, walk

SITE = "/env/lib/python3.11/site-packages"
STDLIB = sysconfig.get_paths()["stdlib"]
TORCH = f"{SITE}/torch/utils/data"

# The frames that loading consists of, by a short name.
FRAMES = {
    "script": Frame("/home/u/train.py", "<module>", 1, 80),
    "train": Frame("/home/u/train.py", "train", 40, 41),
    "iter": Frame(f"{TORCH}/dataloader.py", "__iter__", 490, 495),
    "multi init": Frame(f"{TORCH}/dataloader.py", "__init__", 1100, 1160),
    "next": Frame(f"{TORCH}/dataloader.py", "__next__", 720, 725),
    "next data": Frame(f"{TORCH}/dataloader.py", "_next_data", 783, 785),
    "next index": Frame(f"{TORCH}/dataloader.py", "_next_index", 714, 715),
    "try get": Frame(f"{TORCH}/dataloader.py", "_try_get_data", 1280, 1290),
    "sampler": Frame(f"{TORCH}/sampler.py", "__iter__", 160, 165),
    "batches": Frame(f"{TORCH}/sampler.py", "__iter__", 340, 345, owner="BatchSampler"),
    "weights": Frame(f"{TORCH}/sampler.py", "__iter__", 270, 275, owner="WeightedRandomSampler"),
    "curriculum": Frame("/home/u/order.py", "__iter__", 20, 22, owner="Curriculum"),
    "worker": Frame(f"{TORCH}/_utils/worker.py", "_worker_loop", 224, 330),
    "fetch": Frame(f"{TORCH}/_utils/fetch.py", "fetch", 49, 54),
    "fetch collates": Frame(
        f"{TORCH}/_utils/fetch.py", "fetch", 49, 57, source="return self.collate_fn(data)"
    ),
    "listcomp": Frame(f"{TORCH}/_utils/fetch.py", "<listcomp>", 54, 54),
    "timed": Frame("/x/headrace_doctor/measure/sampler.py", "__getitem__", 120, 122),
    "popen": Frame(f"{STDLIB}/multiprocessing/popen_fork.py", "_launch", 62, 66),
    "default collate": Frame(f"{TORCH}/_utils/collate.py", "default_collate", 350, 360),
    "user collate": Frame("/home/u/train.py", "pad", 20, 25),
    "getitem": Frame("/home/u/data.py", "__getitem__", 12, 15, source="x = self.images[index]"),
    "augment": Frame("/home/u/data.py", "mix", 30, 33, source="return a * b"),
    "opens": Frame("/home/u/data.py", "__getitem__", 12, 15, source="with open(path, 'rb') as f:"),
    "memmap": Frame("/home/u/data.py", "__getitem__", 12, 15, source="return np.load(path)"),
    "imread": Frame("/home/u/data.py", "read_image", 30, 31, source="return cv2.imread(path)"),
    "read_label": Frame("/home/u/data.py", "read_label", 30, 31, source="time.sleep(0.1)"),
    "slow read": Frame("/home/u/slow.py", "read", 7, 9, source="time.sleep(self.seconds)"),
    "folder": Frame(f"{SITE}/torchvision/datasets/folder.py", "__getitem__", 230, 245),
    "pil open": Frame(f"{SITE}/PIL/Image.py", "open", 3400, 3490),
    "pil convert": Frame(f"{SITE}/PIL/Image.py", "convert", 900, 950),
    "pil load": Frame(f"{SITE}/PIL/ImageFile.py", "load", 200, 300, source="n, e = decoder.decode(b)"),
    "tv decode": Frame(f"{SITE}/torchvision/io/image.py", "decode_jpeg", 150, 170),
    "tv read": Frame(f"{SITE}/torchvision/io/image.py", "read_file", 50, 60),
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
    "random apply": Frame(
        f"{SITE}/torchvision/transforms/v2/_transform.py", "forward", 170, 180, owner="_RandomApplyTransform"
    ),
    "v2 flip": Frame(
        f"{SITE}/torchvision/transforms/v2/_geometry.py", "transform", 60, 61, owner="RandomHorizontalFlip"
    ),
    "heavy": Frame("/home/u/data.py", "__call__", 50, 52, owner="Heavy"),
    "sleeps": Frame("/home/u/data.py", "rest", 60, 62, source="time.sleep(0.1)"),
    "v2 blur": Frame(f"{SITE}/torchvision/transforms/v2/_misc.py", "transform", 40, 50, owner="GaussianBlur"),
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
    "receives": Frame("/home/u/data.py", "__iter__", 30, 34, source="clip = self.queue.get()"),
    "reduce": Frame(f"{SITE}/torch/multiprocessing/reductions.py", "reduce_storage", 580, 590),
    "condition": Frame(f"{STDLIB}/threading.py", "wait", 295, 320, source="waiter.acquire()"),
    "pin loop": Frame(f"{TORCH}/_utils/pin_memory.py", "_pin_memory_loop", 18, 50),
    "pin": Frame(f"{TORCH}/_utils/pin_memory.py", "pin_memory", 52, 55),
    "thread": Frame(f"{STDLIB}/threading.py", "run", 970, 980),
    "user thread": Frame("/home/u/train.py", "prepare", 60, 66, source="x = x + 1"),
    "user lock": Frame("/home/u/train.py", "prepare", 60, 66, source="with self.lock:"),
    "user-lock": Frame("/home/u/train.py", "prepare", 60, 66, source="with self.lock:"),
    "semaphore": Frame(
        f"{STDLIB}/multiprocessing/synchronize.py",
        "__enter__",
        94,
        95,
        source="return self._semlock.__enter__()",
    ),
    "call-impl": Frame(f"{SITE}/torch/nn/modules/module.py", "_call_impl", 1780, 1790, owner="Module"),
    "save": Frame(f"{SITE}/torch/serialization.py", "save", 900, 960),
    "convert-frame": Frame(f"{SITE}/torch/_dynamo/convert_frame.py", "__call__", 500, 520),
    "streaming-getitem": Frame("/home/u/streaming/data.py", "__getitem__", 12, 15, source="return a * b"),
    "saves-weights": Frame("/home/u/train.py", "save_checkpoint", 70, 72),
    "graph-run": Frame(f"{SITE}/torch/_inductor/compile_fx.py", "run", 1700, 1710),
    "compile-fx": Frame(f"{SITE}/torch/_inductor/compile_fx.py", "compile_fx", 1500, 1600),
    "given": Frame("/x/headrace_doctor/measure/subject.py", "__next__", 60, 61),
    "copied": Frame("/x/headrace/_torch_compat.py", "map_tree", 182, 190),
    "seeks": Frame("/home/u/data.py", "clip", 32, 35, source="video.set(cv2.CAP_PROP_POS_FRAMES, first)"),
    "grid": Frame("/home/u/train.py", "show", 94, 96, source="save_image(samples, f'{step}.png')"),
    "dumps": Frame("/home/u/train.py", "note", 90, 92, source="json.dump(rows, file, indent=1)"),
    "writes": Frame(
        "/home/u/train.py", "note", 90, 91, source='with path.open("w", encoding="utf-8") as file:'
    ),
    "loads": Frame("/home/u/train.py", "note", 90, 91, source="with path.open(encoding='ascii') as file:"),
    "encoder": Frame(f"{STDLIB}/json/encoder.py", "_iterencode_dict", 330, 400),
    "logger": Frame(f"{STDLIB}/logging/__init__.py", "info", 1500, 1501),
    "compute": Frame(f"{SITE}/pyarrow/compute.py", "equal", 240, 250),
    "read-table": Frame(f"{SITE}/pyarrow/parquet/core.py", "read_table", 1800, 1850),
    "backward": Frame(f"{SITE}/torch/_tensor.py", "backward", 600, 640),
    "adam": Frame(f"{SITE}/torch/optim/adam.py", "step", 200, 240),
    "synchronise": Frame("/home/u/train.py", "train", 40, 44, source="total += loss.item()"),
}
IN_WORKER = "worker fetch listcomp timed "

CASES: list[tuple[str, str, str, Stage]] = [
    # stack, state, thread, stage
    ("script train call-impl", "R", "", Stage("step", "forward", False)),
    ("script synchronise", "S", "", Stage("step", "read-back", False)),
    ("script train save", "R", "", Stage("step", "checkpoint", False)),
    ("script train convert-frame", "R", "", Stage("step", "compile", False)),
    ("script train backward", "R", "", Stage("step", "backward", False)),
    ("script train adam", "R", "", Stage("step", "optimizer", False)),
    ("script augment", "R", "", Stage("step", "code:mix (data.py:30)", False)),
    (IN_WORKER + "getitem compute", "R", "", Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    (IN_WORKER + "getitem read-table", "R", "", Stage("fetch", "read", False)),
    (IN_WORKER + "receives queue-loads", "R", "", Stage("fetch", "receive", False)),
    (IN_WORKER + "receives queue-get poll", "S", "", Stage("fetch", "dataset:__iter__ (data.py:30)", True)),
    (IN_WORKER + "getitem user-lock", "S", "", Stage("fetch", "lock", True)),
    (IN_WORKER + "getitem user-lock", "R", "", Stage("fetch", "dataset:prepare (train.py:60)", False)),
    (IN_WORKER + "getitem semaphore", "S", "", Stage("fetch", "lock", True)),
    ("script train iter multi-init popen", "R", "", Stage("wait", "wait", False)),
    ("script train next next-data next-index sampler", "R", "", Stage("wait", "sampler:sampler", False)),
    ("script train next next-data next-index batches weights", "R", "",
     Stage("wait", "sampler:WeightedRandomSampler", False)),
    ("script train iter multi-init curriculum augment", "R", "", Stage("wait", "sampler:Curriculum", False)),
    ("script train next next-data next-index", "R", "", Stage("wait", "sampler:sampler", False)),
    ("script train next try-get queue-get poll", "S", "", Stage("wait", "wait", True)),
    ("script train next try-get queue-get recv", "D", "", Stage("wait", "receive", True)),
    ("script train next try-get queue-loads rebuild", "R", "", Stage("wait", "receive", False)),
    ("script train next next-data pin", "R", "", Stage("wait", "pin", False)),
    ("script train next next-data fetch listcomp getitem", "R", "",
     Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    ("worker queue-get poll", "S", "", Stage("fetch", "idle", True)),
    ("script train iter multi-init popen worker queue-get poll", "S", "",
     Stage("fetch", "idle", True)),
    ("worker getitem", "R", "", Stage("fetch", "start", False)),
    (IN_WORKER + "getitem", "R", "", Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    (IN_WORKER + "getitem augment", "R", "", Stage("fetch", "dataset:mix (data.py:30)", False)),
    (IN_WORKER + "getitem augment", "D", "", Stage("fetch", "read", True)),
    (IN_WORKER, "R", "", Stage("fetch", TORCHS, False)),
    # From Python 3.12 on, a comprehension has no frame of its own.
    ("worker fetch", "R", "", Stage("fetch", TORCHS, False)),
    (IN_WORKER + "opens", "R", "", Stage("fetch", "read", False)),
    (IN_WORKER + "memmap", "D", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem slow-read", "S", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem read_label", "S", "", Stage("fetch", "dataset:read_label (data.py:30)", True)),
    (IN_WORKER + "streaming-getitem", "R", "", Stage("fetch", "dataset:__getitem__ (data.py:12)", False)),
    ("script saves-weights", "R", "", Stage("step", "checkpoint", False)),
    ("script train call-impl graph-run", "R", "", Stage("step", "forward", False)),
    ("script train call-impl compile-fx", "R", "", Stage("step", "compile", False)),
    ("script train given copied", "R", "", Stage("wait", "wait", False)),
    ("script train logger", "R", "", Stage("step", "logging", False)),
    ("script train dumps encoder", "R", "", Stage("step", "logging", False)),
    ("script train writes", "R", "", Stage("step", "logging", False)),
    ("script train grid", "R", "", Stage("step", "logging", False)),
    ("script train loads", "R", "", Stage("step", "code:note (train.py:90)", False)),
    ("script dumps train", "R", "", Stage("step", "code:train (train.py:40)", False)),
    (IN_WORKER + "getitem tv-read", "R", "", Stage("fetch", "read", False)),
    (IN_WORKER + "getitem pil-open", "R", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem pil-convert pil-load", "R", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem pil-convert pil-load", "D", "", Stage("fetch", "read", True)),
    (IN_WORKER + "getitem tv-decode", "R", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem imread", "R", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem seeks", "R", "", Stage("fetch", "decode", False)),
    (IN_WORKER + "folder compose jitter-call call-impl jitter", "R", "",
     Stage("fetch", "transform:ColorJitter", False)),
    (IN_WORKER + "folder compose jitter-call call-impl jitter pil-load", "R", "",
     Stage("fetch", "decode", False)),
    (IN_WORKER + "getitem compose-lambda lambda", "R", "",
     Stage("fetch", "transform:<lambda> (train.py:12)", False)),
    (IN_WORKER + "getitem compose sequential-call call-impl sequential blur-call v2-transform v2-blur", "R",
     "",
     Stage("fetch", "transform:GaussianBlur", False)),
    (IN_WORKER + "getitem compose heavy sleeps", "S", "", Stage("fetch", "transform:Heavy", True)),
    (IN_WORKER + "getitem blur-call call-impl v2-transform v2-blur", "R", "",
     Stage("fetch", "transform:GaussianBlur", False)),
    (IN_WORKER + "folder compose", "R", "", Stage("fetch", "transform:", False)),
    (IN_WORKER + "folder compose blur-call call-impl random-apply", "R", "",
     Stage("fetch", "transform:", False)),
    (IN_WORKER + "folder compose blur-call call-impl random-apply v2-flip", "R", "",
     Stage("fetch", "transform:RandomHorizontalFlip", False)),
    (IN_WORKER + "getitem v2-resize", "R", "", Stage("fetch", "transform:resize", False)),
    ("worker fetch-collates default-collate", "R", "", Stage("fetch", "collate", False)),
    ("worker fetch-collates user-collate", "D", "", Stage("fetch", "collate", True)),
    ("thread feed condition", "S", "QueueFeederThread", Stage("send", "idle", True)),
    ("thread feed reduce", "R", "QueueFeederThread", Stage("send", "send", False)),
    ("thread pin-loop queue-get poll", "S", "Thread", Stage("pin", "idle", True)),
    ("thread pin-loop queue-loads rebuild", "R", "Thread", Stage("pin", "receive", False)),
    ("thread pin-loop pin", "R", "Thread", Stage("pin", "pin", False)),
    ("thread user-thread", "S", "Prefetch", Stage("other:Prefetch", "code:prepare (train.py:60)", False)),
    ("thread user-lock", "S", "Prefetch", Stage("other:Prefetch", "idle", True)),
]  # fmt: skip


def frames(names: str) -> list[Frame]:
    """By names in which hyphens stand for spaces, or for none."""
    return [FRAMES[name] if name in FRAMES else FRAMES[name.replace("-", " ")] for name in names.split()]


@pytest.mark.parametrize(("stack", "state", "thread", "stage"), CASES, ids=lambda value: str(value)[-60:])
def test_a_stack_is_classified_by_its_stage(stack: str, state: str, thread: str, stage: Stage) -> None:
    assert classify(frames(stack), state, thread) == stage


@pytest.mark.parametrize(
    ("filename", "users"),
    [
        ("/home/u/train.py", True),
        ("<ipython-input-3>", True),
        (f"{SITE}/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        (f"{STDLIB}/random.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("/x/headrace_doctor/measure/sampler.py", False),
    ],
)
def test_code_is_the_users_unless_installed(filename: str, users: bool) -> None:
    assert is_users(filename) == users


ASKING = """\
class {name}:
    def __call__(self, ask):
        return ask()
"""


def test_equal_code_of_two_files_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython takes code objects to be equal that differ only in their file and in their class's name."""

    def ask() -> tuple[Stage, str]:
        return stage_of(walk(sys._getframe(1)), "R", "Prefetch")

    found = []
    for file, name in (
        ("first.py", "Ask"),
        ("site-packages/PIL/JpegImagePlugin.py", "Ask"),
        ("second.py", "Blur"),
    ):
        path, module = tmp_path / file, types.ModuleType(Path(file).stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ASKING.format(name=name))
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(path.read_text(), path, "exec"), vars(module))
        asking = vars(module)[name]()
        (by_itself, line), (as_transform, _) = asking(ask), transforms.Compose([asking])(ask)
        found.append((by_itself.key, as_transform.key, line if is_users(str(path)) else ""))
    assert found == [
        ("code:__call__ (first.py:2)", "transform:Ask", "first.py:3 __call__: return ask()"),
        ("decode", "transform:Ask", ""),
        ("code:__call__ (second.py:2)", "transform:Blur", "second.py:3 __call__: return ask()"),
    ]


class Probe:
    """Not local to its test: Python 3.10 has no `co_qualname`, and the class is searched for in modules."""

    def __init__(self, seen: list[tuple[Stage, str]]) -> None:
        self.seen = seen

    def __call__(self, image: object) -> object:
        self.seen.append(stage_of(walk(sys._getframe()), "R", "Prefetch"))
        return image


def test_stacks_of_real_code_are_named_after_what_runs() -> None:
    """A stack of torchvision's own code, not typed by hand: as installed here."""
    seen: list[tuple[Stage, str]] = []
    transforms.Compose([transforms.Lambda(lambda image: image), v2.Lambda(Probe(seen)), Probe(seen)])(None)
    stages = [stage.key for stage, _ in seen]
    assert stages == ["transform:Lambda", "transform:Probe"]
    assert " __call__: self.seen.append(" in seen[0][1]
