"""Groups of things that are moved or read at once, so that no more than some bytes are on the way."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def group_by_bytes(
    items: Iterable[_Item], size_bytes: Callable[[_Item], int], most_bytes: int
) -> Iterator[list[_Item]]:
    """Yield items in groups of at most so many bytes, in their order. A larger item is alone.

    Example:
      >>> list(group_by_bytes([3, 4, 9, 1], size_bytes=lambda item: item, most_bytes=7))
      [[3, 4], [9], [1]]
    """
    group: list[_Item] = []
    total = 0
    for item in items:
        size = size_bytes(item)
        if group and total + size > most_bytes:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
