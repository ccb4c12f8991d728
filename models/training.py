"""A training run: checked and laid out by `prepare`, then carried out by `Run.train`."""

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from layouts import LAYOUTS
from layouts.hybrid import batch_sizes, member_sizes
from models import measured, network
from models.config import AUTO, HYBRID, Config, parse_list_speed, parse_memory_limit, parse_shares
from models.registry import MODELS, Model
from mtf_hetero import Layout, data, memory, profile, tf
from mtf_hetero.cluster import Cluster, LocalCluster, shorten
from mtf_hetero.estimator import Estimator, RunConfig
from mtf_hetero.hooks import ProgressHook
from mtf_hetero.layout import convert_to_mesh_shape
from mtf_hetero.trace import TraceHook

LOST = 1
_SUMMARY_STEPS = 50
_LOG_STEPS = 10


class _ThroughputHook(tf.train.SessionRunHook):
    """Counts steps and seconds from the end of the first step on, which is slow for reasons of its own.

    Log lines begin with the session: before that, mtf logs every variable and every counter of the lowering. A terminal
    shows the ProgressHook's bar instead.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._begin = self._end = self._first = 0.0

    def after_create_session(self, session: Any, coord: Any) -> None:
        if not sys.stderr.isatty():
            tf.logging.set_verbosity(tf.logging.INFO)

    def before_run(self, run_context: Any) -> None:
        self._begin = self._begin or time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._end = time.monotonic()
        self._first = self._first or self._end
        self.steps += 1

    @property
    def steps_per_second(self) -> float:
        """Of all steps but the first, where there are others."""
        if self.steps > 1:
            return (self.steps - 1) / (self._end - self._first)
        return self.steps / max(self._end - self._begin, 1e-9)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A training run that is known to be possible.

    Args:
      config: what the user asked for.
      model: the model.
      dataset: the data.
      layout: how the tensors lie on the mesh.
      cluster: where it takes place.
      devices: one per processor.
      model_dir: directory of checkpoints and summaries.
      batch: sizes of the dimensions of the batch.
      dense_rounds: sizes of the parts of its last dimension that pass the dense layers in turn; None: all at once.
      parameters: number of trainable parameters.
      split_dims: the dimensions of the graph that the layout splits, as (name, size).
      notes: lines for the user, about the workers and about the speeds that were measured.
    """

    config: Config
    model: Model
    dataset: data.Dataset
    layout: Layout
    cluster: Cluster
    devices: tuple[str, ...]
    model_dir: str
    batch: tuple[int, ...]
    dense_rounds: tuple[int, ...] | None
    parameters: int
    split_dims: tuple[tuple[str, int], ...]
    notes: tuple[str, ...] = ()

    @property
    def total_steps(self) -> int:
        """The global step at which training ends."""
        return _total_steps(self.config, self.dataset)

    @functools.cached_property
    def estimator(self) -> Estimator:
        """The Estimator of this run."""
        run_config = RunConfig(
            tf_random_seed=self.config.seed,
            save_checkpoints_secs=self.config.save_checkpoints_secs,
            save_summary_steps=_SUMMARY_STEPS,
            log_step_count_steps=None,  # the ProgressHook's business
            session_config=self.cluster.session_config(),
            master=self.cluster.target,
            workers=self.cluster.workers,
        )
        model_fn = functools.partial(
            network.model_fn,
            build=functools.partial(self.model.build, classes=self.dataset.classes, dense_rounds=self.dense_rounds),
            optimizer=_optimizer(self.config, self.total_steps),
            layout=self.layout,
            devices=self.devices,
            batch=self.batch,
            wire_dtype=self.config.wire_dtype,
        )
        return Estimator(model_fn, self.model_dir, run_config)

    def describe(self) -> str:
        """The model, the data, the mesh, and how each split dimension is divided."""
        height, width, channels = self.dataset.image_shape
        lines = [
            f"{self.config.model}: {self.parameters:,} parameters",
            f"{self.dataset.name}: {self.dataset.train_size:,} training and {self.dataset.test_size:,} test images of "
            f"{height} x {width} x {channels}",
            *map(shorten, self.notes),
            shorten(f"mesh {self.layout.mesh_text} on {', '.join(self.devices)}"),
        ]
        names = max((len(name) for name, _ in self.split_dims), default=0)
        for name, size in self.split_dims:
            sizes = ", ".join(str(part) for part in self.layout.split(name, size))
            lines.append(f"  {name:{names}}  {size:6} over {self.layout.axis_name_of(name)}: {sizes}")
        return "\n".join(lines)

    def describe_memory(self) -> str:
        """What each device holds at the moment of a step when it holds most, by the lowered graph."""
        with tf.Graph().as_default():
            built = _build(self.config, self.dataset, self.batch, self.dense_rounds)
            lowering = network.lower(built, self.layout, self.devices, self.config.wire_dtype)
            fetches = [lowering.export_to_tf_tensor(built.loss)]
            fetches += [lowering.lowered_operation(op) for op in built.updates]
            estimates = memory.estimate(lowering, fetches)
        return memory.table({shorten(device): estimates[device] for device in dict.fromkeys(self.devices)})

    def how_to_resume(self) -> str:
        """Where the last checkpoint is, and how to go on from it."""
        path = self.estimator.latest_checkpoint()
        if path is None:
            return "nothing was saved"
        return f"the checkpoint is {path}; to resume, run the same command with --model_dir={self.model_dir}"

    def train(self) -> int:
        """Trains, tests, and says how it went; returns the exit code."""
        print(self.describe(), flush=True)
        tf.logging.set_verbosity(tf.logging.WARN)
        throughput = _ThroughputHook()
        try:
            self.estimator.train(
                self.train_input,
                hooks=[
                    ProgressHook(self.config.batch_size, self.total_steps, log_step_count_steps=_LOG_STEPS),
                    throughput,
                    TraceHook(os.path.join(self.model_dir, "traces"), self.config.trace_steps, self.devices),
                ],
                max_steps=self.total_steps,
            )
        except tf.train.NanLossDuringTrainingError:
            print(
                f"error: the loss is not a number any more; lower --learning_rate; {self.how_to_resume()}",
                file=sys.stderr,
            )
            return LOST
        # A worker that is lost during the test is named by a warning
        tf.logging.set_verbosity(tf.logging.WARN if self.cluster.workers else tf.logging.ERROR)
        results = self.estimator.evaluate(lambda: self.dataset.test_input_fn(self.config.batch_size))
        print(f"test accuracy: {results['accuracy']:.4f} of {self.dataset.test_size:,} images")
        if throughput.steps:
            print(f"images per second: {throughput.steps_per_second * self.config.batch_size:.1f}")
        else:
            print(f"images per second: none, it was trained to step {results['global_step']} before")
        print(f"checkpoint: {self.estimator.latest_checkpoint()}")
        return 0

    def train_input(self) -> Any:
        """Batches; where the layout splits nothing of an image but the batch, each processor's own slices of them."""
        batch_size, augment = self.config.batch_size, data.Augmentation() if self.config.augment else None
        make = functools.partial(
            self.dataset.train_input_fn,
            batch_size,
            self.config.train_epochs,
            self.config.seed,
            start_batch=tf.train.get_global_step().read_value(),  # also of a session made anew, after a worker is back
            augment=augment,
        )
        batch = network.batch_shape(self.batch)
        split = {dim for dim in (*batch, "height", "width", "channels") if self.layout.axis_of(dim) is not None}
        if not split or not split.issubset(batch):
            return make()
        return data.laid_out_batches(make, self.layout, batch, self.devices)


