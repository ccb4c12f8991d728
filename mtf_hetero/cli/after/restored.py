"""The process of a command: restore the run, do the work, and report a mistake in one line with exit code 2."""

import argparse
import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line
from mtf_hetero.cli.after.flags import CheckpointRequest, read_request
from mtf_hetero.cli.train import leaving
from mtf_hetero.cluster.emulation import isolation

if TYPE_CHECKING:
    from mtf_hetero.cli.train.run import Run

FAILED = 1  # the exit code: the result cannot be written


@dataclasses.dataclass(frozen=True, eq=False)
class Restored:
    """A run with a checkpoint to use."""

    run: "Run"
    checkpoint: str
    step: int


Work = Callable[[Restored, argparse.Namespace], str]


def main(
    arguments: argparse.Namespace,
    check: Callable[[argparse.Namespace], object],
    work: Work,
    *,
    placed: bool = True,
    reads_data: bool = True,
) -> int:
    """Restore the run of the flags, do the work, print its result, and return the exit code.

    Args:
      arguments: the flags.
      check: raises ValueError for a mistake that shows without TensorFlow.
      work: returns the text to print from the run.
      placed: whether layout and devices matter to the work.
      reads_data: whether the work reads the data set.
    """
    try:
        with leaving.StopOnSignal():
            try:
                with contextlib.ExitStack() as stack:  # which turns TensorFlow's errors about damaged files into others
                    check(arguments)
                    wanted = read_request(arguments, placed=placed)
                    if wanted.config.local_cluster is not None:
                        isolation.enter()
                    with command_line.capture_stderr():
                        restored = _restore(wanted, stack, reads_data=reads_data)
                    said = work(restored, arguments)
            except (ValueError, NotImplementedError) as error:
                command_line.say(error)
                return command_line.WRONG_USAGE
            except OSError as error:
                command_line.say(error)
                return FAILED
            sys.stdout.write(said)
            sys.stdout.flush()
            return 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        if end.code not in leaving.EXIT_CODES:
            raise
        code = int(end.code)
    leaving.say("stopped: nothing was written")
    return code


def _restore(wanted: CheckpointRequest, stack: contextlib.ExitStack, *, reads_data: bool) -> Restored:
    from mtf_hetero import checkpoint as saver_lib
    from mtf_hetero import data
    from mtf_hetero._compat import tf
    from mtf_hetero.cli.train.prepare import restore

    stack.enter_context(data.unreadable_as_value_error())
    path = wanted.checkpoint
    if path is None:
        found = saver_lib.find(wanted.model_dir)
        if found.path is None:
            raise ValueError(
                f"--model_dir is {wanted.model_dir!r}, which holds no checkpoint; train there first, or name another "
                "directory"
            )
        path = found.path
        for newer, damage in found.passed_over:
            warnings.warn(f"{newer} is damaged ({damage}); {os.path.basename(path)} is used", stacklevel=1)
    elif damage := saver_lib.find_damage(path):
        raise ValueError(f"--checkpoint is {path!r}, which is damaged: {damage}; name another one")
    config = wanted.config
    gpus = tf.config.list_physical_devices("GPU")  # without a GPU, CUDA writes its messages now
    if wanted.is_plain:
        config = dataclasses.replace(config, devices=("gpu:0" if gpus else "cpu:0",), layout="batch")
    run = restore(config, stack, path, reads_data=reads_data)
    return Restored(run, path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP)))
