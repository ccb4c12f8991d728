"""The reason why TensorFlow finds no GPU, and the remedy."""

import os

from mtf_hetero._compat import tf
from mtf_hetero._support.start_up import has_driver

INSTALL = "pip install 'tensorflow[and-cuda]'"
_HIDDEN = ("", "-1")


def cuda_version() -> str | None:
    """Return the version of CUDA that TensorFlow was built with; None: it was built without."""
    info = tf.sysconfig.get_build_info()
    return str(info.get("cuda_version", "unknown")) if info.get("is_cuda_build") else None


def are_hidden() -> bool:
    """Return whether the user hides all GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _HIDDEN


def warn_of_unused() -> None:
    """Warn of a GPU that TensorFlow cannot use. Its own warning is not shown; call this if it lists no GPU."""
    if has_driver() and not are_hidden():
        tf.logging.warning("no GPU is used: %s", why_no_gpu())


def why_no_gpu() -> str:
    """Return the reason and the remedy in one line. Call it if TensorFlow lists no GPU."""
    if are_hidden():
        visible = os.environ["CUDA_VISIBLE_DEVICES"]
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides all GPUs: unset it"
    if not has_driver():
        return f"no NVIDIA driver is installed: for an NVIDIA GPU, install its driver, then {INSTALL}"
    if cuda_version() is None:
        return f"an NVIDIA driver is installed, but this TensorFlow was built without CUDA: {INSTALL}"
    return (
        "an NVIDIA driver is installed, but TensorFlow cannot use it, mostly because CUDA libraries are missing: "
        f"{INSTALL}; TF_CPP_MIN_LOG_LEVEL=0 shows what it tried"
    )
