"""Variables of few operations, without what TensorFlow's own constructors check for each."""

from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf, wrap_variable
from mtf_hetero._support.ops import attribute, create


def new_variable(initial_value: tf.Tensor, name: str, collections: Sequence[str]) -> tf.Variable:
    """Make a variable that is not trainable, on the current device; outside functions and loops, as tf.Variable does.

    tf.Variable takes five times as long.
    """
    if tf.executing_eagerly():
        return tf.Variable(initial_value, trainable=False, name=name, use_resource=True)
    graph, dtype, shape = tf.get_default_graph(), initial_value.dtype, initial_value.shape
    is_within = graph.building_function or graph._get_control_flow_context() is not None
    with tf.init_scope() if is_within else tf.control_dependencies(None):
        name = tf.get_default_graph().unique_name(name)
        kind = {"dtype": attribute(dtype)}
        form = {**kind, "shape": attribute(shape), "shared_name": attribute(name)}
        (handle,) = create("VarHandleOp", [], [tf.resource], f"{name}/", form).outputs
        assign = create("AssignVariableOp", [handle, initial_value], [], f"{name}/Assign/", kind)
        (read,) = create("ReadVariableOp", [handle], [dtype], f"{name}/Read/ReadVariableOp/", kind).outputs
    variable = wrap_variable(
        variable_name=handle.name,
        initial_value_name=initial_value.name,
        initializer_name=assign.name,
        snapshot_name=read.name,
        is_resource=True,
        trainable=False,
    )
    graph.add_to_collections(collections, variable)
    return variable


def get_variable(mesh: mtf.Mesh, name: str, shape: mtf.Shape, **options: Any) -> mtf.Tensor:
    """Call mtf.get_variable in a third of its time, for a master that no session checks for initialization.

    Args:
      mesh: mtf.Mesh.
      name: the variable's.
      shape: its mtf.Shape.
      **options: as of mtf.get_variable; the initializer returns a tf.Tensor.
    """
    with tf.variable_creator_scope(create_master):
        return mtf.get_variable(mesh, name, shape, **options)


def create_master(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Create a variable of the fewest operations, for tf.variable_creator_scope; its initializer makes a tf.Tensor."""
    if tf.executing_eagerly() or options.get("variable_def") is not None:  # of operations that are there
        return next_creator(**options)
    name = options["name"]
    with tf.name_scope(f"{name}/Initializer/"):
        initial_value = options["initial_value"]()
    collections = [tf.GraphKeys.GLOBAL_VARIABLES, *([tf.GraphKeys.TRAINABLE_VARIABLES] if options["trainable"] else [])]
    return new_variable(initial_value, name, options.get("collections") or collections)
