"""Scalar summaries of a graph: adding them, and finding them by their tags."""

import numpy as np

from mtf_hetero._compat import mtf, tf

LOSS_COLLECTION_KEY = "mtf_hetero_loss"


def add_scalar_summary(tag: str, tensor: tf.Tensor) -> None:
    """Add a scalar summary under exactly this tag; tf.summary.scalar alters a tag that is also the name of a scope.

    Args:
      tag: the name shown in TensorBoard. A tag that the graph already summarises is left alone.
      tensor: scalar tensor of any real type.
    """
    if tag not in scalar_summaries():
        values = tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)  # metrics.jsonl has all digits
        summary = tf.raw_ops.ScalarSummary(tags=tag, values=values)
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)


def add_mtf_scalar_summaries() -> None:
    """Add a scalar summary for each mtf.scalar_summary that was lowered into the graph."""
    for name, tensor in tf.get_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY):
        add_scalar_summary(name, tensor)
    # TensorFlow would complain, at each checkpoint, that it cannot save the pairs with the graph.
    tf.get_default_graph().clear_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY)


def scalar_summaries() -> dict[str, tf.Tensor]:
    """Return {tag: scalar tensor} of the scalar summaries in the default graph."""
    tensors = {}
    for summary in tf.get_collection(tf.GraphKeys.SUMMARIES):
        tag = tf.get_static_value(summary.op.inputs[0]) if summary.op.type == "ScalarSummary" else None
        if isinstance(tag, (bytes, np.ndarray)) and np.ndim(tag) == 0:
            tensors[np.asarray(tag).item().decode()] = summary.op.inputs[1]
    return tensors
