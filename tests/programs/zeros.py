"""Graphs of any size, made of zeros, and their layouts by the recipes."""

from mtf_hetero import mtf, tf
from mtf_hetero.layouts import LAYOUTS


class Zeros:
    """A stand-in for the oracle's Feed, whose tensors need no memory while nothing is run.

    Args:
      graph: mtf.Graph.
    """

    def __init__(self, graph):
        self.mesh, self.dtype = mtf.Mesh(graph, "mesh"), tf.float32

    def __call__(self, name, shape, *, below=None):
        shape = mtf.convert_to_shape(shape)
        zeros = tf.zeros(shape.to_integer_list, self.dtype if below is None else tf.int32)
        return mtf.import_tf_tensor(self.mesh, zeros, shape, name=name)


def dims(text):
    """ "b:5 h:4" to dimensions."""
    return [mtf.Dimension(name, int(size)) for name, size in (pair.split(":") for pair in text.split())]


def add_training(graph, outputs):
    """Add a step of an optimizer whose slots have fewer dimensions than the variables."""
    loss = mtf.add_n([mtf.reduce_mean(mtf.square(y)) for y in outputs.values()])
    gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
    mtf.optimize.AdafactorOptimizer(learning_rate=0.1, decay_rate=0.9, min_dim_size_to_factor=4).apply_grads(
        gradients, graph.trainable_variables
    )


def lay_out(build, recipe="filters", *, training=True, **options):
    """The layout of a program, after a check that it is legal for every tensor of its training step."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        outputs = build(Zeros(graph))
        if training:
            add_training(graph, outputs)
        layout = LAYOUTS[recipe](graph, **options)
        for op in graph.operations:
            for tensor in op.outputs:
                layout.check(tensor.shape)
                assert all(layout.split(dim.name, dim.size) for dim in tensor.shape.dims)
    return layout


def names(layout, axis=None):
    """The names of the dimensions that a layout splits, over one axis if it is given."""
    return sorted(dim for dim, on in layout.rules if axis in (None, on))
