"""What the layers' operations ask of a mesh implementation that is not ours."""

from collections.abc import Iterable
from typing import Any


def require_whole(op: Any, lowering: Any, dims: Iterable[Any]) -> None:
    """Raises NotImplementedError if a mesh implementation of mtf's own splits one of the dimensions."""
    mesh_impl = lowering.mesh_impl(op)
    for dim in dims:
        if mesh_impl.tensor_dimension_to_mesh_axis(dim) is not None:
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r} cannot be split along dimension {dim.name!r} by "
                f"{type(mesh_impl).__name__}; use mtf_hetero.UnevenMeshImpl"
            )
