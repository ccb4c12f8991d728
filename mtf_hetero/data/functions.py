"""A user's function that returns data sets of tf.data, as `module:function`.

The training process calls it once and reads the result into memory. Workers get the elements with the graph, so that
they may come from anywhere. If the elements are file names, `decode` makes images from them in each worker's pipeline.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, functions
from mtf_hetero.data.cutting import list_nodes
from mtf_hetero.data.dataset import Dataset
from mtf_hetero.data.examples import read_here
from mtf_hetero.data.pictures import crop_and_resize
from mtf_hetero.data.records import assert_usable
from mtf_hetero.data.source import TEST, TRAIN, CompressedConstant, CompressedStrings, Source

MOST_BYTES = 2**28  # the elements become part of the graph
_KEYS = {TRAIN, TEST, "classes", "class_names", "decode"}
_READ = 500  # elements at a time: their bytes are counted after each time
_PARALLEL = 8  # calls of `decode`, of which some wait for files
_CONTRACT = "it must return (train, test), two data sets of (image, label), or a dict of 'train' and 'test'"


def call_function(name: str, *, size: Sequence[int]) -> Dataset:
    """Call a function, and read the elements of the data sets that it returns.

    Args:
      name: "module:function", for `_support.functions`.
      size: height and width to which images are resized; none: all have one size.

    Raises:
      ValueError: the fault in one line.
    """
    function = functions.load_function("dataset", name)
    with tf.Graph().as_default():
        parts = _convert(name, function())
        elements = {split: _read(name, split, parts[split]) for split in (TRAIN, TEST)}
        decode = parts.get("decode")
    if decode is not None and (parts.get("classes") or parts.get("class_names")) is None:
        raise ValueError(f"dataset {name!r} has 'decode' and no 'classes'; give their number, or 'class_names'")
    with tf.Graph().as_default() as graph:
        shape = _image_shape(name, elements[TRAIN], decode, size)
        _check_plain(name, graph)
    names = _names(name, parts, elements, decode)
    sources = {
        split: _source(f"of the {split} images of {name}", part, decode, shape, len(names))
        for split, part in elements.items()
    }
    return Dataset.of_sources(name, shape, names, sources, _digest(elements))


@dataclasses.dataclass(frozen=True, eq=False)
class _Elements:
    """The elements of a data set.

    Args:
      structure: of one, with tensor specifications as its leaves.
      arrays: one for each leaf, [elements, ...].
    """

    structure: Any
    arrays: list[np.ndarray]

    @property
    def count(self) -> int:
        return len(self.arrays[0])


def _convert(name: str, returned: object) -> Mapping[str, Any]:
    """Convert the result of a function to a dict."""
    parts = returned
    if isinstance(returned, Sequence) and len(returned) == 2:
        parts = {TRAIN: returned[0], TEST: returned[1]}
    if not isinstance(parts, Mapping):
        raise ValueError(f"dataset {name!r} is made by a function that returned {_kind(returned)}; {_CONTRACT}")
    if unknown := sorted(map(str, parts.keys() - _KEYS)):
        raise ValueError(f"dataset {name!r} has {unknown[0]!r}; a dict has the keys {', '.join(sorted(_KEYS))}")
    for split in (TRAIN, TEST):
        if not isinstance(parts.get(split), tf.compat.v2.data.Dataset):
            raise ValueError(f"dataset {name!r} has {_kind(parts.get(split))} as {split!r}; {_CONTRACT}")
    return parts


def _kind(value: object) -> str:
    if tf.is_tensor(value):
        return "one tensor"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _read(name: str, split: str, dataset: tf.data.Dataset) -> _Elements:
    """Read all elements of a data set in this process."""
    structure = tf.compat.v2.data.experimental.get_structure(dataset)
    leaves = tf.nest.flatten(structure)
    for spec in leaves:
        known = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not known or (spec.dtype == tf.string and spec.shape.rank):
            raise ValueError(
                f"dataset {name!r} has {split!r} elements of {structure}; give each the same shape, unbatched, or file "
                "names and 'decode'"
            )
    parts, size = [], 0
    try:
        for arrays in read_here(dataset.batch(_READ)):
            parts.append(arrays)
            size += sum(array.nbytes for array in arrays)
            if size > MOST_BYTES:
                raise ValueError(
                    f"dataset {name!r} has more than {MOST_BYTES // 2**20} MiB of {split!r} elements, which are kept "
                    "in memory; return file names and 'decode', or give a folder of images"
                )
    except tf.errors.OpError as error:
        raise ValueError(f"dataset {name!r} cannot be read: {' '.join(error.message.split())[:500]}") from error
    if split == TRAIN and not parts:
        raise ValueError(f"dataset {name!r} has no {split!r} elements; give some")
    if not parts:
        parts = [[np.zeros([0, *spec.shape.as_list()], spec.dtype.as_numpy_dtype) for spec in leaves]]
    return _Elements(structure, [np.concatenate(arrays) for arrays in zip(*parts, strict=True)])


def _image_shape(
    name: str, elements: _Elements, decode: Callable[..., object] | None, size: Sequence[int]
) -> tuple[int, int, int]:
    """Check an example in a new graph, and return the shape of the images."""
    leaves = [tf.placeholder(spec.dtype, spec.shape) for spec in tf.nest.flatten(elements.structure)]
    example = _example(name, elements.structure, decode, leaves)
    image: Any
    label: Any
    image, label = example if isinstance(example, tuple) and len(example) == 2 else (None, None)
    if not tf.is_tensor(image) or not tf.is_tensor(label):
        made = "'decode' returns" if decode is not None else "its elements are"
        raise ValueError(f"dataset {name!r}: {made} {_kind(example)}; give pairs (image, label) of tensors")
    if label.shape.rank not in (0, None) or not label.dtype.is_integer:
        raise ValueError(
            f"dataset {name!r} has labels of {_spec(label)}; give one whole number for each image, from 0 on"
        )
    shape = image.shape.as_list() if image.shape.rank is not None else [None] * 3
    fixed: list[Any] = [*size, *shape[2:]] if size else shape
    if image.dtype != tf.uint8 or len(fixed) != 3 or None in fixed:
        raise ValueError(
            f"dataset {name!r} has images of {_spec(image)}; give uint8 [height, width, channels], from 0 to 255, "
            "unbatched, of a known size (or --image_size) and a known number of channels"
        )
    height, width, channels = fixed
    return height, width, channels


def _spec(tensor: tf.Tensor) -> str:
    return f"{tensor.dtype.name} {tensor.shape}"


def _example(name: str, structure: Any, decode: Callable[..., object] | None, leaves: Sequence[tf.Tensor]) -> Any:
    element = tf.nest.pack_sequence_as(structure, leaves)
    if decode is None:
        return element
    try:
        return decode(*element) if isinstance(element, tuple) else decode(element)
    except Exception as error:
        raise ValueError(f"dataset {name!r}: 'decode' fails: {functions.describe_error(error)}; correct it") from error


def _check_plain(name: str, graph: tf.Graph) -> None:
    """Raise ValueError if operations of a graph call Python, which a worker cannot do."""
    if found := sorted({node.op for node in list_nodes(graph)} & facts.PYTHON):
        raise ValueError(
            f"dataset {name!r}: 'decode' calls Python ({found[0]}), which workers cannot; write it with TensorFlow's "
            "operations"
        )


def _names(
    name: str,
    parts: Mapping[str, Any],
    elements: Mapping[str, _Elements],
    decode: Callable[..., object] | None,
) -> tuple[str, ...]:
    """Return the names of the classes, and check the labels that are in memory."""
    names = tuple(map(str, parts.get("class_names") or ()))
    classes = parts.get("classes") or len(names)
    if decode is None:
        labels = {split: part.arrays[1] for split, part in elements.items()}
        classes = classes or int(labels[TRAIN].max(initial=-1)) + 1
        for split, part in labels.items():
            wrong = np.flatnonzero((part < 0) | (part >= classes))
            if len(wrong):
                raise ValueError(
                    f"dataset {name!r}: {split!r} element {wrong[0]} has the label {part[wrong[0]]}; with {classes} "
                    f"classes it must be 0 to {classes - 1}"
                )
    if not isinstance(classes, int) or classes < 2 or (names and len(names) != classes):
        raise ValueError(
            f"dataset {name!r} has {classes!r} classes and {len(names)} class names; give two or more of one number"
        )
    return names or tuple(map(str, range(classes)))


def _digest(elements: Mapping[str, _Elements]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split, part in elements.items():
        digest.update(split.encode())
        for array in part.arrays:
            digest.update(b"\0".join(array.tolist()) if array.dtype == object else array.tobytes())
    return digest.hexdigest()


def _source(
    name: str, elements: _Elements, decode: Callable[..., object] | None, shape: Sequence[int], classes: int
) -> Source:
    stored = [
        CompressedStrings(array.tolist()) if array.dtype == object else CompressedConstant(array)
        for array in elements.arrays
    ]

    def reader(kept_bytes: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        lookups = [array.lookup() for array in stored]

        def example(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image, label = _example(name, elements.structure, decode, [lookup(index) for lookup in lookups])
            if image.shape.as_list() != list(shape):
                image = crop_and_resize(image, shape[:2])
            label = tf.cast(label, tf.int32)
            number = tf.strings.join(["example ", tf.strings.as_string(index), f" {name}"])
            problem = tf.strings.join(
                [
                    "its label is ",
                    tf.strings.as_string(label),
                    f"; with {classes} classes it must be 0 to {classes - 1}",
                ]
            )
            usable = (label >= 0) & (label < classes)
            with tf.control_dependencies([assert_usable(usable, number, problem)]):
                return tf.ensure_shape(image, shape), tf.identity(label)

        return example

    return Source(elements.count, reader, _PARALLEL, keeps=True)
