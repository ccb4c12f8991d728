"""TensorFlow's caching allocator: how much memory it takes from the system for the tensors that it holds. Pure.

It is TensorFlow's own on GPUs, and on CPUs where TensorFlow runs oneDNN (common_runtime/bfc_allocator.cc). It gives out
the smallest free chunk that is large enough; cuts off the rest where that is as large again, or 128 MiB; joins free
neighbours; and never gives back what it has taken. So a process comes to hold a good deal more than its tensors.
"""

import bisect
import dataclasses

_UNIT_BYTES = 256  # sizes are rounded up to it
_FIRST_REGION_BYTES = 2**21  # each region is twice as large as the last
_LARGEST_REST_BYTES = 2**27


@dataclasses.dataclass(eq=False)
class Chunk:
    """Consecutive memory of a region, given out or free.

    Args:
      region: number of the region.
      begin: where it begins there, in bytes.
      size: in bytes.
      before: the chunk that ends where this begins, if any.
      after: the chunk that begins where this ends, if any.
      free: whether it is not given out.
    """

    region: int
    begin: int
    size: int
    before: "Chunk | None" = None
    after: "Chunk | None" = None
    free: bool = True

    @property
    def key(self) -> tuple[int, int, int]:
        """By which free chunks are chosen: the smallest first, then the oldest region's."""
        return (self.size, -self.region, self.begin)


class Allocator:
    """The allocator of one memory."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int, int]] = []  # of the free chunks, in order
        self._free: dict[tuple[int, int, int], Chunk] = {}
        self._touched: list[int] = []  # of each region, up to where it has ever been given out
        self._next_region = _FIRST_REGION_BYTES
        self._in_use = 0
        self.most_in_use = 0

    @property
    def resident(self) -> int:
        """What of all regions was ever used, in bytes."""
        return sum(self._touched)

    def take(self, size: int) -> Chunk:
        """Gives out a chunk of at least that many bytes."""
        size = max(_UNIT_BYTES, -(-size // _UNIT_BYTES) * _UNIT_BYTES)
        position = bisect.bisect_left(self._keys, (size, -len(self._touched), -1))
        if position == len(self._keys):
            self._extend(size)
            position = bisect.bisect_left(self._keys, (size, -len(self._touched), -1))
        chunk = self._free[self._keys[position]]
        self._unlist(chunk)
        rest = chunk.size - size
        if rest >= size or rest >= _LARGEST_REST_BYTES:
            other = Chunk(chunk.region, chunk.begin + size, rest, chunk, chunk.after)
            if other.after is not None:
                other.after.before = other
            chunk.size, chunk.after = size, other
            self._list(other)
        chunk.free = False
        self._touched[chunk.region] = max(self._touched[chunk.region], chunk.begin + size)
        self._in_use += chunk.size
        self.most_in_use = max(self.most_in_use, self._in_use)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Takes a chunk back, and joins it with free neighbours."""
        self._in_use -= chunk.size
        for first, second in ((chunk, chunk.after), (chunk.before, chunk)):
            if first is None or second is None or not (first.free or second.free):
                continue
            self._unlist(second if second.free else first)
            first.size, first.after = first.size + second.size, second.after
            if first.after is not None:
                first.after.before = first
            chunk, first.free = first, False
        chunk.free = True
        self._list(chunk)

    def _extend(self, size: int) -> None:
        grown = self._next_region < size
        while self._next_region < size:
            self._next_region *= 2
        self._list(Chunk(len(self._touched), 0, self._next_region))
        self._touched.append(0)
        if not grown:
            self._next_region *= 2

    def _list(self, chunk: Chunk) -> None:
        bisect.insort(self._keys, chunk.key)
        self._free[chunk.key] = chunk

    def _unlist(self, chunk: Chunk) -> None:
        del self._keys[bisect.bisect_left(self._keys, chunk.key)]
        del self._free[chunk.key]
