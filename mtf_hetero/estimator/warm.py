"""A session that is made while another one trains, so that a training that continues there pauses for less time."""

import contextlib
import sys
from collections.abc import Iterable

from mtf_hetero._compat import tf
from mtf_hetero._support import threads

# Operations that a Scaffold makes unless it has them, or the graph has them in a collection of that name
_MADE = ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op")


class WarmSession:
    """A session of a graph whose variables have no values yet; the workers have the operations of its steps.

    A run that reads a variable without a value fails at once. Before, each worker has received and prepared its part.
    TensorFlow logs that if TF_CPP_MIN_LOG_LEVEL is 0 or 1. Other failures, of a lost worker for instance, are left to
    the session's first use.

    Args:
      scaffold: of the default graph, which is complete but for what hooks add.
      master: the session's target.
      config: of the session. Its variables must be its own: with a target, it must have a cluster_def.
      fetches: of the steps to come. Other fetches are prepared in the first step, as usual.
    """

    def __init__(
        self,
        scaffold: tf.train.Scaffold,
        master: str,
        config: tf.ConfigProto,
        fetches: Iterable[tf.Tensor | tf.Operation],
    ) -> None:
        graph = tf.get_default_graph()
        self._scaffold = scaffold
        self._made = [name for name in _MADE if not (getattr(scaffold, name) or graph.get_collection(name))]
        scaffold.finalize()
        graph._unsafe_unfinalize()  # hooks may add operations
        self._version = graph.version
        self._session: tf.Session | None = tf.Session(master, graph=graph, config=config)
        for needed in (list(fetches), scaffold.local_init_op):  # the data begin last: before, no step can take any
            with contextlib.suppress(tf.errors.OpError):
                self._session.run(needed)

    def take(self) -> tf.Session:
        """Return the session, once hooks have added their operations."""
        session, self._session = self._session, None
        assert session is not None
        if session.graph.version != self._version:
            for name in self._made:  # they lack what hooks have added
                setattr(self._scaffold, f"_{name}", None)
                session.graph.clear_collection(name)
        return session

    def __del__(self) -> None:
        if self._session is not None and not sys.is_finalizing():
            threads.begin(self._session.close, "session_closer")  # the close waits for a lost worker
