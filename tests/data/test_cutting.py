"""Pipelines that are cut in front of their functions have the same batches, in the same order, as TensorFlow's own."""

import re

import keras
import numpy as np
import pytest

from mtf_hetero import tf
from mtf_hetero.data.batches import Batches, batches_in, values
from mtf_hetero.data.cutting import cut

Dataset = tf.compat.v2.data.Dataset
COUNT = 23
LABELS = np.arange(COUNT) % 5
ROWS = np.random.default_rng(0).standard_normal((COUNT, 16, 8, 3))  # 3 kB each
SMALL = ROWS[:, 0, 0]
TABLE = np.random.default_rng(1).standard_normal((7, 3))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = rng.integers(0, 255, (5 + number % 3, 6, 3)).astype(np.uint8)
        tf.io.write_file(str(folder / f"{number % 5}" / f"{number:02}.png"), tf.io.encode_png(pixels))
    return [str(path) for path in sorted(folder.glob("*/*.png"))]


def image(path):
    pixels = tf.image.resize(tf.io.decode_png(tf.io.read_file(path), channels=3), (4, 4))
    return tf.ensure_shape(pixels, (4, 4, 3)) / 255.0


def read(path, *more):
    return image(path), *more


def sliced(first, *more):
    return Dataset.from_tensor_slices((first, *more) if more else first)


def folder(paths):
    where = paths[0].rpartition("/")[0].rpartition("/")[0]
    options = {"batch_size": 4, "image_size": (5, 6), "seed": 2, "verbose": False}
    return keras.utils.image_dataset_from_directory(where, **options)


def class_weights(paths):
    adapters = pytest.importorskip("keras.src.trainers.data_adapters.tf_dataset_adapter")
    weigh = adapters.make_class_weight_map_fn({0: 1.0, 1: 3.0, 4: 0.5})
    return sliced(paths, LABELS).map(read).batch(4).map(weigh).prefetch(1)


CUT = {
    "files": lambda paths: sliced(paths, LABELS).map(read).batch(4),
    "files in parallel": lambda paths: sliced(paths, LABELS).map(read, tf.data.AUTOTUNE).batch(4, num_parallel_calls=2),
    "shuffled with a seed": lambda paths: sliced(paths, LABELS).shuffle(7, seed=3).map(read).batch(4).prefetch(2),
    "shuffled once": lambda paths: (
        sliced(paths, LABELS).shuffle(7, 3, reshuffle_each_iteration=False).map(read).batch(4)
    ),
    "a folder of Keras": folder,
    "two functions": lambda paths: sliced(paths).map(read).map(lambda x: (x[::-1], tf.reduce_sum(x))).batch(4),
    "side by side": lambda paths: Dataset.zip((sliced(paths).map(read), (sliced(LABELS), sliced(SMALL)))).batch(4),
    "a dict": lambda paths: sliced(paths, LABELS).map(lambda p, y: {"y": y, "x": image(p)}).batch(4),
    "of a dict": lambda paths: sliced({"path": paths, "a": LABELS}).map(lambda e: (image(e["path"]), e["a"])).batch(4),
    "a part of it": lambda paths: sliced(paths).skip(1).map(read).take(15).shard(2, 1).repeat(3).batch(4).take(4),
    "batches again": lambda paths: sliced(paths).map(read).batch(4, drop_remainder=True).repeat(2).skip(1),
    "constants": lambda paths: sliced(LABELS).map(lambda y: (tf.gather(TABLE, y), y)).batch(4),
    "options": lambda paths: sliced(paths).map(read).batch(4).with_options(tf.data.Options()),
    "functions of batches": lambda paths: (
        sliced(paths, LABELS)
        .map(read)
        .batch(4)
        .map(lambda x, y: (tf.nn.relu(x - 0.5) * [1.0, 2.0, 3.0], tf.one_hot(y, 5)))
    ),
    "functions of batches alone": lambda paths: sliced(SMALL, LABELS).batch(4).map(lambda x, y: (x / 255.0, y)),
    "class weights": class_weights,
    "a generator": lambda paths: (
        Dataset.from_generator(lambda: iter(LABELS), output_signature=tf.TensorSpec([], tf.int64))
        .map(lambda y: tf.gather(TABLE, y))
        .batch(4)
    ),
    "cached before": lambda paths: sliced(paths).cache().map(read).batch(4),
    "arrays": lambda paths: sliced(ROWS, LABELS).batch(4),
    "arrays and a function": lambda paths: sliced(ROWS, LABELS).repeat(2).map(lambda x, y: (x[::-1], y)).batch(4),
    "a branch": lambda paths: sliced(LABELS).map(lambda y: tf.cond(y > 2, lambda: y * 2, lambda: y)).batch(4),
}


