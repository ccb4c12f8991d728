"""The order in which the pipelines of images and of volumes read a set, and the parts of each batch that they make.

The seed and the numbers of the epoch and of the batch decide it, so that all processors read parts of the same batches.
"""

from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.numbers import check_number


def places_in_batch(batch_size: int, places: Sequence[int] | None, unit: str) -> tuple[int, ...]:
    """Return the places in each batch whose examples a pipeline makes, from 0 on; None stands for all.

    Raises:
      ValueError: the batch has no such places.
    """
    check_number(batch_size, "batch_size", none=False)
    if places is None:
        return tuple(range(batch_size))
    if not places or min(places) < 0 or max(places) >= batch_size:
        raise ValueError(f"places are {list(places)}, but a batch has {batch_size} {unit}; give places from 0 on in it")
    return tuple(places)


def training_batches(
    examples: int, batch_size: int, epochs: int, seed: int, start_batch: int | tf.Tensor, *, name: str, unit: str
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Return batches of indices, int64 [batch], in another order in each epoch, and the numbers of these batches.

    The first `start_batch` of them are skipped. It may be a scalar tensor, which is read when the iterator is
    initialised.

    Raises:
      ValueError: so many examples cannot be read.
    """
    check_number(epochs, "epochs", none=False)
    if not tf.is_tensor(start_batch):
        check_number(start_batch, "start_batch", zero=True, none=False)
    if batch_size > examples * epochs:
        raise ValueError(f"batch_size is {batch_size}, but {name} has {examples} training {unit}; give a smaller one")
    first_batch = tf.cast(start_batch, tf.int64)
    first_epoch, skipped = first_batch * batch_size // examples, first_batch * batch_size % examples

    def permutation(epoch: tf.Tensor) -> tf.Tensor:
        seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
        keys = tf.random.stateless_uniform([examples], seeds, minval=None, maxval=None, dtype=tf.int32)
        return tf.cast(tf.argsort(keys, stable=True), tf.int64)

    indices = tf.data.Dataset.range(tf.minimum(first_epoch, epochs), epochs).map(permutation).unbatch().skip(skipped)
    batches = indices.batch(batch_size, drop_remainder=True)
    return batches, tf.data.Dataset.range(first_batch, examples * epochs // batch_size)


def testing_batches(examples: int, batch_size: int, places: Sequence[int]) -> tf.data.Dataset:
    """Return batches of (indices, weights), int64 and float32 [places].

    The last example fills the last batch, at weight 0.
    """
    wanted = tf.constant(places, tf.int64)

    def batch(first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        indices = first + wanted
        return tf.minimum(indices, examples - 1), tf.cast(indices < examples, tf.float32)

    return tf.data.Dataset.range(0, examples, batch_size).map(batch)


def describe_sizes(name: str, train_size: int, test_size: int, unit: str, shape: Sequence[int]) -> str:
    """Return the name and the size of a set, for the user."""
    return f"{name}: {train_size:,} training and {test_size:,} test {unit} of {' x '.join(map(str, shape))}"


def made_ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Return the batches, of which two are made while a step runs."""
    options = tf.data.Options()
    options.autotune.enabled = False  # with it, closing a session sometimes took a minute
    return batches.prefetch(2).with_options(options)
