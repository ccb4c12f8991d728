"""A training session that begins with the newest whole checkpoint, each time that it is made."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero import saver as saver_lib
from mtf_hetero._compat import tf
from mtf_hetero.saver import resume


class ResumingSessionCreator(tf.train.SessionCreator):
    """Makes a session from the newest whole checkpoint, or from initial values where there is none.

    A MonitoredSession makes it anew when a worker was lost. Damaged checkpoints are moved out of the way, and the
    Savers learn what lies in the directory, so that none of them writes over a checkpoint that is there.

    Args:
      model_dir: directory of the checkpoints, whose lock is held.
      scaffold: the model's.
      hooks: all hooks; those that save are among them.
      keep: number of checkpoints that are kept; None or 0: all.
      **options: `master` and `config` of the session.
    """

    def __init__(
        self,
        model_dir: str,
        scaffold: tf.train.Scaffold,
        hooks: Sequence[tf.train.SessionRunHook],
        keep: int | None,
        **options: Any,
    ) -> None:
        self._model_dir = model_dir
        self._scaffold = scaffold
        self._hooks = [hook for hook in hooks if isinstance(hook, tf.train.CheckpointSaverHook)]
        self._keep = keep
        self._options = options

    def create_session(self) -> tf.Session:
        """Makes the session.

        Raises:
          ValueError: there are checkpoints, and none is whole.
        """
        path, kept = resume(self._model_dir, self._keep)
        session = tf.train.ChiefSessionCreator(
            self._scaffold, checkpoint_filename_with_path=path, **self._options
        ).create_session()
        savers = {id(saver): saver for saver in (self._scaffold.saver, *(hook._get_saver() for hook in self._hooks))}
        for saver in savers.values():
            saver_lib.save_once(saver)
            if path is not None:
                saver_lib.set_restored(saver, path, kept)
        return session
