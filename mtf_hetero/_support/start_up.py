"""Settings of TensorFlow's import: its kernels, and which of its messages are shown.

On a CPU, TensorFlow uses the kernels of oneDNN if the CPU has instructions for neural networks (AVX-512 VNNI, AMX). On
others they are faster too: on an AMD EPYC with AVX2, steps of ResNet-50 2.8 times, of 3D convolutions 5.4 times, and of
seven other networks 1.05 to 2.3 times; of EfficientNetB0 0.8 times. So they are used on each x86 CPU, unless
TF_ENABLE_ONEDNN_OPTS says otherwise. TensorFlow reads it once, when it is imported.

Messages that do not concern the user's program are dropped. TensorFlow writes the first ones to file descriptor 2 while
it is imported. TF_CPP_MIN_LOG_LEVEL does not stop these (in version 2.21). It stops later warnings: each use of workers
gives some ten, such as "Local rendezvous is aborting". Errors are always shown, and TF_CPP_MIN_LOG_LEVEL=0 shows
everything.
"""

import contextlib
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator

LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # read by TensorFlow when it is imported
_TRIED_ON = ("x86_64", "AMD64")  # TensorFlow decides on other processors
KERNELS = {"TF_ENABLE_ONEDNN_OPTS": "1"} if platform.machine() in _TRIED_ON else {}  # likewise read at the import
_ERRORS_ONLY = "2"
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/dxg")  # on Linux, and on Linux under Windows
_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|I\d{4} .*"  # information: I0000 00:00:1795650020.399074 9775 port.cc:153] oneDNN custom operations are on
    r"|To enable the following instructions: .*"  # its second line
    r"|.*Unable to register cu(DNN|FFT|BLAS) factory: .*"  # marked as an error, at each import of older versions
    r"|.*computation placer already registered.*"
    r"|.*failed call to cuInit: .*"  # the same, on a machine without a driver
)


def has_driver() -> bool:
    """Return whether an NVIDIA driver is installed on this machine."""
    return any(pathlib.Path(path).exists() for path in _DRIVER_FILES) or shutil.which("nvidia-smi") is not None


def is_chatter(line: str) -> bool:
    """Return whether a line does not concern the user's program."""
    return _CHATTER.fullmatch(line.rstrip()) is not None


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Capture file descriptor 2, and show its lines without chatter at the end.

    A crash of native code loses the captured lines; TF_CPP_MIN_LOG_LEVEL=0 shows them.
    """
    if os.environ.setdefault(LEVEL, _ERRORS_ONLY) == "0":
        yield
        return

    def select(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if not is_chatter(line))

    with hold_back(select):
        yield


@contextlib.contextmanager
def importing_tensorflow() -> Iterator[None]:
    """Import TensorFlow within this context with oneDNN's kernels, without chatter then and at its first use."""
    for name, value in KERNELS.items():
        os.environ.setdefault(name, value)
    with without_chatter():
        yield
        if not has_driver():  # otherwise the first session logs an error
            sys.modules["tensorflow"].config.list_physical_devices("GPU")


@contextlib.contextmanager
def hold_back(select: Callable[[str], str]) -> Iterator[None]:
    """Capture file descriptor 2, and show at the end what a function returns from the captured text."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    with tempfile.TemporaryFile() as captured:
        _flush()
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            if shown := select(captured.read().decode(errors="replace")):
                os.write(2, shown.encode())


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