def prepare(config: Config, stack: contextlib.ExitStack) -> Run:
    """Checks a configuration as a whole and lays the model out, without training anything.

    The model is built and lowered once in a graph that is thrown away.

    Args:
      config: what the user asked for.
      stack: what a run needs until its end, workers of a local cluster, is entered here.

    Raises:
      ValueError: parts of it that do not exist or do not fit together, or a worker that does not answer.
      NotImplementedError: a layout that splits what an operation needs whole.
    """
    tf.logging.set_verbosity(tf.logging.ERROR)
    if config.model not in MODELS:
        raise ValueError(f"--model is {config.model!r}; it must be one of {', '.join(MODELS)}")
    if ":" not in config.layout and config.layout not in LAYOUTS:
        raise ValueError(
            f"--layout is {config.layout!r}; it must be one of {', '.join(LAYOUTS)}, or rules such as conv1/filters:all"
        )
    dataset = data.load(config.dataset, config.data_dir)
    if config.batch_size > dataset.train_size:
        raise ValueError(
            f"--batch_size is {config.batch_size}, but {config.dataset} has {dataset.train_size} training images; "
            "give a smaller one"
        )
    cluster, notes = _cluster(config, stack)
    if config.memory_limit is not None:
        parse_memory_limit(config.memory_limit, len(cluster.devices))
    empty = _mesh(config, cluster.devices)
    batch, rounds = _batch(config, empty)
    with tf.Graph().as_default():
        built = _build(config, dataset, batch, rounds)
        layout = _layout(config, built.graph, empty)
        network.lower(built, layout, cluster.devices)
    if config.model_dir is not None:
        _check_checkpoint(config.model_dir, {v.name: v.shape.to_integer_list for v in built.graph.all_variables})
    return Run(
        config=config,
        model=MODELS[config.model],
        dataset=dataset,
        layout=layout,
        cluster=cluster,
        devices=cluster.devices,
        model_dir="" if config.dry_run else _make_model_dir(config.model_dir),
        batch=batch,
        dense_rounds=rounds,
        parameters=sum(v.size for v in built.graph.trainable_variables),
        split_dims=_split_dims(built.graph, layout),
        notes=notes,
    )


