"""A performance model of steps whose volumes are partitioned, after Oyama et al. (IEEE TPDS 32(7), 2021), section 5.

A step is what its layers take, one after the other, each as long as the slowest worker's slab, and what the busiest
worker sends and receives. Nothing of it is taken to overlap: on one machine a message costs both ends processor time,
half of a hop each, which is time that they do not compute. Neighbours are never quite at the same place, so that a
worker waits a little in each halo exchange, and the longer, the slower workers are. Layers are timed one by one, in
which they are faster than in a step, so their times are scaled by what the step of the first way, which is one
worker's, takes of its layers'.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Link = Mapping[str, float]  # latency_seconds and bytes_per_second of a hop
ITEM_BYTES = 4
DEVICES = 2048  # of the largest projection
WAIT_SECONDS = 1.6e-3  # in each halo exchange of workers of a core: what conv/W=128/1.0,1.0 takes more, of ten


def _exchange_seconds(messages: float, message_bytes: float, link: Link) -> float:
    """What it costs a worker to send and receive messages of so many bytes in all."""
    return (messages * link["latency_seconds"] + message_bytes / link["bytes_per_second"]) / 2


def _step_seconds(row: Row) -> float:
    """The median of the steps that were timed."""
    return row["wall_seconds_per_step"]["median"]


def speedup(row: Row, first: Row) -> float:
    """How many times as many voxels a second as the first way does."""
    voxels, of_first = (math.prod(one["extents"]) for one in (row, first))
    return voxels / of_first * _step_seconds(first) / _step_seconds(row)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The parts of a step, in seconds."""

    compute: float  # all layers, each on its slowest worker
    exchange: float  # halos, gathered activations, sums of gradients
    wait: float  # in halo exchanges
    call: float  # of the session

    @property
    def seconds(self) -> float:
        """The step."""
        return self.compute + self.exchange + self.wait + self.call


def predict(row: Row, first: Row) -> Prediction:
    """Predicts the step of a row: its layers were timed on one worker alone, its messages counted in the graph.

    First is the row of one worker of the same setting, whose own step is known.
    """
    known = _predict(first)
    scale = (_step_seconds(first) - (known.seconds - known.compute)) / known.compute
    unscaled = _predict(row)
    return dataclasses.replace(unscaled, compute=scale * unscaled.compute)


def error(row: Row, first: Row) -> float:
    """By which part of it the step of a row is predicted too long."""
    return predict(row, first).seconds / _step_seconds(row) - 1


def _predict(row: Row) -> Prediction:
    fastest = max(row["fractions"][worker] for worker in row["workers"])  # by the slowest, 1.0 and 0.5 wait too long
    workers = row["exchanged"]
    return Prediction(
        compute=math.fsum(max(seconds) for seconds in row["layer_seconds"].values()),
        exchange=max(_exchange_seconds(worker["messages"], worker["bytes"], row["link"]) for worker in workers),
        wait=WAIT_SECONDS / fastest * max(worker["halo_exchanges"] for worker in workers),
        call=row["call_seconds"],
    )


def expected_bytes(row: Row, alone: Row) -> list[float]:
    """The memory that each worker should take, beside the row of one alone.

    That is what is whole everywhere, its share of the rest by the planes that it has, and its halos.
    """
    (alone_peak,), (whole,) = alone["peak_bytes"], alone["whole_bytes"]
    shares = [planes / sum(row["split"]) for planes in row["split"]]
    halos = [worker["halo_bytes"] for worker in row["exchanged"]]
    return [whole + share * (alone_peak - whole) + halo for share, halo in zip(shares, halos, strict=True)]


def _summed(weights: Sequence[int], count: int, link: Link, *, direct: bool) -> float:
    """Seconds of a worker for sums of gradients, tensors of so many weights, over `count` of them.

    Direct: each worker sends a part to each other one, as mtf_hetero.collectives does; otherwise by recursive halving
    and doubling (Thakur, Rabenseifner, Gropp 2005), which sends the same bytes in fewer messages.
    """
    if count == 1:
        return 0.0
    ways = 2 * 2  # there and back, sent and received
    messages = ways * ((count - 1) if direct else math.log2(count)) * len(weights)
    return _exchange_seconds(messages, ways * ITEM_BYTES * sum(weights) * (count - 1) / count, link)


@dataclasses.dataclass(frozen=True)
class Projection:
    """A step on workers that are not there, in seconds."""

    devices: int
    compute: float  # of the busiest
    halo: float  # the busiest one's halo exchanges, and waits in them
    reduce: float  # sums of gradients, by halving and doubling
    direct: float  # the same as mtf_hetero does them today

    @property
    def seconds(self) -> float:
        """The step."""
        return self.compute + self.halo + self.reduce


@dataclasses.dataclass(frozen=True)
class Machine:
    """A worker of one core, as fast as one was alone on the same network, and its link."""

    flops_per_second: float
    link: Link

    def _project(self, row: Row, devices: int) -> Projection:
        """Data parallelism over groups that share a sample: convolutions' gradients are summed over all workers."""
        groups = devices // row["count"]
        sums = [
            _summed(row["weights"]["convolution"], devices, self.link, direct=direct)
            + _summed(row["weights"]["dense"], groups, self.link, direct=direct)
            for direct in (False, True)
        ]
        halo = _exchange_seconds(row["halo_messages"], row["halo_bytes"], self.link)
        halo += WAIT_SECONDS * row["halo_exchanges"]
        return Projection(devices, row["flops"] / self.flops_per_second, halo, *sums)

    def project_all(self, row: Row) -> list[Projection]:
        """The row's one group, and four times as many again and again, up to DEVICES workers."""
        counts = [row["count"]]
        while counts[-1] * 4 <= DEVICES:
            counts.append(counts[-1] * 4)
        return [self._project(row, devices) for devices in dict.fromkeys([*counts, DEVICES])]
