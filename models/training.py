"""A training run: checked and laid out by `prepare`, then carried out by `Run.train`."""

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from layouts import LAYOUTS
from models import command_line, inputs, measured, meshes, network
from models.config import Config, parse_memory_limit
from models.registry import MODELS, Model
from models.tasks import Task
from mtf_hetero import Layout, checkpoints, data, memory, profile, tf
from mtf_hetero.cluster import Cluster, LocalCluster, WorkerClaim, shorten
from mtf_hetero.estimator import Estimator, RunConfig
from mtf_hetero.hooks import ProgressHook
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
      task: what the model is to tell of them.
      layout: how the tensors lie on the mesh.
      cluster: where it takes place.
      devices: one per processor.
      model_dir: directory of checkpoints and summaries.
      batch: sizes of the dimensions of the batch.
      build: from an mtf.Tensor of images, and `training`, to outputs.
      parameters: number of trainable parameters.
      split_dims: the dimensions of the graph that the layout splits, as (name, size).
      notes: lines for the user, about the workers and about the speeds that were measured.
    """

    config: Config
    model: Model
    dataset: inputs.Dataset
    task: Task
    layout: Layout
    cluster: Cluster
    devices: tuple[str, ...]
    model_dir: str
    batch: tuple[int, ...]
    build: Callable[..., Any]
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
            workers=self.cluster.workers_in_use,
        )
        model_fn = functools.partial(
            network.model_fn,
            build=self.build,
            optimizer=_optimizer(self.config, self.total_steps),
            task=self.task,
            layout=self.layout,
            devices=self.devices,
            batch=self.batch,
            image_shape=self.dataset.image_shape,
            wire_dtype=self.config.wire_dtype,
        )
        return Estimator(model_fn, self.model_dir, run_config)

    def describe(self) -> str:
        """The model, the data, the mesh, and how each split dimension is divided."""
        what = self.task.describe()
        lines = [
            f"{self.config.model}: {self.parameters:,} parameters",
            f"{inputs.describe(self.dataset)}{', ' if what else ''}{what}",
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
            tf.train.create_global_step()
            batches = self.train_input()
            if not isinstance(batches, tuple):
                batches = tf.data.make_initializable_iterator(batches).get_next()
            features, labels = batches
            built = network.build_training(
                features["image"],
                labels,
                build=self.build,
                optimizer=_optimizer(self.config, self.total_steps),
                task=self.task,
                batch=self.batch,
                image_shape=self.dataset.image_shape,
            )
            lowering = network.lower(built, self.layout, self.devices, self.config.wire_dtype)
            fetches = [lowering.export_to_tf_tensor(built.loss)]
            fetches += [lowering.lowered_operation(op) for op in built.updates]
            estimates = memory.estimate(lowering, fetches)
        return memory.table({shorten(device): estimates[device] for device in dict.fromkeys(self.devices)})

    def how_to_resume(self) -> str:
        """Where the newest whole checkpoint is, and how to go on from it."""
        try:
            path = self.estimator.latest_checkpoint()
        except ValueError as error:
            return str(error)
        if path is None:
            return "nothing was saved"
        return f"the checkpoint is {path}; to resume, run the same command with --model_dir={self.model_dir}"

    def train(self) -> int:
        """Trains, tests, and says how it went; returns the exit code."""
        print(self.describe(), flush=True)
        tf.logging.set_verbosity(tf.logging.WARN)
        try:
            with data.unreadable_as_value_error():
                self._train_and_test()
        except tf.train.NanLossDuringTrainingError:
            print(
                f"error: the loss is not a number any more; lower --learning_rate; {self.how_to_resume()}",
                file=sys.stderr,
            )
            return LOST
        except checkpoints.WriteError as error:
            command_line.say(f"{error}; {self.how_to_resume()}")
            return LOST
        except data.UnreadableError as error:
            command_line.say(f"{error}; {self.how_to_resume()}")
            return command_line.WRONG_USAGE
        return 0

    def _train_and_test(self) -> None:
        throughput, unit = _ThroughputHook(), inputs.unit(self.dataset)
        self.estimator.train(
            self.train_input,
            hooks=[
                ProgressHook(self.config.batch_size, self.total_steps, log_step_count_steps=_LOG_STEPS, unit=unit),
                throughput,
                TraceHook(os.path.join(self.model_dir, "traces"), self.config.trace_steps, self.devices),
            ],
            max_steps=self.total_steps,
        )
        # A worker that is lost during the test is named by a warning
        tf.logging.set_verbosity(tf.logging.WARN if self.cluster.workers else tf.logging.ERROR)
        if self.dataset.test_size:
            results = self.test()
            print(self.task.report(results, f"{self.dataset.test_size:,} {unit}"))
        else:
            print(f"not tested: there are no test {unit}")
        if throughput.steps:
            print(f"{unit} per second: {throughput.steps_per_second * self.config.batch_size:.1f}")
        else:
            step = self.estimator.get_variable_value(tf.GraphKeys.GLOBAL_STEP)
            print(f"{unit} per second: none, it was trained to step {step} before")
        print(f"checkpoint: {self.estimator.latest_checkpoint()}")

    def train_input(self) -> Any:
        """Training batches; where they can be read in slices, each processor's own."""
        return inputs.for_training(self.dataset, self.config, self.layout, self.batch, self.devices)

    def test_input(self) -> Any:
        """Test batches, the same."""
        return inputs.for_test(self.dataset, self.config.batch_size, self.layout, self.batch, self.devices)

    def test(self, batches: int | None = None) -> dict[str, Any]:
        """The metrics of the last checkpoint.

        Args:
          batches: how many, from the first on; None: the whole test set.
        """
        whole = -(-self.dataset.test_size // self.config.batch_size)
        return self.estimator.evaluate(self.test_input, steps=whole if batches is None else min(batches, whole))


def prepare(config: Config, stack: contextlib.ExitStack) -> Run:
    """Checks a configuration as a whole and lays the model out, without training anything.

    The model is built and lowered once in a graph that is thrown away.

    Args:
      config: what the user asked for.
      stack: what a run needs until its end is entered here: the lock of its directory, workers of a local cluster.

    Raises:
      ValueError: parts of it that do not exist or do not fit together, a worker that does not answer, another run in
        the directory, or checkpoints there of which none is whole.
      NotImplementedError: a layout that splits what an operation needs whole.
    """
    tf.logging.set_verbosity(tf.logging.ERROR)
    if config.model not in MODELS:
        raise ValueError(f"--model is {config.model!r}; it must be one of {', '.join(MODELS)}")
    if ":" not in config.layout and config.layout not in LAYOUTS:
        raise ValueError(
            f"--layout is {config.layout!r}; it must be one of {', '.join(LAYOUTS)}, or rules such as conv1/filters:all"
        )
    model = MODELS[config.model]
    for name, wanted, known in (
        ("recompute", config.recompute, model.recomputes),
        ("dense_rounds", config.dense_rounds, not model.takes_volumes),
    ):
        if wanted and not known:
            raise ValueError(f"--{name} is given, which --model={config.model} does not know; leave it out")
    dataset = inputs.load(config, model)
    task = model.task.of(dataset)
    cluster, notes = _cluster(config, stack)
    if config.memory_limit is not None:
        parse_memory_limit(config.memory_limit, len(cluster.devices))
    empty = meshes.make_mesh(config, cluster.devices)
    batch, rounds = meshes.divide_batch(config, empty)
    build = _builder(config, task, rounds)
    with tf.Graph().as_default():
        built = _build(config, dataset, task, batch, build)
        layout = meshes.make_layout(config, built.graph, empty)
        network.lower(built, layout, cluster.devices)
    model_dir = "" if config.dry_run else _make_model_dir(config.model_dir)
    if model_dir:
        stack.enter_context(checkpoints.run_lock(model_dir))
    if config.model_dir is not None:
        _check_checkpoint(config.model_dir, {v.name: v.shape.to_integer_list for v in built.graph.all_variables})
    return Run(
        config=config,
        model=model,
        dataset=dataset,
        task=task,
        layout=layout,
        cluster=cluster,
        devices=cluster.devices,
        model_dir=model_dir,
        batch=batch,
        build=build,
        parameters=sum(v.size for v in built.graph.trainable_variables),
        split_dims=meshes.split_dims(built.graph, layout),
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
        lambda: _build(config, run.dataset, run.task, run.batch, run.build).graph,
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
        cluster=dataclasses.replace(run.cluster, devices=choice.devices),
        devices=choice.devices,
        split_dims=run.split_dims if choice.layout.size > 1 else (),
        notes=(*run.notes, *choice.lines),
    )


def _builder(config: Config, task: Task, rounds: tuple[int, ...] | None) -> Callable[..., Any]:
    """The model's builder with all of its configuration."""
    changes = dict(task.config)
    if rounds is not None:
        changes["dense_rounds"] = rounds
    if config.recompute:
        changes["recompute"] = config.recompute
    return functools.partial(MODELS[config.model].build, **changes)


def _build(
    config: Config, dataset: inputs.Dataset, task: Task, batch: tuple[int, ...], build: Callable[..., Any]
) -> network.Built:
    """The training step, on no images, in the default graph."""
    tf.train.create_global_step()
    image, label = inputs.blank(dataset, config.batch_size)
    return network.build_training(
        image,
        label,
        build=build,
        optimizer=_optimizer(config, _total_steps(config, dataset)),
        task=task,
        batch=batch,
    )


def _total_steps(config: Config, dataset: inputs.Dataset) -> int:
    steps = config.train_epochs * dataset.train_size // config.batch_size
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _optimizer(config: Config, total_steps: int) -> network.Optimizer:
    schedule = config.learning_rate_schedule
    if schedule == "constant":
        return network.Optimizer(config.optimizer, config.learning_rate)
    return network.Optimizer(config.optimizer, config.learning_rate, total_steps, schedule)


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
    if not config.dry_run:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
    if cluster.workers and not config.local_cluster:
        notes.append(cluster.describe())
    return cluster, tuple(notes)


def _check_checkpoint(model_dir: str, shapes: Mapping[str, list[int]]) -> None:
    path = checkpoints.find(model_dir).path
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
