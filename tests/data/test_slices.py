"""The batch is the same however it is divided, and each slice reads its own images alone."""

import functools
import hashlib

import numpy as np
import pytest
from small_sets import CHANNELS, SIZE, assert_same, build, random_images, read_batches
from tiers import parametrize

from mtf_hetero import Layout, data, tf
from mtf_hetero.data import records

TRAIN, TEST = 13, 8
AUGMENT = data.Augmentation(crop=2)
SLICES = [(0, 1, 2), (3,), (4,)]  # of a batch of 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    build(path, splits=(("train", TRAIN), ("test", TEST)))
    return path


def squares(directory):
    return data.load("squares", str(directory))


def put_together(slices):
    """[batch of slice 0, ...], [batch of slice 1, ...], ... -> whole batches."""
    return [tuple(np.concatenate(parts) for parts in zip(*batches)) for batches in zip(*slices, strict=True)]


@pytest.mark.filterwarnings("ignore")
@parametrize(
    ("name", "epochs", "augment"), [("squares", 3, AUGMENT), ("mnist5k", 1, None)], first=[("squares", 3, AUGMENT)]
)
def test_training_slices_are_the_batch(directory, name, epochs, augment):
    dataset = data.load(name, str(directory))
    scale = dataset.train_size // TRAIN  # of the batches, so that mnist5k has no more of them
    make = functools.partial(dataset.train_input_fn, 5 * scale, epochs, seed=4, augment=augment)
    slices = [range(part[0] * scale, (part[-1] + 1) * scale) for part in SLICES]
    whole = read_batches(make)
    assert len(whole) == epochs * dataset.train_size // (5 * scale)
    assert_same(put_together([read_batches(lambda s=s: make(slab=data.Slab(s))) for s in slices]), whole)


@pytest.mark.filterwarnings("ignore")
def test_training_goes_on_where_it_stopped(directory):
    make = functools.partial(squares(directory).train_input_fn, 5, 3, augment=AUGMENT)
    whole = read_batches(make)
    assert len(whole) == 7
    rest = read_batches(lambda: make(start_batch=4, slab=data.Slab((3, 4))))
    assert_same(rest, [tuple(part[3:] for part in batch) for batch in whole[4:]])
    assert_same(read_batches(lambda: make(start_batch=tf.constant(7, tf.int64))), [])


@pytest.mark.filterwarnings("ignore")
def test_test_slices_are_the_batch(directory):
    dataset = squares(directory)
    whole = read_batches(lambda: dataset.test_input_fn(5))
    assert [batch[1].tolist() for batch in whole] == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert (whole[1][2][3:] == whole[1][2][2]).all()
    slices = [read_batches(lambda s=s: dataset.test_input_fn(5, slab=data.Slab(s))) for s in SLICES]
    assert_same(put_together(slices), whole)
    corner = data.Slab(begin=(1, 0, 2), size=(3, SIZE, 1))
    cut = [(image[:, 1:4, :, 2:3], *rest) for image, *rest in whole]
    assert_same(read_batches(lambda: dataset.test_input_fn(5, slab=corner)), cut)


@pytest.mark.filterwarnings("ignore")
def test_the_cache_and_the_seed_of_the_graph_change_nothing(directory):
    dataset = squares(directory)
    make = functools.partial(dataset.train_input_fn, 5, 3, seed=1, augment=AUGMENT)
    cached = read_batches(make)

    def seeded():
        tf.set_random_seed(99)
        return make()

    assert_same(read_batches(seeded), cached)
    assert_same(read_batches(lambda: make(cached_bytes=0)), cached)


@pytest.mark.filterwarnings("ignore")
def test_each_epoch_and_each_seed_has_a_permutation_of_its_own(directory):
    make = functools.partial(squares(directory).train_input_fn, TRAIN)
    epochs = [labels for _, _, labels in [*read_batches(lambda: make(4)), *read_batches(lambda: make(1, seed=2))]]
    assert {tuple(sorted(labels)) for labels in epochs} == {tuple(sorted(epochs[0]))}
    assert len({tuple(labels) for labels in epochs}) == 5


def damage(path, spared):
    """Overwrites the payloads of all records but some; their lengths stay."""
    content = bytearray(path.read_bytes())
    begin = 0
    for index, length in enumerate(records.record_lengths(str(path))):
        if index not in spared:
            content[begin + 12 : begin + 12 + length] = b"?" * length
        begin += length + 16
    path.write_bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_a_slice_reads_its_own_images_alone(tmp_path):
    build(tmp_path, splits=(("train", TRAIN), ("test", TEST)))
    dataset = squares(tmp_path)
    _ = dataset.statistics  # which reads all images, once
    make = functools.partial(dataset.train_input_fn, 5, 1, seed=3)
    before = read_batches(lambda: make(slab=data.Slab((3, 4))))
    with tf.Graph().as_default(), tf.Session() as session:
        batches = dataset._shuffled(5, 1, 3, 0).map(lambda indices, number: indices)
        indices = tf.data.make_one_shot_iterator(batches).get_next()
        spared = [index for _ in before for index in session.run(indices)[3:]]
    assert len(set(spared)) == 4
    damage(next(tmp_path.rglob("*train.tfrecord*")), spared)
    assert_same(read_batches(lambda: make(slab=data.Slab((3, 4)))), before)
    with pytest.raises(data.UnreadableError, match="cannot be read from byte"), data.unreadable_as_value_error():
        read_batches(lambda: make(slab=data.Slab((2, 3))))


