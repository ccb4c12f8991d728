"""Lower operations of this room on a mesh implementation of mtf's own, along dimensions that need no messages."""

from collections.abc import Callable, Iterable

from mtf_hetero._compat import mtf, tf


def lower_slices(
    op: mtf.Operation,
    lowering: mtf.Lowering,
    function: Callable[..., tf.Tensor | tuple[tf.Tensor, ...]],
    *more: object,
    whole_dims: Iterable[mtf.Dimension] = (),
    summed: Iterable[mtf.Dimension] = (),
) -> None:
    """Lower an operation as a function of slices.

    Args:
      op: the operation.
      lowering: the lowering of its graph.
      function: from a processor's slices of the inputs to its slices of the outputs.
      *more: further arguments of the function, laid out.
      whole_dims: dimensions that may not be split.
      summed: dimensions over which the outputs are summed.

    Raises:
      NotImplementedError: the mesh implementation splits one of the dimensions that may not be split.
    """
    mesh_impl = lowering.mesh_impl(op)
    for dim in whole_dims:
        if mesh_impl.tensor_dimension_to_mesh_axis(dim) is not None:
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r} cannot be split along dimension {dim.name!r} by "
                f"{type(mesh_impl).__name__}; use mtf_hetero.UnevenMeshImpl"
            )
    slices = mesh_impl.slicewise(function, *[lowering.tensors[x] for x in op.inputs], *more)
    axes = {mesh_impl.tensor_dimension_to_mesh_axis(dim) for dim in summed}
    axes = sorted(axis for axis in axes if axis is not None)
    for output, value in zip(op.outputs, slices if isinstance(slices, tuple) else (slices,), strict=True):
        lowering.set_tensor_lowering(output, mtf.LazyAllreduceSum(mesh_impl, value, axes) if axes else value)
