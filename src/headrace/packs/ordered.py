"""Work done by threads, received in the order in which it was given to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """(item, function(item)) for each of `items` in turn, while a bounded number of later ones are begun."""
    ahead = 2 * workers + 2
    begun: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                begun.append((item, pool.submit(function, item)))
                if len(begun) > ahead:
                    first, future = begun.popleft()
                    yield first, future.result()
            for first, future in begun:
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
