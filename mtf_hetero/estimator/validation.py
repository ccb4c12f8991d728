"""An evaluation at given steps, in the middle of a training."""

from collections.abc import Callable

from mtf_hetero._compat import tf
from mtf_hetero.estimator.hooks import SaverHook


class ValidatingSaverHook(SaverHook):
    """A SaverHook that saves at some steps, too, and has what it saved there evaluated.

    Among the hooks of `Estimator.train` it takes the place of the Estimator's own.

    Args:
      model_dir: directory of the checkpoints.
      save_secs: seconds between checkpoints.
      is_due: whether a global step is to be evaluated. It is asked when a session begins, too: a run may have been
        killed between the checkpoint and the end of its evaluation.
      evaluate: called with the step and the path of its checkpoint. A session of its own may use the same devices. The
        training stops if it returns True.
    """

    def __init__(
        self,
        model_dir: str,
        *,
        save_secs: float | None,
        is_due: Callable[[int], bool],
        evaluate: Callable[[int, str], bool | None],
    ) -> None:
        super().__init__(model_dir, save_secs=float("inf") if save_secs is None else save_secs)
        self._is_due, self._evaluate = is_due, evaluate
        self._stops = False

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        step = int(self._timer.last_triggered_step())
        if step and self._is_due(step):
            self._evaluate_saved(step)

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        super().after_run(run_context, run_values)
        step = int(run_values.results) + 1  # each run of the training operation counts as one
        if self._stops:
            run_context.request_stop()
        if not self._is_due(step):
            return
        if self._timer.last_triggered_step() != step:
            self._timer.update_last_triggered_step(step)
            if self._save(run_context.session, step):
                run_context.request_stop()
        self._evaluate_saved(step)
        if self._stops:
            run_context.request_stop()

    def _evaluate_saved(self, step: int) -> None:
        self.join()  # a checkpoint is evaluated once it is complete
        self._stops |= bool(self._evaluate(step, f"{self._save_path}-{step}"))
