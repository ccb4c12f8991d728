"""The verdict on a plan in sentences: which devices to use, how long a step takes, and what would change that."""

import math
import textwrap
from collections.abc import Iterable, Sequence

from mtf_hetero._support import units
from mtf_hetero._support.units import bytes_text, seconds_text
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner.objective import NO_GAIN
from mtf_hetero.planner.outline import name_ranges
from mtf_hetero.planner.plan import BANDWIDTH, LeftOut, Plan, Threshold

WIDTH = 80
_ALIKE = 0.8  # of the memory of one of some devices: they are alike
_STEPS = 1000  # of which the price is shown
_EQUAL = 0.005  # of a step: no difference that anybody would call faster


def verdict(plan: Plan, offered: Iterable[str] = (), others: Iterable[LeftOut] = (), price: str = "") -> str:
    """Return the verdict, and on lines of their own the price and the memory that each device needs.

    Args:
      plan: for some devices.
      offered: all devices that there were; those that the plan leaves out are named.
      others: what is known of these.
      price: sentence on it, as of `price_text`; "": there is none.
    """
    memory = f"Memory per device: about {_memory(plan)}."
    paragraphs = [" ".join(sentences(plan, offered, others)), *[price] * bool(price), memory]
    return "\n".join(map(wrap, paragraphs))


def wrap(text: str) -> str:
    """Return a paragraph in lines for a terminal; names are not broken."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def sentences(plan: Plan, offered: Iterable[str] = (), others: Iterable[LeftOut] = ()) -> list[str]:
    """Return the verdict without the memory; the arguments are those of `verdict`."""
    return [sentence(plan), *_describe_left_out(plan, offered, others)]


def sentence(plan: Plan) -> str:
    """Return which devices to use, how long a step takes on them, and how much faster that is than one alone.

    Example:
      >>> sentence(plan)
      'Split over gpu:0, gpu:1: 210 ms per step, 1.8x faster than gpu:0 alone.'
    """
    device, alone = plan.alone
    if len(plan.devices) == 1:
        how = f"Use {plan.devices[0]} alone"
    else:
        how = f"Pipeline of {plan.parts} parts of the batch" if plan.is_pipeline else "Split"
        how = f"{how} over {names_text(plan.devices)}"
    text = f"{how}{plan.parts_text}: {seconds_text(plan.seconds)} per step"
    if plan.devices == (device,) or (len(plan.devices) == 1 and not plan.alone_fits):
        return f"{text}."
    if not plan.alone_fits:
        return f"{text}. No device alone has the memory for the whole batch."
    if abs(alone - plan.seconds) <= _EQUAL * plan.seconds:
        return f"{text}, as fast as {device} alone."
    word, ratio = ("faster", alone / plan.seconds) if plan.seconds < alone else ("slower", plan.seconds / alone)
    return f"{text}, {_ratio_text(ratio)} {word} than {device} alone."


def price_text(plan: Plan, machines: Machines) -> str:
    """Return what 1,000 steps cost, also on the fastest device alone; "" if one of these devices has no price.

    Example:
      >>> price_text(plan, machines)
      '1,000 steps cost 0.137; on gpu:0 alone, 0.106.'
    """
    device, alone = plan.alone
    own, other = machines.by_name(plan.devices).price(plan.seconds), machines.by_name([device]).price(alone)
    if own is None or other is None:
        return ""
    text = f"{_STEPS:,} steps cost {units.price_text(_STEPS * own)}"
    has_other = plan.devices != (device,) and plan.alone_fits
    return f"{text}; on {device} alone, {units.price_text(_STEPS * other)}." if has_other else f"{text}."


def names_text(devices: Sequence[str]) -> str:
    """Return devices' names, those of one kind with consecutive numbers together.

    Example:
      >>> names_text(["V100:0", "V100:1", "cpu"])
      'V100:0-1, cpu'
    """
    return ", ".join(name for name, _ in name_ranges(devices))


def threshold_text(threshold: Threshold) -> str:
    """Return when devices would be worth using.

    Example:
      >>> threshold_text(Threshold(BANDWIDTH, 4.0, ("b",)))
      'from 4 Gbit/s on'
    """
    if math.isinf(threshold.value):
        return "over a faster link" if threshold.kind == BANDWIDTH else "at a higher speed"
    value = f"{threshold.value:g}"
    if threshold.kind == BANDWIDTH:
        return f"from {value} Gbit/s on{'' if threshold.is_exact else ', or less'}"
    return f"at {value}x its speed{'' if threshold.is_exact else ', or less'}"


def _describe_left_out(plan: Plan, offered: Iterable[str], others: Iterable[LeftOut]) -> list[str]:
    """Return sentences on the devices that a plan leaves out."""
    sentences, said = [], set()
    for other in others:
        if other.threshold is not None:
            sentences.append(f"{other.device} would pay off {threshold_text(other.threshold)}.")
        elif other.alone_seconds is None:
            sentences.append(f"{other.device} alone is short of memory.")
        else:
            continue
        said.add(other.name)
    silent = [
        name for name, _ in name_ranges([name for name in offered if name not in plan.devices]) if name not in said
    ]
    if silent:
        sentences.append(f"Not used: {', '.join(silent)}.")
        if plan.runner_up is not None:
            added = names_text([name for name in plan.runner_up.devices if name not in plan.devices])
            seconds = plan.runner_up.seconds
            is_near = seconds < plan.seconds < (1 + NO_GAIN) * seconds  # one may be much faster, but short of memory
            gain = f", less than {100 * NO_GAIN:.0f} % faster" if is_near else ""
            sentences.append(f"The fastest layout with {added} takes {seconds_text(seconds)}{gain}.")
    return sentences


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 1.095 else f"{ratio:.1f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def _memory(plan: Plan) -> str:
    """Return what each device needs, the most of those that are named together."""
    texts = []
    for name, numbers in name_ranges(plan.devices):
        needed = [plan.memory_bytes[number] for number in numbers]
        least, most = bytes_text(min(needed)), bytes_text(max(needed))
        if min(needed) < _ALIKE * max(needed):  # they only have consecutive names
            texts += [f"{bytes_text(plan.memory_bytes[number])} on {plan.devices[number]}" for number in numbers]
        else:
            texts.append(f"{most} on {name}" if least == most else f"{least} to {most} on {name}")
    return ", ".join(texts)
