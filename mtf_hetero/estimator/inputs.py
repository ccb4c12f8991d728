"""The calls of the user's two functions, input_fn and model_fn, each with the arguments that it names.

Also the end of their data: a step that finds it changes no variable.
"""

import inspect
from collections.abc import Callable, Mapping

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs
from mtf_hetero.estimator.config import MODES, EstimatorSpec

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Operations that can say that there is no more data.
_ENDING = ("GetNext", "Dequeue", *facts.PYTHON)


def argument_names(function: Callable[..., object], name: str, *, offered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the offered arguments that a user's function takes.

    Args:
      function: a function, method, functools.partial or callable object.
      name: what to call it in an error.
      offered: the arguments that could be passed, all by name.

    Raises:
      ValueError: it is not callable, or needs an argument that is not offered.
    """
    if not callable(function):
        raise ValueError(f"{name} is {function!r}; it must be a function")
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind not in _VARIADIC
        if needed and (parameter.name not in offered or parameter.kind == parameter.POSITIONAL_ONLY):
            raise ValueError(
                f"{name} has an argument {parameter.name!r}, but the Estimator passes only "
                f"{', '.join(offered)}; remove it, or give it a default value"
            )
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    names = [parameter.name for parameter in parameters]
    return tuple(argument for argument in offered if argument in names)


def call_input_fn(
    input_fn: Callable[..., object], *, first: int | None = None, **offered: object
) -> tuple[object, object]:
    """Call input_fn and return (features, labels) as tensors; labels is None where there are none.

    An initialiser of a data set's iterator goes to the collection TABLE_INITIALIZERS, which a monitored session runs.

    Args:
      input_fn: returns a tf.data.Dataset, (features, labels) or features.
      first: the global step at which the data begin: a session that starts later skips the batches before; None: each
        session reads all. Data that read the global step themselves are left as they are.
      **offered: the arguments it may take: mode, params, config.

    Raises:
      ValueError: input_fn takes other arguments or returns something else.
    """
    names = argument_names(input_fn, "input_fn", offered=tuple(offered))
    with tf.device("/cpu:0"):
        result = input_fn(**{name: offered[name] for name in names})
        if isinstance(result, tf.compat.v2.data.Dataset):
            result = result if first is None else _continued(result, first)
            iterator = tf.data.make_initializable_iterator(result)
            tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            result = iterator.get_next()
    if not isinstance(result, (list, tuple)):
        return result, None
    if len(result) != 2:
        raise ValueError(f"input_fn returned {len(result)} values; it must return (features, labels), or only features")
    return result[0], result[1]


def _continued(dataset: tf.data.Dataset, first: int) -> tf.data.Dataset:
    """Return the batches from that of the global step on, where the session begins."""
    step = tf.train.get_global_step()
    if step.op in graphs.ancestors([dataset._variant_tensor.op]):
        return dataset
    return dataset.skip(tf.cast(step.read_value(), tf.int64) - first)


def warn_if_endless(mode: str) -> None:
    """Log a warning where no operation of the default graph can end the data; call it before the model is built."""
    if not any(map(_may_end, tf.get_default_graph().get_operations())):
        tf.logging.warning(
            "the tensors of input_fn never end, so mode %r never ends; give steps, or return a tf.data.Dataset", mode
        )


def _may_end(op: tf.Operation) -> bool:
    return any(kind in op.type for kind in _ENDING)


def hold_updates(*step: tf.Operation | tf.Tensor) -> None:
    """Have each update of a variable in a step wait for all operations that may find the end of the data.

    Some updates need no batch, such as that of a weight by mtf's momentum, which adds the velocity of the step before.
    TensorFlow may carry them out before it finds that there is no batch.

    Args:
      *step: fetches of the default graph that run all updates.
    """
    operations = graphs.operations_to_run(step)
    after_updates = set[tf.Operation]()
    for op in operations:
        if _is_update(op) or not after_updates.isdisjoint(graphs.before(op)):
            after_updates.add(op)
    ends = [op for op in operations if _may_end(op) and op not in after_updates]
    every = frozenset(ends)
    awaited: dict[tf.Operation, frozenset[tf.Operation]] = {}
    for op in operations:
        before = frozenset[tf.Operation]().union(*(awaited.get(each, ()) for each in graphs.before(op)))
        if _is_update(op) and before != every:
            op._add_control_inputs([end for end in ends if end not in before])
            before = every
        awaited[op] = before | {op} if op in every else before


def _is_update(op: tf.Operation) -> bool:
    """Return whether an operation may change a variable."""
    if any(x.op.type == "VarHandleOp" for x in op.inputs):
        return op.type not in facts.VARIABLE_READS
    return any(x.dtype._is_ref_dtype for x in op.inputs) and any(arg.is_ref for arg in op.op_def.input_arg)


def check_model_fn(model_fn: Callable[..., object], params: Mapping[str, object] | None) -> None:
    """Raise ValueError, in one line, unless model_fn takes features and what else the Estimator passes."""
    names = argument_names(model_fn, "model_fn", offered=("features", "labels", "mode", "params", "config"))
    if "features" not in names:
        raise ValueError("model_fn has no argument 'features'; add it")
    if params and "params" not in names:
        raise ValueError(f"model_fn has no argument 'params', but the Estimator got params {sorted(params)}; add it")


def call_model_fn(
    model_fn: Callable[..., object], features: object, labels: object, **offered: object
) -> EstimatorSpec:
    """Call model_fn with those of features, labels, mode, params and config that it takes.

    Raises:
      ValueError: model_fn takes no labels and there are some, or returns anything but an EstimatorSpec of the mode.
    """
    offered = {"features": features, "labels": labels, **offered}
    names = argument_names(model_fn, "model_fn", offered=tuple(offered))
    if "labels" not in names and labels is not None:
        raise ValueError(
            "model_fn has no argument 'labels', but input_fn returns labels; add it, or return only features"
        )
    spec = model_fn(**{name: offered[name] for name in names})
    if not isinstance(spec, EstimatorSpec):
        raise ValueError(f"model_fn returned {spec!r}; it must return an mtf_hetero.EstimatorSpec")
    if spec.mode != offered["mode"]:
        raise ValueError(
            f"model_fn was called with mode {offered['mode']!r} and returned a spec of mode {spec.mode!r}; "
            f"return the mode that it gets (one of {', '.join(MODES)})"
        )
    return spec
