"""The configuration of a training, as one value. Without TensorFlow, so that a wrong value is reported at once."""

import dataclasses
import functools
import os
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._support.numbers import FOREVER, OFF, parse_rebalance, parse_wait
from mtf_hetero._support.schema import Kind, Number, Text
from mtf_hetero.placement.request import AUTO, HYBRID, Request

OPTIMIZERS = ("adafactor", "adam", "momentum", "sgd")
SCHEDULES = ("constant", "cosine", "linear")
WIRE_DTYPES = ("bfloat16", "float16")
ON = "on"
SPATIAL = "spatial"
MOST_WHOLE = 2**31 - 1  # limit of an integer flag

POSITIVE = Number(integer=True, least=1, most=MOST_WHOLE)
_COUNT = Number(integer=True, least=0, most=MOST_WHOLE)


def _flag(
    default: object, help_text: str, parse: Callable[[Any], object] | None = None, *, kind: Kind | None = None
) -> Any:
    """Return a field that is a flag too.

    Args:
      default: of the flag.
      help_text: its help.
      parse: from the flag's value, or a file's, to the field's, which it leaves as it is; None: they are equal.
      kind: the allowed values other than None, also in a file; None: all of the field's type.
    """
    return dataclasses.field(default=default, metadata={"help": help_text, "parse": parse, "kind": kind})


def value_type(field: dataclasses.Field) -> type:
    """Return the type of a field's values other than None: bool, float, int, str or tuple."""
    kind: Any = typing.get_args(field.type)[0] if isinstance(field.type, types.UnionType) else field.type
    return typing.get_origin(kind) or kind


def _convert_to_trace_steps(texts: Sequence[str]) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise ValueError(
            f"--trace_steps is {','.join(texts)!r}; write steps, which count from 0, with commas between them"
        ) from None


def _convert_to_image_size(texts: Sequence[str]) -> tuple[int, ...]:
    sizes = [int(text) if re.fullmatch(r"\s*[1-9]\d{0,4}\s*", text) else 0 for text in map(str, texts)]
    if not all(sizes) or len(sizes) > 2:
        raise ValueError(f"--image_size is {','.join(map(str, texts))!r}; write 64, or height and width, such as 64,96")
    return tuple(sizes * 2 if len(sizes) == 1 else sizes)