def measure(run: Run) -> Run:
    """The same run, laid out by the speeds that its devices are measured to have. It shows how it gets on.

    Raises:
      ValueError: the step fits on no set of the devices.
      NotImplementedError: an operation that cannot be measured by itself.
    """
    config, limits = run.config, None
    if config.memory_limit is not None:
        parsed = parse_memory_limit(config.memory_limit, len(run.devices))
        limits = dict(zip(run.devices, parsed, strict=True))
    seconds = config.measure_seconds
    choice = measured.choose(
        lambda: _build(config, run.dataset, run.batch, run.dense_rounds).graph,
        run.layout,
        run.cluster,
        memory_limits=limits,
        effort=None if seconds is None else profile.Effort(budget_seconds=seconds),
        keep=config.local_cluster is None,  # the next one's workers have other addresses, or other speeds
        progress=True,
    )
    return dataclasses.replace(
        run,
        layout=choice.layout,
        devices=choice.devices,
        split_dims=run.split_dims if choice.layout.size > 1 else (),
        notes=(*run.notes, *choice.lines),
    )


def _build(
    config: Config, dataset: data.Dataset, batch: tuple[int, ...], rounds: tuple[int, ...] | None
) -> network.Built:
    """The training step, on no images, in the default graph."""
    tf.train.create_global_step()
    return network.build_training(
        tf.zeros([config.batch_size, *dataset.image_shape]),
        tf.zeros([config.batch_size], tf.int32),
        build=functools.partial(MODELS[config.model].build, classes=dataset.classes, dense_rounds=rounds),
        optimizer=_optimizer(config, _total_steps(config, dataset)),
        batch=batch,
    )


def _total_steps(config: Config, dataset: data.Dataset) -> int:
    steps = config.train_epochs * dataset.train_size // config.batch_size
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _optimizer(config: Config, total_steps: int) -> network.Optimizer:
    decay_steps = total_steps if config.learning_rate_schedule == "linear" else None
    return network.Optimizer(config.optimizer, config.learning_rate, decay_steps)


def _cluster(config: Config, stack: contextlib.ExitStack) -> tuple[Cluster, tuple[str, ...]]:
    """Where the run takes place, and what the user should know of it."""
    devices, notes = config.devices, []
    if config.local_cluster is not None:
        local = LocalCluster(config.local_cluster, report=notes.append)
        try:
            cluster = stack.enter_context(local)
        except RuntimeError as error:
            raise ValueError(f"--local_cluster is {config.local_cluster!r}: {error}") from error
        notes += local.describe()
        if devices is not None:
            cluster = Cluster.from_workers(cluster.workers, devices, timeout_seconds=60.0)
    elif config.workers is not None:
        cluster = Cluster.from_workers(config.workers, devices)
    else:
        cluster = Cluster.from_environment(devices) or Cluster.local(devices)
    if cluster.workers and not config.local_cluster:
        notes.append(cluster.describe())
    return cluster, tuple(notes)


