"""A training session that begins with the newest whole checkpoint or copy in memory, each time that it is made."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero import checkpoint as saver_lib
from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.checkpoint import resume
from mtf_hetero.estimator.hooks import SaverHook
from mtf_hetero.estimator.warm import WarmSession
from mtf_hetero.training.elastic import MEMORY, Elastic, Move


class ResumingSessionCreator(tf.train.SessionCreator):
    """Makes a session from the newest whole checkpoint or copy in memory, or from initial values if there is none.

    A MonitoredSession makes it anew when a worker was lost. A training that came from elsewhere begins with its state.
    Damaged checkpoints are moved out of the way, and the Savers learn what lies in the directory, so that none of them
    writes over a checkpoint that is there.

    Args:
      model_dir: directory of the checkpoints, whose lock is held.
      scaffold: the model's.
      hooks: all hooks; those that save are among them.
      keep: number of checkpoints that are kept; None or 0: all.
      move: how the training came here: its state, if it has one, is what the first session begins with.
      elastic: has the copy.
      warm: the first session, if that begins with a state in memory; None: it is made anew.
      **options: `master` and `config` of the session.
    """

    def __init__(
        self,
        model_dir: str,
        scaffold: tf.train.Scaffold,
        hooks: Sequence[tf.train.SessionRunHook],
        keep: int | None,
        move: Move | None = None,
        elastic: Elastic | None = None,
        warm: WarmSession | None = None,
        **options: Any,
    ) -> None:
        self._model_dir = model_dir
        self._scaffold = scaffold
        self._hooks = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
        self._keep = keep
        self._move = move
        self._elastic = elastic
        self._warm = warm
        self._options = options

    def create_session(self) -> tf.Session:
        """Make the session.

        Raises:
          ValueError: there are checkpoints, and none is whole.
        """
        for hook in self._hooks:
            if isinstance(hook, SaverHook):
                hook.join()  # the newest checkpoint may still be written
        path, kept = resume(self._model_dir, self._keep)
        state = self._take_state(path)
        warm, self._warm = self._warm, None
        made = None if warm is None else warm.take()
        if state is None:
            if made is not None:
                threads.begin(made.close, "session_closer")
            session = tf.train.ChiefSessionCreator(
                self._scaffold, checkpoint_filename_with_path=path, **self._options
            ).create_session()
        else:
            session = self._create_from(state, made)
        savers = {id(saver): saver for saver in (self._scaffold.saver, *(hook._get_saver() for hook in self._hooks))}
        for saver in savers.values():
            saver_lib.save_once(saver)
            if path is not None:
                saver_lib.set_restored(saver, path, kept)
        return session

    def _take_state(self, path: str | None) -> saver_lib.State | None:
        """Return the state in memory to begin with; None: the checkpoint is newer."""
        state = None
        if self._move is not None:
            state, self._move.state = self._move.state, None  # it takes memory
        copy = None if self._elastic is None else self._elastic.copy
        if state is not None or copy is None:
            return state
        step = -1 if path is None else int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
        if int(copy.value(tf.GraphKeys.GLOBAL_STEP)) < step:
            return None
        if self._move is not None:
            self._move.source = MEMORY
        return copy

    def _create_from(self, state: saver_lib.State, session: tf.Session | None) -> tf.Session:
        """Give a session a state in memory. It has all variables: a search for others would prolong a pause.

        Args:
          state: the state.
          session: one that was made in advance; None: it is made now.
        """
        scaffold = self._scaffold.finalize()
        if session is None:
            session = tf.Session(self._options["master"], config=self._options["config"])
        state.load(scaffold.saver, session)
        session.run(scaffold.local_init_op, scaffold.local_init_feed_dict)
        return session
