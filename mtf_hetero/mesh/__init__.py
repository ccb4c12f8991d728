"""Unequal slices on devices: the mesh implementation, communication between its processors, and variables.

Variables are slices only. There is no master copy, and each slice is made of its part of the initial value. `traffic`
counts and arranges the messages of a lowered graph.

Example:
  >>> mesh_impl = UnevenMeshImpl("all:2", "batch:all", ["gpu:0", "cpu:0"], shares={"all": [3, 1]})
  >>> shape = mtf.Shape([mtf.Dimension("batch", 8), mtf.Dimension("inputs", 5)])
  >>> mesh_impl.slice_shape(shape, 1), mesh_impl.slice_begin(shape, 1)
  ([2, 5], [6, 0])
"""

from mtf_hetero.mesh.creating import create_master, get_variable
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.variables import LaidOutVariable, SlicedVariable, initial_value_feed

__all__ = ["LaidOutVariable", "SlicedVariable", "UnevenMeshImpl", "create_master", "get_variable", "initial_value_feed"]
