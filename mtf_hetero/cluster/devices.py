"""Names of devices, as users write them and as TensorFlow has them, and which ones a worker offers."""

import re
from collections.abc import Sequence

from mtf_hetero._compat import tf

FULL_NAME = re.compile(r"/job:(\w+)(?:/replica:0)?/task:(\d+)/device:(\w+):(\d+)")
WORKER_DEVICE = re.compile(r"(?:/job:)?worker(?:/task)?:(\d+)/(?:device:)?(cpu|gpu):(\d+)", re.IGNORECASE)
_LOCAL_DEVICE = re.compile(r"/?(?:device:)?(cpu|gpu):(\d+)", re.IGNORECASE)


def full_name(job: str, task: int, kind: str, index: int) -> str:
    """A device as TensorFlow names it, /job:worker/task:1/device:GPU:0."""
    return f"/job:{job}/task:{task}/device:{kind.upper()}:{index}"


def shorten(text: str) -> str:
    """A text in which devices are named as the user names them.

    Example:
      >>> shorten("/job:worker/task:1/device:GPU:0 and /job:chief/task:0/device:CPU:1")
      'worker:1/gpu:0 and cpu:1'
    """
    return FULL_NAME.sub(lambda m: f"{'' if m[1] == 'chief' else f'{m[1]}:{m[2]}/'}{m[3].lower()}:{m[4]}", text)


def cpu_count(devices: Sequence[tuple[str, int]]) -> int:
    """How many logical CPU devices a process needs to have these."""
    return 1 + max((index for kind, index in devices if kind == "cpu"), default=0)


def local_device(text: str, gpus: int) -> tuple[str, int]:
    """Kind and index of a device of this process, ("gpu", 0) of "gpu:0".

    Raises:
      ValueError: it is not known, or not there.
    """
    match = _LOCAL_DEVICE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"device {text!r} is not known; write cpu:N, gpu:N or, of a worker, worker:N/gpu:N")
    kind, index = match[1].lower(), int(match[2])
    if kind == "gpu" and index >= gpus:
        found = ", ".join(f"gpu:{i}" for i in range(gpus)) or "no GPU"
        raise ValueError(f"device {text!r} is not there: TensorFlow finds {found}; name a device that is there")
    return kind, index


def offered_by(address: str, timeout_seconds: float) -> list[tuple[str, int]]:
    """The devices that a worker offers, as [("gpu", 0), ("cpu", 0)]: GPUs first."""
    config = tf.ConfigProto(operation_timeout_in_ms=round(timeout_seconds * 1000))
    with tf.Graph().as_default(), tf.Session(f"grpc://{address}", config=config) as session:
        listed = [device.name.rpartition("/device:")[2].lower().split(":") for device in session.list_devices()]
    found = sorted((kind, int(index)) for kind, index in listed if kind in ("cpu", "gpu"))
    return [*[d for d in found if d[0] == "gpu"], *[d for d in found if d[0] == "cpu"]]
