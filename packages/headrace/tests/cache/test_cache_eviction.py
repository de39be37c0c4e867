"""What goes when room is needed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache import Cache
from support.cache_records import BLOCK, content, put, record, states


def kept(cache: Cache, numbers: range) -> list[int]:
    """Which of these are there. Their uses are forgotten."""
    return [n for n, state in zip(numbers, states(cache, list(numbers)), strict=True) if state == "ready"]


def use(cache: Cache, number: int, position: int, following: int | None) -> bool:
    """Use a record once, as a loader does; whether it was there."""
    claim = cache.claim([record(number)], [position])[0]
    if claim.state == "mine":
        cache.add([record(number)], [content(number)])
    assert claim.state in ("mine", "ready")
    cache.release([record(number)], [following])
    return claim.state == "ready"


def fewest_misses(order: list[int], capacity: int) -> int:
    """Of any cache of `capacity` records that keeps what it fetches until the next: by looking at every set
    of records that it could hold."""
    reachable: dict[frozenset[int], int] = {frozenset(): 0}
    for number in order:
        following: dict[frozenset[int], int] = {}
        for held, misses in reachable.items():
            if number in held:
                options = [(held, misses)]
            elif len(held) < capacity:
                options = [(held | {number}, misses + 1)]
            else:
                options = [(held - {old} | {number}, misses + 1) for old in held]
            for option, count in options:
                following[option] = min(count, following.get(option, count))
        reachable = following
    return min(reachable.values())


@settings(max_examples=30)
@given(
    order=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    capacity=st.integers(1, 5),
    forgetful=st.booleans(),
)
def test_no_cache_misses_less(tmp_path_factory, order: list[int], capacity: int, forgetful: bool) -> None:
    """`forgetful`: what isn't needed again is said to be needed far behind the end."""
    cache = Cache(tmp_path_factory.mktemp("cache"), capacity * BLOCK)
    for position, number in enumerate(order):
        later = order[position + 1 :]
        end = None if forgetful else 1000
        use(cache, number, position, position + 1 + later.index(number) if number in later else end)
    stats = cache.stats()
    cache.close()
    assert stats.misses == fewest_misses(order, capacity)
    assert stats.hits + stats.misses == len(order)


def test_without_a_known_future_the_longest_unused_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * BLOCK)
    for position, number in enumerate([0, 1, 2, 0, 3]):
        use(cache, number, position, None)
    assert kept(cache, range(4)) == [0, 2, 3]


def test_unneeded_records_are_evicted_before_those_needed_last(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * BLOCK)
    use(cache, 0, 0, 1_000_000)
    use(cache, 1, 1, None)
    use(cache, 2, 2, 5)
    use(cache, 3, 3, 6)
    assert kept(cache, range(4)) == [0, 2, 3]


def test_no_record_is_evicted_for_one_that_is_needed_later(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2 * BLOCK)
    use(cache, 0, 0, 10)
    use(cache, 1, 1, 20)
    first, second = cache.claim([record(2), record(3)], [5, 30])
    assert (first.state, second.state) == ("mine", "full")
    cache.add([record(2)], [content(2)])
    cache.release([record(2)], [None])
    assert kept(cache, range(4)) == [0, 2]


def test_records_claimed_together_do_not_evict_each_other(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * BLOCK)
    for number in range(3):
        use(cache, number, number, None)
    claims = cache.claim([record(3), record(0), record(1), record(2)], [3, 4, 5, 6])
    assert [claim.state for claim in claims] == ["full", "ready", "ready", "ready"]


def test_the_soonest_use_of_all_processes_counts(tmp_path: Path) -> None:
    """Each has the other's record far behind; both are needed by someone soon, but the third."""
    one, two = Cache(tmp_path, 3 * BLOCK), Cache(tmp_path, 3 * BLOCK)
    put(one, [0, 1, 2])
    two.claim([record(n) for n in range(3)], [0, 0, 0])
    one.release([record(n) for n in range(3)], [900, 3, 500])
    two.release([record(n) for n in range(3)], [4, 900, 600])
    use(one, 3, 1, 5)
    assert kept(two, range(4)) == [0, 1, 3]


