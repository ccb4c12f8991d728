"""What the layers' operations ask of a mesh implementation that is not ours."""

from collections.abc import Iterable

from mtf_hetero._compat import mtf


def require_whole(op: mtf.Operation, lowering: mtf.Lowering, dims: Iterable[mtf.Dimension]) -> None:
    """Raises NotImplementedError if a mesh implementation of mtf's own splits one of the dimensions."""
    mesh_impl = lowering.mesh_impl(op)
    for dim in dims:
        if mesh_impl.tensor_dimension_to_mesh_axis(dim) is not None:
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r} cannot be split along dimension {dim.name!r} by "
                f"{type(mesh_impl).__name__}; use mtf_hetero.UnevenMeshImpl"
            )
