"""A training run: checked and laid out by `prepare`, then carried out by `Run.train`."""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero import Layout, data, memory, mtf, tf, traffic
from mtf_hetero import saver as saver_lib
from mtf_hetero._support import extras, logs, tables
from mtf_hetero.cluster import Cluster, shorten
from mtf_hetero.estimator import Estimator, RunConfig
from mtf_hetero.estimator.metrics_log import NAME as METRICS
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.estimator.validation import ValidatingSaverHook
from mtf_hetero.models.registry import Model
from mtf_hetero.models.train import config_file, inputs, meshes, recorded, seen
from mtf_hetero.models.train import console as command_line
from mtf_hetero.models.train import program as network
from mtf_hetero.models.train.config import Config, parse_eval_every
from mtf_hetero.models.train.tasks import Task
from mtf_hetero.placement import Placement, Request, split_dims
from mtf_hetero.planner import measured, show, verdict
from mtf_hetero.planner.find import describe
from mtf_hetero.planner.held import estimated
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Plan
from mtf_hetero.trace import Event, TraceHook

LOST = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Draft:
    """A run that is checked, before its step is placed on devices.

    Args:
      config: what the user asked for.
      request: the same of the placement, loaded.
      model: the model.
      dataset: the data.
      task: what the model is to predict of them.
      cluster: the devices.
      batch: sizes of the dimensions of the batch.
      build: from an mtf.Tensor of images, and `training`, to outputs.
      graph: the step, or a test where nothing is trained, to read dimensions from.
      notes: lines for the user, about the workers and about what was measured.
      machines: figures of the devices that those of the cluster stand for in a dry run; None: it predicts no step.
      absent: the names of the devices that those of the cluster stand for; none: they are meant themselves.
      model_dir: directory of checkpoints and summaries.
      trains: whether anything is trained, and a worker that is lost is waited for.
      placement: how the step is split; None: its devices are to be measured first.
    """

    config: Config
    request: Request
    model: Model
    dataset: inputs.Dataset
    task: Task
    cluster: Cluster
    batch: tuple[int, ...]
    build: Callable[..., Any]
    graph: mtf.Graph
    notes: tuple[str, ...]
    machines: Machines | None = None
    absent: tuple[str, ...] = ()
    model_dir: str = ""
    trains: bool = True
    placement: Placement | None = None

    @property
    def total_steps(self) -> int:
        """The global step at which training ends."""
        return total_steps(self.config, self.dataset)

    @property
    def shapes(self) -> dict[str, list[int]]:
        """{variable: its shape} of those that checkpoints have."""
        return {v.name: v.shape.to_integer_list for v in self.graph.all_variables}

    def build_graph(self) -> mtf.Graph:
        """The training step, on no images, in TensorFlow's default graph."""
        return build_step(self.config, self.dataset, self.task, self.batch, self.build).graph


