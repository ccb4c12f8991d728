"""Write a data set in the format of tensorflow-datasets, from files on this machine."""

import dataclasses
import importlib
import io
import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from mtf_hetero._support import extras
from mtf_hetero.data.known import PREPARED_SETS
from mtf_hetero.data.prepared import data_root, find
from mtf_hetero.data.preparing import sources
from mtf_hetero.data.source import TEST, TRAIN

_READERS: Mapping[str, Callable[[pathlib.Path], sources.Examples]] = MappingProxyType(
    {"mnist": sources.read_idx, "fashion_mnist": sources.read_idx, "cifar10": sources.read_cifar10}
)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The directory of a set, and whether it existed before."""

    directory: pathlib.Path
    was_there: bool


def prepare(
    name: str, source: str, data_dir: str | None = None, *, counts: Mapping[str, int] | None = None
) -> Prepared:
    """Write a set from local files; afterwards `tfds.load(name, data_dir=..., download=False)` finds it.

    The set is written beside its place and moved there at the end, so that an interrupted run leaves no partial set.

    Args:
      name: one of PREPARED_SETS.
      source: a directory, a tar archive or a Debian package that holds the set's files.
      data_dir: of tfds; None: ~/tensorflow_datasets.
      counts: required number of images per split; None: the numbers of the real set.

    Raises:
      ValueError: the name is unknown, the source lacks the set, data_dir cannot be written to, or
        tensorflow-datasets is not installed.
    """
    check_name(name)
    builder_class = _tfds(name).builder_cls(name)
    root = data_root(data_dir)
    there = find(f"{name}:{builder_class.VERSION}", root)
    if there is not None:
        return Prepared(there, was_there=True)
    path = pathlib.Path(source).expanduser()
    examples = _READERS[name](path)
    known = PREPARED_SETS[name]
    _check_counts(path, examples, counts or {TRAIN: known.train_size, TEST: known.test_size})
    _check_pictures(examples)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Prepared(_write(builder_class, examples, root), was_there=False)
    except OSError as error:
        raise ValueError(
            f"data_dir {root} cannot be written to ({error.strerror or error}); choose another with --data_dir"
        ) from error


def check_name(name: str) -> None:
    """Raise ValueError unless a set can be prepared from files."""
    if name not in PREPARED_SETS:
        raise ValueError(
            f"dataset {name!r} cannot be prepared from files; it must be one of {', '.join(PREPARED_SETS)}"
        )


def _tfds(name: str) -> ModuleType:
    return extras.import_package("tensorflow_datasets", extra="train", user=f"dataset {name!r}")  # slow to import


def _check_counts(path: pathlib.Path, examples: sources.Examples, counts: Mapping[str, int]) -> None:
    for split, count in counts.items():
        if len(examples[split]) != count:
            raise ValueError(
                f"{path} holds {len(examples[split]):,} {split} images, but the set has {count:,}; give all of it"
            )


def _write(official: Any, examples: sources.Examples, root: pathlib.Path) -> pathlib.Path:
    tfds = _tfds(official.name)
    place = root / official.name / str(official.VERSION)
    with tempfile.TemporaryDirectory(prefix=f".preparing_{official.name}_", dir=root) as temporary:
        builder = _builder_class(official, examples)(data_dir=temporary)
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
        place.parent.mkdir(exist_ok=True)
        shutil.move(pathlib.Path(temporary) / official.name / str(official.VERSION), place)
    return place


def _builder_class(official: Any, examples: sources.Examples) -> Any:
    """Return the official builder, with its name, version and features, for examples in memory."""
    registered = importlib.import_module("tensorflow_datasets.core.registered")

    def split_generators(self: Any, dl_manager: Any) -> dict[str, Any]:
        features = self.info.features
        if "id" in features:  # CIFAR-10's own builder reads the names of the classes from its download
            features["label"].names = list(sources.CIFAR_CLASSES)
        return {split: _records(split, features, examples[split]) for split in examples}

    with registered.skip_registration():
        return type(
            official.__name__,
            (official,),
            {
                "__module__": official.__module__,
                "name": official.name,
                "pkg_dir_path": official._get_pkg_dir_path(),
                "code_path": None,  # of the checksums of downloads; the search for it needs importlib_resources
                "_split_generators": split_generators,
            },
        )


def _records(split: str, features: Any, examples: list[sources.Example]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (key, example) like the official builder. An encoded picture is stored as it is."""
    for index, (image, label) in enumerate(examples):
        stored = io.BytesIO(image.content) if isinstance(image, sources.Picture) else image
        record = {"image": stored, "label": label}
        yield index, {**record, "id": f"{split}_{index:05d}"} if "id" in features else record


def _check_pictures(examples: sources.Examples) -> None:
    """Raise ValueError if an image file is damaged or has another size than CIFAR-10's."""
    from mtf_hetero._compat import tf  # here, so that programs can check their flags before it is loaded

    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        content = tf.placeholder(tf.string, [])
        shape = tf.shape(tf.io.decode_image(content, expand_animations=False))
        shape_of = session.make_callable(shape, [content])
        for image, _ in itertools.chain.from_iterable(examples.values()):
            if isinstance(image, sources.Picture):
                try:
                    image_shape = tuple(shape_of(image.content).tolist())
                except tf.errors.InvalidArgumentError as error:
                    raise ValueError(f"{image.name} is damaged or not an image; get the source again") from error
                if image_shape != sources.CIFAR_SHAPE:
                    raise ValueError(
                        f"{image.name} has the shape {image_shape}, but CIFAR-10's images have {sources.CIFAR_SHAPE}; "
                        "give the right source"
                    )
