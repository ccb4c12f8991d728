"""Image files: their sizes, their pixels in a pipeline, and the shape to which they are resized.

TensorFlow's own operations read and decode them, on the machine of the processor that needs them.
"""

import collections
import concurrent.futures
import filecmp
import functools
import math
import os
import random
import types
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import extras
from mtf_hetero.data.dataset import Dataset
from mtf_hetero.data.listing import Photo, join_names, list_images
from mtf_hetero.data.orientation import TAG, TRANSPOSED, upright
from mtf_hetero.data.records import assert_usable, cached
from mtf_hetero.data.source import CompressedConstant, CompressedStrings, Source

CHECKED = 10_000  # files opened at the start, for their sizes
_PARALLEL_READS = 8  # of which some wait for a drive, and others decode
_THREADS = 8  # to open files at the start: on a network drive each thread waits
_KINDS = {"JPEG", "PNG", "MPO"}  # of Pillow; MPO is a JPEG file with further images, from some telephones
_GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "F"}
_TAIL_BYTES = 4096  # in which an intact file has its end marker; if not, the image is decoded
_END = {"PNG": b"IEND", "JPEG": b"\xff\xd9", "MPO": b"\xff\xd9"}
_SHOWN_SIZES = 4  # in the message on images of several sizes

_MISSING = "it is missing or empty on the machine that reads it; each worker needs the same files at the same paths"
_DAMAGED = "TensorFlow cannot decode it, or it is cut off; replace or remove it"


class Look(NamedTuple):
    """Facts from the first and the last bytes of an image file.

    Args:
      size: (height, width).
      mode: Pillow's name for its kind of pixels.
      file_bytes: size of the file.
      tail: a checksum of its last bytes.
    """

    size: tuple[int, int]
    mode: str
    file_bytes: int
    tail: int


def load_files(name: str, path: str, *, size: Sequence[int], seed: int, class_names: Sequence[str]) -> Dataset:
    """Find the image files of a directory or of a CSV file, and read the headers of up to 10,000 of them.

    Args:
      name: of the data set, for messages.
      path: of the directory or of the file.
      size: height and width to which images are brought; none: they have one size.
      seed: of the choice of test images.
      class_names: the classes of a network; none: all classes found.

    Raises:
      ValueError: in one line, what is wrong with which file.
    """
    listed = list_images(path, seed=seed, class_names=class_names)
    shape, notes = survey([photo for photos in listed.photos.values() for photo in photos], name, size)
    numbers = {name: number for number, name in enumerate(listed.class_names)}
    sources = {}
    for split, photos in listed.photos.items():
        labels = np.array([numbers[photo.class_name] for photo in photos], np.int32)
        sources[split] = source_of_files([photo.path for photo in photos], labels, shape, resize=bool(size))
    return Dataset.of_sources(name, shape, listed.class_names, sources, listed.digest, (*listed.notes, *notes))


