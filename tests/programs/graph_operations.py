"""Programs of the oracle that act on a program rather than on numbers: loops, custom gradients, prints."""

from mtf_hetero import mtf, tf

B, C, F = mtf.Dimension("b", 7), mtf.Dimension("c", 5), mtf.Dimension("f", 11)


def _kernel(feed):
    return mtf.get_variable(
        feed.mesh, "w", mtf.Shape([C, F]), dtype=feed.dtype, initializer=tf.random_normal_initializer()
    )


def _recomputed(feed):
    w = _kernel(feed)

    def block(x):
        return mtf.einsum([mtf.tanh(mtf.einsum([x, w], [B, F])), w], [B, C])

    x = feed("x", [B, C])
    return {"y": mtf.recompute_grad(block, [mtf.recompute_grad(block, [x])])}


def _custom_gradient(feed):
    def gradient(explicit_inputs, all_inputs, forward_operations, outputs, output_grads):
        return [output_grads[0] * 2.0 * explicit_inputs[0]]

    return {"y": mtf.custom_gradient(lambda x: mtf.square(x) + 1.0, gradient, [feed("x", [B, C])])}


def _accumulating_loop(feed):
    """Gradients of micro-batches summed over the turns of a loop, as serialize_training_step does."""
    x, w = feed("x", [B, C]), feed("w", [C, F])
    start = mtf.constant(feed.mesh, 0, dtype=tf.int32)

    def body(i):
        y = mtf.einsum([x * mtf.cast(i + 1, feed.dtype), w], [B, F])
        return [i + 1, mtf.reduce_sum(y, output_shape=[F]), y]

    _, total, whole = mtf.while_loop(lambda i: mtf.less(i, 4), body, [start], has_accumulators=True)
    return {"total": mtf.stop_gradient(total), "whole": mtf.stop_gradient(whole)}


def _state_loop(feed):
    x, w = feed("x", [B, C]), feed("w", [C, F])
    start = mtf.constant(feed.mesh, 0, dtype=tf.int32)

    def body(i, x):
        h = mtf.einsum([mtf.tanh(x), w], [B, F])
        return [i + 1, mtf.einsum([h, w], [B, C]) + mtf.reduce_mean(x)]

    def sums(i, x):
        """The input of the next turn is a sum over a dimension that may be split."""
        return [i + 1, mtf.einsum([mtf.einsum([x, w], [B, F]), w], [B, C])]

    def turns(body):
        return mtf.stop_gradient(mtf.while_loop(lambda i, x: mtf.less(i, 3), body, [start, x])[1])

    return {"y": turns(body), "sums": turns(sums)}


def _repeated_roles(feed):
    """Einsums with three inputs, with a dimension of one input alone, and with one that all have."""
    x, w, v = feed("x", [B, C]), feed("w", [B, C, F]), feed("v", [F, B])
    return {
        "three": mtf.einsum([x, w, v], [C]),
        "diagonal": mtf.einsum([x, w, v], [B, C]),
        "alone": mtf.einsum([x, w], [F], reduced_dims=[B, C]),
        "outer": mtf.einsum([feed("a", [C]), feed("c", [F])], [F, C]),
        "scalar": mtf.einsum([x, x], []),
    }


def _dynamic_shift(feed):
    return {"y": mtf.dynamic_shift(feed("x", [B, C]), feed("o", [B], below=4), C, wrap=True)}


def _summary_and_print(feed):
    x = feed("x", [B, C])
    mtf.scalar_summary("mean", mtf.reduce_mean(x))
    return {"y": mtf.Print(x, [mtf.reduce_sum(x)], "sum", summarize=1) * 2.0}


PROGRAMS = {
    "recompute_grad": _recomputed,
    "custom_gradient": _custom_gradient,
    "accumulating_loop": _accumulating_loop,
    "state_loop": _state_loop,
    "repeated_roles": _repeated_roles,
    "dynamic_shift": _dynamic_shift,
    "summary_and_print": _summary_and_print,
}
