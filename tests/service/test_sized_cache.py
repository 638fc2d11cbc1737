"""What is kept of what was asked for, and how much there is room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from go_opt.service.messages.graphs import SizedCache


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 12))))
def test_it_never_holds_more_than_it_may_and_the_oldest_makes_room(values: list[tuple[bytes, int]]) -> None:
    cache: SizedCache[int] = SizedCache(10)
    kept: dict[bytes, int] = {}  # the newest last
    for key, size in values:
        cache.put(key, size, size)
        if size <= 10:
            kept = {other: kept[other] for other in kept if other != key} | {key: size}
        while sum(kept.values()) > 10:
            del kept[next(iter(kept))]
        assert cache.size_bytes == sum(kept.values())
        for known in list(kept):
            assert cache.get(known) == kept[known]
    assert cache.get(b"e") is None
