"""The loop around a model: the hooks of training in their order, and sessions that outlive workers."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero.checkpoint import Saver, State
from mtf_hetero.checkpoint.saver import copied
from mtf_hetero.cluster import UnreachableWorkerError, WorkerWatch
from mtf_hetero.cluster.local_session import needed_cpus
from mtf_hetero.cluster.session import WaitingSessionCreator, always
from mtf_hetero.estimator.config import EstimatorSpec, RunConfig
from mtf_hetero.estimator.hooks import CopyHook, NanLossHook, SaverHook, StopOnSignalHook, order_global_step
from mtf_hetero.estimator.inputs import hold_updates
from mtf_hetero.estimator.looping import LoopHook, steps_in_call
from mtf_hetero.estimator.progress import ProgressHook
from mtf_hetero.estimator.resume import ResumingSessionCreator
from mtf_hetero.estimator.summaries import (
    LOSS_COLLECTION_KEY,
    add_mtf_scalar_summaries,
    add_scalar_summary,
    scalar_summaries,
)
from mtf_hetero.estimator.warm import WarmSession
from mtf_hetero.mesh import traffic
from mtf_hetero.training.elastic import Elastic, Move

Session = tf.train.MonitoredSession | tf.train.SingularMonitoredSession
MANY_OPERATIONS = 20_000  # a training step of VGG-16 has as many on 50 processors
MANY_IN_PAUSE = 4_000  # where training pauses meanwhile: the optimizers take half of ResNet-50's pause
CHECKPOINT_NAME = "model.ckpt"  # of tf.train.CheckpointSaverHook


def _nothing() -> None:
    """Begin nowhere else, the default of `begin`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """The place of a training by an Estimator.

    Args:
      estimator: an mtf_hetero.Estimator of the same model and the same directory, with its layout and its devices.
      input_fn: the training input there.
      begin: called when the training arrives there, before it builds its step. It may return another place, to which
        the training goes instead.
    """

    estimator: Any
    input_fn: Callable[..., object]
    begin: Callable[[], "Place | None"] = _nothing


class Moved(Exception):  # noqa: N818 - no error
    """Leaves a session without its end."""

    def __init__(self, move: Move) -> None:
        super().__init__(move.why)
        self.move = move


