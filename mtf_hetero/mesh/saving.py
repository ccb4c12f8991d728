"""Variables that are kept in one type and saved in another: an mtf.VariableDType has a type for each."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import SaveableObject, SaveSpec, tf

_Variable = tf.Variable if TYPE_CHECKING else object  # whose attributes a mixin has


class _SavedInAnotherType(_Variable):
    """Attributes of a tf.Variable by which any tf.train.Saver saves and restores it in another type."""

    _saved_dtype: tf.DType

    @property
    def specs(self) -> list[SaveSpec]:
        """Present value of a variable, and the slice of the logical tensor, for a Saver."""
        info = self._save_slice_info
        assert info is not None
        return [SaveSpec(self._cast, info.spec, info.full_name, self._saved_dtype, self.device)]

    def _cast(self) -> tf.Tensor:
        with tf.device(self.device):
            value = tf.cast(self.value(), self._saved_dtype)
            with tf.device("/device:CPU:0"):
                return tf.identity(value)

    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Sequence[tf.TensorShape] | None
    ) -> tf.Operation:
        """Assign what a Saver has read."""
        (value,) = restored_tensors
        if restored_shapes is not None:
            value = tf.reshape(value, restored_shapes[0])
        with tf.device(self.device):
            return self.assign(tf.cast(value, self.dtype), read_value=False)


@functools.cache
def _saved_class(kind: type) -> type:
    return type(kind)(kind.__name__, (_SavedInAnotherType, kind, SaveableObject), {})


def save_in(variable: tf.Variable, dtype: tf.DType) -> None:
    """Have any tf.train.Saver save a variable, a slice of a logical tensor, in another type, and restore that.

    Numbers of float16 are saved in float32: TensorFlow writes slices of float16, but cannot read them.
    """
    dtype = tf.float32 if dtype == tf.float16 else dtype
    if dtype != variable.dtype.base_dtype:
        variable.__class__ = _saved_class(type(variable))
        vars(variable)["_saved_dtype"] = dtype
