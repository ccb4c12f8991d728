"""Rows, networks and floating-point operations: what a report relies on."""

import numpy as np
import pytest
from tiers import parametrize

from benchmarks import flops, networks, rows
from benchmarks.frameworks import lowering, mesh_nets
from benchmarks.renderers import provenance
from mtf_hetero import tf
from mtf_hetero.models.registry import MODELS


def test_summarise_gives_median_and_spread():
    summary = rows.summarise([5.0, 1.0, 2.0, 3.0, 4.0])
    assert summary == {"min": 1.0, "lower_quartile": 2.0, "median": 3.0, "upper_quartile": 4.0, "max": 5.0}


def test_rows_are_appended_with_provenance_and_the_newest_counts(tmp_path):
    for value in (1, 2):
        writer = rows.Writer("case", tmp_path / "results")
        writer.write("a", {"value": value})
    writer.write("b", {"value": 3})
    rows.Writer("case", tmp_path / "results", toy=True).write("a", {"value": 4})
    assert [(row["variant"], row["value"]) for row in rows.read(writer.path)] == [("a", 2), ("b", 3)]
    assert [row["value"] for row in rows.read(writer.path, toy=True)] == [4]
    row = rows.read(writer.path)[0]
    assert set(rows.REQUIRED) <= set(row)
    assert row["host"]["cores"] >= 1
    assert row["versions"]["tensorflow"]
    text = "\n".join(map(str, provenance.describe_provenance(rows.read(writer.path)).parts))
    assert row["run"] in text
    assert row["command"] in text


@pytest.mark.parametrize(("line", "message"), [("{", "line 1 is not JSON"), ('{"case": "x"}', "line 1 has no run, ")])
def test_a_line_that_is_no_row(tmp_path, line, message):
    path = tmp_path / "case.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        rows.read(path)


LARGE = ("vgg11_4096", "vgg16", "vgg19")


@parametrize("name", networks.NETWORKS, first=[name for name in networks.NETWORKS if name not in LARGE])
def test_the_description_is_the_model(name):
    network = networks.NETWORKS[name]
    values = networks.initial_values(network, seed=1)
    with tf.Graph().as_default():
        built = mesh_nets.build_training(
            network, tf.placeholder(tf.float32, [2, *network.image_shape]), tf.placeholder(tf.int32, [2])
        )
    variables = built.graph.trainable_variables
    assert [value.size for value in values] == [variable.shape.size for variable in variables]
    if not network.config.keys() & {"stages", "head"}:
        assert sum(value.size for value in values) == MODELS[network.model].parameters


def test_initial_values_are_truncated_and_scaled():
    kernel = networks.initial_values(networks.NETWORKS["paper_cifar"], seed=1)[1]
    stddev = (2 / (9 * 60)) ** 0.5
    assert np.abs(kernel).max() <= 2.001 * stddev
    assert kernel.std() == pytest.approx(0.88 * stddev, rel=0.02)  # of a normal distribution cut at two


def test_flops_of_a_step_counted_by_hand():
    batch, pixels = 4, 64
    conv1 = 2 * batch * pixels * 27 * 4 * 2  # forward and the kernel's gradient; the images need none
    conv2 = 2 * batch * pixels * 36 * 6 * 3
    dense = 2 * batch * (96 * 8 + 8 * 10) * 3
    network = networks.NETWORKS["toy"]
    with tf.Graph().as_default():
        image, label = tf.placeholder(tf.float32, [batch, 8, 8, 3]), tf.placeholder(tf.int32, [batch])
        counted = flops.of_step(mesh_nets.build_training(network, image, label))
    assert counted == pytest.approx(conv1 + conv2 + dense, rel=1e-3)


def test_rules_of_small_dimensions_are_left_out():
    network = networks.NETWORKS["toy"]
    with tf.Graph().as_default():
        image, label = tf.placeholder(tf.float32, [8, 8, 8, 3]), tf.placeholder(tf.int32, [8])
        graph = mesh_nets.build_training(network, image, label).graph
    layout, left_out = lowering.choose_layout(graph, "filters", 8, None)
    assert left_out == ["conv1/filters", "conv2/channels"]
    assert dict(layout.rules) == {"dense1/outputs": "all", "dense1/units": "all", "dense2/inputs": "all"}