def _mesh(config: Config, devices: tuple[str, ...]) -> Layout:
    """A layout of the mesh and the shares, without rules."""
    mesh_shape = convert_to_mesh_shape(config.mesh_shape or f"all:{len(devices)}")
    if not mesh_shape:
        raise ValueError(f"--mesh_shape is {config.mesh_shape!r}, which has no axis; write one such as all:3")
    shares = {} if config.list_speed in (None, AUTO) else parse_list_speed(config.list_speed, mesh_shape[0][0])
    layout = Layout(mesh_shape, (), shares)
    if layout.size != len(devices):
        raise ValueError(
            f"mesh {layout.mesh_text} has {layout.size} processors, but there are {len(devices)} devices, "
            f"{','.join(devices)}; give one device per processor with --devices, or another --mesh_shape"
        )
    return layout


def _batch(config: Config, empty: Layout) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Sizes of the batch's dimensions, and of the parts of its last one that pass the dense layers in turn."""
    if config.layout != HYBRID:
        return (config.batch_size,), None
    sizes = batch_sizes(config.batch_size, empty.mesh_shape, dict(empty.shares))
    if not config.dense_rounds:
        return sizes, None
    return sizes, member_sizes(sizes, empty.mesh_shape, dict(empty.shares))


def _layout(config: Config, graph: Any, empty: Layout) -> Layout:
    """The layout that a recipe or the user's rules make for a graph."""
    if ":" in config.layout:
        layout = Layout(empty.mesh_shape, config.layout, empty.shares)
    else:
        own = {} if config.dense_shares is None else {"dense_shares": parse_shares(config.dense_shares, "dense_shares")}
        layout = LAYOUTS[config.layout](graph, mesh_shape=empty.mesh_shape, shares=dict(empty.shares), **own)
    axes = [axis for axis, _ in layout.mesh_shape]
    sizes = _sizes(graph)
    for dim, axis in layout.rules:
        if axis not in axes:
            raise ValueError(
                f"--layout splits {dim!r} over axis {axis!r}, which the mesh {layout.mesh_text} does not have"
            )
        if dim not in sizes:
            raise ValueError(
                f"--layout splits {dim!r}, which is no dimension of {config.model}; it has {', '.join(sizes)}"
            )
    for axis, count in layout.mesh_shape:
        if count > 1 and axis not in dict(layout.rules).values():
            raise ValueError(
                f"mesh axis {axis!r} is used by no rule of layout {config.layout!r}; drop it from --mesh_shape, or "
                "give rules that split a dimension over it"
            )
    _check_tensors(graph, layout)
    return layout


def _check_tensors(graph: Any, layout: Layout) -> None:
    """Raises ValueError where the layout cannot hold a tensor of the graph."""
    for shape in _shapes(graph):
        layout.check(shape)
        for dim in shape:
            layout.split(dim.name, dim.size)


def _shapes(graph: Any) -> list[Any]:
    return [tensor.shape for op in graph.operations for tensor in op.outputs]


def _sizes(graph: Any) -> dict[str, list[int]]:
    """{dimension: sizes with which it occurs}, in the order of the graph."""
    sizes: dict[str, list[int]] = {}
    for shape in _shapes(graph):
        for dim in shape:
            found = sizes.setdefault(dim.name, [])
            if dim.size not in found:
                found.append(dim.size)
    return sizes


def _split_dims(graph: Any, layout: Layout) -> tuple[tuple[str, int], ...]:
    sizes = _sizes(graph)
    return tuple((name, size) for name in sizes if layout.axis_of(name) is not None for size in sizes[name])


def _check_checkpoint(model_dir: str, shapes: Mapping[str, list[int]]) -> None:
    path = tf.train.latest_checkpoint(model_dir)
    if path is None:
        return
    saved = dict(tf.train.list_variables(path))
    for name, shape in shapes.items():
        if saved.get(name) != shape:
            has = f"shape {saved[name]}" if name in saved else "no such variable"
            raise ValueError(
                f"--model_dir holds {path}, which this model, data set and optimizer cannot resume: variable {name!r} "
                f"has shape {shape} here and {has} there; choose another directory"
            )


def _make_model_dir(model_dir: str | None) -> str:
    if model_dir is None:
        return tempfile.mkdtemp(prefix="mtf_hetero_")
    try:
        os.makedirs(model_dir, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--model_dir is {model_dir!r}, which cannot be made: {error.strerror}") from error
    if not os.access(model_dir, os.W_OK):
        raise ValueError(f"--model_dir is {model_dir!r}, which cannot be written to; choose another directory")
    return model_dir
