"""From time models to shares, exact sizes, and whether to split at all."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mtf_hetero.partition import DoesNotFitError, TooFewUnitsError, split_by_share, split_by_time_with_rest
from mtf_hetero.speeds.models import Layer, Profile, Work

ALL_SUBSETS = 8  # up to so many devices every subset of them is tried

Sizes = Mapping[str, tuple[int, ...]]


def _time_fn(profile: Profile, device: str, layers: Iterable[Layer]) -> Callable[[int], float]:
    """From a number of units to the seconds of all these layers."""
    models = [profile.model(device, layer.key).settle() for layer in layers]
    return lambda n: math.fsum(model(n) for model in models)


def _whole_seconds(profile: Profile, work: Work, device: str, dim: str | None) -> float:
    return math.fsum(profile.model(device, layer.key).settle()(layer.units) for layer in work.layers_of(dim))


def alone_seconds(profile: Profile, work: Work, device: str) -> float:
    """Seconds of a whole step on one device.

    Raises:
      ValueError: the device was not measured on every layer.
    """
    return math.fsum(_whole_seconds(profile, work, device, dim) for dim in (*work.dims, None))


def shares_from(profile: Profile, work: Work, devices: Sequence[str]) -> tuple[float, ...]:
    """The devices' speeds on a whole step, per cent of all of them: what `--list_speed` takes.

    Args:
      profile: of these devices.
      work: of the step.
      devices: one per processor.

    Raises:
      ValueError: a device was not measured on every layer.
    """
    speeds = [1.0 / alone_seconds(profile, work, device) for device in devices]
    return tuple(100.0 * (speed / math.fsum(speeds)) for speed in speeds)


def sizes_from(
    profile: Profile,
    work: Work,
    devices: Sequence[str],
    *,
    memory_limits: Mapping[str, int | None] | None = None,
    multiple_of: Mapping[str, int] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Exact sizes of every split dimension, such that the slowest device ends as early as can be.

    Args:
      profile: of these devices.
      work: of the step.
      devices: one per processor.
      memory_limits: {device: bytes}, absent or None: no limit. A device's part of every dimension is kept below what
        lets the whole step fit.
      multiple_of: {name of a dimension: granule}; absent: 1. Where the extent is no multiple of it, one size is not.

    Returns:
      {each name of a split dimension: one size per device}, as `Layout` and `UnevenMeshImpl` take it.

    Raises:
      DoesNotFitError: the devices' memory cannot hold the step.
      TooFewUnitsError: a dimension has fewer granules than there are devices.
      ValueError: a demand is out of range, or a device was not measured.
    """
    caps = [_part(work, (memory_limits or {}).get(device)) for device in devices]
    result: dict[str, tuple[int, ...]] = {}
    for dim, names in work.dims.items():
        units, layers = work.units(dim), work.layers_of(dim)
        times = [_time_fn(profile, device, layers) for device in devices]
        sizes = split_by_time_with_rest(
            units,
            times,
            multiple_of=max((multiple_of or {}).get(name, 1) for name in names),
            caps=None if all(cap >= 1 for cap in caps) else [math.floor(cap * units) for cap in caps],
        )
        result |= {name: split_by_share(extent, sizes) for name, extent in names.items()}
    return result


def _part(work: Work, limit: int | None) -> float:
    """The part of all split dimensions that fits into a device's memory."""
    if limit is None:
        return 1.0
    divided = sum(work.dim_bytes.values())
    return min(1.0, max(0.0, (limit - work.fixed_bytes) / divided)) if divided else float(limit >= work.fixed_bytes)


def communication_seconds(profile: Profile, work: Work, devices: Sequence[str]) -> float:
    """Seconds a step spends on sums over the processors, one after the other, on the slowest of the links.

    Two devices exchange their addends, both ways at once. Of more, each collects its part of all addends and sends its
    part of the sum to all others.

    Args:
      profile: a link that it does not have costs nothing.
      work: of the step.
      devices: one per processor.
    """
    links = [link for pair in itertools.combinations(devices, 2) if (link := profile.link(*pair)) is not None]
    if not links:
        return 0.0
    latency = max(link.latency_seconds for link in links)
    seconds_per_byte = 1 / min(link.bytes_per_second for link in links)
    count = len(devices)
    phases, part = (1, 1.0) if count == 2 else (2, (count - 1) / count)
    messages = [message for layer in work.layers for message in layer.reduced_bytes]
    return math.fsum(phases * (latency + part * message * seconds_per_byte) for message in messages)


