"""From a torch dataset to images, labels and a transform, or to the reason why it must run as it is.

Only classes whose `__getitem__` is known by heart are recognised, and only they: a subclass may do anything.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import DatasetFolder, ImageFolder, ImageNet
from torchvision.datasets.folder import default_loader, pil_loader

from headrace._native.decoders import native_formats
from headrace.plan.arrays import COLOUR, GREY, patched_reason, read_images
from headrace.records import EntryPoints, Mode
from headrace.sources.arrays import ArraySource
from headrace.sources.folder import EXTENSIONS, ImageSource, concatenate, find_entry_points
from headrace.sources.image import ImageDataset
from headrace.sources.pack import PackSource
from headrace.sources.packed import PackedDataset
from headrace.sources.source import Source
from headrace.transforms.decode_image import torchvision_decodes_as_pillow
from headrace.transforms.op import UNKNOWN, Extent
from headrace.transforms.origin import describe_callable, located, patched_text
from headrace.transforms.own_code import reading_mode_of, reads_tensors
from headrace.transforms.patches import find_patched

FOLDERS: tuple[type, ...] = (ImageFolder, DatasetFolder, ImageNet)
KNOWN: tuple[type, ...] = (*FOLDERS, *COLOUR, *GREY, ImageDataset, PackedDataset, Subset, ConcatDataset)

STREAMED = "an IterableDataset itself decides which sample comes next: runs as written"
NOT_GATHERED = "runs as written: rows are gathered natively for the default collate_fn and batching only"
REPLACES_WITHIN = "what replaces an unreadable file need not be among these samples: runs as written"
OTHER_CLASS = (
    "runs as written: native code replaces known classes only. For image files with integer labels,"
    " headrace.ImageDataset is one"
)


@dataclass(frozen=True, eq=False)
class Recognised:
    """A dataset that native code can read.

    Attributes:
        what: the dataset in words, e.g. ``ImageFolder(n=1281167)``.
        source: its images and labels.
        transform: the user's transform of the image; None: none.
        target_transform: the user's transform of the label; None: none.
        note: a remark for the explanation.
        root: the folder that all files are in; None: not known.
        entries: the files' entry points; None: none.
        size: of its images.
        mode: "RGB" or "L": the dataset reads files as Pillow's ``convert(mode)`` gives them.
        tensors: whether the transform gets uint8 tensors, as `torchvision.io.decode_image` reads files.
        read: function of a sample's index by which the dataset itself gives (image, label), if it has
            rules of its own for files that can't be read; None: it has none.
    """

    what: str
    source: Source
    transform: Any
    target_transform: Callable[[int], Any] | None
    note: str = ""
    root: str | None = None
    entries: EntryPoints | None = None
    size: Extent = UNKNOWN
    mode: Mode = "RGB"
    tensors: bool = False
    read: Callable[[int], tuple[Image.Image, int]] | None = None


@dataclass(frozen=True)
class Refusal:
    """A dataset that runs as it is: `what` it is and the `reason`."""

    what: str
    reason: str


def recognise_source(dataset: Any) -> Recognised | Refusal:
    """What native code can make of `dataset`. Reads its attributes and none of its samples."""
    found = _recognise(dataset)
    if isinstance(found, Refusal):
        return found
    patched = [patched_text(*each) for each in find_patched()]
    if patched:
        return Refusal(found.what, f"{'; '.join(patched)}: runs as written")
    if isinstance(found.source, ArraySource):
        return found
    note, known = _formats_note(found.source)
    if len(found.source) and not known:
        return Refusal(found.what, f"{note}: decoded by Pillow in worker processes instead")
    note += "; its loader converts to L" if found.mode == "L" else ""
    note += "; its loader makes tensors of them" if found.tensors else ""
    note += "; what native code can't read is read as timm does" if found.read is not None else ""
    if isinstance(found.source, PackSource):
        entries = found.source.entries
        return replace(found, note=f"{note}; {entries.indexed:,} have entry points", entries=entries)
    if found.root is None:
        return replace(found, note=note)
    beside, remark = find_entry_points(found.root, found.source)
    return replace(found, note=f"{note}; {remark}" if remark else note, entries=beside)


def _formats_note(source: ImageSource | PackSource) -> tuple[str, int]:
    """Which formats the files are of by their names, in words, and how many native code decodes of them.

    Each file is decoded by what its bytes say; names say what to expect.
    """
    formats = native_formats()
    counts: dict[str, int] = {}
    for name in formats:  # most often, all are of the first
        if sum(counts.values()) < len(source) and (count := source.count_extensions(EXTENSIONS[name])):
            counts[name] = count
    known = sum(counts.values())
    if len(counts) > 1:
        parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        note = f"of {len(source):,} files {parts} by extension"
    else:
        note = f"{known:,} of {len(source):,} files are {' or '.join(counts or formats)} by extension"
    return (f"{note}; the others are decoded by Pillow" if 0 < known < len(source) else note), known


def dataset_identity(dataset: Any) -> str:
    """The dataset's class and length; its own `identity` where it has one, a digest of its files' names and
    labels where it is one that the planner recognises.

    The folder that all files are in may move: it is left out. Contents of files aren't looked at.
    """
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    own = getattr(dataset, "identity", None)
    if isinstance(own, str):
        return f"{kind} {own}"
    recognised = recognise_source(dataset)
    source = recognised.source if isinstance(recognised, Recognised) and recognised.read is None else None
    if source is not None and not isinstance(source, ArraySource):
        return f"{kind} of {len(source)}, files {source.digest()}"
    try:
        return f"{kind} of {len(dataset)}"
    except TypeError:
        return kind


def _recognise(dataset: Any) -> Recognised | Refusal:
    if type(dataset) is Subset:
        return _recognise_subset(dataset)
    if type(dataset) is ConcatDataset:
        return _recognise_concatenation(dataset)
    if type(dataset) in (ImageDataset, PackedDataset):
        what = f"{type(dataset).__name__}(n={len(dataset)})"
        return Recognised(what, dataset.source, dataset.transform, dataset.target_transform)
    if type(dataset) in FOLDERS:
        return _recognise_folder(dataset)
    if type(dataset) in COLOUR or type(dataset) in GREY:
        return _recognise_arrays(dataset)
    if _is_class(type(dataset), "timm.data.dataset", "ImageDataset"):
        return _recognise_timm(dataset)
    known = next((base for base in type(dataset).__mro__ if base in KNOWN), None)
    if known is not None:
        return _refuse_subclass(dataset, known)
    what = located(describe_callable(dataset), dataset)
    if type(dataset) is TensorDataset:
        return Refusal(what, NOT_GATHERED)
    if isinstance(dataset, IterableDataset):
        return Refusal(what, STREAMED)
    return Refusal(what, OTHER_CLASS)


def _recognise_folder(dataset: Any) -> Recognised | Refusal:
    what = f"{type(dataset).__name__}(n={len(dataset.samples)})"
    tensors = reads_tensors(dataset.loader)
    mode = "RGB" if tensors else _mode_of(dataset.loader)
    reason = patched_reason(dataset, DatasetFolder) or (
        _loader_reason(dataset.loader) if mode is None else None
    )
    if mode is None or reason is not None:
        return Refusal(what, reason or "")
    try:
        source = ImageSource.from_samples(dataset.samples)
    except (TypeError, ValueError) as error:
        return Refusal(what, str(error))
    problem = _tensors_problem(source) if tensors else ""
    if problem:
        return Refusal(what, problem)
    transforms = dataset.transform, dataset.target_transform
    return Recognised(what, source, *transforms, root=_root_of(dataset), mode=mode, tensors=tensors)


def _recognise_timm(dataset: Any) -> Recognised | Refusal:
    reader: Any = getattr(dataset, "reader", None)
    if not _is_class(type(reader), "timm.data.readers.reader_image_folder", "ReaderImageFolder"):
        told = located(describe_callable(reader), reader)
        return Refusal("timm's ImageDataset", f"its reader, {told}, isn't that of folders: runs as written")
    what, mode = f"timm's ImageDataset(n={len(reader.samples)})", getattr(dataset, "input_img_mode", None)
    has_more = dataset.load_bytes or getattr(dataset, "additional_features", None) is not None
    if mode not in ("RGB", "L") or has_more:
        return Refusal(what, "its samples aren't an RGB or L image and a label each")
    reason = patched_reason(dataset, type(dataset)) or patched_reason(reader, type(reader))
    if reason is not None:
        return Refusal(what, reason)
    try:
        source = ImageSource.from_samples(reader.samples)
    except (TypeError, ValueError) as error:
        return Refusal(what, str(error))
    plain = copy.copy(dataset)
    plain.transform = plain.target_transform = None
    transforms, root = (dataset.transform, dataset.target_transform), _root_of(reader)
    return Recognised(what, source, *transforms, root=root, mode=mode, read=plain.__getitem__)


def _root_of(dataset: Any) -> str | None:
    root = getattr(dataset, "root", None)
    return os.fspath(root) if isinstance(root, (str, os.PathLike)) else None


def _is_class(cls: type, module: str, name: str) -> bool:
    """Whether `cls` is the class of that name of a module that the user, never Headrace, has imported."""
    return getattr(sys.modules.get(module), name, None) is cls


def _tensors_problem(source: ImageSource) -> str:
    """Why files that decode_image reads can't be read natively; empty: they can."""
    if not torchvision_decodes_as_pillow():
        return "decode_image gives other pixels than native code with the torchvision that is installed"
    others = len(source) - source.count_extensions(EXTENSIONS["JPEG"])
    return f"decode_image may give any tensors for {others:,} files that aren't JPEGs" if others else ""


