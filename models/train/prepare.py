"""From what the user asked for to a run that is known to be possible: data, devices, layout and directory."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from mtf_hetero import data, placement, tf
from mtf_hetero import saver as saver_lib
from mtf_hetero._support import files
from mtf_hetero.cluster import Cluster, LocalCluster, WorkerClaim
from mtf_hetero.models import named
from mtf_hetero.models.registry import MODELS, Model, is_keras
from mtf_hetero.models.train import inputs, meshes, recorded
from mtf_hetero.models.train import program as network
from mtf_hetero.models.train.config import Config
from mtf_hetero.models.train.run import Draft, Run, build_step, check_steps
from mtf_hetero.models.train.tasks import Task
from mtf_hetero.placement import Request
from mtf_hetero.planner import machines as machines_lib
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.choice import Choice
from mtf_hetero.planner.plan import Plan

_PLAN, _DEVICES = "plan.json", "devices.json"  # in the directory of a run


def prepare(config: Config, stack: contextlib.ExitStack) -> Draft:
    """Checks a configuration as a whole, without training anything.

    Args:
      config: what the user asked for.
      stack: what a run needs until its end is entered here: the lock of its directory, workers of a local cluster.

    Raises:
      ValueError: parts of it that do not exist or do not fit together, a worker that does not answer, another run in
        the directory, or checkpoints there of which none is whole.
    """
    draft = _draft(config, stack, _resumed_model(config), record=_resumed_record(config))
    if not draft.request.is_measured:  # a wrong layout leaves no directory behind
        draft = dataclasses.replace(draft, placement=_find_placement(draft))
    model_dir = "" if config.dry_run else _make_model_dir(config.model_dir)
    if model_dir:
        stack.enter_context(saver_lib.run_lock(model_dir))
    notes = draft.notes
    if config.model_dir is not None:
        path = saver_lib.find(config.model_dir).path
        if path is not None:
            why = "--model_dir holds {path}, which this model, data set and optimizer cannot resume"
            _check_checkpoint(path, draft.shapes, why)
            left = _steps_left(draft, path)
            if missed := ", ".join(str(step) for step in config.trace_steps if step >= left):
                notes = *notes, f"not traced: {missed}, for {left} steps are left"
    return dataclasses.replace(draft, model_dir=model_dir, notes=notes)


def restore(config: Config, stack: contextlib.ExitStack, checkpoint: str, *, reads_data: bool = True) -> Run:
    """A run of which nothing is to be trained: to test a checkpoint, to predict with it, or to export it.

    Args:
      config: what it was trained with, and where it is to run now.
      stack: as of `prepare`.
      checkpoint: path of the checkpoint.
      reads_data: whether the data set has to be there, or what its directory says of it will do.

    Raises:
      ValueError: as of `prepare`, or the checkpoint is of another network.
      NotImplementedError: a layout that splits what an operation needs whole.
    """
    record = recorded.load(os.path.dirname(checkpoint))
    model = _find(config, None if record is None else record.kept_model(config))
    dataset = None if record is None or reads_data else record.data_of(config)
    draft = _draft(config, stack, model, training=False, dataset=dataset, record=record)
    _check_checkpoint(checkpoint, draft.shapes, "{path} is of another network, or of another data set")
    model_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="mtf_hetero_"))
    return place(dataclasses.replace(draft, model_dir=model_dir, trains=False))


def _find(config: Config, kept: str | None = None) -> Model:
    """The model that a configuration names, or the copy of it."""
    return named.find(config.model, MODELS, kept=kept, seed=config.seed)


def _resumed_model(config: Config) -> Model:
    """The model to be trained: of a Keras model whose file is not there any more, what the directory has of it."""
    is_there = os.path.isfile(os.path.expanduser(config.model))
    record = None if is_there or not is_keras(config.model) else recorded.load(config.model_dir)
    return _find(config, None if record is None else record.kept_model(config))


def _resumed_record(config: Config) -> recorded.Record | None:
    """The record of the run that goes on with one's own images; None: a new run, or another data set."""
    if not data.is_own(config.dataset, config.data_dir):
        return None
    record = recorded.load(config.model_dir)
    return record if record is not None and record.data_of(config) is not None else None


