"""Samples on their way into a pack: what they are, where they come from, and threads that work on them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from PIL import Image

if TYPE_CHECKING:
    from headrace.packs.listing import Item, Listing

# Called with (samples done, samples in all), now and then.
ProgressCallback = Callable[[int, int], None]

Task = TypeVar("Task")
Result = TypeVar("Result")

JPEG_START = b"\xff\xd8\xff"

# What Pillow raises for files that it can't open or decode.
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that has been read.

    Attributes:
        key: a name that is unique in the source.
        extension: the extension of the image, without the dot.
        image: the bytes of the image file.
        label: the class, or -1 if there is none.
        fields: (extension, bytes) of each other member, in order.
    """

    key: str
    extension: str
    image: bytes
    label: int
    fields: tuple[tuple[str, bytes], ...] = ()


class Input(ABC):
    """A source of samples. Several threads call `read` at once.

    Attributes:
        kind: the name shown to users: "ImageFolder", "WebDataset", …
        classes: names by label; empty if they are not known.
    """

    kind: str
    classes: tuple[str, ...] = ()

    @abstractmethod
    def items(self) -> Listing:
        """Lists all samples, in the source's order. Raises PackError."""

    @abstractmethod
    def read(self, item: Item) -> Sample:
        """Reads one of them. Raises PackError if it can't be read, or isn't what `items` saw."""

    def notes(self) -> list[str]:
        """Returns what a user should know of the source, once `items` was called."""
        return []

    def modified_ns(self, items: Listing) -> int | None:
        """The time of the latest modification of `items`, in nanoseconds since 1970, or None if it isn't
        known."""
        return items.last_stamp


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Generator[tuple[Task, Result], None, None]:
    """Yields (task, function(task)) for each of `tasks` in turn; a bounded number of later ones are under
    way."""
    ahead = 2 * workers + 2
    started: deque[tuple[Task, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for task in tasks:
                started.append((task, pool.submit(function, task)))
                if len(started) > ahead:
                    first, future = started.popleft()
                    yield first, future.result()
            for first, future in started:
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
