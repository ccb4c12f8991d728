"""Estimator: tf.estimator's interface over tf.train's monitored sessions, since TensorFlow 2.16 has no tf.estimator.

A model_fn builds a model, lowers it (mtf_hetero.Lowering) and returns tensors; the Estimator runs the loop around
them: checkpoints, resuming, summaries, signals. It knows nothing of meshes. An uneven variable brings along what a
plain tf.train.Saver needs, so a checkpoint holds logical tensors and loads on any layout.
"""

import contextlib
import copy
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import checkpoint as saver_lib
from mtf_hetero._compat import tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero.checkpoint import Saver, SliceSaverBuilder
from mtf_hetero.cluster import WorkerClaim, WorkerWatch
from mtf_hetero.cluster.probe import check_reachable
from mtf_hetero.estimator import export, inputs, predictions, saved_model, training
from mtf_hetero.estimator.config import EstimatorSpec, ModeKeys, RunConfig
from mtf_hetero.estimator.hooks import CountHook, StopOnSignalHook, read_global_step
from mtf_hetero.estimator.training import Place
from mtf_hetero.mesh import random_numbers
from mtf_hetero.training.elastic import Elastic, Move


class Estimator:
    """Trains, evaluates and applies the model of a model_fn.

    Args:
      model_fn: called with those of the arguments (features, labels, mode, params, config) that it names; returns an
        EstimatorSpec.
      model_dir: directory of checkpoints and summaries; None: that of the config, or else a new temporary one.
      config: a RunConfig.
      params: passed on to model_fn and input_fn.

    Raises:
      ValueError: an argument that does not fit.

    Example:
      >>> estimator = Estimator(model_fn, "/tmp/vgg", RunConfig(save_checkpoints_steps=500), {"learning_rate": 0.1})
      >>> estimator.train(train_input_fn, max_steps=2000).evaluate(test_input_fn)["accuracy"]
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        config = RunConfig() if config is None else config
        if not isinstance(config, RunConfig):
            raise ValueError(f"config is {config!r}; it must be an mtf_hetero.RunConfig")
        if params is not None and not isinstance(params, Mapping):
            raise ValueError(f"params is {params!r}; it must be a dict or None")
        inputs.check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._prepared: tuple[Callable[..., object], tf.Graph, training.TrainingStep] | None = None
        self._config = _with_model_dir(config, model_dir)
        self._params = copy.deepcopy(dict(params or {}))

    @property
    def model_dir(self) -> str:
        """Directory of checkpoints and summaries."""
        return str(self._config.model_dir)

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        """A copy of what is passed to model_fn as params."""
        return copy.deepcopy(self._params)

    def _mode_params(self, mode: str) -> dict[str, Any]:
        """Return the params for model_fn and input_fn in a mode."""
        return self.params

    def latest_checkpoint(self) -> str | None:
        """Path of the newest whole checkpoint in the model directory, or None where there is none at all.

        Raises:
          ValueError: there are checkpoints, and none is whole.
        """
        return saver_lib.find(self.model_dir).path

    def get_variable_names(self) -> list[str]:
        """Names of the variables in the last checkpoint; a sliced variable is one logical tensor there."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint(None))]

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value that a variable has in the last checkpoint."""
        return tf.train.load_variable(self._checkpoint(None), name)

    def train(
        self,
        input_fn: Callable[..., object],
        hooks: Sequence[tf.train.SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[tf.train.CheckpointSaverListener] | None = None,
        *,
        elastic: Elastic | None = None,
    ) -> "Estimator":
        """Trains the model, from the last checkpoint if there is one, to the given step or the end of the data.

        SIGINT, SIGTERM and SIGHUP end the step, save a checkpoint and raise KeyboardInterrupt, SystemExit(143) or
        SystemExit(129). A damaged checkpoint is passed over, with a warning, and moved to model_dir/set_aside.

        Args:
          input_fn: returns a tf.data.Dataset, (features, labels) or features; may take mode, params and config.
          hooks: tf.train.SessionRunHooks that run as well.
          steps: number of steps to train now.
          max_steps: the global step at which to end; does nothing where it has been reached.
          saving_listeners: tf.train.CheckpointSaverListeners.
          elastic: has the training continue elsewhere in mid-run. Hooks begin anew there.

        Returns:
          The Estimator itself.

        Raises:
          ValueError: both steps and max_steps, arguments that do not fit, another run in model_dir, or checkpoints of
            which none is whole.
          mtf_hetero.checkpoint.WriteError: the disk is full, or fails; the checkpoints before are kept.
          tf.train.NanLossDuringTrainingError: the loss is NaN.
        """
        check_number(steps, "train: steps")
        check_number(max_steps, "train: max_steps")
        if steps is not None and max_steps is not None:
            raise ValueError(f"train: steps is {steps} and max_steps is {max_steps}; give one of the two")
        hooks = list(hooks or ())
        with saver_lib.run_lock(self.model_dir), self._writing():
            saver_lib.check_names(self.model_dir)
            saver_lib.clear_leftovers(self.model_dir)
            saver_lib.resume(self.model_dir, self._config.keep_checkpoint_max)
            step = self._saved_step()
            if max_steps is not None and step >= max_steps:
                tf.logging.info("nothing to train: %s is at step %d of %d", self.model_dir, step, max_steps)
                return self
            if steps is not None or max_steps is not None:
                hooks.append(tf.train.StopAtStepHook(num_steps=steps, last_step=max_steps))
            listeners, elastic = list(saving_listeners or ()), elastic or Elastic()
            elastic.copy, elastic.saver, elastic.first = None, None, step
            move: Move | None = Move(Place(self, input_fn), "")
            with StopOnSignalHook() as stop, elastic.looking():
                while move is not None:
                    move.place = move.place.begin() or move.place
                    move = move.place.estimator._train(move, hooks, listeners, stop, elastic)
        return self

    def prepare(self, input_fn: Callable[..., object], elastic: Elastic) -> None:
        """Build the training step of a Place and make its session, so that a training moves there faster.

        Any thread may call it. No session is made if it would share its variables with others: RunConfig.session_config
        has no cluster_def then, but a master is given.

        Args:
          input_fn: of the Place.
          elastic: of the training.
        """
        graph, step = self._training_step(input_fn, elastic)
        with self._new_graph(graph):
            self._prepared = input_fn, graph, training.warm_up(self._config, step)

    def _training_step(
        self, input_fn: Callable[..., object], elastic: Elastic
    ) -> tuple[tf.Graph, training.TrainingStep]:
        with self._new_graph() as graph:
            spec = self._build(input_fn, ModeKeys.TRAIN, first=elastic.first)
            return graph, training.complete_graph(self._config, spec, elastic)

    def _train(
        self,
        move: Move,
        hooks: list[tf.train.SessionRunHook],
        listeners: list[tf.train.CheckpointSaverListener],
        stop: StopOnSignalHook,
        elastic: Elastic,
    ) -> Move | None:
        """Train here until the end, which gives None, or until training continues elsewhere."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == move.place.input_fn:
            graph, step = prepared[1:]
        else:
            graph, step = self._training_step(move.place.input_fn, elastic)
        with self._new_graph(graph):
            return training.train_steps(self._config, step, hooks, listeners, stop, elastic, move)

    def evaluate(
        self,
        input_fn: Callable[..., object],
        steps: int | None = None,
        hooks: Sequence[tf.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint, and write the metrics as summaries to model_dir/eval or model_dir/eval_NAME.

        Args:
          input_fn: as in `train`.
          steps: number of batches; None: to the end of the data.
          hooks: tf.train.SessionRunHooks that run as well.
          checkpoint_path: the checkpoint; None: the newest whole one.
          name: distinguishes several evaluations.

        Returns:
          The metrics of the model, "loss" (mean over the batches) and "global_step".

        Raises:
          ValueError: there is no checkpoint, the input gave no batch, or an argument does not fit.
        """
        check_number(steps, "evaluate: steps")
        checkpoint_path = self._checkpoint(checkpoint_path)
        with self._new_graph():
            spec = self._build(input_fn, ModeKeys.EVAL, warn_if_endless=steps is None)
            metrics = {**(spec.eval_metric_ops or {}), "loss": tf.metrics.mean(spec.loss)}
            update = tf.group(*(update for _, update in metrics.values()))
            values = {key: value for key, (value, _) in metrics.items()}
            final = tf.train.FinalOpsHook({**values, tf.GraphKeys.GLOBAL_STEP: tf.train.get_global_step()})
            count = CountHook()
            hooks = [*spec.evaluation_hooks, *(hooks or ()), final, count]
            with training.monitored_session(
                self._config, spec, hooks, StopOnSignalHook(()), checkpoint_path
            ) as session:
                while not session.should_stop() and (steps is None or count.steps < steps):
                    session.run(update)
        if not count.steps:
            raise ValueError("evaluate: input_fn returned no batch; check that its data have at least one full batch")
        results = dict(final.final_ops_values)
        with self._writing():
            self._write_metrics(results, name)
        return results

    def predict(
        self,
        input_fn: Callable[..., object],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[tf.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Generator:
        """Yield the model's predictions on the input, to the end of its data.

        Args:
          input_fn: as in `train`; labels are passed over.
          predict_keys: which of the predictions, where they are a dict; None: all.
          hooks: tf.train.SessionRunHooks that run as well.
          checkpoint_path: the checkpoint; None: the newest whole one.
          yield_single_examples: yield example by example, else batch by batch.

        Raises:
          ValueError: there is no checkpoint, or an argument does not fit.
        """
        batches = self._batches(input_fn, predict_keys, list(hooks or ()), self._checkpoint(checkpoint_path))
        return predictions.examples(batches) if yield_single_examples else batches

    def _batches(
        self,
        input_fn: Callable[..., object],
        keys: Sequence[str] | str | None,
        hooks: list[tf.train.SessionRunHook],
        checkpoint_path: str,
    ) -> Generator:
        check_reachable(self._config.workers)
        workers = self._config.workers
        with WorkerClaim(workers), WorkerWatch(workers, report=lambda line: None) as watch:
            with self._new_graph() as graph:
                spec = self._build(input_fn, ModeKeys.PREDICT, warn_if_endless=True)
                fetches = predictions.select(spec.predictions, keys)
                hooks = [watch, *spec.prediction_hooks, *hooks]
                session = training.single_session(self._config, spec, hooks, checkpoint_path)
            with predictions.left_in(graph, session):
                while not session.should_stop():
                    with graph.as_default():  # not while the caller has the batch: it may have a graph of its own
                        batch = session.run(fetches)
                    yield batch

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike,
        serving_input_receiver_fn: Callable[[], export.ServingInputReceiver],
        *,
        checkpoint_path: str | None = None,
    ) -> str:
        """Write the model as its predictions are built, for plain TensorFlow, on no device; return where.

        Args:
          export_dir_base: a directory; the SavedModel is a new one in it, which is called as the time.
          serving_input_receiver_fn: returns a ServingInputReceiver (estimator.export), for a batch of some size.
          checkpoint_path: the checkpoint; None: the newest whole one.

        Raises:
          ValueError: there is no checkpoint, or an argument does not fit.
          NotImplementedError: the model does with a variable what is not exported.
          mtf_hetero.checkpoint.WriteError: the disk is full, or fails; nothing is left.
        """
        checkpoint_path = self._checkpoint(checkpoint_path)

        def build() -> tuple[Mapping[str, tf.Tensor], Mapping[str, Mapping[str, tf.Tensor]]]:
            tf.train.get_or_create_global_step()
            receiver, mode = serving_input_receiver_fn(), ModeKeys.PREDICT
            offered = {"mode": mode, "params": self._mode_params(mode), "config": self._config}
            spec = inputs.call_model_fn(self._model_fn, receiver.features, None, **offered)
            assert isinstance(receiver.receiver_tensors, Mapping)
            return receiver.receiver_tensors, export.signatures(spec, saved_model.DEFAULT)

        directory = os.path.join(export_dir_base, str(time.time_ns() // 10**6))
        saved_model.write_signatures(directory, build, checkpoint=checkpoint_path)
        return directory

    @contextlib.contextmanager
    def _new_graph(self, graph: tf.Graph | None = None) -> Iterator[tf.Graph]:
        with (tf.Graph() if graph is None else graph).as_default() as graph, graph.container(self._config.container):
            tf.set_random_seed(self._config.tf_random_seed)
            yield graph

    def _build(
        self, input_fn: Callable[..., object], mode: str, *, warn_if_endless: bool = False, first: int | None = None
    ) -> EstimatorSpec:
        """Build input and model in the default graph; return the spec with a scaffold that has a saver."""
        tf.train.get_or_create_global_step()
        offered = {"mode": mode, "params": self._mode_params(mode), "config": self._config}
        if mode == ModeKeys.TRAIN:  # the model's random numbers are those of the step, whenever a session began
            random_numbers.follow(read_global_step())
        features, labels = inputs.call_input_fn(input_fn, first=first, **offered)
        if warn_if_endless:
            inputs.warn_if_endless(mode)
        labels = None if mode == ModeKeys.PREDICT else labels
        spec = inputs.call_model_fn(self._model_fn, features, labels, **offered)
        scaffold = spec.scaffold or tf.train.Scaffold()
        if scaffold.saver is None and not tf.get_collection(tf.GraphKeys.SAVERS):
            saver = Saver(
                builder=SliceSaverBuilder(),
                max_to_keep=self._config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
                save_relative_paths=True,
                defer_build=True,  # until the graph is complete
            )
            tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
        return dataclasses.replace(spec, scaffold=scaffold)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with saver_lib.as_write_error(f"cannot write to {self.model_dir}"), saver_lib.quiet_summary_writers():
            yield

    def _saved_step(self) -> int:
        path = self.latest_checkpoint()
        return 0 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))

    def _checkpoint(self, path: str | None) -> str:
        if path is not None:
            if not any(tf.gfile.Exists(path + suffix) for suffix in (".index", "")):
                raise ValueError(
                    f"checkpoint_path is {path!r}, which is not a checkpoint; give a path such as model.ckpt-7"
                )
            if damage := saver_lib.find_damage(path):
                raise ValueError(f"checkpoint_path is {path!r}, which is damaged: {damage}; give another checkpoint")
            return path
        checkpoint = saver_lib.find(self.model_dir)
        if checkpoint.path is None:
            raise ValueError(f"model_dir {self.model_dir!r} has no checkpoint; train first, or give checkpoint_path")
        checkpoint.log()
        return checkpoint.path

    def _write_metrics(self, results: Mapping[str, Any], name: str | None) -> None:
        step = int(results[tf.GraphKeys.GLOBAL_STEP])
        scalars = {key: value for key, value in results.items() if np.ndim(value) == 0 and not isinstance(value, bytes)}
        del scalars[tf.GraphKeys.GLOBAL_STEP]
        directory = os.path.join(self.model_dir, f"eval_{name}" if name else "eval")
        with tf.Graph().as_default():  # TensorFlow refuses to make a writer where it could run eagerly
            writer = tf.summary.FileWriterCache.get(directory)
        values = [tf.Summary.Value(tag=key, simple_value=float(value)) for key, value in sorted(scalars.items())]
        writer.add_summary(tf.Summary(value=values), step)
        writer.flush()
        text = ", ".join(f"{key} = {value:g}" for key, value in sorted(scalars.items()))
        tf.logging.info("evaluated step %d: %s", step, text)


def _with_model_dir(config: RunConfig, model_dir: str | os.PathLike | None) -> RunConfig:
    if model_dir is None and config.model_dir is None:
        model_dir = tempfile.mkdtemp()
        tf.logging.warning("model_dir is not set: writing checkpoints to the temporary directory %s", model_dir)
    if model_dir is None:
        return config
    if config.model_dir is not None and config.model_dir != os.fspath(model_dir):
        raise ValueError(
            f"model_dir is {model_dir!r}, but the model_dir of config is {config.model_dir!r}; give only one"
        )
    return config.replace(model_dir=model_dir)
