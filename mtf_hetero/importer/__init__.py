"""Any TensorFlow step as an mtf graph: `function` divides a tf.function over uneven devices.

The traced graph is the program: each operation of it is followed, and nothing is computed in another way.

    tracing     traces the step for each kind of inputs
    reading     reads the trace: variables, control flow, lists, formulas of fused operations (reader, shapes, islands)
    program     is the result: operations on values (moments, normalization and broadcasts simplify them)
    table       has the signature of each type of operation, in letters as of an einsum (signature, windows)
    inference   names the axes of all values by the signatures (naming, pieces), and the batch of each stage (stages)
    rules       emit the operations as those of mtf (emitter, clusters, images, flow, draws)
    step        is a program as an mtf graph; insertion puts one into a graph of the user's
    verifying   compares the first step with TensorFlow's own (comparing)
    divided     is the user's step on devices, report lists its replicated work

Example:
    optimizer, weight = keras.optimizers.Adam(), tf.Variable(numpy.zeros([4, 1]))
    divided = mtf_hetero.function(step, (x, y), devices=["gpu:0", "cpu:0"], layout="batch", list_speed=[3, 1])
    loss = divided(x, y)  # what step(x, y) returns
    divided.pull()  # the tf.Variables have their values
    print(divided.undivided)  # the replicated work, with the lines of the program
"""

from mtf_hetero.importer.comparing import StepDiffersError
from mtf_hetero.importer.divided import Divided
from mtf_hetero.importer.functions import function, verify
from mtf_hetero.importer.step import Step

__all__ = ["Divided", "Step", "StepDiffersError", "function", "verify"]
