"""A lowered model as a SavedModel: for any number of examples, its variables copied in pieces, whole or not there."""

import math
import os

import numpy as np
import pytest
from serving import run_signature, run_signature_elsewhere

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, mtf, tf
from mtf_hetero import checkpoint as saver_lib
from mtf_hetero.checkpoint import copying
from mtf_hetero.estimator import saved_model


def build(batch_size, devices=("cpu:0",), shares=None):
    """A dense network whose weights are read in slices where there are several devices."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    batch, channels, hidden = (
        mtf.Dimension("batch", batch_size),
        mtf.Dimension("channels", 6),
        mtf.Dimension("hidden", 7),
    )
    fed = tf.placeholder(tf.float32, [batch_size, 6])
    x = mtf.import_tf_tensor(mesh, fed, mtf.Shape([batch, channels]))
    h = mtf.layers.dense(x, hidden, reduced_dims=[channels], activation=mtf.relu, name="first")
    y = mtf.layers.dense(h, mtf.Dimension("classes", 3), reduced_dims=[hidden], name="second")
    layout = Layout([("all", len(devices))], "hidden:all", shares or {})
    outputs = Lowering(graph, {mesh: UnevenMeshImpl.from_layout(layout, devices)}).export_to_tf_tensor(y)
    return fed, {"logits": outputs, "class": tf.argmax(outputs, -1)}


def build_uneven(batch_size):
    return build(batch_size, ("cpu:0", "cpu:0"), {"all": [3, 1]})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        build_uneven(1)
        tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        saver = saver_lib.Saver(builder=saver_lib.SliceSaverBuilder())
        return saver.save(session, str(tmp_path_factory.mktemp("trained") / "model.ckpt"))


def restored_outputs(checkpoint, given):
    with tf.Graph().as_default(), tf.Session() as session:
        fed, outputs = build(len(given))
        tf.train.Saver().restore(session, checkpoint)
        return session.run(outputs, {fed: given})


def list_files(directory):
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.full)])
def test_plain_tensorflow_computes_the_same(elsewhere, checkpoint, tmp_path):
    directory, counts = tmp_path / "served", (11, 8, 3, 1, 0)
    saved_model.write(directory, build_uneven, checkpoint=checkpoint, example_shape=[6], batch_size=4)
    files = ["saved_model.pb", "variables/variables.data-00000-of-00001", "variables/variables.index"]
    assert list_files(directory) == files
    names = {name for name, _ in tf.train.list_variables(str(directory / "variables" / "variables"))}
    assert names == {f"{layer}/{part}" for layer in ("first", "second") for part in ("kernel", "bias")}
    given = np.random.default_rng(0).normal(size=[11, 6]).astype(np.float32)
    expected = restored_outputs(checkpoint, given)
    if elsewhere:
        found = run_signature_elsewhere(directory, given, tmp_path, counts=counts)
    else:
        found = run_signature(directory, given, counts=counts)
    for count, outputs in zip(counts, found, strict=True):
        np.testing.assert_allclose(outputs["logits"], expected["logits"][:count], atol=1e-6)
        np.testing.assert_array_equal(outputs["class"], expected["class"][:count])


def test_no_tensor_larger_than_a_piece_is_read(checkpoint, tmp_path, monkeypatch):
    read, restore = [], tf.raw_ops.RestoreV2

    def restoring(*, tensor_names, shape_and_slices, **options):
        read.extend(zip(tensor_names, shape_and_slices, strict=True))
        return restore(tensor_names=tensor_names, shape_and_slices=shape_and_slices, **options)

    shapes = dict(tf.train.list_variables(checkpoint))
    names = sorted(shapes)
    (tmp_path / "copy").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(copying.tf.raw_ops, "RestoreV2", restoring)
        dtypes = tf.train.load_checkpoint(checkpoint).get_variable_to_dtype_map()
        copying.copy_variables(
            checkpoint, str(tmp_path / "copy" / "model"), dict(sorted(dtypes.items())), piece_bytes=20
        )
    assert read == [(n, spec) for n in names for spec, _ in copying.slice_specs(shapes[n], 4, piece_bytes=20)]
    assert [name for name, spec in read if not spec] == ["global_step", "second/bias"]  # 8 and 12 bytes
    reader, expected = (tf.train.load_checkpoint(path) for path in (str(tmp_path / "copy" / "model"), checkpoint))
    for name in names:
        np.testing.assert_array_equal(reader.get_tensor(name), expected.get_tensor(name))
    assert all(name.startswith("model.") for name in os.listdir(tmp_path / "copy"))


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 5), (1, 7, 1), (0, 3)])
@pytest.mark.parametrize("piece_bytes", [4, 8, 12, 40, 1000])
def test_pieces_cover_a_tensor_once(shape, piece_bytes):
    covered = np.zeros(shape, int)
    for spec, size in copying.slice_specs(shape, 4, piece_bytes=piece_bytes):
        assert size <= piece_bytes
        box = ...
        if spec:
            *extents, slices = spec.split(" ")
            assert tuple(map(int, extents)) == shape
            pairs = [tuple(map(int, part.split(","))) for part in slices.split(":")]
            assert size == 4 * math.prod(count for _, count in pairs)
            box = tuple(slice(begin, begin + count) for begin, count in pairs)
        covered[box] += 1
    assert (covered == 1).all()


def test_what_cannot_be_exported(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="already exists; give a new directory"):
        saved_model.write(tmp_path, build, checkpoint=checkpoint, example_shape=[6])

    def with_another(batch_size):
        fed, outputs = build(batch_size)
        return fed, {"y": outputs["logits"] + tf.get_variable("other", [3], use_resource=True)}

    with pytest.raises(ValueError, match=r"model\.ckpt has no variable 'other'"):
        saved_model.write(tmp_path / "served", with_another, checkpoint=checkpoint, example_shape=[6])

    def gathering(batch_size):
        fed, _ = build(batch_size)
        table = tf.get_variable("table", [3, 2], use_resource=True)
        return fed, {"y": tf.gather(table, tf.cast(fed, tf.int32))}

    with pytest.raises(NotImplementedError, match="a ResourceGather, uses a variable without ReadVariableOp"):
        saved_model.write(tmp_path / "served", gathering, checkpoint=checkpoint, example_shape=[6])
    assert os.listdir(tmp_path) == []
