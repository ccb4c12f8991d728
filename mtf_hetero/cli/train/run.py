"""A training run: `prepare` checks it and places it, and `training` runs it."""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import tables
from mtf_hetero.cli.train import inputs
from mtf_hetero.cli.train import program as network
from mtf_hetero.cli.train.config import Config, parse_eval_every
from mtf_hetero.cli.train.tasks import Task
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cluster.members import Members
from mtf_hetero.cost import memory
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.trace import Event
from mtf_hetero.estimator import Estimator, RunConfig
from mtf_hetero.layout import Layout
from mtf_hetero.mesh import traffic
from mtf_hetero.mesh.commits import Commits
from mtf_hetero.models.registry import Model
from mtf_hetero.placement import Placement, Request
from mtf_hetero.placement.placing import shown_sizes, split_dims
from mtf_hetero.planner import measured, show, verdict
from mtf_hetero.planner.fitting import estimated
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import describe
from mtf_hetero.planner.resizing import Resizer
from mtf_hetero.training.changes import Split

if TYPE_CHECKING:
    from mtf_hetero.keras.first_step import FirstStep

LOST = 1  # the exit code: the loss is no number, the disk is full, or the first step is not that of Keras


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A checked run, before its step is placed on devices.

    Args:
      config: the user's configuration.
      request: the loaded request for a placement.
      model: the model.
      dataset: the data.
      program: of the model, its task and its batch.
      cluster: the devices.
      graph: the step, or a test without training; its dimensions are read.
      notes: lines for the user, about workers and measurements.
      machines: figures of the simulated devices in a dry run; None: no step is predicted.
      absent: names of the simulated devices; none: the devices are real.
      model_dir: directory of checkpoints and summaries.
      trains: whether the run trains, and waits for lost workers.
      members: the present workers; None: the user named none.
      placement: the split of the step; None: its devices are measured first.
      check: of its first step; None: the network is mtf's own, or rounds what is sent.
    """

    config: Config
    request: Request
    model: Model
    dataset: inputs.Dataset
    program: network.Program
    cluster: Cluster
    graph: mtf.Graph
    notes: tuple[str, ...]
    machines: Machines | None = None
    absent: tuple[str, ...] = ()
    model_dir: str = ""
    trains: bool = True
    members: Members | None = None
    placement: Placement | None = None
    check: "FirstStep | None" = None

    @property
    def task(self) -> Task:
        """The model's prediction for the data."""
        return self.program.task

    @property
    def batch(self) -> Sequence[int]:
        """Sizes of the dimensions of the batch."""
        assert self.program.batch is not None
        return self.program.batch

    @property
    def total_steps(self) -> int:
        """The global step at which training ends."""
        return total_steps(self.config, self.dataset)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """{variable: its shape}, for the variables in checkpoints."""
        return {v.name: v.shape.to_integer_list for v in self.graph.all_variables}

    def build_graph(self) -> mtf.Graph:
        """Build the training step without images in TensorFlow's default graph."""
        return self.program.build_blank(self.config.batch_size).graph