@dataclasses.dataclass(frozen=True)
class Config:
    """Configuration of a training run. Each field is the flag of its name, with the annotated type.

    Raises:
      ValueError: a value is out of range, independently of the other values.
    """

    model: str = _flag(
        "paper_mnist",
        "The network. For images: alexnet, lenet, marques, paper_cifar, paper_mnist, resnet18, resnet34, resnet50, "
        "vgg11, vgg13, vgg16, vgg19. For volumes: cosmoflow, cosmoflow_bn (with batch norm), cosmoflow_small, unet3d, "
        "unet3d_small. Or a Keras model: a file such as my.keras, or keras:NAME of keras.applications, such as "
        "keras:ResNet50.",
    )
    dataset: str = _flag(
        "mnist5k",
        "The data. A name: mnist5k, or a set of images that tensorflow-datasets prepared, such as cifar10. Your own "
        "images: a directory with a folder per class, a .csv file of paths and labels, an .npz file of arrays, or "
        "module:function, which returns tf.data. Volumes: a directory of mtf-hetero data convert or simulate. Each "
        "worker needs the files at the same path.",
    )
    data_dir: str | None = _flag(None, "The directory of prepared data sets. By default ~/tensorflow_datasets.")
    image_size: tuple[int, ...] = _flag(
        (),
        "The height and width of your own images in the network, such as 64 or 64,96. Images are resized. By default "
        "all images must have one size.",
        _convert_to_image_size,
    )
    model_dir: str | None = _flag(
        None,
        "The directory of checkpoints and curves. Training resumes from its newest checkpoint. By default a new "
        "temporary directory.",
        lambda directory: directory or None,
    )
    batch_size: int = _flag(25, "Images or volumes per step.", kind=POSITIVE)
    train_epochs: int = _flag(4, "How many times to train on each image or volume.", kind=POSITIVE)
    augment: bool = _flag(
        False,
        "Vary the training data at random. Images are shifted by up to 4 pixels and flipped. Volumes are mirrored and "
        "turned.",
    )
    max_steps: int | None = _flag(
        None, "The step at which to stop. By default the last one of the last epoch.", kind=POSITIVE
    )
    optimizer: str = _flag("adafactor", f"One of {', '.join(OPTIMIZERS)}.", kind=Text(OPTIMIZERS))
    learning_rate: float | None = _flag(None, "By default the optimizer's own.", kind=Number(above=0, of_text=True))
    learning_rate_schedule: str = _flag(
        "linear",
        "linear and cosine let the rate fall to zero at the last step. constant keeps it, as in the paper.",
        kind=Text(SCHEDULES),
    )
    mesh_shape: str | None = _flag(
        None, "The mesh axes and their sizes, such as rows:2;cols:2. By default one axis, all, over all devices."
    )
    layout: str = _flag(
        "filters",
        "What to split. A recipe: batch, filters, even, hybrid, spatial or stages. Rules for dimensions of the model: "
        "conv1/filters:all;conv2/channels:all. A file of mtf-hetero plan: plan.json. Or auto: measure the devices, "
        "plan a layout for each layer, and use it if it is faster in trials than the recipes and one device alone.",
    )
    list_speed: str | None = _flag(
        None,
        "Speed of each device, such as 70,25,5; of several mesh axes, rows:2,1;cols:3,1. By default the split is even. "
        "auto: measure the devices, and split only if that is faster in trials than the fastest device alone.",
    )
    memory_limit: str | None = _flag(
        None,
        "With auto: gigabytes that each device may use, such as 16,8,8. By default what TensorFlow reports.",
    )
    measure_seconds: float | None = _flag(
        None,
        "With auto: the time limit in seconds for measuring, planning and trials. By default 30, or 2 % of a long "
        "training up to 120. From 120 on, devices are measured more thoroughly. A training too short to gain from a "
        "split skips the measurement.",
    )
    slots: str | None = _flag(
        None,
        "How many parts of its part each device computes one after another, such as 4, or 4,2 for two devices. It "
        "holds the activations of one part at a time. Results stay the same.",
    )
    dense_shares: str | None = _flag(
        None,
        "With --layout=hybrid: each device's share of the dense layers' weights, such as 2,1. By default --list_speed.",
    )
    dense_rounds: bool = _flag(
        False,
        "With --layout=hybrid: pass one member's examples after another's through the dense layers. It saves memory.",
    )
    recompute: tuple[str, ...] = _flag(
        (),
        "Stages of a network for volumes to compute again in the backward pass, such as conv1,conv2 or down1,up1; or "
        "all. It saves memory, and --dry_run shows how much.",
        tuple,
    )
    devices: tuple[str, ...] | None = _flag(
        None,
        "One device per processor, such as gpu:0,gpu:1,cpu:0. cpu:0,cpu:1,... are logical devices of one CPU. "
        "worker:1/gpu:0 is a device of a worker. By default all GPUs that TensorFlow finds, or cpu:0; with workers, "
        "all their devices. mtf-hetero devices lists them.",
        tuple,
    )
    workers: str | None = _flag(
        None,
        "Addresses of workers to train on: host:port,host:port. mtf-hetero worker starts one. @hosts.txt: a file with "
        "one address per line. :2300: a port at which workers register, with mtf-hetero worker --join=HOST:2300; "
        "training begins with --min_workers of them. By default the workers that TF_CONFIG or Slurm names, if any.",
    )
    port: int | None = _flag(
        None, "Port of this process, to which workers connect: for a firewall. By default any free port."
    )
    local_cluster: str | None = _flag(
        None,
        "Start workers on this machine with so many cores each, such as 1.0,0.5,0.25: unequal devices for trying "
        "things out.",
    )
    wait_for_workers: str = _flag(
        "60",
        "Seconds to wait for a worker that is lost during the training. Training then continues without it, from the "
        f"newest state, on the devices that are left. {FOREVER}: wait until the worker is started again.",
    )
    rebalance: str = _flag(
        AUTO,
        "Give devices other shares in mid-run if measurements say that a step is then shorter, by more than the noise, "
        f"and that it is worth the pause. {AUTO}: as soon as that is so. Seconds: at most as often. {OFF}: never.",
    )
    min_workers: int = _flag(1, "Wait for lost workers for ever if fewer workers than these are left.", kind=POSITIVE)
    verify: str = _flag(
        AUTO,
        "For a Keras model: compare what it gives in the first step, and its gradients, with Keras on this host. "
        f"{AUTO}: if that costs less than 5 % of the training, or 5 seconds. {ON}: always. {OFF}: never.",
        kind=Text((AUTO, ON, OFF)),
    )
    compute_dtype: str | None = _flag(
        None,
        "bfloat16: compute the network in this type, and keep weights, updates and the loss in float32 (mixed "
        "precision). It saves memory of activations, and is faster on GPUs with tensor cores. By default float32. "
        "A Keras file has a dtype policy in place of this flag.",
        kind=Text(("bfloat16", "float32")),
    )
    wire_dtype: str | None = _flag(
        None,
        f"{' or '.join(WIRE_DTYPES)}: round numbers to this type where they are sent between devices. It halves the "
        "traffic, but results then depend on the layout. By default nothing is rounded.",
        kind=Text(WIRE_DTYPES),
    )
    eval_every: str | None = _flag(
        None,
        "How often to test during training: a number of steps, such as 500, or of epochs, such as 1epoch or 5epochs. "
        "By default only at the end.",
    )
    initial_weights: str | None = _flag(
        None,
        "Start a new training from the weights of another one: a directory of a run, or one checkpoint such as "
        "DIR/model.ckpt-500. Variables of the same name and shape are taken, the others are initialized. A .keras file "
        "of --model has its weights.",
    )
    patience: int | None = _flag(
        None,
        "Stop after so many tests of --eval_every in a row whose loss is not lower than the lowest one before. The "
        "line of each test has this loss, and the lowest one. The accuracy does not count. "
        "MODEL_DIR/best has the checkpoint of the lowest loss.",
        kind=POSITIVE,
    )
    summary_steps: int = _flag(
        50, "Steps between two rows of MODEL_DIR/metrics.jsonl and of TensorBoard's curves.", kind=POSITIVE
    )
    busy_steps: int | None = _flag(
        None,
        "Steps between two rows of how busy each device is; 0: none. By default every 10 seconds, and less often if a "
        "step must be traced for it, as for GPUs, and that would take more than 1 % of the time.",
        kind=_COUNT,
    )
    log_steps: int | None = _flag(
        None,
        "Steps between two progress lines if the output is no terminal. By default a line about every 5 seconds at "
        "first, and every minute in a training of hours.",
        kind=POSITIVE,
    )
    quiet: bool = _flag(False, "Print only errors and the final result.")
    seed: int = _flag(1, "Seed of the initial weights and of the order of the data.", kind=_COUNT)
    save_checkpoints_secs: int = _flag(60, "Seconds between two checkpoints.", kind=POSITIVE)
    trace_steps: tuple[int, ...] = _flag(
        (),
        "Steps of this run to trace, such as 5,50. MODEL_DIR/traces then has a Chrome trace of each, and a table of "
        "where the time goes.",
        _convert_to_trace_steps,
    )
    dry_run: bool = _flag(False, "Print the split of each dimension and the memory of each device, and stop.")
    simulate: str | None = _flag(
        None,
        "With --dry_run: a file of devices, as for mtf-hetero plan, that need not be here. A step on them is predicted "
        "layer by layer. With --layout=auto a layout is planned for them.",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            kind, parse, value = field.metadata["kind"], field.metadata["parse"], getattr(self, field.name)
            if kind is not None and value is not None:
                kind.read(value, f"--{field.name}")
            if parse is not None and value is not None:
                object.__setattr__(self, field.name, parse(value))
        if any(step < 0 for step in self.trace_steps):
            raise ValueError(f"--trace_steps is {','.join(map(str, self.trace_steps))}; steps count from 0")
        if self.eval_every is not None:
            parse_eval_every(self.eval_every)
        if self.patience is not None and self.eval_every is None:
            raise ValueError(f"--patience is {self.patience} without --eval_every, which tests; give both")
        if self.dense_rounds and self.layout != HYBRID:
            raise ValueError(
                f"--dense_rounds is True, which only --layout={HYBRID} uses; remove it, or give that layout"
            )
        self._check_simulated()
        _ = self.wait_seconds, self.rebalance_seconds
        object.__setattr__(self, "devices", self.request.devices)  # in the usual form
        if self.model_dir is not None and os.path.exists(self.model_dir) and not os.path.isdir(self.model_dir):
            raise ValueError(f"--model_dir is {self.model_dir!r}, which is a file; name a directory")

    @functools.cached_property
    def request(self) -> Request:
        """The devices and the layout of the flags."""
        return Request(**{name: getattr(self, name) for name in PLACED}, are_flags=True)

    @property
    def wait_seconds(self) -> float:
        """The seconds of `wait_for_workers`, infinity if forever."""
        seconds = parse_wait(self.wait_for_workers, "--wait_for_workers")
        assert seconds is not None  # a flag is text
        return seconds

    @property
    def rebalance_seconds(self) -> float | None:
        """The least seconds between two changes of the shares: 0 for auto, None for off."""
        seconds = parse_rebalance(self.rebalance, "--rebalance")
        if seconds and self.busy_steps == 0:
            said = f"--rebalance is {self.rebalance!r} and --busy_steps is 0, which measures nothing"
            raise ValueError(f"{said}; remove one of the two")
        return seconds

    def _check_simulated(self) -> None:
        """Raise ValueError if --simulate is used with flags that need real devices."""
        if self.simulate is None:
            return
        if not self.dry_run:
            raise ValueError(f"--simulate is {self.simulate!r} without --dry_run; nothing is trained on it: give both")
        for name in ("devices", "workers", "port", "local_cluster", "measure_seconds", "memory_limit"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"--{name} is {getattr(self, name)!r} and --simulate {self.simulate!r}, which names the devices; "
                    "give one of the two"
                )


FIELDS = {field.name: field for field in dataclasses.fields(Config)}
PLACED = tuple(field.name for field in dataclasses.fields(Request) if field.name in FIELDS)  # flags of a Request


def parse_eval_every(text: str) -> tuple[int, bool]:
    """Parse "500" or "5epochs" to (number, whether it counts epochs).

    Raises:
      ValueError: the text has another form.
    """
    match = re.fullmatch(r"\s*([1-9]\d*)\s*(epochs?)?\s*", text)
    if match is None:
        raise ValueError(
            f"--eval_every is {text!r}; write a number of steps, such as 500, or of epochs, such as 1epoch"
        )
    return int(match[1]), match[2] is not None
