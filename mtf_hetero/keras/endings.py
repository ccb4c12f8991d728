"""Find the logits of a model, which may end in a softmax."""

from mtf_hetero._compat import tf
from mtf_hetero._support import facts


def find_logits(outputs: object, name: str) -> tf.Tensor:
    """Return the logits of which a model makes its output; the output itself if the model gives logits.

    Args:
      outputs: of the model, while it is traced.
      name: the model's.

    Raises:
      ValueError: the model has several outputs, or ends in another activation.
    """
    outputs = tf.nest.flatten(outputs)
    if len(outputs) != 1:
        raise ValueError(f"model {name!r} has {len(outputs)} outputs; logits=True needs a model with one output")
    (y,) = outputs
    op = y.op
    while op.type in facts.CONVERTING:
        op = op.inputs[0].op
    is_other_axis = op.type == "Transpose" and op.inputs[0].op.type == "Softmax"
    if op.type in facts.ACTIVATIONS or is_other_axis:
        what = "a softmax over another axis than the last" if is_other_axis else f"activation {op.type}"
        raise ValueError(
            f"model {name!r} ends in {what} ({op.name}); end it in a softmax over the classes, or in logits"
        )
    if op.type != "Softmax":
        return y
    return tf.cast(tf.reshape(op.inputs[0], y.shape), y.dtype)
