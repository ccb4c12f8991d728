"""The cost model: time, memory and messages of any layout of a step on some devices, predicted before anything runs."""

import collections
import copy
import functools
import math
import operator
from collections.abc import Iterable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost import transfers, work
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.memory.footprint import Footprint
from mtf_hetero.cost.sample import EXACT, Crowd, Sample, mesh_crowd, unsampled
from mtf_hetero.cost.timeline import Simulation, Timeline, is_single
from mtf_hetero.cost.turns import Turns
from mtf_hetero.graph import assign_layers, live_operations
from mtf_hetero.graph.families import Families
from mtf_hetero.graph.identity import operation_key
from mtf_hetero.graph.residents import Residents
from mtf_hetero.layout import CannotSplitError, Layout

AXIS = "all"  # of a mesh of one axis
ALONE = Layout([(AXIS, 1)], ())


class _Step:
    """The parts of a prediction that no device and no layout changes."""

    def __init__(self, graph: mtf.Graph) -> None:
        self.operations = tuple(live_operations(graph))
        if not self.operations:
            raise ValueError("the graph has no operation; build a training step")
        self.layers = assign_layers(self.operations, graph.trainable_variables)
        self.simulation = Simulation(self.operations, self.layers)
        self.families = Families(self.operations)
        self.amounts = {op: work.of_operation(op, ALONE, 0) for op in self.operations}
        self._parts: dict[tuple[mtf.Operation, ...], transfers.Step] = {}

    def part(self, operations: tuple[mtf.Operation, ...]) -> transfers.Step:
        """Return some of the operations, with what no layout changes in the messages that they send."""
        if operations not in self._parts:
            self._parts[operations] = transfers.Step(operations)
        return self._parts[operations]

    @functools.cached_property
    def awaited(self) -> frozenset[str]:
        return frozenset(op.name for op in self.simulation.awaited)

    @functools.cached_property
    def footprint(self) -> Footprint:
        return Footprint(self.operations)

    @functools.cached_property
    def kinds(self) -> dict[mtf.Operation, str]:
        return {op: operation_key(op) for op in self.operations}


