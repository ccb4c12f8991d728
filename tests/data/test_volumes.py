"""Volumes: each processor reads its own planes alone, and the file that is damaged is named."""

import functools
import itertools
import json

import numpy as np
import pytest
from small_sets import assert_same, read_batches
from tiers import parametrize

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, data, mtf, tf
from mtf_hetero.data import _volumes_files as files

SHAPE = (11, 6, 6, 2)
TRAIN, TEST = 7, 3
DIMS = ("batch", "depth", "height", "width", "channels")


def make_set(directory, shape=SHAPE, *, train=TRAIN, test=TEST, dtype="float32", labelled=False, per_file=3):
    """A set of random volumes; returns what was written, {"train": (images, labels or targets), ...}."""
    rng = np.random.default_rng(5)
    planes = files.Planes(shape, dtype, labelled, () if labelled else ("a", "b"))
    made = {}
    with files.write_volumes(directory, planes, provenance={"seed": 5}, volumes_per_file=per_file) as writer:
        for split, count in (("train", train), ("test", test)):
            images = rng.normal(3, 50, [count, *shape]).astype(dtype)
            labels = rng.integers(0, 3, [count, *shape[:3]]) if labelled else rng.normal(size=[count, 2])
            for image, label in zip(images, labels):
                if labelled:
                    writer.add(split, [(image[:4], label[:4]), (image[4:], label[4:])])
                else:
                    writer.add(split, [(image, None)], label)
            made[split] = images, labels
    return made


