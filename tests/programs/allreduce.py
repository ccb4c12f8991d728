"""The bytes of an all-reduce, by arithmetic alone."""

from mtf_hetero.layout.partition import split_among_positive
from mtf_hetero.mesh import collectives


def allreduce_bytes(elements, count, *, item_bytes=4, wire_item_bytes=None, shares=None, absent=()):
    """Returns {(source, target): bytes} of `collectives.allreduce` between processors of which no two share memory.

    Two processors exchange their addends. Of more, the first collects a small tensor's addends and sends the sum to
    all. Of a large one, each processor collects its share of all other addends and sends its part of the sum to all.
    Absent processors send nothing, and receive nothing until they use the sum.
    """
    sent_bytes = item_bytes if wire_item_bytes is None else min(item_bytes, wire_item_bytes)
    present = collectives.present_processors(range(count), absent)
    pairs = [(i, j) for i in present for j in present if i != j]
    way = collectives.way_to_reduce(elements, item_bytes, len(present))
    if way is collectives.Way.DIVIDE:
        weights = [(shares or [1] * count)[number] for number in present]
        parts = dict(zip(present, split_among_positive(elements, weights, minimum=0), strict=True))
        sent = {(i, j): parts[i] + parts[j] for i, j in pairs}
    else:
        sent = {pair: elements for pair in pairs if way is collectives.Way.EXCHANGE or present[0] in pair}
    return {pair: number * sent_bytes for pair, number in sent.items() if number}