def _recognise_arrays(dataset: Any) -> Recognised | Refusal:
    is_gray = type(dataset) in GREY
    source = read_images(dataset)
    if isinstance(source, str):
        return Refusal(type(dataset).__name__, source)
    what, (height, width) = f"{type(dataset).__name__}(n={len(source)})", source.images.shape[1:3]
    note = f"{height}×{width} pixels each, in memory"
    size = Extent(height, width, exact=True)
    mode: Mode = "L" if is_gray else "RGB"
    return Recognised(what, source, dataset.transform, dataset.target_transform, note, size=size, mode=mode)


def _mode_of(loader: Any) -> Mode | None:
    """The mode that `loader` converts what it reads with Pillow to; None where it does anything else."""
    if loader is default_loader:
        return "RGB" if torchvision.get_image_backend() == "PIL" else None
    return "RGB" if loader is pil_loader else reading_mode_of(loader)


def _loader_reason(loader: Any) -> str:
    """Why native code can't do what `loader` does, which has no mode."""
    if loader is default_loader:
        return f"torchvision's image backend is {torchvision.get_image_backend()}, not PIL"
    return (
        f"has a loader of its own, {located(describe_callable(loader), loader)}, which native code can't call"
    )


def _refuse_subclass(dataset: Any, known: type) -> Refusal:
    cls = type(dataset)
    own = [c for c in cls.__mro__ if known in c.__mro__[1:]]
    # Functions and properties: every class has a __module__ and its like, whatever its author wrote.
    overridden = sorted(
        {name for c in own for name, member in vars(c).items() if hasattr(known, name) and _is_code(member)}
    )
    does = f" that overrides {', '.join(overridden)}" if overridden else ""
    what = located(cls.__qualname__, cls)
    return Refusal(what, f"a subclass of {known.__name__}{does} may return anything: runs as written")


