"""Variables that start from random numbers without a seed, on any mesh, and what each processor holds of them."""

from typing import Any

import numpy as np

import mtf_hetero
from mtf_hetero import mtf, tf

C, F = mtf.Dimension("c", 7), mtf.Dimension("f", 11)
SHAPES = {"w": [C, F], "u": [F], "s": []}


class Held:
    """Variables, and a step that adds numbers which float32 holds exactly, but bfloat16 does not.

    Args:
      mesh_impl: stock mtf's, or an UnevenMeshImpl.
      dtype: an mtf.VariableDType.
    """

    def __init__(self, mesh_impl: Any, dtype: Any = None) -> None:
        self.mesh_impl, dtype = mesh_impl, dtype or mtf.VariableDType()
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        for name, shape in SHAPES.items():
            initializer = tf.random_normal_initializer()
            mtf.get_variable(mesh, name, mtf.Shape(shape), dtype=dtype, initializer=initializer)
        self.variables = graph.all_variables
        thirds = [mtf.cast(mtf.ones(mesh, v.shape) / 3.0, dtype.slice_dtype) for v in self.variables]
        updates = [mtf.assign_add(v, third) for v, third in zip(self.variables, thirds, strict=True)]
        self.lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl}, autostack=False)
        self.step = tf.group([self.lowering.lowered_operation(op) for op in updates])
        self.copy, self.to_masters = self.lowering.copy_masters_to_slices(), self.lowering.copy_slices_to_masters()
        self.initialize, self.local = tf.global_variables_initializer(), tf.local_variables_initializer()
        held = [self.lowering.variables[v].laid_out_tensor.tensor_list for v in self.variables]
        self.slices = [[tf.identity(x) for x in of_variable] for of_variable in held]

    def values(self, session: Any) -> dict[str, np.ndarray]:
        """Return {name: value}; asserts that each processor has its slice of it."""
        wholes = {}
        for variable, parts in zip(self.variables, session.run(self.slices), strict=True):
            whole, boxes = np.full(variable.shape.to_integer_list, np.nan), []
            for pnum, part in enumerate(parts):
                begin = self.mesh_impl.slice_begin(variable.shape, pnum)
                assert list(part.shape) == list(self.mesh_impl.slice_shape(variable.shape, *self._of(pnum)))
                boxes.append(tuple(slice(b, b + s) for b, s in zip(begin, part.shape, strict=True)))
                whole[boxes[-1]] = part.astype(np.float64)
            for box, part in zip(boxes, parts, strict=True):
                np.testing.assert_array_equal(part.astype(np.float64), whole[box], err_msg=variable.name)
            assert np.isfinite(whole).all()
            wholes[variable.name] = whole
        return wholes

    def _of(self, pnum: int) -> list[int]:
        """Slices of stock mtf are equal."""
        return [pnum] if isinstance(self.mesh_impl, mtf_hetero.UnevenMeshImpl) else []
