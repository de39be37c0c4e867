"""The kinds of datasets that native code reads: a class for each, and `DATASETS`, the list of them.

Whatever else a dataset is, its own code runs. docs/adding-a-dataset.md says how to add a kind.
"""

from headrace.sources.kinds.arrays import CIFAR, ColorArrays, GrayArrays
from headrace.sources.kinds.folders import Folders
from headrace.sources.kinds.kind import InTensors, Kind, Reading, Recognized, Refusal
from headrace.sources.kinds.lookup import read_dataset, register
from headrace.sources.kinds.own import Own
from headrace.sources.kinds.tensors import Tensors
from headrace.sources.kinds.timm import TimmFolders
from headrace.sources.kinds.wrappers import Concatenations, Subsets

__all__ = ["DATASETS", "InTensors", "Kind", "Reading", "Recognized", "Refusal", "read_dataset"]

DATASETS: tuple[type[Kind], ...] = (
    Folders,
    Own,
    TimmFolders,
    GrayArrays,
    ColorArrays,
    CIFAR,
    Tensors,
    Subsets,
    Concatenations,
)

register(DATASETS)
