"""Any TensorFlow step as an mtf graph: `function` divides a tf.function over uneven devices.

The traced graph is the program: each operation of it is followed, and nothing is computed in another way.

    optimizer, weight = keras.optimizers.Adam(), tf.Variable(numpy.zeros([4, 1]))
    divided = mtf_hetero.function(step, (x, y), devices=["gpu:0", "cpu:0"], layout="batch", list_speed=[3, 1])
    loss = divided(x, y)  # what step(x, y) returns
    divided.pull()  # the tf.Variables have their values
    print(divided.undivided)  # the replicated work, with the lines of the program
"""

from mtf_hetero.importer.divided import Divided, function
from mtf_hetero.importer.session import Session
from mtf_hetero.importer.step import Step

__all__ = ["Divided", "Session", "Step", "function"]
