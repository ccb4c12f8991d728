"""Tensors of an uneven mesh, as a lowering keeps them: a slice per processor, or the addends of a sum."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf, tf


class LaidOutTensor(mtf.placement_mesh_impl.PlacementMeshImpl.LaidOutTensor):
    """One slice per processor.

    Args:
      tensor_list: the slices.
      absent: of the addends to a sum, the processors whose addend is zero: they have nothing of what is summed over.
    """

    def __init__(self, tensor_list: Sequence[tf.Tensor | int], absent: Collection[int] = ()) -> None:
        super().__init__(tensor_list)
        self.absent = frozenset(absent)


class LazySum(mtf.LazyAllreduceSum):
    """A sum over mesh axes that is made when it is first needed.

    Args:
      mesh_impl: the implementation of the mesh.
      addends: a LaidOutTensor.
      mesh_axes: indices of mesh axes.
      add_counter_fn: called once it is made.
      move: returns the sum on every processor if it need not be made of the addends; called when it is first needed.
    """

    laid_out_input: LaidOutTensor
    _reduced: LaidOutTensor | None

    def __init__(
        self,
        mesh_impl: mtf.MeshImpl,
        addends: LaidOutTensor,
        mesh_axes: Sequence[int],
        add_counter_fn: Callable[[], None] | None = None,
        move: Callable[[], list[tf.Tensor] | None] = lambda: None,
    ) -> None:
        super().__init__(mesh_impl, addends, list(mesh_axes), add_counter_fn)
        self._move = move

    @property
    def partial(self) -> list[tf.Tensor]:
        """One addend per processor."""
        return self.laid_out_input.tensor_list

    @property
    def axes(self) -> list[int]:
        """Indices of mesh axes."""
        return list(self.mesh_axes)

    @property
    def absent(self) -> frozenset[int]:
        """The processors whose addend is zero."""
        return self.laid_out_input.absent

    @property
    def is_made(self) -> bool:
        """Return whether an operation has needed the sum."""
        return self._reduced is not None

    def make(self) -> list[tf.Tensor]:
        """Return the sum on every processor."""
        return self.to_laid_out_tensor().tensor_list

    def to_laid_out_tensor(self) -> LaidOutTensor:
        if self._reduced is None:
            slices = self._move()
            self._reduced = LaidOutTensor(super().to_laid_out_tensor().tensor_list if slices is None else slices)
        return self._reduced


Slices: TypeAlias = LaidOutTensor | LazySum
