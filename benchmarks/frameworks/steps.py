"""A training step as a graph: lowered, counted, and started in a session."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import Layout, tf
from mtf_hetero.cli.train import program
from mtf_hetero.mesh import initial_value_feed, traffic
from mtf_hetero.placement.placing import split_dims


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A training step on the devices of a mesh."""

    layout: Layout
    devices: tuple[str, ...]  # one per processor
    built: program.Built
    masters: tuple[Any, ...]  # of each trainable variable the one that mtf made, whose initial value is fed
    lowering: Any
    fetches: tuple[Any, ...]  # what a session runs: the loss, and the step

    def sends(self) -> tuple[traffic.Send, ...]:
        """Return the traffic from device to device."""
        return traffic.sends(self.fetches, graph=self.built.graph)

    def count_traffic(self) -> dict[str, int]:
        """Return the bytes that it sends over all links, and bytes and messages of the link that carries most."""
        sends = self.sends()
        links = traffic.links(sends)
        busiest = next(iter(links), None)
        devices = {device for link in links for device in link}
        of_devices = [sum(size for link, size in links.items() if device in link) for device in devices]
        return {
            "sent_bytes": sum(links.values()),
            "busiest_worker_bytes": max(of_devices, default=0),
            "busiest_link_bytes": links[busiest] if busiest else 0,
            "busiest_link_messages": sum((send.source, send.target) == busiest for send in sends),
        }

    def sizes(self) -> dict[str, list[int]]:
        """Return the sizes of the split dimensions."""
        dims = reversed(split_dims(self.built.graph, self.layout))  # of one name, the first counts
        sizes = {name: list(self.layout.split(name, size)) for name, size in dims}
        return dict(reversed(sizes.items()))

    def initial_values(self, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """{variable: array of its shape} of arrays in the order of the trainable variables."""
        return {m.op.name: v.reshape(m.shape.as_list()) for m, v in zip(self.masters, values, strict=True)}


def lower_step(
    built: program.Built,
    layout: Layout,
    devices: Sequence[str],
    lower: Callable[..., Any] = program.lower,
    **options: Any,
) -> Step:
    """Lowers a program in TensorFlow's default graph; options are those of `lower`."""
    masters = tuple(variable.get_master() for variable in built.graph.trainable_variables)
    lowering = lower(built, layout, devices, **options)
    loss = lowering.export_to_tf_tensor(built.loss)
    with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
        fetches = loss, tf.no_op()
    traffic.arrange(fetches)
    return Step(layout, tuple(devices), built, masters, lowering, fetches)


def start_session(session: Any, lowering: Any, values: Mapping[str, np.ndarray]) -> None:
    """Initialise what is in TensorFlow's default graph: these variables, by name, from arrays."""
    session.run(tf.global_variables_initializer(), initial_value_feed(values))
    session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices(), tf.tables_initializer()])


def slices(mesh_impl: Any, shape: Any, make: Callable[[Sequence[int], Sequence[int]], Any]) -> list[Any]:
    """make(begin, size) of the slice of a shape that each processor has, on its own device."""
    made = []
    for pnum, device in enumerate(mesh_impl.devices):
        with tf.device(device):
            made.append(make(mesh_impl.slice_begin(shape, pnum), mesh_impl.slice_shape(shape, pnum)))
    return made


def worker_devices(count: int) -> list[str]:
    """Return the names of so many workers that need not be there."""
    return [f"/job:worker/task:{index}/device:CPU:0" for index in range(count)]
