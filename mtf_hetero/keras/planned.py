"""`plan`: the best layout of a Keras model, or of a step of TensorFlow, for devices that need not be here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from mtf_hetero._compat import eagerly, tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero._support.schema import shorten
from mtf_hetero.cost import devices_file
from mtf_hetero.cost.machines import Machines
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.planner.answering import Network, Planned, answer
from mtf_hetero.planner.fitting import Build
from mtf_hetero.planner.objective import TIME, Objective

if TYPE_CHECKING:
    import keras


def plan(
    step: object,
    inputs: object,
    *,
    devices: str | Sequence[str] | Machines,
    link: str | None = None,
    inner_link: str | None = None,
    batch_size: int | None = None,
    explain: bool = False,
    seconds: float = 60.0,
    objective: str = TIME,
    most_seconds: float | None = None,
) -> Planned:
    """Find the best layout of a training step for devices that need not be here. Nothing is run.

    Args:
      step: a compiled keras.Model, whose training step is planned; or a tf.function, or a Python function to be traced
        as one.
      inputs: of a model, a batch as `fit` takes it, (x, y) or (x, y, sample_weight), or what a train_step of its own
        takes; of a step, its arguments, a tuple. Arrays, tensors or tf.TensorSpecs; anything but a tuple is the only
        argument.
      devices: "2 x RTX 3090, GTX 1080 Ti", of which a semicolon begins another machine; or a list of such words; or
        cost.Machines, such as those of `cost.load("devices.yaml")`. "RTX 3090 at 0.22" has a price per hour.
      link: "pcie4", "10Gbit/s", "wifi" or the like, between devices, or between machines; None: 10 Gbit/s.
      inner_link: between the devices of one machine, if a semicolon says that there are several; None: PCIe 4.0.
      batch_size: of a model: examples per step, if `inputs` has others; None: as many as `inputs` has.
      explain: whether to say when devices that are not used would pay off; that takes longer.
      seconds: limit of a search that is short of memory.
      objective: "time", the fastest plan, or "cost", the one whose devices have the least price for a step.
      most_seconds: of the objective "cost": limit of a step; None: any.

    Returns:
      Planned: `print` shows the verdict; its `plan` has devices, layout and seconds of a step.

    Raises:
      ValueError: a device or a link that is not known, a device that lacks a price for the objective "cost", or
        arguments that do not fit together.
      NotImplementedError: operations that are not followed, all by name and the user's line.
      mtf_hetero.planner.search.NoAssignmentError: no layout fits the devices' memory, or is fast enough.

    Example:
      >>> print(mtf_hetero.plan(model, (images, labels), devices="RTX 3090, GTX 1080 Ti", link="pcie4"))
      Split over RTX-3090, GTX-1080-Ti: 92.9 ms per step, 1.2x faster than RTX-3090 alone.
      ...
    """
    best = Objective(objective, most_seconds)
    if isinstance(devices, Machines):
        if link is not None or inner_link is not None:
            raise ValueError("link is given twice: cost.Machines has its links; leave out link and inner_link")
        machines = devices
    else:
        words = devices if isinstance(devices, str) else ", ".join(devices)
        machines = devices_file.parse_devices(words, link, inner_link)
    best.check(machines)
    return answer(trace(step, inputs, batch_size), machines, explains=explain, seconds=seconds, objective=best)


def trace(step: object, inputs: object, batch_size: int | None = None) -> Network:
    """Return a model of Keras, or a step of TensorFlow, as a network.

    Args:
      step: a compiled keras.Model, a tf.function, or a Python function to be traced as one.
      inputs: a batch for the model, or the arguments of the step.
      batch_size: of a model: examples of a step; None: as many as `inputs` has.

    Raises:
      ValueError: it is none of these.
      NotImplementedError: operations that are not followed, all by name.
    """
    if not callable(step):
        raise ValueError(f"step is {step!r}; give a compiled keras.Model, a tf.function or a function of tensors")
    if not hasattr(step, "train_step"):
        if batch_size is not None:
            raise ValueError("batch_size is of a keras.Model, but step is a function; give it inputs of that size")
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        return Network("the step", _builder(Traced(step), arguments))
    from mtf_hetero.keras._keras import keras
    from mtf_hetero.keras.checks import check_runs, has_own
    from mtf_hetero.keras.imported import find_traced

    model = cast("keras.Model", step)
    check_runs(model, "train")
    check_number(batch_size, "batch_size")
    if not isinstance(inputs, tuple) and not has_own(model, keras.Model, "train_step"):  # it would have no labels
        raise ValueError(f"inputs is {shorten(inputs)}; give a batch as a tuple, (x, y)")
    sizes = {x.shape[0] for x in tf.nest.flatten(inputs) if len(x.shape)}

    def build_with(count: int) -> Build:
        specs = [tf.TensorSpec([count, *x.shape[1:]], tf.as_dtype(x.dtype)) for x in tf.nest.flatten(inputs)]
        return _builder(find_traced(model, ("train",)), ("train", tf.nest.pack_sequence_as(inputs, specs)))

    count = max(sizes, default=1) if batch_size is None else batch_size
    return Network(model.name, build_with(count), f"batches of {count}", count, build_with)


def _builder(traced: Traced, inputs: tuple) -> Build:
    traced.is_staged = True  # as where layout="auto" places it
    with eagerly():
        program = traced.program(inputs)
    return lambda: step_lib.build(program).graph
