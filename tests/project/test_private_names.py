"""Names that TensorFlow and Keras do not publish, each looked up here: where a new version lacks one, its test says so.

Mesh-TensorFlow's private names are those of its last release.
"""

import ast
import atexit
import collections
import importlib
import os
import pathlib
import re

import pytest
from rooms import SOURCES, find_package, tree

from mtf_hetero import mtf, tf


def _keras():
    return importlib.import_module("keras")


def _function():
    function = tf.compat.v2.function(lambda x: x + 1.0)
    return function, function.get_concrete_function(tf.TensorSpec([2]))


def _range():
    return tf.compat.v2.data.Dataset.range(2)


def _graph():
    with tf.Graph().as_default() as graph:
        variable = tf.get_variable("x", [2], use_resource=True)
        saver = tf.train.Saver([variable])
    return graph, variable, saver


def _hook():
    return tf.train.CheckpointSaverHook("unused", save_steps=1, saver=_graph()[2])


OWNERS = {  # what has private names that the library uses -> an object of it, and these names
    "tf.Operation": (
        lambda: _graph()[0].get_operations()[0],
        "_add_control_input _add_control_inputs _control_outputs _get_control_flow_context _update_input",
    ),
    "tf.Graph": (
        lambda: _graph()[0],
        "_create_op_internal _device_function_stack _functions _get_function _is_function _unsafe_unfinalize",
    ),
    "a device of a tf.Graph": (
        lambda: importlib.import_module("tensorflow.python.framework.ops")._UserDeviceSpec("cpu:0"),
        "_device_name_or_function",
    ),
    "tf.Variable": (lambda: _graph()[1], "_handle _initializer_op _save_slice_info _set_save_slice_info"),
    "tf.DType": (lambda: tf.float32, "_is_ref_dtype"),
    "tf.train.Saver": (
        lambda: _graph()[2],
        "_RecordLastCheckpoint _checkpoints_to_be_deleted _is_empty _last_checkpoints _next_checkpoint_time "
        "_pad_step_number _var_list",
    ),
    "tf.train.CheckpointSaverHook": (_hook, "_get_saver _listeners _save _save_path _saver _scaffold _timer"),
    "the module of tf.Session": (lambda: importlib.import_module("tensorflow.python.client.session"), "_FetchMapper"),
    "tf.train.StopAtStepHook": (lambda: tf.train.StopAtStepHook(3), "_last_step"),
    "tf.train.MonitoredSession": (lambda: tf.train.MonitoredSession, "_tf_sess"),
    "tf.data.Dataset": (_range, "_functions _inputs _variant_tensor"),
    "tf.data: zip": (lambda: tf.compat.v2.data.Dataset.zip((_range(), _range())), "_datasets"),
    "tf.data: map": (lambda: _range().map(lambda x: x), "_input_dataset _map_func"),
    "tf.data: the function of map": (lambda: _range().map(lambda x: x)._map_func, "_func"),
    "tf.data: from_tensor_slices": (lambda: tf.compat.v2.data.Dataset.from_tensor_slices([1]), "_tensors"),
    "tf.data: batch": (lambda: _range().batch(2), "_batch_size _drop_remainder"),
    "tf.data: prefetch and shuffle": (
        lambda: _range().shuffle(2),
        "_buffer_size _reshuffle_each_iteration _seed _seed2",
    ),
    "tf.data: repeat, take and skip": (lambda: _range().repeat(2), "_count"),
    "tf.data: shard": (lambda: _range().shard(2, 0), "_index _num_shards"),
    "tf.data of TensorFlow 1": (lambda: tf.compat.v1.data.Dataset.range(2), "_dataset"),
    "keras's epoch iterator": (
        lambda: importlib.import_module("keras.src.backend.tensorflow.trainer").TFEpochIterator,
        "_get_iterator",
    ),
    "tf.function": (lambda: _function()[0], "_clone"),
    "a ConcreteFunction": (lambda: _function()[1], "_call_flat"),
    "tfds": (
        lambda: importlib.import_module("tensorflow_datasets.image_classification.mnist").MNIST,
        "_get_pkg_dir_path",
    ),
    "keras.Variable": (lambda: _keras().Variable(1.0), "_initialize_with_initializer _value"),
    "keras.layers.Layer": (lambda: _keras().layers.Dense(1), "_flatten_layers _inbound_nodes"),
    "atexit": (lambda: atexit, "_run_exitfuncs"),
    "os": (lambda: os, "_exit"),
}


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner in OWNERS for name in OWNERS[owner][1].split()])
def test_a_private_name_is_there(owner, name):
    make, _ = OWNERS[owner]
    found = make()
    assert hasattr(found, name), f"{owner} has no {name} any more; find out what does the same in this version"


def test_all_private_names_are_here():
    """A name that the library asks of another object is its own, Mesh-TensorFlow's, or in the table."""
    asked, own, used = collections.defaultdict(set), set(), set()
    for file in filter(lambda name: find_package(name) == "mtf_hetero", SOURCES):
        for node in ast.walk(tree(file)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                own.add(node.target.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                used.add(node.attr)
                if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                    asked[node.attr].add(file)
                elif isinstance(node.ctx, ast.Store):
                    own.add(node.attr)
    last_release = set(
        re.findall(r"\b_\w+", pathlib.Path(mtf.__file__).with_name("ops.py").read_text(encoding="utf-8"))
    )
    here = {name for _, names in OWNERS.values() for name in names.split()}
    assert {name: asked[name] for name in asked.keys() - own - last_release - here} == {}
    assert here <= used, "take out of the table what is no longer used"