def test_distances_are_from_where_each_is(tmp_path: Path) -> None:
    """One is at 1,000, where 1,010 is soon; the other at 0, where 50 is not."""
    one, two = Cache(tmp_path, 2 * BLOCK), Cache(tmp_path, 2 * BLOCK)
    use(one, 0, 1000, 1010)
    use(two, 1, 0, 50)
    use(two, 2, 1, 5)
    assert kept(one, range(3)) == [0, 2]


def test_expected_records_are_kept(tmp_path: Path) -> None:
    """From an earlier job, which left it as what nobody needs."""
    cache = Cache(tmp_path, 3 * BLOCK)
    for number in range(3):
        use(cache, number, number, None)
    cache.close()
    cache = Cache(tmp_path, 3 * BLOCK)
    cache.expect([record(n) for n in (7, 0, 1, 2)], [1, 2, 90, 3])
    use(cache, 3, 0, 4)
    assert kept(cache, range(4)) == [0, 2, 3]


def test_of_uses_that_are_expected_the_soonest_counts_and_none_that_is_passed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * BLOCK)
    for number, following in enumerate((500, 600, 700)):
        use(cache, number, 100 + number, following)
    cache.expect([record(n) for n in (0, 0, 1, 2)], [900, 120, 400, 50])
    # 0: at 120; 1: at 400; 2: at 700, as 50 is passed.
    use(cache, 3, 103, 110)
    assert kept(cache, range(4)) == [0, 1, 3]


def test_skipped_uses_are_forgotten_some_at_a_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.cache.cache.FORGOTTEN_AT_ONCE", 2)
    cache = Cache(tmp_path, 6 * BLOCK)
    for number in range(6):
        use(cache, number, number, None)
    cache.expect([record(n) for n in range(6)], [10 + n for n in range(6)])
    assert [cache.skip(14) for _ in range(3)] == [True, True, False]
    # Only 4 and 5 are still needed: 4 now, 5 later than these.
    assert states(cache, [20, 21, 22, 23, 24, 25], position=14) == ["mine"] * 5 + ["full"]


def test_another_rank_of_the_job_finds_what_was_kept_for_it(tmp_path: Path) -> None:
    """Which is forgotten once both have passed the place."""
    one, two = Cache(tmp_path, 3 * BLOCK), Cache(tmp_path, 3 * BLOCK)
    for number in range(3):
        use(one, number, number, 10 + number)
    assert use(two, 0, 10, None)
    use(one, 3, 20, 30)
    use(one, 4, 21, 31)
    assert {3, 4} < set(kept(one, range(5)))


def test_uses_of_a_closed_cache_are_forgotten(tmp_path: Path) -> None:
    one, two = Cache(tmp_path, 3 * BLOCK), Cache(tmp_path, 3 * BLOCK)
    use(one, 0, 0, 1)
    use(two, 1, 0, 1000)
    use(two, 2, 1, 1001)
    one.close()
    use(two, 3, 2, 1002)
    assert kept(two, range(4)) == [1, 2, 3]


def test_millions_of_uses_are_forgotten_little_by_little(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.cache.claiming.FORGOTTEN_AT_ONCE", 2)
    one, two = Cache(tmp_path, 9 * BLOCK), Cache(tmp_path, 9 * BLOCK)
    for number in range(9):
        use(one, number, number, 100 + number)
    one.close()
    for position in range(7):
        two.claim([record(0)], [position])
        two.release([record(0)], [None])
    put(two, list(range(20, 29)), position=10)
    assert two.stats().evictions == 9


def test_it_finds_the_last_among_many(tmp_path: Path) -> None:
    """More than are looked at at once, of several ranks."""
    ranks = [Cache(tmp_path, 1200 * BLOCK) for _ in range(3)]
    for rank, cache in enumerate(ranks):
        numbers = list(range(rank, 1200, 3))
        put(cache, numbers, size=1)
        cache.release([record(n, 1) for n in numbers], [1 + n for n in numbers])
    put(ranks[0], list(range(2000, 2600)), size=1)
    left = [claim.state for claim in ranks[1].claim([record(n, 1) for n in range(1200)], [0] * 1200)]
    assert left == ["ready"] * 600 + ["full"] * 600
    for cache in ranks:
        cache.close()
