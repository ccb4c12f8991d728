"""Trains a CNN on devices of unequal speed.

    python -m models.train --devices=cpu:0,cpu:1,cpu:2 --list_speed=40,40,20

trains the paper's MNIST network on the 5,000 MNIST images that come with the install: 97 to 98 % of the test images in
two to four minutes on two cores. The paper's CIFAR-10 run, once tensorflow-datasets has prepared the data:

    python -m models.train --model=paper_cifar --dataset=cifar10 --batch_size=200 --train_epochs=30 \
        --learning_rate_schedule=constant --list_speed=70,25,5 --devices=gpu:0,gpu:1,cpu:0

A 3D CNN on volumes whose depth is divided, so that each device reads and holds its own slab of each:

    python -m mtf_hetero.data simulate universes --train=600 --test=100
    python -m models.train --model=cosmoflow_small --dataset=universes --batch_size=8 --train_epochs=20 --augment \
        --optimizer=adam --learning_rate_schedule=cosine --layout=spatial --mesh_shape=depth:2 --list_speed=2,1 \
        --devices=cpu:0,cpu:1

Before training it prints how each split dimension is divided; after it, how good the network is on the test set, the
images or volumes per second and where the checkpoint is. Ctrl-C, SIGTERM and SIGHUP (a closed terminal) end the step
and save; the same command with the same --model_dir resumes, on any other layout too.

Exit codes: 0, or 2 for a wrong flag or value, a damaged data set, a worker that belongs to another training, or a
directory in which another run is training or no checkpoint is whole (one line says which), 1 for a loss that is not a
number or a full disk, 129 after SIGHUP, 130 after Ctrl-C, 141 where the standard output is a pipe that nobody reads any
more, and 143 after SIGTERM.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from absl import app, flags

from mtf_hetero.cluster import isolation
from mtf_hetero.models.train import config as config_lib
from mtf_hetero.models.train import console as command_line
from mtf_hetero.models.train import leaving

_DEFAULTS = config_lib.Config("paper_mnist")

_MODEL = flags.DEFINE_string(
    "model",
    _DEFAULTS.model,
    "The CNN: alexnet, lenet, marques, paper_cifar, paper_mnist, resnet18, 34 or 50, vgg11, 13, 16 or 19; for volumes, "
    "cosmoflow, cosmoflow_bn (with batch norm) or cosmoflow_small, which predict the set's targets, and unet3d or "
    "unet3d_small, which tell the class of each voxel.",
)
_DATASET = flags.DEFINE_string(
    "dataset",
    _DEFAULTS.dataset,
    "mnist5k, or an image set that tensorflow-datasets has prepared, such as cifar10; for a model of volumes, a "
    "directory that python -m mtf_hetero.data convert or simulate has made, at the same path on each worker.",
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where prepared sets are; by default ~/tensorflow_datasets.")
_MODEL_DIR = flags.DEFINE_string(
    "model_dir", None, "Directory of checkpoints and summaries; training resumes there. By default a new temporary one."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", _DEFAULTS.batch_size, "Images or volumes per step.")
_TRAIN_EPOCHS = flags.DEFINE_integer(
    "train_epochs", _DEFAULTS.train_epochs, "How often each training image or volume is seen."
)
_AUGMENT = flags.DEFINE_bool(
    "augment",
    _DEFAULTS.augment,
    "Training images are padded by 4 pixels, cropped and flipped at random; volumes are mirrored, and height and width "
    "exchanged where they are equal.",
)
_MAX_STEPS = flags.DEFINE_integer("max_steps", None, "The step at which to stop; by default that of the last epoch.")
_OPTIMIZER = flags.DEFINE_string("optimizer", _DEFAULTS.optimizer, f"One of {', '.join(config_lib.OPTIMIZERS)}.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", None, "By default the optimizer's own.")
_LEARNING_RATE_SCHEDULE = flags.DEFINE_string(
    "learning_rate_schedule",
    _DEFAULTS.learning_rate_schedule,
    "linear or cosine: the rate falls to zero at the last step; or constant, as in the paper.",
)
_MESH_SHAPE = flags.DEFINE_string("mesh_shape", None, "Such as rows:2;cols:2; by default all:N with the N devices.")
_LAYOUT = flags.DEFINE_string(
    "layout",
    _DEFAULTS.layout,
    "A recipe (batch, even, filters), which divides over the first mesh axis, or hybrid, over one or two axes, or "
    "spatial, which divides depth, height and width over mesh axes in turn, and the batch over one called batch, or "
    "rules such as conv1/filters:all;conv2/channels:all, for dimensions of the model.",
)
_LIST_SPEED = flags.DEFINE_string(
    "list_speed",
    None,
    "Speeds of the processors along the first mesh axis, such as 70,25,5, or along several axes, such as "
    "rows:2,1;cols:3,1. An axis without speeds is divided evenly. auto: each device is measured on the model, and the "
    "model is split only where that is faster than the fastest device alone.",
)
_MEMORY_LIMIT = flags.DEFINE_string(
    "memory_limit",
    None,
    "Gigabytes that each device may take, such as 16,8,8, with --list_speed=auto; by default what TensorFlow reports.",
)
_MEASURE_SECONDS = flags.DEFINE_float(
    "measure_seconds",
    None,
    "Seconds after which --list_speed=auto stops repeating what it measures, by default 120; it measures everything "
    "once, whatever that takes.",
)
_DENSE_SHARES = flags.DEFINE_string(
    "dense_shares",
    None,
    "With --layout=hybrid: shares of the dense layers' weights over the workers of a group, such as 2,1, by their "
    "memory for instance; by default as --list_speed.",
)
_DENSE_ROUNDS = flags.DEFINE_bool(
    "dense_rounds",
    _DEFAULTS.dense_rounds,
    "With --layout=hybrid: one member's examples pass the dense layers after another's, which takes less memory.",
)
_RECOMPUTE = flags.DEFINE_list(
    "recompute",
    [],
    "With a model of volumes: stages, such as conv1,conv2 or down1,up1, that the backward pass computes once more, so "
    "that their maps take no memory until then; or all. --dry_run shows what that saves.",
)
_DEVICES = flags.DEFINE_list(
    "devices",
    None,
    "One device per processor, the last mesh axis varying fastest: gpu:0,gpu:1,cpu:0. cpu:0,cpu:1,... are logical "
    "devices of one CPU. With workers, worker:1/gpu:0 is a device of theirs. By default every GPU that TensorFlow "
    "finds, then cpu:0; with workers, all devices of theirs.",
)
_WORKERS = flags.DEFINE_string(
    "workers",
    None,
    "TensorFlow workers to train on, host:port,host:port; `python -m mtf_hetero.worker` is one. By default those that "
    "TF_CONFIG or Slurm names, if any.",
)
_LOCAL_CLUSTER = flags.DEFINE_string(
    "local_cluster",
    None,
    "Starts workers on this machine, each with so many cores, such as 1.0,0.5,0.25: unequal devices to try things on.",
)
_SEED = flags.DEFINE_integer("seed", _DEFAULTS.seed, "Seed of the initial values and of the order of the data.")
_SAVE_CHECKPOINTS_SECS = flags.DEFINE_integer(
    "save_checkpoints_secs", _DEFAULTS.save_checkpoints_secs, "Seconds between checkpoints."
)

_TRACE_STEPS = flags.DEFINE_list(
    "trace_steps",
    [],
    "Steps of this run to trace, such as 5,50: a Chrome trace and a table of where the time goes, in MODEL_DIR/traces.",
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Says how everything is divided and how much memory each device needs, and trains nothing."
)
_WIRE_DTYPE = flags.DEFINE_string(
    "wire_dtype",
    None,
    f"{' or '.join(config_lib.WIRE_DTYPES)}: numbers are rounded to it where they are sent between devices, which "
    "halves the bytes and makes results depend on the layout. By default nothing is rounded.",
)


def read_config() -> config_lib.Config:
    """The configuration that the flags ask for.

    Raises:
      ValueError: a value that is out of range.
    """
    return config_lib.Config(
        model=_MODEL.value,
        dataset=_DATASET.value,
        data_dir=_DATA_DIR.value,
        model_dir=_MODEL_DIR.value or None,
        batch_size=_BATCH_SIZE.value,
        train_epochs=_TRAIN_EPOCHS.value,
        augment=_AUGMENT.value,
        max_steps=_MAX_STEPS.value,
        optimizer=_OPTIMIZER.value,
        learning_rate=_LEARNING_RATE.value,
        learning_rate_schedule=_LEARNING_RATE_SCHEDULE.value,
        mesh_shape=_MESH_SHAPE.value,
        layout=_LAYOUT.value,
        list_speed=_LIST_SPEED.value,
        memory_limit=_MEMORY_LIMIT.value,
        measure_seconds=_MEASURE_SECONDS.value,
        dense_shares=_DENSE_SHARES.value,
        dense_rounds=_DENSE_ROUNDS.value,
        recompute=tuple(_RECOMPUTE.value),
        devices=None if _DEVICES.value is None else tuple(_DEVICES.value),
        workers=_WORKERS.value,
        local_cluster=_LOCAL_CLUSTER.value,
        wire_dtype=_WIRE_DTYPE.value,
        seed=_SEED.value,
        save_checkpoints_secs=_SAVE_CHECKPOINTS_SECS.value,
        trace_steps=config_lib.parse_trace_steps(_TRACE_STEPS.value),
        dry_run=_DRY_RUN.value,
    )


def main(argv: Sequence[str]) -> int:
    """Trains as the flags say; returns the exit code."""
    run = None
    try:
        with leaving.StopOnSignal() as stop, contextlib.ExitStack() as stack:
            try:
                if len(argv) > 1:
                    raise ValueError(f"{argv[1]!r} is not a flag; write --name=value")
                config = read_config()
                if config.local_cluster is not None:
                    isolation.enter()
                # TensorFlow is loaded once the flags are known to be right; its start-up messages are not for the user
                with command_line.stderr_held_back():
                    from mtf_hetero.models.train.prepare import measure, prepare

                    run = prepare(config, stack)
                stop.check()
                if config.list_speed == config_lib.AUTO:
                    run = measure(run)
                stop.check()
                if config.dry_run:
                    print(run.describe(), run.describe_memory(), sep="\n")
                    return 0
            except (ValueError, NotImplementedError) as error:
                command_line.say(error)
                return command_line.WRONG_USAGE
            return run.train()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # nobody reads the standard output any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except SystemExit as end:  # after SIGHUP or SIGTERM; mtf_hetero.Estimator has saved
        if end.code not in leaving.EXIT_CODES:
            raise
        code = int(end.code)
    leaving.say(f"stopped: {'nothing was trained' if run is None else run.how_to_resume()}")
    return code


if __name__ == "__main__":
    command_line.open_standard_streams()
    try:
        app.run(main, flags_parser=command_line.parse_flags)
    except SystemExit as end:
        leaving.leave(end.code if isinstance(end.code, int) else 1)
