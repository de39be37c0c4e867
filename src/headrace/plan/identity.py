"""What makes a dataset the same one: for refusing the state of another."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from headrace.plan.recognise import Recognised, recognise_source
from headrace.sources.folder import ImageSource


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
    if isinstance(recognised, Recognised):
        return f"{kind} of {len(recognised.source)}, files {_digest(recognised.source)}"
    try:
        return f"{kind} of {len(dataset)}"
    except TypeError:
        return kind


def _digest(source: ImageSource) -> str:
    paths = source.paths.tobytes().split(b"\0")[:-1]
    # Character by character is enough: the prefix is cut back to whole folders below.
    root: bytes = os.path.commonprefix([min(paths), max(paths)]) if paths else b""  # type: ignore[assignment]  # noqa: RUF071
    begin = root.rfind(b"/") + 1
    digest = hashlib.blake2b(source.labels.tobytes(), digest_size=8)
    digest.update(b"\0".join(path[begin:] for path in paths))
    return digest.hexdigest()