@pytest.mark.parametrize("places", [(-1, 2), (), (4, 5), range(6)])
def test_places_outside_the_batch(places):
    with pytest.raises(ValueError, match="places are .*but a batch has 5 images"):
        data.load("mnist5k").train_input_fn(5, 1, slab=data.Slab(places))
    with pytest.raises(ValueError, match="places are .*but a batch has 5 images"):
        data.load("mnist5k").test_input_fn(5, slab=data.Slab(places))


def test_records_of_several_files(tmp_path):
    payloads = [hashlib.sha512(bytes([i])).digest()[: i + 1] for i in range(20)]
    paths = [str(tmp_path / name) for name in "abcd"]
    for path, part in zip(paths, [payloads[:7], [], payloads[7:8], payloads[8:]]):
        with tf.python_io.TFRecordWriter(path) as writer:
            for payload in part:
                writer.write(payload)
    order = np.random.default_rng(0).permutation(20)
    with tf.Graph().as_default(), tf.Session() as session:
        source = records.source_of_records(paths, [7, 0, 1, 12], lambda payload: (payload, tf.strings.length(payload)))
        dataset = source.read(tf.data.Dataset.from_tensor_slices(order)).batch(20)
        iterator = tf.data.make_initializable_iterator(dataset)
        fetches = iterator.get_next()
        session.run(iterator.initializer)
        found, lengths = session.run(fetches)
    assert found.tolist() == [payloads[i] for i in order]
    assert lengths.tolist() == (order + 1).tolist()
    with pytest.raises(
        data.UnreadableError, match="b holds 0 records, but 1 were prepared; prepare the data set again"
    ):
        records.source_of_records(paths, [7, 1, 1, 12], lambda payload: (payload, 0))


def test_augmentation_is_a_crop_and_a_flip():
    images = (random_images(7) / 255).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = AUGMENT.draw(7, 5, tf.constant(2, tf.int64))
        decisions, changed = session.run([drawn, AUGMENT.apply(tf.constant(images), drawn)])
    padded = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)])
    for image, result, (row, column, flip) in zip(padded, changed, decisions):
        cut = image[row : row + SIZE, column : column + SIZE]
        np.testing.assert_array_equal(result, cut[:, ::-1] if flip else cut)
    assert changed.shape == (7, SIZE, SIZE, CHANNELS)


def test_all_crops_and_flips_are_equally_likely():
    count = 20_000
    with tf.Graph().as_default(), tf.Session() as session:
        draws = [AUGMENT.draw(count, seed, tf.constant(batch, tf.int64)) for seed, batch in ((1, 0), (1, 1), (2, 0))]
        draws.append(data.Augmentation(crop=0, flip=False).draw(count, 1, tf.constant(0, tf.int64)))
        one, next_batch, other_seed, none = session.run(draws)
    assert not none.any()
    assert not np.array_equal(one, next_batch)
    assert not np.array_equal(one, other_seed)
    for column, outcomes in enumerate((5, 5, 2)):
        frequencies = np.bincount(one[:, column], minlength=outcomes) / count
        np.testing.assert_allclose(frequencies, 1 / outcomes, atol=0.015)  # five standard deviations


@pytest.mark.parametrize("crop", [-1, 1.5, "4"])
def test_a_crop_that_is_no_number_of_pixels(crop):
    with pytest.raises(ValueError, match="crop is .*whole number of pixels"):
        data.Augmentation(crop=crop)


@pytest.mark.filterwarnings("ignore")
def test_a_processor_without_images(directory):
    dataset = squares(directory)
    make = functools.partial(dataset.train_input_fn, 5, 1)
    layout = Layout("all:3", "batch:all", sizes={"batch": [3, 0, 2]})
    whole = read_batches(make)
    with tf.Graph().as_default():
        features, labels = data.laid_out_batches(make, layout, {"batch": 5}, ["cpu:0"] * 3)
        assert [image.shape.as_list()[0] for image in features["image"]] == [3, 0, 2]
        together = [tf.concat(parts, 0) for parts in (features["image"], features["weight"], labels)]
        with tf.train.MonitoredSession() as session:
            assert_same([session.run(together) for _ in whole], whole)
