"""Turn a user's configuration into a checked run with data, devices, layout and directory."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from mtf_hetero import checkpoint as saver_lib
from mtf_hetero import data, placement
from mtf_hetero._compat import tf
from mtf_hetero._support import files
from mtf_hetero.cli.train import initial, inputs, recorded
from mtf_hetero.cli.train.config import SPATIAL, Config
from mtf_hetero.cli.train.program import IMAGE, Program, computing_in
from mtf_hetero.cli.train.run import Draft, Run, check_steps, make_optimizer, total_steps
from mtf_hetero.cli.train.tasks import Task
from mtf_hetero.cluster import Cluster, LocalCluster, WorkerClaim
from mtf_hetero.cluster.members import Members
from mtf_hetero.cost import devices_file
from mtf_hetero.cost.machines import Machines
from mtf_hetero.layouts.hybrid import batch_sizes, member_sizes
from mtf_hetero.models import named
from mtf_hetero.models.registry import MODELS, Model, is_keras
from mtf_hetero.placement import Request, placing
from mtf_hetero.placement.request import HYBRID
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.choice import Choice
from mtf_hetero.planner.plan import Plan

_PLAN, _DEVICES = "plan.json", "devices.json"  # in the directory of a run


def prepare(config: Config, stack: contextlib.ExitStack) -> Draft:
    """Check a complete configuration, without training.

    Args:
      config: what the user asked for.
      stack: the contexts that a run needs until its end: the lock of its directory, workers of a local cluster.

    Raises:
      ValueError: parts do not exist or do not fit together, a worker does not answer, another run uses the directory,
        or no checkpoint in it is intact.
    """
    draft = _draft(config, stack, _resumed_model(config), record=_resumed_record(config))
    if not draft.request.is_measured:  # checked first, so that a wrong layout leaves no directory
        draft = dataclasses.replace(draft, placement=_find_placement(draft))
    if config.initial_weights is not None:
        draft = initial.with_weights(draft)
    model_dir = "" if config.dry_run else _make_model_dir(config.model_dir)
    if model_dir:
        stack.enter_context(saver_lib.run_lock(model_dir))
    notes = draft.notes
    if config.model_dir is not None:
        path = saver_lib.find(config.model_dir).path
        if path is not None:
            _check_checkpoint(path, draft.shapes, *recorded.explain_mismatch(config))
            left = _steps_left(draft, path)
            if missed := ", ".join(str(step) for step in config.trace_steps if step >= left):
                notes = *notes, f"not traced: {missed}, for {left} steps are left"
    check = None
    if draft.model.check is not None and not config.dry_run and config.wire_dtype is None:  # which rounds
        check = draft.model.check(config.verify, draft.total_steps, announces=not config.quiet)
    return dataclasses.replace(draft, model_dir=model_dir, notes=notes, check=check)


def restore(config: Config, stack: contextlib.ExitStack, checkpoint: str, *, reads_data: bool = True) -> Run:
    """Restore a run without training: to test a checkpoint, to predict with it, or to export it.

    Args:
      config: its configuration, with the devices to run on.
      stack: as in `prepare`.
      checkpoint: path of the checkpoint.
      reads_data: whether the data set is needed; if not, the record in the directory suffices.

    Raises:
      ValueError: as in `prepare`, or the checkpoint is of another network.
      NotImplementedError: the layout splits a dimension that an operation needs unsplit.
    """
    record = recorded.load(os.path.dirname(checkpoint))
    model = _find(config, None if record is None else record.kept_model(config))
    dataset = None if record is None or reads_data else record.recorded_data(config)
    draft = _draft(config, stack, model, training=False, dataset=dataset, record=record)
    _check_checkpoint(checkpoint, draft.shapes, "{path} is of another network, or of another data set")
    model_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="mtf_hetero_"))
    return place(dataclasses.replace(draft, model_dir=model_dir, trains=False))


def _find(config: Config, kept: str | None = None) -> Model:
    """Return the model that a configuration names, or its copy."""
    return named.find(config.model, MODELS, kept=kept, seed=config.seed)


def _resumed_model(config: Config) -> Model:
    """Return the model to train. If the file of a Keras model is gone, return its copy in the directory."""
    is_there = os.path.isfile(os.path.expanduser(config.model))
    record = None if is_there or not is_keras(config.model) else recorded.load(config.model_dir)
    return _find(config, None if record is None else record.kept_model(config))


def _resumed_record(config: Config) -> recorded.Record | None:
    """Return the record of a continued run with own images; None: a new run, or another data set."""
    if not data.is_own(config.dataset, config.data_dir):
        return None
    record = recorded.load(config.model_dir)
    return record if record is not None and record.recorded_data(config) is not None else None


def _draft(
    config: Config,
    stack: contextlib.ExitStack,
    model: Model,
    *,
    training: bool = True,
    dataset: inputs.Dataset | None = None,
    record: recorded.Record | None = None,
) -> Draft:
    """Return a draft without a directory."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    request = placement.load(config.request)
    _check_parts(config, model)
    planned = request.layout if isinstance(request.layout, Plan) else None
    machines = None if config.simulate is None else _simulated(config.simulate, planned)
    absent = _absent(config, planned, machines)
    dataset = inputs.load(config, model, record) if dataset is None else dataset
    if training:
        check_steps(config, dataset)
    _check_axes(config, request, dataset)
    task = model.task.of(dataset)
    model = model.fitted(dataset.image_shape, *task.config.values())
    dataset = dataset.as_stored() if model.normalises else dataset
    members = _members(config, stack)
    if absent:  # logical CPUs stand for devices that need not be here
        cluster, notes = Cluster.local([f"cpu:{number}" for number in range(len(absent))]), ()
    else:
        cluster, notes = _cluster(request, stack, members, claims=training and not config.dry_run)
    request.memory_bytes(cluster.devices)
    program = _program(cluster, request, config, model, dataset, task)
    with tf.Graph().as_default():
        graph = program.build_blank(config.batch_size, training=training).graph
    return Draft(
        config=config,
        request=request,
        model=model,
        dataset=dataset,
        program=program,
        cluster=cluster,
        graph=graph,
        notes=(*model.notes, *dataset.notes, *notes),
        machines=machines,
        absent=absent,
        members=members,
    )