class Run(Draft):
    """A run with its step placed on devices."""

    @property
    def placed(self) -> Placement:
        """The placement of its step."""
        assert self.placement is not None
        return self.placement

    @property
    def layout(self) -> Layout:
        """The layout: mesh shape, rules and sizes."""
        return self.placed.layout

    @property
    def plan(self) -> Plan | None:
        """The plan of its layout."""
        return self.placed.plan

    @property
    def devices(self) -> tuple[str, ...]:
        """One per processor."""
        return self.placed.devices

    @property
    def measured_machines(self) -> Machines | None:
        """Return the figures of its devices if they were measured on the program."""
        return self.placed.measured_machines or self.machines

    @property
    def split(self) -> Split:
        """Return how the step is split, for the user."""
        return Split(self.layout, self.devices, shown_sizes(self.graph, self.layout))

    def resizer(self) -> Resizer:
        """Return what finds other sizes for its devices."""
        return self.placed.resizer(self.build_graph, self.measured_machines)

    def at(self, placed: Placement) -> "Run":
        """Return the run at another place."""
        return dataclasses.replace(self, placement=placed, cluster=placed.cluster)

    @functools.cached_property
    def estimator(self) -> Estimator:
        """The Estimator of this run."""
        run_config = RunConfig(
            tf_random_seed=self.config.seed,
            save_checkpoints_secs=self.config.save_checkpoints_secs,
            save_summary_steps=None,  # the MetricsHook does it
            log_step_count_steps=None,  # the ProgressHook does it
            session_config=self.cluster.session_config(),
            master=self.cluster.target,
            workers=self.cluster.workers_in_use,
            wait_for_workers=self.config.wait_seconds if self.trains else False,
        )
        model_fn = functools.partial(
            self.program.model_fn,
            layout=self.layout,
            devices=self.devices,
            wire_dtype=self.config.wire_dtype,
            initial=None if self.model.initial is None else self.model.initial(),
            check=self.check,
        )
        return Estimator(model_fn, self.model_dir, run_config)

    def report_layers(self, events: Sequence[Event]) -> str:
        """Return each layer's measured time on each device in a traced step, beside the prediction."""
        assert self.plan is not None
        with tf.Graph().as_default():
            return measured.report(self.plan, self.build_graph(), events)

    def describe(self) -> str:
        """Describe the model, the data, the mesh, and the sizes of each split dimension."""
        names = self.absent or self.devices
        lines = [
            f"{self.config.model}: {sum(v.size for v in self.graph.trainable_variables):,} parameters",
            ", ".join(filter(None, (str(self.dataset), self.task.describe()))),
            *map(shorten, self.notes),
            shorten(f"mesh {self.layout.mesh_text} on {', '.join(names)}"),
        ]
        rows = _describe_splits(split_dims(self.graph, self.layout), self.layout)
        return "\n".join([*lines, *tables.lines(rows, "<<", indent="  ")])

    def describe_dry_run(self) -> str:
        """Return `describe`, the memory of each device, predictions for simulated devices, and how to train."""
        parts = [self.describe(), "predicted memory of each device when it needs most, in MB:", self.describe_memory()]
        if self.machines is not None:
            with tf.Graph().as_default():
                plan = estimated(describe(self.build_graph(), self.machines, self.layout), self.build_graph)
            parts += ["", verdict.verdict(plan), "", show.table(plan)]
        parts += ["", "Nothing was trained, because of --dry_run."]
        return "\n".join(parts)

    def describe_memory(self) -> str:
        """Describe the peak memory of each device in a step, from the lowered graph."""
        with tf.Graph().as_default():
            tf.train.create_global_step()
            batches = self.train_input()
            if not isinstance(batches, tuple):
                batches = tf.data.make_initializable_iterator(batches).get_next()
            features, labels = batches
            built = self.program.build_training(features["image"], labels)
            lowering = network.lower(built, self.layout, self.devices, self.config.wire_dtype)
            assert built.loss is not None
            fetches: list[tf.Tensor | tf.Operation] = [lowering.export_to_tf_tensor(built.loss)]
            fetches += [lowering.lowered_operation(op) for op in built.updates]
            if self.cluster.workers and self.config.wait_seconds:
                Commits().hold(*(x if isinstance(x, tf.Operation) else x.op for x in fetches))  # as the training does
            traffic.arrange(fetches)
            estimates = memory.estimate(lowering, fetches)
        names = self.absent or map(shorten, self.devices)
        return memory.table({n: estimates[d] for d, n in dict(zip(self.devices, names, strict=True)).items()})

    def how_to_resume(self) -> str:
        """Return the path of the newest intact checkpoint, and the command to resume from it."""
        try:
            path = self.estimator.latest_checkpoint()
        except ValueError as error:
            return str(error)
        if path is None:
            return "nothing was saved"
        return f"the checkpoint is {path}; to resume, run the same command with --model_dir={self.model_dir}"

    def train_input(self) -> inputs.Batches:
        """Return training batches, in each processor's own slices if they can be read so."""
        return inputs.for_training(self.dataset, self.config, self.layout, self.batch, self.devices)

    def test_input(self) -> inputs.Batches:
        """Return test batches, in the same form."""
        return inputs.for_test(self.dataset, self.config.batch_size, self.layout, self.batch, self.devices)

    def test(self, checkpoint_path: str | None = None) -> dict[str, Any]:
        """Test a checkpoint, the last one if none is given, on the complete test set, and return its metrics."""
        steps = -(-self.dataset.test_size // self.config.batch_size)
        return self.estimator.evaluate(self.test_input, steps=steps, checkpoint_path=checkpoint_path)


def _describe_splits(dims: Sequence[tuple[str, int]], layout: Layout) -> list[tuple[str, str]]:
    """Describe the splits of dimensions, given as (name, size), as (name, description).

    Each layer has its own name for a dimension of the images, "conv1/batch". Layers that split it like the images'
    dimension of that size are described once, as "batch".
    """
    rows = []
    for name, size in dims:
        own = name.rpartition("/")[2]
        alike = layout.axis_of(own) == layout.axis_of(name) and layout.split(own, size) == layout.split(name, size)
        parts = ", ".join(str(part) for part in layout.split(name, size))
        rows.append((own if alike else name, f"{size:6} over {layout.axis_name_of(name)}: {parts}"))
    return list(dict.fromkeys(rows))


def total_steps(config: Config, dataset: inputs.Dataset) -> int:
    """Return the global step at which training ends."""
    return steps_of_epochs(config, dataset, config.train_epochs) if config.max_steps is None else config.max_steps


def steps_of_epochs(config: Config, dataset: inputs.Dataset, epochs: int) -> int:
    """Return the number of complete batches in so many epochs."""
    return epochs * dataset.train_size // config.batch_size


def check_steps(config: Config, dataset: inputs.Dataset) -> None:
    """Raise ValueError if a flag names a step that the training lacks."""
    whole, last = steps_of_epochs(config, dataset, config.train_epochs), total_steps(config, dataset)
    if last > whole:
        needed = -(-last * config.batch_size // dataset.train_size)
        raise ValueError(
            f"--max_steps is {last}, but there are {whole} steps in --train_epochs={config.train_epochs} of "
            f"{dataset.train_size} {dataset.unit} in batches of {config.batch_size}; give "
            f"--train_epochs={needed}"
        )
    validations(config, dataset)
    for step in config.trace_steps:
        if step >= last:
            raise ValueError(
                f"--trace_steps names {step}, but the training has {last} steps, which count from 0: the last is "
                f"{last - 1}; name an earlier one"
            )


@dataclasses.dataclass(frozen=True)
class Validations:
    """Describes the steps before the last one after which the network is tested. No list of them is made.

    Args:
      numbers: of the steps, or of the epochs at whose ends they are.
      step_at: from such a number to the step.
    """

    numbers: range
    step_at: Callable[[int], int]

    def is_due(self, step: int) -> bool:
        """Return whether the network is tested after a global step."""
        index = len(self.numbers) - self.count_from(step)
        return index < len(self.numbers) and self.step_at(self.numbers[index]) == step

    def count_from(self, step: int) -> int:
        """Return the number of tests after a global step and later ones."""
        return len(self.numbers) - bisect.bisect_left(self.numbers, step, key=self.step_at)


def validations(config: Config, dataset: inputs.Dataset) -> Validations:
    """Return the tests of --eval_every.

    Raises:
      ValueError: no such step comes before the end of the training, or the test set is empty.
    """
    if config.eval_every is None:
        return Validations(range(0), int)
    if not dataset.test_size:
        raise ValueError(
            f"--eval_every is {config.eval_every!r}, but {config.dataset} has no test {dataset.unit}; remove it"
        )
    (every, is_of_epochs), last = parse_eval_every(config.eval_every), total_steps(config, dataset)
    step_at = functools.partial(steps_of_epochs, config, dataset) if is_of_epochs else int
    if step_at(every) > last:
        raise ValueError(
            f"--eval_every is {config.eval_every!r}, but the training ends before, after step {last}; give a smaller "
            "number, or remove it: the end of the training is tested anyway"
        )
    numbers = range(every, config.train_epochs + 1 if is_of_epochs else last, every)
    return Validations(numbers[: bisect.bisect_left(numbers, last, key=step_at)], step_at)  # the last is tested anyway


def make_optimizer(config: Config, steps: int) -> network.Optimizer:
    """Return the user's optimizer, for a training of so many steps."""
    schedule = config.learning_rate_schedule
    if schedule == "constant":
        return network.Optimizer(config.optimizer, config.learning_rate)
    return network.Optimizer(config.optimizer, config.learning_rate, steps, schedule)
