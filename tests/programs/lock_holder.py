"""A process that has a model directory, as a run has that trains there; it begins at once, without TensorFlow."""

import contextlib
import subprocess
import sys

from mtf_hetero.checkpoint import lock

_HOLD = """
import runpy, sys
with runpy.run_path(sys.argv[1])["run_lock"](sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def hold_lock(directory):
    """The process, which is killed in the end."""
    command = [sys.executable, "-c", _HOLD, lock.__file__, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