def place(draft: Draft) -> Run:
    """Find the split of a run's step, and show the progress of measurements.

    Raises:
      ValueError: the layout does not fit, the step fits on no set of the devices, or a worker was lost.
      NotImplementedError: an operation cannot be measured by itself.
    """
    placed = draft.placement or _find_placement(draft)
    values: dict[str, Any] = {**vars(draft), "placement": placed, "cluster": placed.cluster}
    machines, choice = draft.machines, placed.choice
    if machines is not None and placed.plan is not None:
        used = placed.plan.devices
        values |= {"absent": used, "machines": machines.by_name(used)}
    if choice is not None:
        warning = [f"warning: {choice.warning}"] if choice.warning else []
        values["notes"] = (*draft.notes, *warning, *choice.lines, *_save_plan(choice, draft.model_dir))
    return Run(**values)


def place_without(run: Run, lost: Collection[int]) -> Run:
    """Place a run on the devices that remain after a loss of workers, which are named by their indices.

    Measured devices are not measured again.

    Raises:
      ValueError: no device is left, or no layout fits the rest.
      NotImplementedError: as in `place`.
    """
    kept, cluster, machines = placing.leave_out(run.cluster, _machines(run), lost)
    return _place_again(run, run.request.only(kept), cluster, machines)


def place_with(run: Run, lost: Collection[int], new: Collection[str]) -> Run:
    """Place a run on the devices that remain and on those of new workers.

    If devices are measured, all of these are.

    Args:
      run: in its old place.
      lost: indices of the lost workers.
      new: "host:port" of each new worker.

    Raises:
      ValueError: a worker does not answer or belongs to another training, or no layout fits.
      NotImplementedError: as in `place`.
    """
    _, cluster, _ = placing.leave_out(run.cluster, _machines(run), lost)
    cluster = cluster.with_members((*cluster.workers_in_use.values(), *new))
    with WorkerClaim(cluster.workers_in_use):
        return _place_again(run, run.request.with_more(), cluster, None)


def _machines(run: Run) -> Machines | None:
    """Return the figures of the devices from which those of a run were chosen."""
    return run.machines if run.placed.choice is None else run.placed.choice.machines


def _place_again(run: Run, request: Request, cluster: Cluster, machines: Machines | None) -> Run:
    program = _program(cluster, request, run.config, run.model, run.dataset, run.task)
    run = dataclasses.replace(run, request=request, program=program, machines=machines, placement=None)
    with tf.Graph().as_default():
        run = dataclasses.replace(run, graph=run.build_graph())
    return run.at(placement.place(request, cluster, run.build_graph, graph=run.graph, machines=machines))


def _find_placement(draft: Draft) -> placement.Placement:
    steps = None
    if draft.request.is_measured:  # only here: the search for checkpoints takes time
        resumed = None if draft.config.model_dir is None else saver_lib.find(draft.config.model_dir).path
        steps = _steps_left(draft, resumed)
    # the workers of the next local cluster have other addresses, and may have other speeds
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


def _absent(config: Config, planned: Plan | None, simulated: Machines | None) -> tuple[str, ...]:
    """Return devices that need not exist: of a file, or of a plan in a dry run without workers."""
    if simulated is not None:
        return simulated.names
    if planned is None or not config.dry_run or config.workers or config.local_cluster:
        return ()
    return config.devices or planned.devices


