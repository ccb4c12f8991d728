"""Mesh-TensorFlow 0.1.21, as far as the project uses it; the library has no types of its own."""

from typing import Any

from mesh_tensorflow import layers as layers
from mesh_tensorflow import ops as ops
from mesh_tensorflow import optimize as optimize
from mesh_tensorflow import placement_mesh_impl as placement_mesh_impl
from mesh_tensorflow import utils as utils
from mesh_tensorflow.ops import *

abs = ops.mtf_abs
pow = ops.mtf_pow
range = ops.mtf_range
slice = ops.mtf_slice
abs = ops.mtf_abs
pow = ops.mtf_pow
range = ops.mtf_range
slice = ops.mtf_slice
transformer: Any  # a package that imports its modules when they are asked for
