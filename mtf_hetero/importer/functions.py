"""`function` divides a tf.function of the user over devices of unequal speed, and `verify` compares both."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero import placement
from mtf_hetero._compat import tf
from mtf_hetero.cluster import UnreachableWorkerError, WorkerClaim
from mtf_hetero.cluster.probe import name_workers
from mtf_hetero.importer.divided import Divided, Place
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.importer.verifying import Verification, Verify, check_verify
from mtf_hetero.placement.placer import Placer
from mtf_hetero.placement.request import AUTO, LayoutLike, MemoryLike, SlotsLike, SpeedLike, WorkersLike
from mtf_hetero.training.steps import Changes, Policy


def function(
    step: Callable[..., object],
    example_inputs: object,
    *,
    devices: str | Sequence[str] | None = None,
    workers: WorkersLike = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    slots: SlotsLike = None,
    measure_seconds: float | None = None,
    memory_limit: MemoryLike = None,
    wait_for_workers: float | str | bool = 60.0,
    min_workers: int = 1,
    rebalance: float | str = AUTO,
    progress: bool | None = None,
    steps: int | None = None,
    verify: Verify = AUTO,
) -> Divided:
    """Split a step over devices of unequal speed: a tf.function, whose state is its tf.Variables.

    The step is traced once for each kind of inputs, and each of its operations is followed. A layout changes no result.
    A dimension is named after the tf.Variable or the argument that has it first: "dense/kernel/1", "x/2"; the first
    dimension of the first argument is "batch".

    Args:
      step: a tf.function, or a Python function to be traced as one, of tensors.
      example_inputs: its arguments, a tuple of arrays, tensors, tf.TensorSpecs or structures of them. Anything but a
        tuple is the only argument.
      devices: "gpu:0", "cpu:0", "worker:1/gpu:0", one per processor. None: all GPUs, else "cpu:0"; of workers, all.
      workers: "host:port,host:port" of `mtf_hetero.cluster.worker` on other machines, or an entered LocalCluster's
        Cluster; None: none.
      layout: "auto": planned for the devices as they are measured; "batch", "filters" or another name of
        mtf_hetero.layouts; rules such as "dense/kernel/1:all"; a Layout; a Plan, or the path of one, "plan.json".
      list_speed: of a named layout or rules, one number per device; None: they are alike; "auto": measured.
      slots: of a named layout or rules: each device computes so many parts of its part one after another, 4 or one
        number per device, [4, 2]. It holds the activations of one part at a time. None: one.
      measure_seconds: that "auto" may take before the first step; None: 30, or 2 % of `steps`, up to 120.
      memory_limit: gigabytes that each device may use, [16, 8], for "auto". If a step does not fit at once, it is
        computed in parts, in a pipeline, or on more devices. None: what TensorFlow reports of GPUs.
      wait_for_workers: seconds to wait for a lost worker. Steps are then taken without it, and with it again once it
        answers; the caller sees each step once. "forever": to wait on; False: the loss of a worker is an error.
      min_workers: to wait on for lost workers if fewer than these are left.
      rebalance: whether devices get other shares if measurements say that a step is then shorter, by more than the
        noise, and that it is worth the pause. "auto": as soon as that is so; seconds: at most as often; "off": never.
      progress: whether to show how "auto" gets on, and to print the choice and the check of the first step. None: only
        the choice is printed.
      steps: number of steps to come, for "auto", which measures nothing if they are few; None: many.
      verify: whether the first step of each kind of inputs is compared with TensorFlow's own, on this host. "auto": if
        that costs less than 5 % of the steps to come, or 5 seconds.

    Returns:
      A Divided, which is called as the step is.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: operations that are not followed, all by name and the line of the program.
      StepDiffersError: when it is called: the first step is not TensorFlow's.

    Example:
      >>> divided = mtf_hetero.function(step, (x, y), devices=["gpu:0", "cpu:0"], layout="batch", list_speed=[3, 1])
      >>> loss = divided(x, y)
    """
    if not callable(step):
        raise ValueError(f"step is {step!r}; give a tf.function or a function of tensors")
    if not tf.executing_eagerly():
        raise ValueError("eager execution is off, so tf.Variables have no values; leave out tf.disable_eager_execution")
    check_verify(verify)
    policy = Policy.parse(wait_for_workers, min_workers, rebalance)
    request = placement.load(
        placement.Request(
            layout,
            list_speed,
            devices=devices,
            workers=workers,
            measure_seconds=measure_seconds,
            memory_limit=memory_limit,
            slots=slots,
        )
    )
    cluster = placement.requested_cluster(request)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    traced = Traced(step)
    traced.is_staged = request.has_stages
    traced.program(inputs)  # what cannot be followed is an error before a worker is claimed
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
        search = placement.Search(steps, progress=bool(progress))
        placer = Placer(request, cluster, search, announces=progress is not False)
        changes = Changes(policy, placer.without, steps)
        verification = Verification(verify, steps, announces=bool(progress))
        divided, lost = divide(traced, placer, inputs, changes, verification)
        stack.enter_context(divided.outliving(inputs, changes, lost=lost))
        divided.on_close(stack.pop_all().close)
        return divided


def divide(
    traced: Traced,
    place: Place,
    inputs: Sequence[object],
    changes: Changes | None,
    verification: Verification | None,
    **texts: str,
) -> tuple[Divided, Mapping[int, str]]:
    """Return a step on devices, without workers that are lost before it begins and do not return in time; and these.

    Args:
      traced: the step.
      place: as of Divided, like the other arguments.
      inputs: arguments, of the first kind.
      changes: of the place that are possible; None: none.
      verification: as of Divided.
      **texts: `owner` and `loss`.

    Raises:
      UnreachableWorkerError: a worker is lost, and its loss is an error.
    """
    policy, lost = Policy() if changes is None else changes.policy, dict[int, str]()
    while True:
        try:
            divided = Divided(
                traced,
                place,
                inputs,
                rescues=policy.wait_seconds is not None,
                wait_seconds=policy.wait_seconds or 0.0,
                may_leave=lambda lost, workers: len(workers) - len(lost) >= policy.min_workers,
                verification=verification,
                **texts,
            )
        except UnreachableWorkerError as error:
            if changes is None or policy.wait_seconds is None or not error.workers:
                raise
            lost |= error.workers
            place = functools.partial(changes.without, lost)
            tf.logging.warning("training begins without %s", name_workers(lost))
        else:
            return divided, lost


def verify(step: Callable[..., object], inputs: object, **place: Any) -> str:
    """Compare a step on devices with TensorFlow's own, which runs on this host. The tf.Variables stay as they are.

    Args:
      step: as of `function`.
      inputs: the arguments of a step, a tuple of arrays or tensors, or of structures of them. Anything but a tuple is
        the only argument.
      **place: `devices`, `workers`, `layout` and other arguments of `function`.

    Returns:
      What was compared, in one line.

    Raises:
      StepDiffersError: they differ by more than rounding explains: the tensor, the operation, and the user's line.

    Example:
      >>> print(mtf_hetero.verify(step, (x, y), devices=["cpu:0", "cpu:1"], layout="batch", list_speed=[3, 1]))
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    with contextlib.closing(function(step, inputs, verify=True, **place)) as divided:
        divided(*inputs)
        return divided.verified
