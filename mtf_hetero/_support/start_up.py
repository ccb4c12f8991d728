"""TensorFlow's start-up messages: those that say nothing of the user's program are dropped. No TensorFlow.

TensorFlow's native code writes them to file descriptor 2 while it is imported. The first of them come whatever
TF_CPP_MIN_LOG_LEVEL says (seen with 2.21). Errors are shown, and so is everything where that variable is 0.
"""

import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/dxg")  # of Linux, and of Linux under Windows
_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|I\d{4} .*"  # information: I0000 00:00:1795650020.399074 9775 port.cc:153] oneDNN custom operations are on
    r"|To enable the following instructions: .*"  # its second line
    r"|.*Unable to register cu(DNN|FFT|BLAS) factory: .*"  # an error by its letter, at each import of older versions
    r"|.*computation placer already registered.*"
    r"|.*failed call to cuInit: .*"  # the same, of a machine without a driver
)


def has_driver() -> bool:
    """Return whether an NVIDIA driver is installed on this machine."""
    return any(pathlib.Path(path).exists() for path in _DRIVER_FILES) or shutil.which("nvidia-smi") is not None


def is_chatter(line: str) -> bool:
    """Return whether a line says nothing of the user's program."""
    return _CHATTER.fullmatch(line.rstrip()) is not None


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and shows at the end what is no chatter.

    A crash of native code takes with it what was held back; TF_CPP_MIN_LOG_LEVEL=0 shows it.
    """
    if os.environ.setdefault(LEVEL, "1") == "0":
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as held_back:
        _flush()
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held_back.seek(0)
            lines = held_back.read().decode(errors="replace").splitlines(keepends=True)
            if shown := "".join(line for line in lines if not is_chatter(line)):
                os.write(2, shown.encode())


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