def _draft(
    config: Config,
    stack: contextlib.ExitStack,
    model: Model,
    *,
    training: bool = True,
    dataset: inputs.Dataset | None = None,
    record: recorded.Record | None = None,
) -> Draft:
    """A draft without a directory."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    request = placement.load(config.request)
    _check_parts(config, model)
    planned = request.layout if isinstance(request.layout, Plan) else None
    machines = None if config.simulate is None else _simulated(config.simulate, planned)
    absent = _absent(config, planned, machines)
    dataset = inputs.load(config, model, record) if dataset is None else dataset
    if training:
        check_steps(config, dataset)
    meshes.check_axes(config, dataset.image_shape)
    task = model.task.of(dataset)
    model = model.fitted(dataset.image_shape, *task.config.values())
    dataset = inputs.as_stored(dataset) if model.normalises else dataset
    if absent:
        cluster, notes = Cluster.local([f"cpu:{number}" for number in range(len(absent))]), ()
    else:
        cluster, notes = _cluster(request, stack, claims=training and not config.dry_run)
    request.memory_bytes(cluster.devices)
    batch, rounds = meshes.divide_batch(config, placement.mesh_of(request, cluster.devices))
    build = _builder(config, model, task, rounds)
    with tf.Graph().as_default():
        graph = (build_step if training else _build_test)(config, dataset, task, batch, build).graph
    return Draft(
        config=config,
        request=request,
        model=model,
        dataset=dataset,
        task=task,
        cluster=cluster,
        batch=batch,
        build=build,
        graph=graph,
        notes=(*model.notes, *inputs.notes(dataset), *notes),
        machines=machines,
        absent=absent,
    )


def place(draft: Draft) -> Run:
    """Finds how the step of a run is split; where its devices are to be measured, it shows how it gets on.

    Raises:
      ValueError: a layout that does not fit, a step that fits on no set of the devices, or a worker that was lost.
      NotImplementedError: an operation that cannot be measured by itself.
    """
    placed = draft.placement or _find_placement(draft)
    values: dict[str, Any] = {**vars(draft), "placement": placed, "cluster": placed.cluster}
    machines, choice = draft.machines, placed.choice
    if machines is not None and placed.plan is not None:
        used = placed.plan.devices
        values |= {"absent": used, "machines": machines.only([machines.names.index(device) for device in used])}
    if choice is not None:
        warning = [f"warning: {choice.warning}"] if choice.warning else []
        values["notes"] = (*draft.notes, *warning, *choice.lines, *_kept(choice, draft.model_dir))
    return Run(**values)


def _find_placement(draft: Draft) -> placement.Placement:
    steps = None
    if draft.request.is_measured:  # else nobody asks, and to look for checkpoints takes time
        resumed = None if draft.config.model_dir is None else saver_lib.find(draft.config.model_dir).path
        steps = _steps_left(draft, resumed)
    # the next local cluster's workers have other addresses, or other speeds
    keeps = draft.config.local_cluster is None
    return placement.place(
        draft.request,
        draft.cluster,
        draft.build_graph,
        graph=draft.graph,
        search=placement.Search(steps, progress=not draft.config.quiet, keeps=keeps),
        machines=draft.machines,
        names=draft.absent,
    )


def _absent(config: Config, planned: Plan | None, simulated: machines_lib.Machines | None) -> tuple[str, ...]:
    """The devices that need not be here: of a file, or of a plan in a dry run that names no workers."""
    if simulated is not None:
        return simulated.names
    if planned is None or not config.dry_run or config.workers or config.local_cluster:
        return ()
    return config.devices or planned.devices


def _simulated(path: str, planned: Plan | None) -> machines_lib.Machines:
    """The devices of a file; of a plan, those that it uses.

    Raises:
      ValueError: the file is not as it should be, or lacks a device of the plan.
    """
    machines = machines_lib.load(path)
    if planned is None:
        return machines
    for device in planned.devices:
        if device not in machines.names:
            raise ValueError(
                f"--layout is a plan for {', '.join(planned.devices)}, but --simulate={path} has no {device}; give the "
                "devices that it was planned for"
            )
    return machines.only([machines.names.index(device) for device in planned.devices])


def _check_parts(config: Config, model: Model) -> None:
    """Raises ValueError where a flag names a part of the model that there is not."""
    for name, wanted, known in (
        ("recompute", config.recompute, model.recomputes),
        ("dense_rounds", config.dense_rounds, model.in_rounds),
    ):
        if wanted and not known:
            raise ValueError(f"--{name} is given, which --model={config.model} does not know; remove it")


def _steps_left(draft: Draft, path: str | None) -> int:
    """The steps that the training still takes, from a checkpoint on, if there is one."""
    done = 0 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
    return max(draft.total_steps - done, 0)


def _kept(choice: Choice, model_dir: str) -> list[str]:
    """Keeps the plan and the devices in the directory of a run, if it has one; where they are, for the user."""
    if not model_dir:
        return []
    path, devices = (os.path.join(model_dir, name) for name in (_PLAN, _DEVICES))
    plan_lib.save(choice.plan, path)
    if not choice.is_measured:
        return [f"the plan is {path}, for --layout"]
    files.write_text(devices, machines_lib.dumps(choice.machines))
    return [f"the plan is {path}, for --layout; the devices are {devices}, for mtf-hetero plan --simulate"]


def _builder(config: Config, model: Model, task: Task, rounds: tuple[int, ...] | None) -> Callable[..., Any]:
    """The model's builder with all of its configuration."""
    changes = dict(task.config)
    if rounds is not None:
        changes["dense_rounds"] = rounds
    if config.recompute:
        changes["recompute"] = config.recompute
    return functools.partial(model.build, **changes)


