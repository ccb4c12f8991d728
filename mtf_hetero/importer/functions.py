"""`function` divides a tf.function of the user over devices of unequal speed, and `verify` compares both."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero import placement
from mtf_hetero._compat import mtf, tf
from mtf_hetero.cluster import WorkerClaim
from mtf_hetero.importer.divided import Divided
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.importer.verifying import AUTO, Verification, Verify, check_verify
from mtf_hetero.placement.request import LayoutLike, SpeedLike, WorkersLike


def function(
    step: Callable[..., object],
    example_inputs: object,
    *,
    devices: str | Sequence[str] | None = None,
    workers: WorkersLike = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    measure_seconds: float | None = None,
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
      measure_seconds: that "auto" may take before the first step; None: 30, or 2 % of `steps`, up to 120.
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
    request = placement.load(
        placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    )
    cluster = placement.requested_cluster(request)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    traced = Traced(step)
    traced.program(inputs)  # what cannot be followed is an error before a worker is claimed
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
        search = placement.Search(steps, progress=bool(progress))

        def place(build: Callable[[], mtf.Graph], graph: mtf.Graph) -> placement.Placement:
            placed = placement.place(request, cluster, build, graph=graph, search=search)
            placed.report(announces=progress is not False)
            return placed

        verification = Verification(verify, steps, announces=bool(progress))
        divided = Divided(traced, place, inputs, verification=verification)
        divided.on_close(stack.pop_all().close)
        return divided


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
