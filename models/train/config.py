"""What the training binary is told, as one value. No TensorFlow here, so that a wrong value is reported at once."""

import dataclasses
import math
import os
import re
from collections.abc import Sequence

OPTIMIZERS = ("adafactor", "adam", "momentum", "sgd")
SCHEDULES = ("constant", "cosine", "linear")
WIRE_DTYPES = ("bfloat16", "float16")
AUTO = "auto"
HYBRID = "hybrid"
_DEVICE = re.compile(r"(?:worker:(\d+))?/?(?:device:)?(cpu|gpu):(\d+)", re.IGNORECASE)
_MAX_CPU_DEVICES = 128


@dataclasses.dataclass(frozen=True)
class Config:
    """A training run.

    Args:
      model: a name in models.MODELS.
      dataset: a name in mtf_hetero.data.DATASETS or of a prepared tensorflow-datasets set; for a model of volumes, the
        directory of a set of them.
      data_dir: where prepared sets are; None: ~/tensorflow_datasets.
      model_dir: directory of checkpoints and summaries; None: a new one under the system's temporary directory.
      batch_size: images or volumes per step, and per batch of the test.
      train_epochs: how often each training image or volume is seen.
      augment: whether training images are cropped and flipped at random, and volumes mirrored and turned.
      max_steps: the step at which to stop; None: at the end of the last epoch.
      optimizer: one of OPTIMIZERS.
      learning_rate: None: the optimizer's own.
      learning_rate_schedule: one of SCHEDULES; "linear" and "cosine" let the rate fall to zero at the last step.
      mesh_shape: mesh axes and their sizes, "all:3"; None: one axis, "all", over all devices.
      layout: a name in layouts.LAYOUTS, or rules such as "conv1/filters:all;conv2/channels:all".
      list_speed: "70,25,5" for the first mesh axis, or "rows:2,1;cols:3,1"; None: even; AUTO: as measured.
      memory_limit: gigabytes that each processor may take, "16,8,8", where list_speed is AUTO; None: what is there.
      measure_seconds: when to stop repeating measurements, where list_speed is AUTO; None: as profile.Effort has it.
      dense_shares: "2,1", by which the layout hybrid divides the dense layers over a group; None: as the rest.
      dense_rounds: whether, in the layout hybrid, one member's examples pass the dense layers after another's.
      recompute: stages of a model of volumes that the backward pass computes once more; ("all",): each of them.
      devices: one per processor; None: every GPU that TensorFlow finds, then cpu:0; with workers, all of theirs.
      workers: "host:port,host:port" of TensorFlow workers; None: those of TF_CONFIG or Slurm, if any.
      wire_dtype: one of WIRE_DTYPES, to which numbers are rounded where they are sent; None: they are not.
      local_cluster: cores of each worker to start on this machine, "1.0,0.5,0.25"; None: none.
      seed: of initial values and the order of images or volumes.
      save_checkpoints_secs: seconds between checkpoints.
      trace_steps: steps of this run to trace, the first being 0.
      dry_run: whether to say what each device would hold, and to train nothing.

    Raises:
      ValueError: a value that is out of range whatever the others are.
    """

    model: str
    dataset: str = "mnist5k"
    data_dir: str | None = None
    model_dir: str | None = None
    batch_size: int = 25
    train_epochs: int = 4
    augment: bool = False
    max_steps: int | None = None
    optimizer: str = "adafactor"
    learning_rate: float | None = None
    learning_rate_schedule: str = "linear"
    mesh_shape: str | None = None
    layout: str = "filters"
    list_speed: str | None = None
    memory_limit: str | None = None
    measure_seconds: float | None = None
    dense_shares: str | None = None
    dense_rounds: bool = False
    recompute: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None
    workers: str | None = None
    local_cluster: str | None = None
    wire_dtype: str | None = None
    seed: int = 1
    save_checkpoints_secs: int = 600
    trace_steps: tuple[int, ...] = ()
    dry_run: bool = False

    def __post_init__(self) -> None:
        self._check_positive()
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"--seed is {self.seed}; it must be a whole number from 0 to {2**31 - 1}")
        choices = {"optimizer": OPTIMIZERS, "learning_rate_schedule": SCHEDULES, "wire_dtype": (None, *WIRE_DTYPES)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                known = [value for value in known if value is not None]
                raise ValueError(f"--{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        if any(step < 0 for step in self.trace_steps):
            raise ValueError(f"--trace_steps is {','.join(map(str, self.trace_steps))}; steps count from 0")
        self._check_together()
        if self.devices is not None:
            object.__setattr__(self, "devices", _convert_to_devices(self.devices))
        if self.model_dir is not None and os.path.exists(self.model_dir) and not os.path.isdir(self.model_dir):
            raise ValueError(f"--model_dir is {self.model_dir!r}, which is a file; name a directory")

    def _check_positive(self) -> None:
        """Raises ValueError where a number is not positive."""
        for name in ("batch_size", "train_epochs", "max_steps", "save_checkpoints_secs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} is {value}; it must be a positive whole number")
        for name in ("learning_rate", "measure_seconds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"--{name} is {value}; it must be a positive number")

    def _check_together(self) -> None:
        """Raises ValueError where one value rules another out."""
        if self.workers is not None and self.local_cluster is not None:
            raise ValueError(
                f"--workers is {self.workers!r} and --local_cluster {self.local_cluster!r}; give one of the two"
            )
        for name in ("memory_limit", "measure_seconds"):
            value = getattr(self, name)
            if value is not None and self.list_speed != AUTO:
                raise ValueError(
                    f"--{name} is {value!r}, which only --list_speed={AUTO} heeds; leave it out, or let the speeds be "
                    "measured"
                )
        for name in ("dense_shares", "dense_rounds"):
            if getattr(self, name) and self.layout != HYBRID:
                raise ValueError(
                    f"--{name} is {getattr(self, name)!r}, which only --layout={HYBRID} heeds; leave it out, or give "
                    "that layout"
                )
        if self.list_speed == AUTO and self.layout == "even":
            raise ValueError(f"--list_speed is {AUTO} and --layout even, which heeds no speed; give another layout")
        if self.list_speed == AUTO and self.mesh_shape is not None:
            raise ValueError(
                f"--list_speed is {AUTO} and --mesh_shape {self.mesh_shape!r}; measured speeds divide over one axis: "
                "leave --mesh_shape out"
            )


def _convert_to_devices(texts: Sequence[str]) -> tuple[str, ...]:
    if not texts:
        raise ValueError("--devices is empty; name one device per processor, or leave the flag out")
    return tuple(_convert_to_device(text) for text in texts)


def _convert_to_device(text: str) -> str:
    """Writes a device as "cpu:0", "gpu:0" or "worker:1/gpu:0"."""
    match = _DEVICE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"--devices names {text!r}; write cpu:N or gpu:N, with commas between them, and worker:N/gpu:N of a worker"
        )
    worker, kind, index = match[1], match[2].lower(), int(match[3])
    if kind == "cpu" and index >= _MAX_CPU_DEVICES:
        raise ValueError(f"--devices names {text!r}; logical CPU devices are cpu:0 to cpu:{_MAX_CPU_DEVICES - 1}")
    return f"{kind}:{index}" if worker is None else f"worker:{int(worker)}/{kind}:{index}"


def parse_trace_steps(texts: Sequence[str]) -> tuple[int, ...]:
    """Whole numbers from their texts.

    Raises:
      ValueError: one is no whole number.
    """
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise ValueError(
            f"--trace_steps is {','.join(texts)!r}; write steps, which count from 0, with commas between them"
        ) from None


def parse_list_speed(text: str, first_axis: str) -> dict[str, tuple[float, ...]]:
    """{mesh axis: shares} from "70,25,5", which is for the first axis, or from "rows:2,1;cols:3,1".

    Raises:
      ValueError: it is not written so, or a share is not a number.

    Example:
      >>> parse_list_speed("70,25,5", "all")
      {'all': (70.0, 25.0, 5.0)}
    """
    shares: dict[str, tuple[float, ...]] = {}
    for part in text.split(";"):
        axis, colon, numbers = part.rpartition(":")
        axis = axis.strip() if colon else first_axis
        if axis in shares:
            raise ValueError(f"--list_speed is {text!r}: it names axis {axis!r} twice; write AXIS:70,25,5;AXIS:2,1")
        shares[axis] = tuple(_convert_to_share(number, text, "list_speed") for number in numbers.split(","))
    return shares


def parse_shares(text: str, name: str) -> tuple[float, ...]:
    """Numbers from "2,1,1".

    Raises:
      ValueError: one is not a number.
    """
    return tuple(_convert_to_share(number, text, name) for number in text.split(","))


def parse_memory_limit(text: str, count: int) -> tuple[int, ...]:
    """Bytes from "16,8,8", gigabytes of each of `count` devices.

    Raises:
      ValueError: it is not written so, or the number is another.
    """
    try:
        limits = tuple(float(part) for part in text.split(","))
    except ValueError:
        limits = ()
    if len(limits) != count or not all(math.isfinite(limit) and limit > 0 for limit in limits):
        raise ValueError(
            f"--memory_limit is {text!r}; write the gigabytes of each of the {count} devices, such as 16,8,8"
        )
    return tuple(round(limit * 1e9) for limit in limits)


def _convert_to_share(number: str, text: str, name: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(
            f"--{name} is {text!r}: {number!r} is not a number; give one per processor, as in 70,25,5"
        ) from None