class Model:
    """The predicted cost of a training step on some devices, for any layout.

    Args:
      graph: mtf.Graph of a training step, on one mesh. Nothing of it is lowered.
      machines: the devices, one per processor of the mesh.
      crowds: one per mesh axis: a few devices stand for all, see `cost.sample`. None: each device is priced by itself.

    Raises:
      ValueError: the graph has no operation.

    Attributes:
      shown: the devices that are priced.
      operations: those that run, in the graph's order.
      layers: {operation: its layer}.
      families: the dimensions of the step.

    Example:
      >>> model = Model(graph, Machines((Machine("gpu:0", 4e12, 3e11), Machine("cpu:0", 1e11, 2e10))))
      >>> layout = Layout("all:2", "batch:all", shares={"all": [40, 1]})
      >>> model.seconds(layout), model.bytes_held(layout), sum(transfer.bytes for transfer in model.sent(layout))
    """

    def __init__(self, graph: mtf.Graph, machines: Machines, crowds: Sequence[Crowd] | None = None) -> None:
        self._step = _Step(graph)
        self.operations, self.layers, self.families = self._step.operations, self._step.layers, self._step.families
        self._enter(machines, (unsampled(len(machines.devices)),) if crowds is None else tuple(crowds))

    def _enter(self, machines: Machines, crowds: tuple[Crowd, ...]) -> None:
        self.crowds, self.crowd = crowds, mesh_crowd(crowds)
        self._samples: dict[tuple, Sample] = {}
        self._messages: dict[tuple, transfers.Messages] = {}
        self._residents: dict[Layout, Residents] = {}
        self._set_machines(machines)

    def _set_machines(self, machines: Machines) -> None:
        self.machines = machines
        self.shown = machines.some(self.crowd.shown) if self.crowd.is_sample else machines
        self._alone = tuple(machine.alone() for machine in self.shown.devices)
        self._has_factors = any(machine.factors for machine in machines.devices)
        self._seconds: dict[tuple[mtf.Operation, tuple, frozenset], tuple[float, ...]] = {}
        self._runs: dict[Layout, tuple[Timeline, tuple[int, ...]]] = {}
        self._peaks: dict[tuple[Layout, tuple[int, ...]], tuple[int, ...]] = {}

    def on(self, machines: Machines, crowds: Sequence[Crowd] | None = None) -> "Model":
        """Return the model of the same step on other devices; without crowds, those of this model stay."""
        model = copy.copy(self)
        if crowds is None:
            figures, own = machines.with_memory(None), self.machines.with_memory(None)
            model._set_machines(machines)
            if figures.devices == own.devices:  # other links or limits alone
                model._seconds = self._seconds
            if figures == own:  # other limits alone
                model._runs, model._peaks = self._runs, self._peaks
        else:
            model._enter(machines, tuple(crowds))
        return model

    @property
    def footprint(self) -> Footprint:
        """The memory of the step."""
        return self._step.footprint

    def seconds(self, layout: Layout) -> float:
        """Return the seconds of a step; infinity if an operation cannot be split so."""
        try:
            return self.timeline(layout).seconds
        except CannotSplitError:
            return math.inf

    def timeline(self, layout: Layout) -> Timeline:
        """Return the step as spans of work on each device.

        Raises:
          CannotSplitError: the layout splits what an operation needs whole.
        """
        return self._run(self.priced(layout))[0]

    def _run(self, layout: Layout) -> tuple[Timeline, tuple[int, ...]]:
        """Return the step in a layout with exact sizes, and how many slots each device has in progress, if any."""
        if layout not in self._runs:  # half of the layouts of a search are found in several ways
            compute = functools.partial(self._compute_seconds, layout=layout)
            if layout.emptied or layout.slots:
                residents = self._find_residents(layout)
                compute = functools.partial(self._present_seconds, layout=layout, residents=residents)
            messages = self._find_messages(layout, None)
            if layout.slots:
                found = Turns(self._step.simulation, self.shown, layout, compute, messages).run()
            else:
                found = self._step.simulation.run(self.shown, compute, messages), ()
            self._runs[layout] = found
        return self._runs[layout]

    def _find_residents(self, layout: Layout) -> Residents:
        if layout not in self._residents:
            self._residents[layout] = self._step.part(self.operations).residents(layout)
        return self._residents[layout]

    def slots_in_progress(self, layout: Layout) -> tuple[int, ...]:
        """Return how many slots each device has in progress, in a layout with exact sizes and slots."""
        return self._run(layout)[1]

    def bytes_held(self, layout: Layout) -> tuple[int, ...]:
        """Return the bytes that each device needs for a step, at its own worst moment unless devices are many."""
        sized, count = self._with_sizes(layout), len(self.machines.devices)
        return (self._peaks_on if count <= EXACT else self.footprint.bytes_on)(sized, tuple(range(count)))

    def _peaks_on(self, sized: Layout, devices: tuple[int, ...]) -> tuple[int, ...]:
        if (sized, devices) not in self._peaks:
            residents = self._find_residents(sized) if sized.emptied else None
            in_progress = self.slots_in_progress(sized) if sized.slots else ()
            self._peaks[sized, devices] = self.footprint.peaks_on(sized, devices, residents, in_progress)
        return self._peaks[sized, devices]

    def bytes_apart(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the bytes that a device needs for the operations of each name, if it has no other's of these names."""
        numbers = range(len(names))
        sizes = {
            name: [max(self.families.extents[name]) * (i == own) for i in numbers] for own, name in enumerate(names)
        }
        apart = Layout([(AXIS, len(names))], [(name, AXIS) for name in names], (), sizes)
        return self._peaks_on(apart, tuple(numbers))

    def memory_use(self, layout: Layout) -> float:
        """Return the memory that a step needs over what there is, on the device that is most short of it."""
        sized, shown = self._with_sizes(layout), self.crowd.shown
        limits = [machine.memory_bytes or math.inf for machine in self.shown.devices]
        if not sized.slots:
            use = max(map(operator.truediv, self.footprint.bytes_on(sized, shown), limits))
            if use <= 1 or not sized.emptied:
                return use
        return max(map(operator.truediv, self._peaks_on(sized, shown), limits))

    def sent(self, layout: Layout, operations: Sequence[mtf.Operation] | None = None) -> tuple[transfers.Transfer, ...]:
        """Return the messages of a step between the devices that are priced.

        Args:
          layout: the Layout.
          operations: some of the step's; None: all.

        Raises:
          CannotSplitError: as of `timeline`.
        """
        return self._find_messages(self.priced(layout), operations).sent

    def _find_messages(self, layout: Layout, operations: Sequence[mtf.Operation] | None) -> transfers.Messages:
        operations = self.operations if operations is None else tuple(operations)
        key = operations, layout.mesh_shape, layout.rules, layout.sizes, layout.slots
        if key not in self._messages:
            residents = self._find_residents(layout) if operations is self.operations else None
            self._messages[key] = self._step.part(operations).messages(layout, residents)
        return self._messages[key]

    def exact(self, layout: Layout) -> Layout:
        """Return a layout with the exact size of each dimension that it splits, by the largest of its extents."""
        dims = [mtf.Dimension(name, max(extents)) for name, extents in self.families.extents.items()]
        split = [(dim.name, layout.axis_name_of(dim), layout.split(dim.name, dim.size)) for dim in dims]
        rules = [(name, axis) for name, axis, _ in split if axis is not None]
        sizes = {name: sizes for name, axis, sizes in split if axis is not None}
        return Layout(layout.mesh_shape, rules, (), sizes, layout.slots)

    def priced(self, layout: Layout) -> Layout:
        """Return a layout with exact sizes, as a Sample if few devices stand for all."""
        layout = self._with_sizes(layout)
        if not self.crowd.is_sample or isinstance(layout, Sample):
            return layout
        key = layout.rules, layout.sizes
        if key not in self._samples:
            self._samples[key] = Sample(
                layout.mesh_shape, layout.rules, layout.shares, layout.sizes, crowds=self.crowds
            )
        return self._samples[key]

    def _with_sizes(self, layout: Layout) -> Layout:
        return layout if len(layout.sizes) == len(layout.rules) else self.exact(layout)

    def sequential_seconds(self, operations: Sequence[mtf.Operation], layout: Layout) -> float:
        """Return the seconds of some operations if nothing overlaps; infinity if one cannot be split so."""
        return math.fsum(self.parts_of_seconds(operations, layout))

    def parts_of_seconds(self, operations: Sequence[mtf.Operation], layout: Layout) -> tuple[float, float]:
        """Return the seconds of `sequential_seconds` in two parts: the second is for messages that no product awaits.

        These are sent beside the computation, as far as links are free.
        """
        layout = self.priced(layout)
        try:
            sent = self.sent(layout, operations)
        except CannotSplitError:
            return math.inf, 0.0
        total = math.fsum(max(self._compute_seconds(op, layout)) for op in operations)
        awaited = self._step.awaited
        beside = [transfer for transfer in sent if transfer.operation not in awaited]
        between = [transfer for transfer in sent if transfer.operation in awaited] if beside else sent
        total += max(self._message_seconds(sent)) + self.sending_seconds(between)
        return total, self.sending_seconds(beside)

    def busy_seconds(self, layout: Layout) -> tuple[float, ...]:
        """Return the seconds of a step for which each priced device is busy: it computes, sends or receives.

        Raises:
          CannotSplitError: as of `timeline`.
        """
        timeline = self.timeline(layout)
        seconds = self._message_seconds(timeline.sent)
        return tuple(timeline.busy_seconds(device) + each for device, each in enumerate(seconds))

    def _message_seconds(self, sent: Iterable[transfers.Transfer]) -> list[float]:
        """Return the seconds of each priced device's processor for the messages that it sends and receives."""
        seconds = [0.0] * len(self.shown.devices)
        for transfer in sent:
            for end, times in ((transfer.source, transfer.times), (transfer.target, 1.0)):
                seconds[end] += times * transfer.ends_seconds(self.shown.devices[end].sending_seconds)
        return seconds

    def compute_seconds(self, op: mtf.Operation, layout: Layout) -> tuple[float, ...]:
        """Return the seconds that each priced device computes for an operation; the others rest if one has all."""
        return self._compute_seconds(op, self.priced(layout))

    def split_seconds(self, name: str, layout: Layout) -> tuple[float, ...]:
        """Return the seconds that each priced device computes its parts of what is split by this name alone."""
        sizes, seconds = dict(layout.sizes), [0.0] * len(self.shown.devices)
        for op in self.families.list_operations([name]):
            if len(sizes.keys() & self.families.dimension_names[op]) == 1:
                for place, size, each in zip(
                    layout.places, sizes[name], self._compute_seconds(op, layout), strict=True
                ):
                    seconds[place] += each * bool(size)
        return tuple(seconds)

    def _present_seconds(self, op: mtf.Operation, layout: Layout, residents: Residents) -> tuple[float, ...]:
        """Return the seconds of each processor that takes part; one slot does what all of a device share."""
        seconds, there = self._compute_seconds(op, layout), residents.computing(op)
        if there is not None:
            seconds = tuple(each if is_there else 0.0 for each, is_there in zip(seconds, there, strict=True))
        if not layout.slots or layout.sizes_among(self.families.dimension_names[op]):
            return seconds
        first = {}
        for slot, (place, each) in enumerate(zip(layout.places, seconds, strict=True)):
            if each:
                first.setdefault(place, slot)
        return tuple(each if slot in first.values() else 0.0 for slot, each in enumerate(seconds))

    def _compute_seconds(self, op: mtf.Operation, layout: Layout) -> tuple[float, ...]:
        key = op, layout.slots, layout.sizes_among(self.families.dimension_names[op])
        if key not in self._seconds:
            amounts = work.of_processors(op, layout)
            machines = self._on_processors(self.shown.devices, layout)
            paddings = work.paddings(op, layout, [machine.granule for machine in machines])

            def seconds_on(machines: Sequence[Machine]) -> tuple[float, ...]:
                return tuple(
                    machine.seconds(flops * padding, moved, self._kind(op))
                    for machine, (flops, moved), padding in zip(machines, amounts, paddings, strict=True)
                )

            seconds = seconds_on(machines)
            self._seconds[key] = seconds_on(self._on_processors(self._alone, layout)) if is_single(seconds) else seconds
        return self._seconds[key]

    def _on_processors(self, machines: Sequence[Machine], layout: Layout) -> Sequence[Machine]:
        """Return the machine of each processor: slots of a device share one."""
        return [machines[place] for place in layout.places] if layout.slots else machines

    def sending_seconds(self, sent: Iterable[transfers.Transfer]) -> float:
        """Return the seconds until all is sent: a device sends one message after another, and receives beside it."""
        out: dict[int, float] = collections.defaultdict(float)
        into: dict[int, float] = collections.defaultdict(float)
        for transfer in sent:
            link = self.shown.link_between(transfer.source, transfer.target)
            seconds = transfer.ends_seconds(link.seconds)
            out[transfer.source] += transfer.times * seconds
            into[transfer.target] += seconds
        return max([*out.values(), *into.values()], default=0.0)

    def unsplit_seconds(self, operations: Sequence[mtf.Operation] | None = None) -> tuple[float, ...]:
        """Return the seconds that each device computes for operations that are not split; None: all of the step."""
        operations = self.operations if operations is None else operations
        amounts = [(*self._step.amounts[op], self._kind(op)) for op in operations]
        seconds = [math.fsum(machine.seconds(*amount) for amount in amounts) for machine in self.shown.devices]
        return tuple(seconds[place] for place in self.crowd.stands)

    def amount(self, op: mtf.Operation) -> tuple[int, int]:
        """Return the floating-point operations of an operation, and the bytes that it reads and writes."""
        return self._step.amounts[op]

    def flops(self, operations: Iterable[mtf.Operation]) -> float:
        """Return the floating-point operations of some operations."""
        return math.fsum(self._step.amounts[op][0] for op in operations)

    def _kind(self, op: mtf.Operation) -> str:
        return self._step.kinds[op] if self._has_factors else ""  # without factors the name is not worth its digest