def survey(photos: Sequence[Photo], name: str, size: Sequence[int]) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Read the headers of up to 10,000 images; return the shape to which all are resized, and lines for the user.

    The images have one channel if all of these are grey, else three.

    Args:
      photos: the images.
      name: of the data set, for messages.
      size: height and width that all images get; none: that of each of them.

    Raises:
      ValueError: an image is damaged or of another kind, or sizes differ and `size` is none.
    """
    # The same ones in each run: whether a fault is found must not depend on chance
    chosen = photos if len(photos) <= CHECKED else random.Random(0).sample(photos, CHECKED)
    found = look_at([(photo.path, photo.place) for photo in chosen])
    channels = 1 if all(look.mode in _GREY for look in found) else 3
    sizes = collections.Counter(look.size for look in found)
    if not size and len(sizes) > 1:
        raise ValueError(_several_sizes(name, sizes))
    height, width = size or next(iter(sizes))
    return (height, width, channels), _describe_copies(chosen, found)


def _describe_copies(photos: Sequence[Photo], found: Sequence[Look]) -> tuple[str, ...]:
    first: dict[Look, Photo] = {}
    copies = [
        (photo, original)
        for photo, look in zip(photos, found, strict=True)
        if (original := first.setdefault(look, photo)) is not photo
        and filecmp.cmp(photo.path, original.path, shallow=False)
    ]
    if not copies:
        return ()
    are = "1 image is a copy of another" if len(copies) == 1 else f"{len(copies):,} images are copies of others"
    return (f"warning: {are}, such as {copies[0][0].place} of {copies[0][1].place}",)


def look_at(files: Sequence[tuple[str, str]]) -> list[Look]:
    """Read the first and the last bytes of image files.

    A file without an end mark is decoded, to see whether it is complete.

    Args:
      files: (path, name in an error).

    Raises:
      ValueError: a file is damaged, or of another kind than JPEG and PNG.
    """
    image = extras.import_package("PIL.Image", extra="train", user="an image file")
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda file: _look_at(image, *file), files))


def _look_at(image: types.ModuleType, path: str, place: str) -> Look:
    tail, size = b"", os.path.getsize(path)
    try:
        with image.open(path) as opened, open(path, "rb") as file:
            kind, mode, height, width = opened.format, opened.mode, opened.height, opened.width
            if kind != "PNG" and opened.getexif().get(TAG) in TRANSPOSED:  # that of a PNG decodes it
                height, width = width, height
            if kind in _KINDS:
                file.seek(-min(_TAIL_BYTES, size), os.SEEK_END)
                tail = file.read()
                if _END[kind] not in tail:
                    opened.load()
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file
        raise ValueError(f"{place} is not an intact JPEG or PNG image ({error}); replace or remove it") from error
    if kind not in _KINDS:
        raise ValueError(f"{place} is a {kind} image; convert it to JPEG or PNG, or remove it")
    return Look((height, width), mode, size, zlib.crc32(tail))


def _several_sizes(name: str, sizes: "collections.Counter[tuple[int, int]]") -> str:
    shown = join_names([f"{height} x {width}" for (height, width), _ in sizes.most_common()], _SHOWN_SIZES)
    smallest = min(min(size) for size in sizes)
    return (
        f"dataset {name!r} has images of {len(sizes)} sizes: {shown} (height x width); give one size "
        f"for all with --image_size=HEIGHT,WIDTH, such as --image_size={smallest}"
    )


def source_of_files(paths: Sequence[str], labels: np.ndarray, shape: Sequence[int], *, resize: bool) -> Source:
    """Make a source of image files. Images that are read several times are cached while memory is left.

    Args:
      paths: of the files, on each machine that reads them.
      labels: integers [files].
      shape: (height, width, channels) of all images.
      resize: whether `crop_and_resize` resizes images of other sizes; else they are refused.
    """
    stored, classes = CompressedStrings([os.fsencode(path) for path in paths]), CompressedConstant(labels)

    def reader(kept_bytes: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        path_of, label_of, most = stored.lookup(), classes.lookup(), kept_bytes // math.prod(shape)
        decoded = functools.partial(decode, shape=shape, resize=resize)
        strings = cached(lambda keys: tf.io.serialize_tensor(decoded(path_of(keys[0])))[None], most)

        def example(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if not most:
                return decoded(path_of(index)), label_of(index)
            image = tf.io.parse_tensor(strings(index[None])[0], tf.uint8)
            return tf.ensure_shape(image, shape), label_of(index)

        return example

    return Source(len(paths), reader, _PARALLEL_READS, keeps=True, names=paths)


def decode(path: tf.Tensor, shape: Sequence[int], *, resize: bool) -> tf.Tensor:
    """Read and decode an image file: uint8 [height, width, channels].

    Args:
      path: of the file, a string.
      shape: (height, width, channels).
      resize: whether an image of another size is resized; else it is refused.

    Raises:
      InvalidArgumentError: in the pipeline, as `unreadable_as_value_error` understands it, with the path.
    """
    content = or_else(path, tf.io.read_file, "")
    with tf.control_dependencies([assert_usable(tf.not_equal(content, ""), path, _MISSING)]):
        content = tf.identity(content)

    def decoded(content: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(content, channels=shape[-1], expand_animations=False)
        image = upright(image, content)
        image.set_shape([None, None, shape[-1]])
        return image

    image = or_else(content, decoded, tf.zeros([0, 0, shape[-1]], tf.uint8))
    problem, usable = tf.constant(_DAMAGED), tf.size(image) > 0
    if not resize:
        has = tf.strings.join([tf.strings.as_string(size) for size in tf.unstack(tf.shape(image)[:2])], " x ")
        wanted = f"{shape[0]} x {shape[1]}"
        other = f", but the images of the set are {wanted}; give one size for all with --image_size, or remove it"
        problem = tf.where_v2(usable, tf.strings.join(["it is ", has, other]), problem)
        usable &= tf.reduce_all(tf.equal(tf.shape(image), list(shape)))
    with tf.control_dependencies([assert_usable(usable, path, problem)]):
        image = tf.identity(image)
    return crop_and_resize(image, shape[:2]) if resize else tf.ensure_shape(image, shape)


def or_else(value: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor], otherwise: tf.Tensor | str) -> tf.Tensor:
    """Apply a TensorFlow function to a value; if the function fails, return another tensor of the same type."""
    made = tf.data.Dataset.from_tensors(value).map(function).ignore_errors()
    return made.concatenate(tf.data.Dataset.from_tensors(otherwise)).take(1).get_single_element()


def crop_and_resize(image: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Crop an image around its centre to the aspect ratio of a size, and resize it to this size.

    The interpolation is bilinear, with antialiasing. An image of this size stays as it is.

    Args:
      image: uint8 [height, width, channels].
      size: (height, width).

    Returns:
      uint8 of the new size.
    """
    height, width = size
    has = tf.shape(image)[:2]
    part = tf.maximum(tf.minimum(has, tf.reverse(has, [0]) * [height, width] // [width, height]), 1)
    image = tf.slice(image, tf.concat([(has - part) // 2, [0]], 0), tf.concat([part, [-1]], 0))
    scaled = tf.compat.v2.image.resize(image, size, antialias=True)
    return tf.cast(tf.round(tf.clip_by_value(scaled, 0.0, 255.0)), tf.uint8)
