from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.training.saving.saveable_object import SaveableObject

class BaseSaverBuilder:
    def __init__(self, write_version: int = ...) -> None: ...
    def save_op(self, filename_tensor: tf.Tensor, saveables: Sequence[SaveableObject]) -> tf.Operation: ...
    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[SaveableObject],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[tf.Tensor]: ...
