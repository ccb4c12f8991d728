"""The loop around a model: the hooks of training in their order, and sessions that outlive workers."""

import contextlib
from collections.abc import Iterator
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.cluster import WaitingSessionCreator, WorkerClaim, WorkerWatch, needed_cpus
from mtf_hetero.estimator.config import EstimatorSpec, RunConfig
from mtf_hetero.estimator.hooks import NanLossHook, StopOnSignalHook
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.estimator.resume import ResumingSessionCreator

MANY_OPERATIONS = 20_000  # a training step of VGG-16 has as many on 50 processors


def training_hooks(
    config: RunConfig,
    spec: EstimatorSpec,
    step: Any,
    hooks: list[tf.train.SessionRunHook],
    listeners: list[tf.train.CheckpointSaverListener],
) -> list[tf.train.SessionRunHook]:
    """All hooks in order: NaN is found before anything is saved, and all others run before the saver."""
    hooks = [*spec.training_chief_hooks, *spec.training_hooks, *hooks]
    every, summaries = config.log_step_count_steps, config.save_summary_steps
    if every:
        hooks.insert(0, tf.train.StepCounterHook(every_n_steps=every, output_dir=config.model_dir))
    if summaries:
        hooks.insert(
            0, tf.train.SummarySaverHook(save_steps=summaries, output_dir=config.model_dir, scaffold=spec.scaffold)
        )
    if every and not any(isinstance(hook, ProgressHook) for hook in hooks):
        hooks.append(tf.train.LoggingTensorHook({"step": step, "loss": spec.loss}, every_n_iter=every))
    savers = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
    if savers:
        savers[0]._listeners = [*savers[0]._listeners, *listeners]
    else:
        secs = config.save_checkpoints_secs
        if secs is None and config.save_checkpoints_steps is None:
            secs = float("inf")
        saver = tf.train.CheckpointSaverHook(
            config.model_dir,
            save_secs=secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=spec.scaffold,
            listeners=listeners,
        )
        hooks.append(saver)
    return [NanLossHook(spec.loss), *hooks]


@contextlib.contextmanager
def monitored_session(
    config: RunConfig,
    spec: EstimatorSpec,
    hooks: list[tf.train.SessionRunHook],
    stop: StopOnSignalHook,
    checkpoint_path: str | None = None,
) -> Iterator[tf.Session]:
    """A monitored session, which outlives workers.

    Args:
      config: of the run.
      spec: with its scaffold.
      hooks: all hooks.
      stop: ends a wait for a worker.
      checkpoint_path: what to restore; None: the newest whole checkpoint in the model directory, if there is one.
    """
    workers = config.workers
    options = {"master": config.master, "config": session_config(config)}
    if checkpoint_path is None:
        creator = ResumingSessionCreator(
            str(config.model_dir), spec.scaffold, hooks, config.keep_checkpoint_max, **options
        )
    else:
        creator = tf.train.ChiefSessionCreator(spec.scaffold, checkpoint_filename_with_path=checkpoint_path, **options)
    waits = config.wait_for_workers
    if workers:
        creator = WaitingSessionCreator(creator, workers, waits=waits, check=stop.check)
        creator.await_workers()
    with (
        WorkerClaim(workers),
        WorkerWatch(workers, report=None if waits else _say_nothing) as watch,
        tf.train.MonitoredSession(session_creator=creator, hooks=[*hooks, watch]) as session,
    ):
        yield session


def single_session(
    config: RunConfig, spec: EstimatorSpec, hooks: list[tf.train.SessionRunHook], checkpoint_path: str
) -> tf.Session:
    """A monitored session that is never begun anew: where a worker is lost, it ends with UnreachableWorkerError.

    Args:
      config: of the run.
      spec: with its scaffold.
      hooks: all hooks, a WorkerWatch among them.
      checkpoint_path: what to restore.
    """
    options = {
        "master": config.master,
        "config": session_config(config),
        "checkpoint_filename_with_path": checkpoint_path,
    }
    if not config.workers:
        return tf.train.SingularMonitoredSession(hooks=hooks, scaffold=spec.scaffold, **options)
    creator = tf.train.ChiefSessionCreator(spec.scaffold, **options)
    return tf.train.MonitoredSession(WaitingSessionCreator(creator, config.workers, waits=False), hooks=hooks)


def _say_nothing(line: str) -> None:
    """Drops a line of a WorkerWatch: where nothing waits for a worker, an error says the same."""


def session_config(config: RunConfig) -> tf.ConfigProto:
    """The tf.ConfigProto of a run's sessions, for the default graph.

    It has the CPU devices that a mesh of the graph names, unless the run's config says how many there are.

    Of a graph of MANY_OPERATIONS TensorFlow's graph optimizers are left out, unless the run's config has options for
    them. They take half a second per thousand operations before the first step, and save about 2 % of each.
    """
    proto = tf.ConfigProto(allow_soft_placement=True)
    if config.session_config is not None:
        proto.CopyFrom(config.session_config)
    if "CPU" not in proto.device_count and (cpus := needed_cpus(tf.get_default_graph())) > 1:
        proto.device_count["CPU"] = cpus
    options = proto.graph_options
    if not options.HasField("rewrite_options") and len(tf.get_default_graph().get_operations()) >= MANY_OPERATIONS:
        options.rewrite_options.disable_meta_optimizer = True
    return proto
