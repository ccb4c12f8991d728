"""Programs in forks of a process that has imported TensorFlow and Keras, which takes 3 to 6 s of processor time.

The process has no session, eager operation or thread of TensorFlow when it is forked. A test of signals, of messages at
the start, or of the modules that a program imports needs a process of its own.
"""

import atexit
import functools
import json
import os
import pathlib
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence


def run(command: Sequence[str], *, cwd, env: Mapping[str, str], timeout: float = 300):
    """Run a Python program as `subprocess.run` does; return a CompletedProcess with both outputs.

    Args:
      command: path of the file, or "-m" and the module, and the arguments.
      cwd: the working directory.
      env: the environment; its PYTHONPATH counts too.
      timeout: seconds after which the program is killed.
    """
    with tempfile.TemporaryDirectory() as directory:
        streams = [os.path.join(directory, name) for name in ("out", "err")]
        server = _start_server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps([list(command), str(cwd), dict(env), streams]) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            os.killpg(server.pid, signal.SIGKILL)
            _start_server.cache_clear()
            raise subprocess.TimeoutExpired(list(command), timeout)
        out, err = (pathlib.Path(path).read_text(encoding="utf-8", errors="replace") for path in streams)
        return subprocess.CompletedProcess(list(command), int(server.stdout.readline()), out, err)


@functools.cache
def _start_server():
    """Start this file, which runs the commands of its standard input; it ends with the tests."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    server = subprocess.Popen([sys.executable, "-P", __file__], start_new_session=True, **options)
    atexit.register(server.communicate)
    return server


def _await_command():
    """Fork for each command of the standard input; return the command in the forked process."""
    for line in sys.stdin:
        if not os.fork():
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    sys.exit()


def _begin(command, cwd, env, streams):
    """Take over the arguments, the directory, the environment and the streams of a program."""
    for descriptor, path in enumerate([os.devnull, *streams]):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = command
    first = cwd if command[0] == "-m" else os.path.dirname(os.path.abspath(command[0]))
    sys.path[:0] = [first, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]


if __name__ == "__main__":
    import keras  # noqa: F401

    from mtf_hetero import mtf, tf  # noqa: F401

    _begin(*_await_command())
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
