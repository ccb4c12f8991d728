"""Keep the checkpoint of the best test in MODEL_DIR/best, and count the tests since then.

That directory is one of a run: `mtf-hetero evaluate --model_dir=MODEL_DIR/best` tests it. Rows of metrics.jsonl say
which test was the best, so a resumed training continues the count.
"""

import dataclasses
import math
import os
import shutil
from collections.abc import Callable

from mtf_hetero.checkpoint import files
from mtf_hetero.estimator import metrics_log

NAME = "best"
VALIDATION, TEST = "validation", "test"  # kinds of rows


@dataclasses.dataclass(frozen=True)
class Tests:
    """The tests of a run so far.

    Args:
      best: the step of the test with the lowest loss, the first one of equals.
      loss: of that test.
      since: number of tests after it.
      last: the loss of the last test.
    """

    best: int
    loss: float
    since: int
    last: float

    def describe(self) -> str:
        """Return the last loss, by which tests are compared, and the lowest one if that is another."""
        lowest = f"; the lowest was {self.loss:.4g} after step {self.best}" if self.since else ", the lowest so far"
        return f"test loss {self.last:.4g}{lowest}"


def read_tests(model_dir: str) -> Tests | None:
    """Return the tests of a run; None: there were none."""
    path = os.path.join(model_dir, metrics_log.NAME)
    rows = metrics_log.read(path) if os.path.exists(path) else []
    losses = {row["step"]: row.get("loss") for row in rows if row["kind"] in (VALIDATION, TEST)}
    if not losses:
        return None
    steps, values = [*losses], [math.inf if loss is None else loss for loss in losses.values()]
    place = min(range(len(steps)), key=values.__getitem__)
    return Tests(steps[place], values[place], len(steps) - place - 1, values[-1])


def keep(path: str, model_dir: str, describe: Callable[[str], object]) -> None:
    """Copy a checkpoint to MODEL_DIR/best, in place of the one that is there.

    Args:
      path: of the checkpoint.
      model_dir: of the run.
      describe: writes the files of a run about its network and data to a directory.

    Raises:
      OSError: it cannot be written.
    """
    directory, name = os.path.join(model_dir, NAME), os.path.basename(path)
    if not os.path.isdir(directory):
        os.makedirs(directory)
        describe(directory)
    files.clear_leftovers(directory)
    kept = os.path.join(directory, name)
    earlier = [found for found in files.candidates(directory, name) if found != kept]
    with files.new_checkpoint(kept) as temporary:
        for file in files.file_names(path):
            shutil.copyfile(os.path.join(model_dir, file), temporary + file.removeprefix(name))
    with files.delete_after(earlier):
        files.write_state(directory, f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