def _simulated(path: str, planned: Plan | None) -> Machines:
    """Return the devices of a file, or the devices that a plan uses.

    Raises:
      ValueError: the file is invalid, or lacks a device of the plan.
    """
    machines = devices_file.load(path)
    if planned is None:
        return machines
    for device in planned.devices:
        if device not in machines.names:
            raise ValueError(
                f"--layout is a plan for {', '.join(planned.devices)}, but --simulate={path} has no {device}; give the "
                "devices that it was planned for"
            )
    return machines.by_name(planned.devices)


def _check_axes(config: Config, request: Request, dataset: inputs.Dataset) -> None:
    """Raise ValueError if --layout=spatial has a mesh axis with the name of a dimension that the images lack."""
    own = IMAGE[-len(dataset.image_shape) : -1]
    for axis, _ in request.axes if request.layout == SPATIAL else ():
        if axis in IMAGE[:-1] and axis not in own:
            raise ValueError(
                f"{request.quote('mesh_shape')} and --layout {SPATIAL!r}, but the {dataset.unit} of {config.dataset} "
                f"have no {axis} to split; name the axis {' or '.join(own)}"
            )


def _check_parts(config: Config, model: Model) -> None:
    """Raise ValueError if a flag names a part that the model lacks."""
    for name, wanted, known in (
        ("recompute", config.recompute, model.recomputes),
        ("dense_rounds", config.dense_rounds, model.in_rounds),
        ("compute_dtype", config.compute_dtype, not is_keras(config.model)),
    ):
        if wanted and not known:
            raise ValueError(f"--{name} is given, which --model={config.model} does not know; remove it")


def _steps_left(draft: Draft, path: str | None) -> int:
    """Return the number of steps left, from a checkpoint on if one exists."""
    done = 0 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
    return max(draft.total_steps - done, 0)


def _save_plan(choice: Choice, model_dir: str) -> list[str]:
    """Save the plan and the devices in the directory of a run, if it has one, and return their paths for the user."""
    if not model_dir:
        return []
    path, devices = (os.path.join(model_dir, name) for name in (_PLAN, _DEVICES))
    plan_lib.save(choice.plan, path)
    if not choice.is_measured:
        return [f"the plan is {path}, for --layout"]
    files.write_text(devices, devices_file.dumps(choice.machines))
    return [f"the plan is {path}, for --layout; the devices are {devices}, for mtf-hetero plan --simulate"]


def _program(
    cluster: Cluster, request: Request, config: Config, model: Model, dataset: inputs.Dataset, task: Task
) -> Program:
    """Return the program whose batch fits the mesh of the devices."""
    empty = placing.requested_mesh(request, cluster.devices)
    batch, changes = (config.batch_size,), dict[str, object](task.config)
    if request.layout == HYBRID:
        about = empty.mesh_shape, dict(empty.shares)
        batch = batch_sizes(config.batch_size, *about)
        if config.dense_rounds:
            changes["dense_rounds"] = member_sizes(batch, *about)
    if config.recompute:
        changes["recompute"] = config.recompute
    if model.in_stages:
        changes["is_staged"] = request.has_stages
    build = functools.partial(model.build, **changes)
    if config.compute_dtype is not None:
        build = computing_in(config.compute_dtype, build)
    return Program(build, make_optimizer(config, total_steps(config, dataset)), task, batch, dataset.image_shape)


def _members(config: Config, stack: contextlib.ExitStack) -> Members | None:
    """Return the present workers, if the user named any, once there are enough."""
    if not config.workers:
        return None
    members = stack.enter_context(Members(config.workers, name="--workers"))
    members.wait(config.min_workers, lambda line: None if config.quiet else print(line, flush=True))
    return members


def _cluster(
    request: Request, stack: contextlib.ExitStack, members: Members | None, *, claims: bool
) -> tuple[Cluster, tuple[str, ...]]:
    """Return the devices of the run, and notes about them for the user."""
    notes: list[str] = []
    if request.local_cluster is not None:
        local = LocalCluster(request.local_cluster, report=notes.append, name=request.name("local_cluster"))
        try:
            cluster = stack.enter_context(local)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        notes += local.describe()
        devices = placing.requested_devices(request)
        if devices is not None:
            cluster = Cluster.from_workers(cluster.workers, devices, timeout_seconds=60.0)
    else:
        cluster = placement.requested_cluster(request, members and members())
    if claims:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
    if cluster.workers and request.local_cluster is None:
        notes.append(cluster.describe())
    return cluster, tuple(notes)


def _check_checkpoint(
    path: str, shapes: Mapping[str, list[int]], why: str, remedy: str = "choose another directory"
) -> None:
    """Raise ValueError if a checkpoint lacks the variables of a network.

    Args:
      path: the checkpoint.
      shapes: {variable: its shape}.
      why: the meaning of it, with {path}.
      remedy: for the user.
    """
    saved = dict(tf.train.list_variables(path))
    for name, shape in shapes.items():
        if saved.get(name) != shape:
            has = f"shape {saved[name]}" if name in saved else "no such variable"
            raise ValueError(
                f"{why.format(path=path)}: variable {name!r} has shape {shape} here and {has} there; {remedy}"
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
