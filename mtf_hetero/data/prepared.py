"""Image sets that tensorflow-datasets has prepared in a directory. tfds itself would try the network first."""

import json
import os
import pathlib
import re
import types
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import extras
from mtf_hetero.data.known import DATASETS, PREPARED_SETS, PreparedSet
from mtf_hetero.data.source import TEST, TRAIN, Source

if TYPE_CHECKING:
    from mtf_hetero.data.dataset import Dataset

DEFAULT_DIR = "~/tensorflow_datasets"
_INFO = "dataset_info.json"
_FEATURES = "features.json"
_NAME = re.compile(r"\w+([/:][\w.+-]+)*")


def _version(path: pathlib.Path) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", path.name))


def find(name: str, root: pathlib.Path) -> pathlib.Path | None:
    """Return the directory of the newest prepared version of a set, or None.

    Args:
      name: NAME, NAME/CONFIG, and either with :VERSION.
      root: data_dir of tfds.

    Raises:
      ValueError: several configurations are prepared and none is named.
    """
    if not _NAME.fullmatch(name):
        return None
    base = root / name.replace(":", "/")
    if (base / _INFO).is_file():
        return base
    for pattern in ("*", "*/*"):
        versions = [path.parent for path in base.glob(f"{pattern}/{_INFO}")]
        configs = sorted({path.parent.name for path in versions}) if pattern == "*/*" else []
        if len(configs) > 1:
            raise ValueError(
                f"dataset {name!r} is prepared in {len(configs)} configurations; name one: {name}/{configs[0]}"
            )
        if versions:
            return max(versions, key=_version)
    return None


def data_root(data_dir: str | None) -> pathlib.Path:
    """Return data_dir of tfds; None: ~/tensorflow_datasets."""
    return pathlib.Path(data_dir or DEFAULT_DIR).expanduser()


def load(name: str, data_dir: str | None, *, needs_images: bool = True) -> "Dataset":
    """Find a prepared set.

    Args:
      name: NAME, NAME/CONFIG, and either with :VERSION.
      data_dir: of tfds; None: ~/tensorflow_datasets.
      needs_images: False gives one of PREPARED_SETS without its images if it is not prepared.

    Raises:
      ValueError: the set is missing or damaged, or lacks 8-bit images of one size with a label each; or
        tensorflow-datasets is not installed.
    """
    root = data_root(data_dir)
    directory = find(name, root)
    if directory is None and not needs_images and (known := PREPARED_SETS.get(name)):
        return _without_images(known)
    if directory is None:
        raise ValueError(_how_to_prepare(name, root))
    # slow to import, and needed only for a prepared set
    tfds = extras.import_package("tensorflow_datasets", extra="train", user=f"dataset {name!r}")
    from mtf_hetero._compat import tf
    from mtf_hetero.data.dataset import Dataset
    from mtf_hetero.data.records import source_of_records

    info = _info(directory, tfds)
    image_shape = _image_shape(name, info, tfds)
    names = tuple(info.features["label"].names)

    def decode(record: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        example = info.features.deserialize_example(record)
        return tf.ensure_shape(example["image"], image_shape), example["label"]

    parts = {split: info.splits[split] for split in (TRAIN, TEST)}
    sources = {
        split: source_of_records([*map(os.fspath, part.filepaths)], part.shard_lengths, decode)
        for split, part in parts.items()
    }
    return Dataset.of_sources(name, image_shape, names, sources)


def _without_images(known: PreparedSet) -> "Dataset":
    """Return a set with black images in place of its own."""
    from mtf_hetero._compat import tf
    from mtf_hetero.data.dataset import Dataset

    def black(index: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        return tf.zeros(known.image_shape, tf.uint8), tf.zeros([], tf.int64)

    sizes, channels = {TRAIN: known.train_size, TEST: known.test_size}, known.image_shape[-1]
    return Dataset(
        known.name,
        known.image_shape,
        known.classes,
        sizes[TRAIN],
        sizes[TEST],
        lambda split: Source(sizes[split], lambda kept_bytes: black),
        notes=(f"{known.name} is not prepared here, but the sizes of its images are known",),
        known_statistics=([0.5] * channels, [0.25] * channels),
    )


def _info(directory: pathlib.Path, tfds: types.ModuleType) -> Any:
    """Return tensorflow-datasets' information about a set."""
    remedy = "prepare the data set again"
    for path in (directory / _INFO, directory / _FEATURES):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged at byte {error.pos:,} ({error.msg}); {remedy}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is damaged at byte {error.start:,} ({error.reason}); {remedy}") from error
    try:
        return tfds.builder_from_directory(str(directory)).info
    except Exception as error:  # several libraries parse the files, and each has its own errors
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{directory / _INFO} or {_FEATURES} beside it is damaged ({told}); {remedy}") from error


def _how_to_prepare(name: str, root: pathlib.Path) -> str:
    told = f"dataset {name!r} is neither built in ({', '.join(DATASETS)}) nor prepared in {root}; "
    known = PREPARED_SETS.get(name.split(":")[0])
    if known is None:
        return (
            f"{told}give your own images as a directory, a .csv or .npz file, or module:function; or, if "
            f"tensorflow-datasets has this set, prepare it with: tfds build {name} --data_dir={root}"
        )
    return f"{told}prepare it with: {known.command(root)} ({known.where})"


def _image_shape(name: str, info: Any, tfds: types.ModuleType) -> tuple[int, int, int]:
    features = dict(info.features.items()) if isinstance(info.features, tfds.features.FeaturesDict) else {}
    image: Any = features.get("image")
    label: Any = features.get("label")
    shape = tuple(image.shape) if isinstance(image, tfds.features.Image) else ()
    if len(shape) != 3 or None in shape or image.np_dtype != "uint8":
        raise ValueError(
            f"dataset {name!r} has no 8-bit images of one size; choose a set that has, cifar10 for instance"
        )
    if not isinstance(label, tfds.features.ClassLabel):
        raise ValueError(f"dataset {name!r} has no class labels; choose a set that has, cifar10 for instance")
    if info.file_format != tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f"dataset {name!r} is prepared as {info.file_format.value}; prepare it again with --file_format=tfrecord"
        )
    for split in (TRAIN, TEST):
        if split not in info.splits or not info.splits[split].num_examples:
            raise ValueError(f"dataset {name!r} has no {split!r} split; choose a set that has, cifar10 for instance")
    return shape


def prepared_names(root: pathlib.Path) -> list[str]:
    """Return the sets that are prepared in a directory, NAME/VERSION or NAME/CONFIG/VERSION."""
    paths = [path.parent.relative_to(root) for pattern in ("*/*", "*/*/*") for path in root.glob(f"{pattern}/{_INFO}")]
    return sorted(path.as_posix() for path in paths if not path.parts[0].startswith("."))