def _build_test(
    config: Config, dataset: inputs.Dataset, task: Task, batch: tuple[int, ...], build: Callable[..., Any]
) -> network.Built:
    """A test, on no images, in the default graph."""
    image, label = inputs.blank(dataset, config.batch_size)
    features = {"image": image, "weight": tf.ones([config.batch_size])}
    return network.build_test(features, label, build=build, task=task, batch=batch)


def _cluster(request: Request, stack: contextlib.ExitStack, *, claims: bool) -> tuple[Cluster, tuple[str, ...]]:
    """Where the run takes place, and what the user should know of it."""
    notes: list[str] = []
    if request.local_cluster is not None:
        local = LocalCluster(request.local_cluster, report=notes.append)
        try:
            cluster = stack.enter_context(local)
        except RuntimeError as error:
            raise ValueError(f"{request.said('local_cluster')}: {error}") from error
        notes += local.describe()
        devices = placement.devices_of(request)
        if devices is not None:
            cluster = Cluster.from_workers(cluster.workers, devices, timeout_seconds=60.0)
    else:
        cluster = placement.cluster_of(request)
    if claims:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
    if cluster.workers and request.local_cluster is None:
        notes.append(cluster.describe())
    return cluster, tuple(notes)


def _check_checkpoint(path: str, shapes: Mapping[str, list[int]], why: str) -> None:
    """Raises ValueError where a checkpoint does not have the variables of a network.

    Args:
      path: the checkpoint.
      shapes: {variable: its shape}.
      why: what that means, with {path}.
    """
    saved = dict(tf.train.list_variables(path))
    for name, shape in shapes.items():
        if saved.get(name) != shape:
            has = f"shape {saved[name]}" if name in saved else "no such variable"
            raise ValueError(
                f"{why.format(path=path)}: variable {name!r} has shape {shape} here and {has} there; choose another "
                "directory"
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
