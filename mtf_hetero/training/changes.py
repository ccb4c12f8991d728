"""A change of a training's place as a line for the user, and as a row of a log."""

import dataclasses
from collections.abc import Mapping, Sequence

from mtf_hetero.cluster.devices import shorten
from mtf_hetero.layout import Layout
from mtf_hetero.training.elastic import Event

Row = Mapping[str, object]  # of a log


@dataclasses.dataclass(frozen=True)
class Split:
    """The split of a step, as the user sees it.

    Args:
      layout: with its mesh.
      devices: one per processor.
      sizes: {dimension: its sizes}, of dimensions in equal proportions the first one.
    """

    layout: Layout
    devices: Sequence[str]
    sizes: Mapping[str, Sequence[int]]

    @property
    def shown_devices(self) -> str:
        """Return the devices in one text."""
        return ", ".join(map(shorten, self.devices))


def describe(event: Event, split: Split, gain: float | None) -> str:
    """Return a line about a change.

    Args:
      event: the change.
      split: the new one.
      gain: predicted, of a change of the shares; None: the devices have changed.
    """
    if gain is None:
        return f"{event}, with mesh {split.layout.mesh_text} on {split.shown_devices}"
    sizes = (f"{name} {', '.join(map(str, of_name))}" for name, of_name in split.sizes.items())
    return f"{event}, with {next(sizes, 'nothing split')}"


def row(event: Event, before: Split, split: Split, gain: float | None) -> Row:
    """Return a row about a change; `before` is the split until then, the other arguments are those of `describe`."""
    return {
        "why": event.why,
        "source": event.source,
        "repeated_steps": event.repeated_steps,
        "seconds_paused": round(event.seconds, 3),
        "devices": split.shown_devices,
        "predicted_gain": gain,
        "sizes": split.sizes,
        "sizes_before": before.sizes,
        "devices_before": before.shown_devices,
    }