def _is_code(member: Any) -> bool:
    return callable(member) or isinstance(member, (property, staticmethod, classmethod))


def _recognise_subset(dataset: Subset[Any]) -> Recognised | Refusal:
    inner = _recognise(dataset.dataset)
    if isinstance(inner, Refusal):
        return Refusal(f"Subset of {inner.what}", inner.reason)
    if inner.read is not None:
        return Refusal(f"Subset of {inner.what}", REPLACES_WITHIN)
    order = _as_indices(dataset.indices)
    what = f"Subset(n={len(dataset.indices)}) of {inner.what}"
    if order is None:
        return Refusal(what, "its indices aren't ints")
    try:
        source = inner.source.take(order)
    except IndexError as error:
        return Refusal(what, str(error))
    return replace(inner, what=what, source=source)


def _recognise_concatenation(dataset: ConcatDataset[Any]) -> Recognised | Refusal:
    parts = []
    for each in dataset.datasets:
        part = _recognise(each)
        if isinstance(part, Refusal):
            return Refusal(f"ConcatDataset of {part.what}", part.reason)
        if part.read is not None:
            return Refusal(f"ConcatDataset of {part.what}", REPLACES_WITHIN)
        parts.append(part)
    others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
    what = f"ConcatDataset(n={len(dataset)}) of {parts[0].what}{others}"
    sources = [part.source for part in parts if isinstance(part.source, ImageSource)]
    if len(sources) < len(parts):
        return Refusal(what, "only data sets of image files are read natively one after another")
    if np.cumsum([len(source) for source in sources]).tolist() != dataset.cumulative_sizes:
        return Refusal(what, "a data set in it has another length than when they were concatenated")
    for name in ("transform", "target_transform"):
        if any(getattr(part, name) is not getattr(parts[0], name) for part in parts):
            return Refusal(
                what, f"its data sets have several {name}s: native code needs the same object in all"
            )
    if any(part.tensors != parts[0].tensors for part in parts):
        return Refusal(what, "some of its data sets read files as tensors, others as images")
    if any(part.mode != parts[0].mode for part in parts):
        return Refusal(what, "some of its data sets convert images to RGB, others to L")
    source = sources[0] if len(sources) == 1 else concatenate(sources)
    return replace(parts[0], what=what, source=source, note="", root=None, entries=None)


def _as_indices(indices: Any) -> npt.NDArray[np.int64] | None:
    if len(indices) == 0:
        return np.empty(0, np.int64)
    try:
        order = np.asarray(indices)
    except (TypeError, ValueError):
        return None
    return order.astype(np.int64) if order.ndim == 1 and order.dtype.kind in "iu" else None