def predicted_step_seconds(profile: Profile, work: Work, devices: Sequence[str], sizes: Sizes | None = None) -> float:
    """Seconds of a step: per split dimension what the slowest device takes, what each does whole, and communication.

    The layers of one dimension follow each other without waiting for another device; a sum over the processors
    separates those of different dimensions.

    Args:
      profile: of these devices.
      work: of the step.
      devices: one per processor.
      sizes: {split dimension: one size per device}; None: those of `sizes_from`.

    Raises:
      ValueError: a device was not measured on every layer, or sizes do not fit the devices or the work.
    """
    if len(devices) == 1:
        return alone_seconds(profile, work, devices[0])
    sizes = sizes_from(profile, work, devices) if sizes is None else sizes
    terms = [max(_whole_seconds(profile, work, device, None) for device in devices)]
    for dim, names in work.dims.items():
        name = max(names, key=lambda name: (name in sizes, names[name]))
        if len(sizes.get(name, ())) != len(devices) or sum(sizes[name]) != names[name]:
            raise ValueError(
                f"sizes of dimension {name!r} are {sizes.get(name)}; give {len(devices)} numbers, one per device, that "
                f"add up to {names[name]}"
            )
        parts = split_by_share(work.units(dim), sizes[name])
        layers = work.layers_of(dim)
        terms.append(max(_time_fn(profile, d, layers)(n) for d, n in zip(devices, parts, strict=True)))
    return math.fsum(terms) + communication_seconds(profile, work, devices)


@dataclasses.dataclass(frozen=True)
class Split:
    """The split that is predicted to be the fastest, and why.

    Args:
      devices: those that take part, in their order; one where a split would lose.
      sizes: {each name of a split dimension: one size per device}; empty for one device.
      predicted_seconds: of a step.
      communication_seconds: of these.
      alone: (the fastest device, seconds of a step on it alone); None: no device can hold the whole step.
      left_out: {device: one sentence that says why}.
      reason: one sentence that says what was chosen and what it was compared with.
    """

    devices: tuple[str, ...]
    sizes: Sizes
    predicted_seconds: float
    communication_seconds: float
    alone: tuple[str, float] | None
    left_out: Mapping[str, str]
    reason: str

    @property
    def is_parallel(self) -> bool:
        """Whether more than one device takes part."""
        return len(self.devices) > 1

    @property
    def is_worth(self) -> bool:
        """The former name of `is_parallel`."""
        return self.is_parallel


@dataclasses.dataclass(frozen=True)
class _Option:
    devices: tuple[str, ...]
    sizes: Sizes
    seconds: float


Options = Callable[[tuple[str, ...]], _Option | None]  # None: that set of devices cannot divide or hold the step


def best_split(
    profile: Profile,
    work: Work,
    devices: Sequence[str],
    *,
    memory_limits: Mapping[str, int | None] | None = None,
    multiple_of: Mapping[str, int] | None = None,
    least_gain: float = 0.05,
) -> Split:
    """The devices that are to take part, and the exact sizes of each.

    Every subset of up to 8 devices is compared; of more, the one that slows the others down most is left out as long as
    that helps.

    Args:
      profile: of these devices.
      work: of the step.
      devices: that could take part.
      memory_limits: {device: bytes}, as in `sizes_from`.
      multiple_of: {name of a dimension: granule}; absent: 1.
      least_gain: by how much, as a fraction, a split must be faster than the fastest device alone.

    Raises:
      DoesNotFitError: the step fits into the memory of no set of the devices.
      ValueError: another demand cannot be met, or a device was not measured.
    """
    limits = memory_limits or {}

    def option(subset: tuple[str, ...]) -> _Option | None:
        try:
            sizes = sizes_from(profile, work, subset, memory_limits=limits, multiple_of=multiple_of)
        except (DoesNotFitError, TooFewUnitsError):
            return None  # other devices may do; whatever else is wrong is wrong with them too
        if len(subset) == 1:
            return _Option(subset, {}, alone_seconds(profile, work, subset[0]))
        return _Option(subset, sizes, predicted_step_seconds(profile, work, subset, sizes))

    if len(set(devices)) != len(devices) or not devices:
        raise ValueError(f"devices are {list(devices)}; name at least one, and each once")
    for device in devices:
        alone_seconds(profile, work, device)  # raises where one was not measured
    fitting = tuple(device for device in devices if _fits(work, limits.get(device)))
    options = [candidate for subset in _subsets(fitting, option) if (candidate := option(subset)) is not None]
    if not options:
        raise DoesNotFitError(
            f"the step fits on no set of the devices {', '.join(devices)}: it needs {work.fixed_bytes / 1e9:.2f} GB on "
            f"each and {sum(work.dim_bytes.values()) / 1e9:.2f} GB to divide; raise the memory limits, or make the "
            "batch smaller"
        )
    alone = min((one for one in options if len(one.devices) == 1), key=lambda one: one.seconds, default=None)
    split = min((one for one in options if len(one.devices) > 1), key=lambda one: one.seconds, default=None)
    best = _better(alone, split, least_gain)
    left_out = {
        device: _why_not(work, device, best, option, limits.get(device), fitting)
        for device in devices
        if device not in best.devices
    }
    return Split(
        best.devices,
        best.sizes,
        best.seconds,
        communication_seconds(profile, work, best.devices),
        None if alone is None else (alone.devices[0], alone.seconds),
        left_out,
        _reason(profile, work, best, alone, split, least_gain),
    )


