"""The output of `Estimator.predict`: chosen predictions, example by example."""

import contextlib
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.estimator.config import Tensors


def select(predictions: Tensors | None, keys: Sequence[str] | str | None) -> Tensors | None:
    """Return the predictions that the caller wants; None: all.

    Raises:
      ValueError: one that there is not.
    """
    if keys is None:
        return predictions
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(predictions, Mapping):
        raise ValueError(f"predict_keys is {keys}, but the predictions are one tensor; remove predict_keys")
    for key in keys:
        if key not in predictions:
            raise ValueError(
                f"predict_keys names {key!r}, which the model does not predict; it predicts {sorted(predictions)}"
            )
    return {key: predictions[key] for key in keys}


def examples(batches: Generator) -> Generator:
    """Yield the predictions of each example, from those of batches.

    Raises:
      ValueError: predictions of a batch that differ in their number.
    """
    with contextlib.closing(batches):
        for batch in batches:
            if not isinstance(batch, Mapping):
                yield from batch
                continue
            sizes = {key: np.shape(value)[0] if np.ndim(value) else None for key, value in batch.items()}
            if len(set(sizes.values())) != 1 or None in sizes.values():
                raise ValueError(
                    f"predictions have batch sizes {sizes}, which must be equal; use yield_single_examples=False"
                )
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))


@contextlib.contextmanager
def left_in(graph: tf.Graph, session: tf.train.SingularMonitoredSession | tf.train.MonitoredSession) -> Iterator[None]:
    """`with session:` whose end runs in this graph, whichever is the caller's."""
    try:
        yield
    except BaseException:
        with graph.as_default():
            if not session.__exit__(*sys.exc_info()):
                raise
    else:
        with graph.as_default():
            session.__exit__(None, None, None)