def elements(dataset):
    """Return two passes over a pipeline."""
    return [[np.asarray(x) for x in tf.nest.flatten(batch)] for _ in range(2) for batch in dataset]


def loaded(dataset):
    """Return two passes over a pipeline that is cut, and where it is."""
    found = cut(dataset)
    batches = [batch for _ in range(2) for batch in Batches(dataset, found)]
    for batch in batches:
        shapes = [(x.shape.as_list(), x.dtype) for x in tf.nest.flatten(batch)]
        assert shapes == [(list(x.shape), tf.as_dtype(x.dtype)) for x in tf.nest.flatten(values(batch))]
    return [tf.nest.flatten(values(batch)) for batch in batches], found


@pytest.mark.parametrize("name", CUT)
def test_the_same_batches_in_the_same_order(name, paths):
    tf.compat.v2.random.set_seed(None)
    ours, found = loaded(CUT[name](paths))
    assert found.loader is not None, found.why
    theirs = elements(CUT[name](paths))
    assert len(ours) == len(theirs)
    for mine, own in zip(ours, theirs, strict=True):
        for x, y in zip(mine, own, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-15)  # x / 255 may be a product


def test_what_is_fed_is_what_lies_below_the_cut(paths):
    batch = next(Batches(dataset := CUT["shuffled with a seed"](paths), cut(dataset)))
    (found,) = batches_in(batch)
    assert set(found.fed[0].tolist()) <= {path.encode() for path in paths} and len(found.coming) == 2
    batch = next(Batches(dataset := CUT["arrays"](paths), cut(dataset)))
    assert batches_in(batch)[0].fed[0].tolist() == [0, 1, 2, 3]


def python(y):
    return tf.ensure_shape(tf.numpy_function(lambda y: y + 1, [y], tf.int64), [])


def with_table(y):
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5, 6], tf.int64))
    return tf.lookup.StaticHashTable(keys, -1).lookup(y)


def with_variable():
    variable = tf.compat.v2.Variable(2, dtype=tf.int64)
    return sliced(LABELS).map(lambda y: y * variable).batch(4)


WHOLE = {
    "batches that are mixed": (
        lambda: sliced(SMALL).batch(4).map(lambda x: x - tf.reduce_mean(x)),
        "map.. before batch",
    ),
    "batches that are turned": (lambda: sliced(SMALL).batch(4).map(lambda x: x[::-1]), "map.. before batch"),
    "batches with their size": (
        lambda: sliced(SMALL).batch(4, True).map(lambda x: x + tf.ones([4, 1], x.dtype)),
        "map.. before batch",
    ),
    "a seed after map": (lambda: sliced(LABELS).map(lambda y: y + 1).shuffle(5, seed=1).batch(4), "call it before map"),
    "Python": (lambda: sliced(LABELS).map(python).batch(4), "Python code in map.*write it in TensorFlow"),
    "a table": (lambda: sliced(LABELS).map(with_table).batch(4), "a table"),
    "a variable": (with_variable, "a tf.Variable"),
    "random numbers": (
        lambda: sliced(SMALL).map(lambda x: x * tf.random.uniform([], seed=2, dtype=x.dtype)).batch(4),
        "stateless",
    ),
    "cached": (lambda: sliced(LABELS).map(lambda y: y + 1).cache().batch(4), "cache"),
    "a large constant": (
        lambda: sliced(LABELS).map(lambda y: tf.gather(tf.constant(np.ones((40_000, 8))), y)).batch(4),
        "by from_tensor_slices",
    ),
    "batches of batches": (lambda: sliced(ROWS).batch(3, True).batch(2), "_?Batch"),
    "whole arrays": (lambda: Dataset.from_tensors((SMALL, TABLE)), "Tensor"),
    "no batches": (lambda: sliced(ROWS), "TensorSlice"),
    "a function below two batches": (lambda: sliced(SMALL).map(lambda x: x + 1).batch(3, True).batch(2), "Batch"),
    "padded": (lambda: sliced(LABELS).map(lambda y: y + 1).padded_batch(4), "PaddedBatch"),
    "a generator alone": (
        lambda: Dataset.from_generator(lambda: iter(LABELS), output_signature=tf.TensorSpec([], tf.int64)).batch(4),
        "a generator",
    ),
    "an unknown shape": (lambda: sliced(LABELS).map(lambda y: tf.ones([y])).padded_batch(4, [5]), "PaddedBatch"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_cannot_be_cut_is_made_here(name):
    make, why = WHOLE[name]
    ours, found = loaded(make())
    assert found.loader is None
    assert re.search(why, found.why), found.why
    for mine, own in zip(ours, elements(make()), strict=True):
        for x, y in zip(mine, own, strict=True):
            np.testing.assert_array_equal(x, y)
