"""Variables that are kept in one type and saved in another: an mtf.VariableDType has a type for each."""

import functools
from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import saveable, tf


class _SavedInAnotherType:
    """Attributes of a tf.Variable by which any tf.train.Saver saves and restores it in another type."""

    _saved_dtype: tf.DType

    @property
    def specs(self) -> list[Any]:
        """Present value of a variable, and the slice of the logical tensor, for a Saver."""
        variable: Any = self
        info = variable._save_slice_info
        return [saveable.SaveSpec(self._cast, info.spec, info.full_name, self._saved_dtype, variable.device)]

    def _cast(self) -> tf.Tensor:
        variable: Any = self
        with tf.device(variable.device):
            value = tf.cast(variable.value(), self._saved_dtype)
            with tf.device("/device:CPU:0"):
                return tf.identity(value)

    def restore(self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Sequence[Any] | None) -> tf.Operation:
        """Assign what a Saver has read."""
        variable: Any = self
        (value,) = restored_tensors
        if restored_shapes is not None:
            value = tf.reshape(value, restored_shapes[0])
        with tf.device(variable.device):
            return variable.assign(tf.cast(value, variable.dtype), read_value=False)


@functools.cache
def _class_of(kind: type) -> type:
    return type(kind)(kind.__name__, (_SavedInAnotherType, kind, saveable.SaveableObject), {})


def save_in(variable: tf.Variable, dtype: tf.DType) -> None:
    """Have any tf.train.Saver save a variable, a slice of a logical tensor, in another type, and restore that.

    Numbers of float16 are saved in float32: TensorFlow writes slices of float16, but cannot read them.
    """
    dtype = tf.float32 if dtype == tf.float16 else dtype
    if dtype != variable.dtype.base_dtype:
        variable.__class__ = _class_of(type(variable))
        variable._saved_dtype = dtype