def training_hooks(
    config: RunConfig,
    spec: EstimatorSpec,
    step: tf.Tensor,
    hooks: list[tf.train.SessionRunHook],
    listeners: list[tf.train.CheckpointSaverListener],
    elastic: Elastic,
) -> list[tf.train.SessionRunHook]:
    """All hooks in order: NaN is found before anything is saved, and all others run before the saver."""
    assert spec.loss is not None and config.model_dir is not None
    hooks = [*spec.training_chief_hooks, *spec.training_hooks, *hooks]
    every, summaries = config.log_step_count_steps, config.save_summary_steps
    if every:
        hooks.insert(0, tf.train.StepCounterHook(every_n_steps=every, output_dir=config.model_dir))
    if summaries:
        hooks.insert(
            0, tf.train.SummarySaverHook(save_steps=summaries, output_dir=config.model_dir, scaffold=spec.scaffold)
        )
    if every and not any(isinstance(hook, ProgressHook) for hook in hooks):
        calls = -(-every // config.iterations_per_loop)
        hooks.append(tf.train.LoggingTensorHook({"step": step, "loss": spec.loss}, every_n_iter=calls))
    savers = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
    if savers:
        old = savers[0]._listeners  # which has them already if training came from elsewhere
        savers[0]._listeners = [*old, *(listener for listener in listeners if listener not in old)]
    else:
        hooks.append(_own_saver(config, spec, listeners, elastic))
    return [NanLossHook(spec.loss), *hooks]


def _own_saver(
    config: RunConfig, spec: EstimatorSpec, listeners: list[tf.train.CheckpointSaverListener], elastic: Elastic
) -> SaverHook:
    """Return the training's hook that saves, which knows at each place when it saved last."""
    saver: SaverHook | None = elastic.saver
    if saver is None:
        assert config.model_dir is not None
        secs, steps = config.save_checkpoints_secs, config.save_checkpoints_steps
        if secs is None and steps is None:
            secs = float("inf")
        saver = elastic.saver = SaverHook(config.model_dir, save_secs=secs, save_steps=steps, listeners=listeners)
    saver._scaffold = spec.scaffold
    return saver


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A training step, whose graph lacks only what hooks add.

    Args:
      spec: of the model.
      number: the global step before the run.
      copying: the hook that copies the state, of a training that may lose workers.
      warm: a session made in advance, if there is one.
    """

    spec: EstimatorSpec
    number: tf.Tensor
    copying: list[CopyHook]
    warm: WarmSession | None = None


def complete_graph(config: RunConfig, spec: EstimatorSpec, elastic: Elastic) -> TrainingStep:
    """Complete the model of the default graph to a training step."""
    assert spec.loss is not None and spec.train_op is not None and spec.scaffold is not None
    tf.add_to_collection(LOSS_COLLECTION_KEY, spec.loss)
    number = order_global_step(spec.train_op, spec.loss)
    add_mtf_scalar_summaries()
    add_scalar_summary("loss", spec.loss)
    may_lose = config.workers and config.wait_seconds
    copying = [CopyHook(spec.scaffold, elastic, spec.train_op, spec.loss)] if may_lose else []
    hold_updates(spec.train_op, spec.loss)  # after the CopyHook, whose updates wait for batches already
    traffic.arrange([spec.train_op, spec.loss])
    for saver in tf.get_collection(tf.GraphKeys.SAVERS):
        if isinstance(saver, Saver):
            saver.build()
    return TrainingStep(spec, number, copying)


def warm_up(config: RunConfig, step: TrainingStep) -> TrainingStep:
    """Return the training step of the default graph with a session, whose workers are ready for it."""
    options = session_config(config, in_pause=True)
    if config.master and not options.HasField("cluster_def"):  # the session would share the variables of others
        return step
    spec = step.spec
    assert spec.scaffold is not None and spec.train_op is not None and spec.loss is not None
    fetches = (spec.train_op, spec.loss, step.number, *scalar_summaries().values())
    return dataclasses.replace(step, warm=WarmSession(spec.scaffold, config.master, options, fetches))


def train_steps(
    config: RunConfig,
    step: TrainingStep,
    hooks: list[tf.train.SessionRunHook],
    listeners: list[tf.train.CheckpointSaverListener],
    stop: StopOnSignalHook,
    elastic: Elastic,
    move: Move,
) -> Move | None:
    """Train the model of the default graph until the end, or until training continues elsewhere.

    Args:
      config: of the run.
      step: of the default graph.
      hooks: the user's.
      listeners: of checkpoints.
      stop: ends the training.
      elastic: says where training continues.
      move: how it came here.

    Returns:
      How training continues; None: it has ended.
    """
    hooks = training_hooks(config, step.spec, step.number, hooks, listeners, elastic)
    for hook in hooks:
        if isinstance(hook, SaverHook):
            hook.continues = move.state is not None
    try:
        _run_steps(config, step, [*step.copying, *hooks, stop], stop, elastic, move)
    except Moved as moved:
        return moved.move
    except UnreachableWorkerError as error:
        left = elastic.leave(error.workers, move.place)
        if left is None:
            raise
        return left
    finally:
        _release(hooks)
    return None


def _release(hooks: list[tf.train.SessionRunHook]) -> None:
    """Have hooks let go of the default graph and of the terminal: a session that fails does not end them."""
    for hook in hooks:
        if isinstance(hook, ProgressHook):
            hook.close()
        if isinstance(hook, SaverHook):
            hook.join()
        if isinstance(hook, tf.train.CheckpointSaverHook) and hook._saver in tf.get_collection(tf.GraphKeys.SAVERS):
            hook._saver = None  # it finds the one of the next graph


def _run_steps(
    config: RunConfig,
    step: TrainingStep,
    hooks: list[tf.train.SessionRunHook],
    stop: StopOnSignalHook,
    elastic: Elastic,
    move: Move,
) -> None:
    spec, loss = step.spec, None
    assert spec.train_op is not None and spec.loss is not None
    fetches = [spec.train_op, spec.loss, step.number]
    end = tf.train.FinalOpsHook(tf.train.get_global_step())
    hooks = [*hooks, end]
    if config.iterations_per_loop > 1:
        hooks.append(LoopHook(config.iterations_per_loop, fetches, hooks))
    with monitored_session(config, spec, hooks, stop, move=move, elastic=elastic, warm=step.warm) as session:
        while not (session.should_stop() or stop.requested):
            if elastic.is_wanted:
                raise Moved(elastic.begin_move(_leave_state(session, config, spec)))
            _, loss, last = session.run(fetches)
            for number in range(int(last) + 1 - steps_in_call(tf.get_default_graph()), int(last) + 1):
                elastic.end_step(number)
    if end.final_ops_values == elastic.first:
        tf.logging.warning("trained 0 steps: input_fn returned no batch, or a hook stopped the training")
    else:
        tf.logging.info("trained to step %d, loss %s", end.final_ops_values, "unknown" if loss is None else f"{loss:g}")


def _leave_state(session: tf.train.MonitoredSession, config: RunConfig, spec: EstimatorSpec) -> State | None:
    """Return the state of a session, or save it and return None."""
    assert spec.scaffold is not None
    saver = spec.scaffold.saver

    def copy_or_save(step_context: tf.train.MonitoredSession.StepContext) -> State | None:
        present = session._tf_sess()  # step_context has the first one, even after the loss of a worker
        state = copied(saver, present)
        if state is None:
            step = present.run(tf.train.get_global_step())
            saver.save(present, os.path.join(str(config.model_dir), CHECKPOINT_NAME), int(step))
        return state

    return session.run_step_fn(copy_or_save)


@contextlib.contextmanager
def monitored_session(
    config: RunConfig,
    spec: EstimatorSpec,
    hooks: list[tf.train.SessionRunHook],
    stop: StopOnSignalHook,
    checkpoint_path: str | None = None,
    *,
    move: Move | None = None,
    elastic: Elastic | None = None,
    warm: WarmSession | None = None,
) -> Iterator[tf.train.MonitoredSession]:
    """Return a monitored session, which outlives workers.

    Args:
      config: of the run.
      spec: with its scaffold.
      hooks: all hooks.
      stop: ends a wait for a worker.
      checkpoint_path: what to restore; None: the newest whole checkpoint in the model directory, if there is one.
      move: how a training came here, perhaps with a state to begin with.
      elastic: of a training.
      warm: a session made in advance, for a move with a state.
    """
    assert spec.scaffold is not None
    workers = config.workers
    in_pause = move is not None and move.why != ""
    options = {"master": config.master, "config": session_config(config, in_pause=in_pause)}
    if checkpoint_path is None:
        creator = ResumingSessionCreator(
            str(config.model_dir), spec.scaffold, hooks, config.keep_checkpoint_max, move, elastic, warm, **options
        )
    else:
        creator = tf.train.ChiefSessionCreator(spec.scaffold, checkpoint_filename_with_path=checkpoint_path, **options)
    limit = config.wait_seconds
    claimed = contextlib.nullcontext()
    if workers:
        may_leave = always if elastic is None else elastic.may_leave
        options = {"wait_seconds": limit, "may_leave": may_leave, "check": stop.check}
        copying = [hook for hook in hooks if isinstance(hook, CopyHook)]
        if copying:
            options["rescue"] = copying[0].rescue
        creator = WaitingSessionCreator(creator, workers, **options)
        # A validation begins with workers that its training has used
        claimed = creator.claim_workers(None if elastic is None else tf.logging.warning)
    with (
        claimed,
        WorkerWatch(workers, report=None if limit else _say_nothing, wait_seconds=limit) as watch,
        tf.train.MonitoredSession(session_creator=creator, hooks=[watch, *hooks]) as session,
    ):
        yield session


def single_session(
    config: RunConfig, spec: EstimatorSpec, hooks: list[tf.train.SessionRunHook], checkpoint_path: str
) -> Session:
    """Return a monitored session that is never begun anew: where a worker is lost, it ends with UnreachableWorkerError.

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
    return tf.train.MonitoredSession(WaitingSessionCreator(creator, config.workers, wait_seconds=0), hooks=hooks)


def _say_nothing(line: str) -> None:
    """Drop a line of a WorkerWatch: where nothing waits for a worker, an error says the same."""


def session_config(config: RunConfig, *, in_pause: bool = False) -> tf.ConfigProto:
    """Return the tf.ConfigProto of a run's sessions, for the default graph.

    It has the CPU devices that a mesh of the graph names, unless the run's config says how many there are.

    Of a graph of MANY_OPERATIONS (MANY_IN_PAUSE) TensorFlow's graph optimizers are left out, unless the run's config
    has options for them. They take half a second per thousand operations before the first step, and save about 2 % of
    each.
    """
    proto = tf.ConfigProto(allow_soft_placement=True)
    if config.session_config is not None:
        proto.CopyFrom(config.session_config)
    if "CPU" not in proto.device_count and (cpus := needed_cpus(tf.get_default_graph())) > 1:
        proto.device_count["CPU"] = cpus
    options, many = proto.graph_options, MANY_IN_PAUSE if in_pause else MANY_OPERATIONS
    if not options.HasField("rewrite_options") and len(tf.get_default_graph().get_operations()) >= many:
        options.rewrite_options.disable_meta_optimizer = True
    return proto