class Run(Draft):
    """A run whose step is placed on devices."""

    @property
    def placed(self) -> Placement:
        """The place of its step."""
        assert self.placement is not None
        return self.placement

    @property
    def layout(self) -> Layout:
        """The layout: mesh shape, rules and sizes."""
        return self.placed.layout

    @property
    def plan(self) -> Plan | None:
        """The plan whose layout it is."""
        return self.placed.plan

    @property
    def devices(self) -> tuple[str, ...]:
        """One per processor."""
        return self.placed.devices

    @functools.cached_property
    def estimator(self) -> Estimator:
        """The Estimator of this run."""
        run_config = RunConfig(
            tf_random_seed=self.config.seed,
            save_checkpoints_secs=self.config.save_checkpoints_secs,
            save_summary_steps=None,  # the MetricsHook's business
            log_step_count_steps=None,  # the ProgressHook's
            session_config=self.cluster.session_config(),
            master=self.cluster.target,
            workers=self.cluster.workers_in_use,
            wait_for_workers=self.trains,
        )
        model_fn = functools.partial(
            network.model_fn,
            build=self.build,
            optimizer=optimizer_of(self.config, self.total_steps),
            task=self.task,
            layout=self.layout,
            devices=self.devices,
            batch=self.batch,
            image_shape=self.dataset.image_shape,
            wire_dtype=self.config.wire_dtype,
            initial=None if self.model.initial is None else self.model.initial(),
        )
        return Estimator(model_fn, self.model_dir, run_config)

    def report_layers(self, events: Sequence[Event]) -> str:
        """What each device computed for each layer in a traced step, beside what the plan predicted."""
        assert self.plan is not None
        with tf.Graph().as_default():
            return measured.report(self.plan, self.build_graph(), events)

    def describe(self) -> str:
        """The model, the data, the mesh, and how each split dimension is divided."""
        names = self.absent or self.devices
        lines = [
            f"{self.config.model}: {sum(v.size for v in self.graph.trainable_variables):,} parameters",
            ", ".join(filter(None, (inputs.describe(self.dataset), self.task.describe()))),
            *map(shorten, self.notes),
            shorten(f"mesh {self.layout.mesh_text} on {', '.join(names)}"),
        ]
        rows = meshes.described(split_dims(self.graph, self.layout), self.layout)
        return "\n".join([*lines, *tables.lines(rows, "<<", indent="  ")])

    def describe_dry_run(self) -> str:
        """What `describe` says, the memory of each device, and what is predicted for devices that need not be here."""
        parts = [self.describe(), self.describe_memory()]
        if self.machines is not None:
            with tf.Graph().as_default():
                plan = estimated(describe(self.build_graph(), self.machines, self.layout), self.build_graph)
            parts += ["", verdict.verdict(plan), "", show.table(plan)]
        return "\n".join(parts)

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
                optimizer=optimizer_of(self.config, self.total_steps),
                task=self.task,
                batch=self.batch,
                image_shape=self.dataset.image_shape,
            )
            lowering = network.lower(built, self.layout, self.devices, self.config.wire_dtype)
            fetches = [lowering.export_to_tf_tensor(built.loss)]
            fetches += [lowering.lowered_operation(op) for op in built.updates]
            traffic.arrange(fetches)
            estimates = memory.estimate(lowering, fetches)
        names = self.absent or map(shorten, self.devices)
        return memory.table({n: estimates[d] for d, n in dict(zip(self.devices, names, strict=True)).items()})

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
        if not self.config.quiet:
            print(self.describe(), flush=True)
        tf.logging.set_verbosity(self._verbosity)
        try:
            with logs.on_console(), data.unreadable_as_value_error():
                with saver_lib.as_write_error(f"cannot write to {self.model_dir}"):
                    config_file.save(self.config, self.model_dir)
                    recorded.save(self.config, self.model, self.dataset, self.model_dir)
                self._train_and_test()
        except tf.train.NanLossDuringTrainingError:
            print(
                f"error: the loss is not a number any more; lower --learning_rate; {self.how_to_resume()}",
                file=sys.stderr,
            )
            return LOST
        except saver_lib.WriteError as error:
            command_line.say(f"{error}; {self.how_to_resume()}")
            return LOST
        except NotImplementedError as error:  # of the lowering: the layout splits what an operation needs whole
            command_line.say(error)
            return command_line.WRONG_USAGE
        except data.UnreadableError as error:
            command_line.say(f"{error}; {self.how_to_resume()}")
            return command_line.WRONG_USAGE
        return 0

    def _train_and_test(self) -> None:
        unit, log = inputs.unit(self.dataset), MetricsLog(os.path.join(self.model_dir, METRICS))
        load = seen.DeviceLoad(self.devices) if self.config.busy_steps != 0 else None
        metrics = seen.metrics_hook(self.config, log, self.model_dir, load, unit)
        hooks: list[tf.train.SessionRunHook] = [
            metrics,
            TraceHook(
                os.path.join(self.model_dir, "traces"),
                self.config.trace_steps,
                self.devices,
                reports={} if self.plan is None else {"layers": self.report_layers},
            ),
        ]
        if not self.config.quiet:
            hooks.append(seen.progress_hook(self.config, self.total_steps, load, unit, self.dataset.train_size))
        if self.config.eval_every is not None:
            is_due = validated_at(self.config, self.dataset)
            saver = ValidatingSaverHook(
                self.model_dir,
                save_secs=self.config.save_checkpoints_secs,
                is_due=lambda step: is_due(int(step)) and not log.has("validation", step),
                evaluate=functools.partial(self._validate, log),
            )
            hooks.append(saver)
        self.estimator.train(self.train_input, hooks=hooks, max_steps=self.total_steps)
        step = int(self.estimator.get_variable_value(tf.GraphKeys.GLOBAL_STEP))
        with saver_lib.as_write_error(f"cannot write to {self.model_dir}"):
            log.begin(step)  # where nothing was left to train, no session has
        if self.dataset.test_size:
            print(self._tested(log, "test", step))
        else:
            print(f"not tested: there are no test {unit}")
        steps_per_second = metrics.pace.steps_per_second
        if steps_per_second is not None:
            print(f"{unit} per second: {steps_per_second * self.config.batch_size:.1f}")
        else:
            print(f"{unit} per second: none, it was trained to step {step} before")
        print(f"checkpoint: {self.estimator.latest_checkpoint()}")

    @property
    def _verbosity(self) -> int:
        return tf.logging.ERROR if self.config.quiet else tf.logging.WARN

    def _validate(self, log: MetricsLog, step: int, path: str) -> None:
        report = self._tested(log, "validation", step, path)
        if not self.config.quiet:
            extras.write_above_bars(f"step {step}: {report}")

    def _tested(self, log: MetricsLog, kind: str, step: int, path: str | None = None) -> str:
        """Tests a checkpoint, which becomes a row of the log; returns what the user is told."""
        # A worker that is lost during the test is named by a warning
        with logs.verbosity(self._verbosity if self.cluster.workers else tf.logging.ERROR):
            results = self.test(checkpoint_path=path)
        row = {name: value for name, value in results.items() if name != tf.GraphKeys.GLOBAL_STEP}
        with saver_lib.as_write_error(f"cannot write to {self.model_dir}"):
            log.append(kind, step, row)
        return self.task.report(results, f"{self.dataset.test_size:,} {inputs.unit(self.dataset)}")

    def train_input(self) -> Any:
        """Training batches; where they can be read in slices, each processor's own."""
        return inputs.for_training(self.dataset, self.config, self.layout, self.batch, self.devices)

    def test_input(self) -> Any:
        """Test batches, the same."""
        return inputs.for_test(self.dataset, self.config.batch_size, self.layout, self.batch, self.devices)

    def test(self, batches: int | None = None, checkpoint_path: str | None = None) -> dict[str, Any]:
        """The metrics of a checkpoint.

        Args:
          batches: how many, from the first on; None: the whole test set.
          checkpoint_path: the checkpoint; None: the last one.
        """
        whole = -(-self.dataset.test_size // self.config.batch_size)
        steps = whole if batches is None else min(batches, whole)
        return self.estimator.evaluate(self.test_input, steps=steps, checkpoint_path=checkpoint_path)


def build_step(
    config: Config, dataset: inputs.Dataset, task: Task, batch: tuple[int, ...], build: Callable[..., Any]
) -> network.Built:
    """The training step, on no images, in TensorFlow's default graph."""
    tf.train.create_global_step()
    image, label = inputs.blank(dataset, config.batch_size)
    return network.build_training(
        image,
        label,
        build=build,
        optimizer=optimizer_of(config, total_steps(config, dataset)),
        task=task,
        batch=batch,
    )


def total_steps(config: Config, dataset: inputs.Dataset) -> int:
    """The global step at which training ends."""
    return steps_of_epochs(config, dataset, config.train_epochs) if config.max_steps is None else config.max_steps


def steps_of_epochs(config: Config, dataset: inputs.Dataset, epochs: int) -> int:
    """How many whole batches so many epochs have."""
    return epochs * dataset.train_size // config.batch_size


def check_steps(config: Config, dataset: inputs.Dataset) -> None:
    """Raises ValueError where a flag names a step that the training does not have."""
    whole, last = steps_of_epochs(config, dataset, config.train_epochs), total_steps(config, dataset)
    if last > whole:
        needed = -(-last * config.batch_size // dataset.train_size)
        raise ValueError(
            f"--max_steps is {last}, but there are {whole} steps in --train_epochs={config.train_epochs} of "
            f"{dataset.train_size} {inputs.unit(dataset)} in batches of {config.batch_size}; give "
            f"--train_epochs={needed}"
        )
    validated_at(config, dataset)
    for step in config.trace_steps:
        if step >= last:
            raise ValueError(
                f"--trace_steps names {step}, but the training has {last} steps, which count from 0: the last is "
                f"{last - 1}; name an earlier one"
            )


def validated_at(config: Config, dataset: inputs.Dataset) -> Callable[[int], bool]:
    """Tells of a global step whether the network is tested after it, while it is trained.

    Raises:
      ValueError: there is no such step before the training ends, or nothing to test on.
    """
    if config.eval_every is None:
        return lambda step: False
    if not dataset.test_size:
        raise ValueError(
            f"--eval_every is {config.eval_every!r}, but {config.dataset} has no test {inputs.unit(dataset)}; remove it"
        )
    (every, is_of_epochs), last = parse_eval_every(config.eval_every), total_steps(config, dataset)

    def is_due(step: int) -> bool:
        if not 0 < step < last:  # at the last one it is tested anyway
            return False
        if not is_of_epochs:
            return step % every == 0
        epoch = -(-step * config.batch_size // dataset.train_size)
        is_whole = steps_of_epochs(config, dataset, epoch) == step
        return is_whole and epoch % every == 0 and epoch <= config.train_epochs

    first = steps_of_epochs(config, dataset, every) if is_of_epochs else every
    if first > last:
        raise ValueError(
            f"--eval_every is {config.eval_every!r}, but the training ends before, after step {last}; give a smaller "
            "number, or remove it: the end of the training is tested anyway"
        )
    return is_due


def optimizer_of(config: Config, steps: int) -> network.Optimizer:
    """The optimizer that the user asked for, of a training of so many steps."""
    schedule = config.learning_rate_schedule
    if schedule == "constant":
        return network.Optimizer(config.optimizer, config.learning_rate)
    return network.Optimizer(config.optimizer, config.learning_rate, steps, schedule)