@pytest.fixture(scope="module", params=["labels", pytest.param("targets", marks=pytest.mark.full)])
def made(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("volumes") / "set"
    labelled = request.param == "labels"
    return directory, make_set(directory, labelled=labelled, dtype="int16" if labelled else "float32")


def normalised(written, split="train"):
    image, label = (part[0] for part in (written["train"], written["train"][1:]))
    images = written[split][0].astype(np.float64)
    labels = written[split][1]
    axes = (0, 1, 2, 3)
    images = (images - image.mean(axes, dtype=np.float64)) / image.std(axes, dtype=np.float64)
    return images, labels if labels.ndim > 2 else (labels - label.mean(0)) / label.std(0)


def cut(batch, places, depth=slice(None), height=slice(None), width=slice(None), channels=slice(None)):
    """The part of a (image, weight, label) that a slab should be."""
    image, weight, label = (part[list(places)] for part in batch)
    label = label[:, depth, height, width] if label.ndim > 2 else label
    return image[:, depth, height, width, channels], weight, label


def test_the_test_set_is_what_was_written(made):
    directory, written = made
    volumes = data.load_volumes(directory)
    assert (volumes.image_shape, volumes.train_size, volumes.test_size) == (SHAPE, TRAIN, TEST)
    assert (volumes.classes, volumes.targets) in [(3, ()), (0, ("a", "b"))]
    batches = read_batches(lambda: volumes.test_input_fn(2))
    assert [weight.tolist() for _, weight, _ in batches] == [[1, 1], [1, 0]]
    images, labels = normalised(written, "test")
    np.testing.assert_allclose(np.concatenate([image for image, _, _ in batches])[:3], images, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([label for _, _, label in batches])[:3], labels, atol=1e-4)


def test_augmentation_mirrors_and_turns(made):
    directory, written = made
    images, _ = normalised(written)
    batches = read_batches(lambda: data.load_volumes(directory).train_input_fn(TRAIN, 4, augment=True))
    seen = set()
    for image in itertools.chain.from_iterable(batch[0] for batch in batches):
        for turn in itertools.product([False, True], repeat=4):
            candidates = images.swapaxes(2, 3) if turn[3] else images
            candidates = np.flip(candidates, [axis + 1 for axis in range(3) if turn[axis]])
            if np.abs(candidates - image).max((1, 2, 3, 4)).min() < 1e-4:
                seen.add(turn)
                break
        else:
            pytest.fail("an image is none of those that were written")
    assert len(seen) > 8


@parametrize("augment", [False, True], first=[True])
def test_slabs_are_parts_of_the_batch(made, augment):
    volumes = data.load_volumes(made[0])
    make = functools.partial(volumes.train_input_fn, 3, 2, seed=4, augment=augment)
    whole = read_batches(make)
    assert len(whole) == 2 * TRAIN // 3
    for places, (depth, planes), (row, rows) in [((0, 2), (0, 7), (0, 5)), ((2, 0), (10, 1), (2, 2))]:
        slab = data.Slab(places, (depth, row, 1, 0), (planes, rows, 4, 1))
        box = slice(depth, depth + planes), slice(row, row + rows), slice(1, 5), slice(0, 1)
        assert_same(read_batches(lambda s=slab: make(slab=s)), [cut(batch, places, *box) for batch in whole])
    slab = data.Slab(begin=(3, 0, 0, 0))
    assert_same(
        read_batches(lambda: volumes.test_input_fn(2, slab=slab)),
        [cut(batch, (0, 1), slice(3, None)) for batch in read_batches(lambda: volumes.test_input_fn(2))],
    )


@pytest.mark.full
def test_the_cache_changes_nothing(made):
    volumes = data.load_volumes(made[0])
    make = functools.partial(volumes.train_input_fn, 3, 4, augment=True, slab=data.Slab(begin=(7, 0, 0, 0)))
    whole = read_batches(make)
    for count in (0, 1):
        limit = count * 2 * 4 * volumes.manifest.planes.record_bytes
        assert_same(read_batches(lambda limit=limit: make(cached_bytes=limit)), whole)


def bytes_read():
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def read_all(make, epochs=1):
    """Bytes that the process reads in each epoch of one batch, the iterator's making included in the first."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(make())
        batch = iterator.get_next()
        session.run(tf.constant(1))
        begin, read = bytes_read(), []
        session.run(iterator.initializer)
        for _ in range(epochs):
            session.run(batch)
            read.append(bytes_read() - begin)
        return read


LARGE, LARGE_COUNT = (24, 64, 64, 4), 6  # planes of 64 KiB


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    directory = tmp_path_factory.mktemp("large") / "set"
    make_set(directory, LARGE, train=LARGE_COUNT, test=0)
    return data.load_volumes(directory)


@parametrize("augment", [False, True], first=[True])
def test_each_processor_reads_its_share_of_the_bytes(large, augment):
    layout = Layout("rows:2;cols:3", "batch:rows;depth:cols", shares={"rows": [2, 1], "cols": [13, 7, 4]})
    shape = [mtf.Dimension(name, size) for name, size in zip(DIMS, (LARGE_COUNT, *LARGE))]
    total = LARGE_COUNT * np.prod(LARGE) * 4
    for pnum in (0, 2, 4):  # each part of both axes
        begin, size = layout.slice_begin(shape, pnum), layout.slice_shape(shape, pnum)
        slab = data.Slab(tuple(range(begin[0], begin[0] + size[0])), tuple(begin[1:]), tuple(size[1:]))
        (read,) = read_all(lambda s=slab: large.train_input_fn(LARGE_COUNT, 1, augment=augment, slab=s))
        share = np.prod(size) / np.prod([dim.size for dim in shape])
        assert read == pytest.approx(share * total, rel=0.05)


@parametrize("kept", [0, 4, 6], first=[4])
def test_what_is_in_memory_is_not_read_again(large, kept):
    slab = data.Slab(begin=(0, 0, 0, 0), size=(5, 64, 64, 4))
    slab_bytes = 5 * large.manifest.planes.record_bytes
    make = functools.partial(large.train_input_fn, LARGE_COUNT, 3, slab=slab, cached_bytes=kept * slab_bytes)
    read = read_all(make, epochs=3)[-1]
    expected = LARGE_COUNT + 2 * (LARGE_COUNT - kept)
    assert expected <= read / slab_bytes < expected + 2.1  # the last volume of an epoch may be the first of the next


def test_no_python_runs_in_a_pipeline(made):
    with tf.Graph().as_default() as graph:
        tf.data.make_initializable_iterator(data.load_volumes(made[0]).train_input_fn(2, 2, augment=True))
        assert "PyFunc" not in str(graph.as_graph_def())
        assert not tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)


def locate_volume(directory, index):
    """(path, where the volume begins) of a training volume."""
    planes = data.load_volumes(directory).manifest.planes
    return directory / f"train-{index // 3:05d}.tfrecord", index % 3 * SHAPE[0] * planes.record_bytes


@pytest.fixture
def fresh(tmp_path):
    make_set(tmp_path / "set")
    return tmp_path / "set", data.load_volumes(tmp_path / "set")


def damage(directory, index, plane, record_bytes):
    """Changes one byte of a plane; returns the file and where the plane begins."""
    path, begin = locate_volume(directory, index)
    content = bytearray(path.read_bytes())
    content[begin + plane * record_bytes + 40] ^= 1
    path.write_bytes(content)
    return path, begin + plane * record_bytes


def test_a_slab_reads_its_own_planes_alone(fresh):
    directory, volumes = fresh
    make = functools.partial(volumes.train_input_fn, TRAIN, 1, slab=data.Slab(begin=(4, 0, 0, 0), size=(3, *SHAPE[1:])))
    before = read_batches(make)
    for index, plane in itertools.product(range(TRAIN), (0, 3, 7, 10)):
        damage(directory, index, plane, volumes.manifest.planes.record_bytes)
    assert_same(read_batches(make), before)


@parametrize(
    "kind",
    ["bit", "length", "cut in a plane", "cut between planes", "missing"],
    first=["bit", "cut between planes", "missing"],
)
def test_a_damaged_file_is_named_with_the_offset(fresh, kind):
    directory, volumes = fresh
    record_bytes = volumes.manifest.planes.record_bytes
    path, begin = locate_volume(directory, 4)
    offset = begin + 6 * record_bytes
    if kind == "bit":
        assert damage(directory, 4, 6, record_bytes) == (path, offset)
    elif kind == "length":
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
    elif kind == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: offset + (100 if kind == "cut in a plane" else 0)])
    with pytest.raises(ValueError, match="cannot be read from byte") as caught, data.unreadable_as_value_error():
        read_batches(lambda: volumes.train_input_fn(1, 2, slab=data.Slab(begin=(5, 0, 0, 0))))
    said = str(caught.value)
    assert said.startswith(f"{directory}/train-0000") and said.count("\n") == 0
    if kind == "missing":
        assert f"{path} cannot be read from byte" in said
    elif not kind.startswith("cut"):
        assert said.startswith(f"{path} cannot be read from byte {offset}: it is missing, damaged or cut off")
    else:  # volume 5, behind it in the file, may come first
        assert any(f"{path} cannot be read from byte {place}:" in said for place in (offset, begin + 16 * record_bytes))


def test_a_worker_names_its_damaged_file(fresh):
    directory, volumes = fresh
    path, offset = damage(directory, 2, 1, volumes.manifest.planes.record_bytes)
    server = tf.train.Server.create_local_server()
    with tf.Graph().as_default(), tf.device("/job:localhost/task:0/device:CPU:0"):
        iterator = tf.data.make_initializable_iterator(volumes.train_input_fn(TRAIN, 2))
        batch = iterator.get_next()
        with tf.Session(server.target) as session:
            session.run(iterator.initializer)
            message = f"^{path} cannot be read from byte {offset}:"
            with pytest.raises(ValueError, match=message), data.unreadable_as_value_error():
                session.run(batch)


def test_other_errors_stay_what_they_are():
    with pytest.raises(tf.errors.InvalidArgumentError, match="other"), data.unreadable_as_value_error():
        raise tf.errors.InvalidArgumentError(None, None, "other")


def edit(directory, change):
    path = directory / files.MANIFEST
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d / "manifest.json").unlink(), "manifest.json cannot be read .No such file"),
        (
            lambda d: (d / "manifest.json").write_text('{"format": "mtf'),
            "manifest.json is damaged: Unterminated string starting at: line 1 column 12",
        ),
        (lambda d: (d / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (
            lambda d: edit(d, lambda content: content.update(format="2")),
            "manifest.json is damaged: it is not of the format",
        ),
        (lambda d: edit(d, lambda content: content.pop("mean")), "manifest.json is damaged: 'mean' is missing"),
        (lambda d: edit(d, lambda content: content["planes"].update(dtype="U9")), "dtype is 'U9'; it must be one of"),
        (lambda d: (d / "train-00002.tfrecord").unlink(), "train-00002.tfrecord is missing"),
        (
            lambda d: (d / "test-00000.tfrecord").write_bytes((d / "test-00000.tfrecord").read_bytes()[:999]),
            "test-00000.tfrecord is cut off at byte 999, but should have 10,296;",
        ),
        (
            lambda d: (d / "test-00000.tfrecord").write_bytes((d / "test-00000.tfrecord").read_bytes() + b"more"),
            "test-00000.tfrecord is damaged: it ends at byte 10,300, but should have 10,296;",
        ),
    ],
)
def test_what_is_known_before_training_is_said_then(fresh, change, message):
    change(fresh[0])
    with pytest.raises(ValueError, match=message) as caught:
        data.load_volumes(fresh[0])
    assert "\n" not in str(caught.value)


def test_wrong_arguments(made, tmp_path):
    volumes = data.load_volumes(made[0])
    for slab, message in (
        (
            data.Slab(begin=(11, 0, 0, 0)),
            "slab begins at .11, 0, 0, 0. and has the size .0, 6, 6, 2., but the volumes are",
        ),
        (data.Slab(size=(12, 6, 6, 2)), "but the volumes are"),
    ):
        with pytest.raises(ValueError, match=message):
            volumes.train_input_fn(3, 1, slab=slab)
        with pytest.raises(ValueError, match=message):
            volumes.test_input_fn(3, slab=slab)
    with pytest.raises(ValueError, match="batch_size is 8, but .* has 7 training volumes"):
        volumes.train_input_fn(8, 1)
    with pytest.raises(ValueError, match="cached_bytes is -1"):
        volumes.train_input_fn(1, 1, cached_bytes=-1)
    make_set(tmp_path / "set", test=0)
    with pytest.raises(ValueError, match="has no test volumes"):
        data.load_volumes(tmp_path / "set").test_input_fn(1)
    with pytest.raises(ValueError, match="set already exists; remove it"):
        make_set(tmp_path / "set")
    with pytest.raises(ValueError, match="has no training volume"):
        make_set(tmp_path / "other", train=0)
    with pytest.raises(ValueError, match="cannot be written"):
        make_set(made[0] / "manifest.json" / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_volumes_that_do_not_fit_the_set(tmp_path):
    planes = files.Planes(SHAPE, "float32", targets=("a",))
    image = np.zeros(SHAPE)
    for arguments, message in (
        (([(image[:5], None)], [1.0]), "a volume has 5 planes; those of the set have 11"),
        (([(image[:, 1:], None)], [1.0]), "a plane has the shape .5, 6, 2."),
        (([(image, None)], []), "target has the shape .0,.; the set has 1 targets"),
        (([(image, image[..., 0])], [1.0]), "labels are given, but the set has been begun otherwise"),
    ):
        with (
            pytest.raises(ValueError, match=message),
            data.write_volumes(tmp_path / "a", planes, provenance={}) as writer,
        ):
            writer.add("train", *arguments)
    with pytest.raises(ValueError, match="either labels or targets"):
        files.Planes(SHAPE, "float32")
    with pytest.raises(ValueError, match=r"targets\[1\] is ''; it must be text that is not empty"):
        files.Planes(SHAPE, "float32", targets=("a", ""))
    assert list(tmp_path.iterdir()) == []


SLABS = [
    ("rows:2;cols:2", "depth:rows;height:cols", {"shares": {"cols": [1, 2]}}, 4),
    ("rows:2;cols:3", "batch:rows;depth:cols", {"sizes": {"batch": [0, 4], "depth": [5, 0, 6]}}, 6),
    ("rows:2;cols:2", "height:rows;channels:cols", {"sizes": {"height": [6, 0], "channels": [0, 2]}}, 4),
]


@parametrize(("mesh", "rules", "divided", "pipelines"), SLABS, first=[SLABS[1]])
def test_each_processor_gets_its_slab(made, mesh, rules, divided, pipelines):
    volumes = data.load_volumes(made[0])
    make = functools.partial(volumes.train_input_fn, 4, 2, augment=True)
    layout = Layout(mesh, rules, **divided)
    devices = ["cpu:0"] * layout.size
    whole = read_batches(make)
    with tf.Graph().as_default() as tf_graph:
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(DIMS, (4, *SHAPE))])
        features, labels = data.laid_out_volumes(make, layout, shape, devices)
        iterators = [op for op in tf_graph.get_operations() if op.type == "IteratorV2"]
        assert len(iterators) == pipelines
        graph = mtf.Graph()
        imported = mtf.Mesh(graph, "mesh")
        images = mtf.import_laid_out_tensor(imported, UnevenMeshImpl.LaidOutTensor(list(features["image"])), shape)
        label_shape = shape - shape.dims[-1] if volumes.classes else mtf.Shape([shape.dims[0], mtf.Dimension("t", 2)])
        marks = mtf.import_laid_out_tensor(imported, UnevenMeshImpl.LaidOutTensor(list(labels)), label_shape)
        mesh_impl = UnevenMeshImpl.from_layout(layout, devices)
        lowering = Lowering(graph, {imported: mesh_impl})
        fetches = [lowering.export_to_tf_tensor(x) for x in (images, marks)]
        with tf.train.MonitoredSession() as session:
            for image, _, label in whole:
                found = session.run(fetches)
                np.testing.assert_array_equal(found[0], image)
                np.testing.assert_array_equal(found[1], label)