def _fits(work: Work, limit: int | None) -> bool:
    return not work.dims or _part(work, limit) > 0


def _subsets(
    devices: tuple[str, ...], option: Callable[[tuple[str, ...]], _Option | None]
) -> Iterator[tuple[str, ...]]:
    """Sets of devices to compare."""
    if len(devices) <= ALL_SUBSETS:
        for count in range(1, len(devices) + 1):
            yield from itertools.combinations(devices, count)
        return
    yield from ((device,) for device in devices)
    while len(devices) > 1:
        yield devices
        smaller = [devices[:i] + devices[i + 1 :] for i in range(len(devices))]
        feasible = [(kept.seconds, kept.devices) for subset in smaller if (kept := option(subset)) is not None]
        slowest_last = sorted(devices, key=lambda device: alone.seconds if (alone := option((device,))) else math.inf)
        left = min(feasible)[1] if feasible else slowest_last[:-1]  # more devices than units: fewer may do
        devices = tuple(device for device in devices if device in left)


def _better(alone: _Option | None, split: _Option | None, least_gain: float) -> _Option:
    if alone is None or split is None:
        best = split or alone
        assert best is not None
        return best
    return split if split.seconds <= alone.seconds * (1 - least_gain) else alone


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _reason(
    profile: Profile, work: Work, best: _Option, alone: _Option | None, split: _Option | None, least_gain: float
) -> str:
    if alone is None:
        return f"split over {', '.join(best.devices)}: no device alone can hold the step"
    if best is alone:
        if split is None:
            return f"not split: {alone.devices[0]} alone takes {_ms(alone.seconds)}, and no other device can take part"
        communication = communication_seconds(profile, work, split.devices)
        gain = f", a gain of less than {least_gain:.0%}" if split.seconds < alone.seconds else ""
        return (
            f"not split: {alone.devices[0]} alone takes {_ms(alone.seconds)} a step, and the best split, over "
            f"{', '.join(split.devices)}, {_ms(split.seconds)}{gain}, {_ms(communication)} of it communication"
        )
    return (
        f"split over {', '.join(best.devices)}: {_ms(best.seconds)} a step are predicted, and "
        f"{_ms(alone.seconds)} on {alone.devices[0]} alone"
    )


def _why_not(
    work: Work,
    device: str,
    best: _Option,
    option: Options,
    limit: int | None,
    fitting: tuple[str, ...],
) -> str:
    if device not in fitting:
        return (
            f"{device} is left out: its memory of {(limit or 0) / 1e9:.2f} GB is less than the "
            f"{work.fixed_bytes / 1e9:.2f} GB that every device needs"
        )
    order = {name: i for i, name in enumerate(fitting)}
    with_it = option(tuple(sorted((*best.devices, device), key=order.__getitem__)))
    if with_it is None:
        return f"{device} is left out: there is no part of the work that fits it beside {', '.join(best.devices)}"
    return f"{device} is left out: with it a step would take {_ms(with_it.seconds)}, without it {_ms(best.seconds)}"
