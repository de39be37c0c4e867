"""What makes a dataset the same one: for refusing the state of another."""

from __future__ import annotations

from typing import Any

from headrace.plan.recognise import Recognised, recognise_source
from headrace.sources.arrays import ArraySource


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
    source = recognised.source if isinstance(recognised, Recognised) else None
    if source is not None and not isinstance(source, ArraySource):
        return f"{kind} of {len(source)}, files {source.digest()}"
    try:
        return f"{kind} of {len(dataset)}"
    except TypeError:
        return kind
