"""Top-k, each class and the confusion matrix are scikit-learn's on any layout; the table, the JSON and the picture."""

import argparse
import json

import numpy as np
import pytest
from sklearn import metrics as reference

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.after import confusion, evaluate, results
from mtf_hetero.cli.train.tasks import COUNTS, Classification, Regression, Segmentation

BATCH, CLASSES = 8, 7
LAYOUTS = {
    "one device": Layout([("all", 1)], ()),
    "batch": Layout([("all", 3)], [("batch", "all")], shares={"all": [4, 2, 1]}),
    "classes": Layout([("all", 3)], [("classes", "all")], shares={"all": [1, 4, 2]}),
    "both": Layout([("a", 2), ("b", 2)], [("batch", "a"), ("classes", "b")], shares={"a": [3, 1], "b": [1, 3]}),
    "space": Layout([("all", 2)], [("depth", "all")], shares={"all": [2, 1]}),
}


def count_metrics(task, layout, logits, labels):
    """The metrics of a test on a layout, in batches of which the last is filled up."""
    spatial = ["depth", "height", "width"][: labels.ndim - 1]
    dims = [mtf.Dimension(n, s) for n, s in zip(["batch", *spatial, "classes"], (BATCH, *logits.shape[1:]))]
    totals = {}
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        shapes = [mtf.Shape(dims), mtf.Shape(dims[:-1]), mtf.Shape(dims[:1])]
        types = (tf.float32, tf.int32, tf.float32)
        fed = [tf.placeholder(dtype, shape.to_integer_list) for dtype, shape in zip(types, shapes)]
        sums = task.sums(*(mtf.import_tf_tensor(mesh, x, shape) for x, shape in zip(fed, shapes)))
        devices = [f"cpu:{number}" for number in range(layout.size)]
        lowering = mtf_hetero.Lowering(graph, {mesh: mtf_hetero.UnevenMeshImpl.from_layout(layout, devices)})
        fetches = {name: lowering.export_to_tf_tensor(value) for name, value in sums.items()}
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            for first in range(0, len(labels), BATCH):
                parts = [part[first : first + BATCH] for part in (logits, labels, np.ones(len(labels)))]
                filled = [np.pad(part, [(0, BATCH - len(part))] + [(0, 0)] * (part.ndim - 1)) for part in parts]
                for name, value in session.run(fetches, dict(zip(fed, filled))).items():
                    totals[name] = totals.get(name, 0) + value.astype(np.float64)
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(task.metrics({name: tf.constant(value) for name, value in totals.items()}))


def random_test(seed=0, count=21, *spatial):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, *spatial, CLASSES)).astype(np.float32), rng.integers(0, 6, (count, *spatial))


@pytest.mark.parametrize("layout", ["one device", "both"])
def test_counts_are_those_of_scikit_learn(layout):
    logits, labels = random_test()  # in which class 6 has no example
    found = count_metrics(Classification(CLASSES, top=3, detailed=True), LAYOUTS[layout], logits, labels)
    predicted, classes = logits.argmax(1), range(CLASSES)
    np.testing.assert_array_equal(found["confusion"], reference.confusion_matrix(labels, predicted, labels=classes))
    np.testing.assert_array_equal(found["class_examples"], np.bincount(labels, minlength=CLASSES))
    np.testing.assert_array_equal(found["class_right"], np.diag(found["confusion"]))
    assert found["not_finite"] == 0
    assert found["accuracy"] == reference.accuracy_score(labels, predicted)
    assert found["top_3_accuracy"] == reference.top_k_accuracy_score(labels, logits, k=3, labels=classes)


def test_of_equal_outputs_the_first_class_wins():
    rng = np.random.default_rng(1)
    logits, labels = rng.integers(0, 2, (16, CLASSES)).astype(np.float32), rng.integers(0, CLASSES, 16)
    found = count_metrics(Classification(CLASSES, top=2, detailed=True), LAYOUTS["classes"], logits, labels)
    order = np.argsort(-logits, axis=1, kind="stable")
    assert found["accuracy"] == np.mean(order[:, 0] == labels)
    assert found["top_2_accuracy"] == np.mean((order[:, :2] == labels[:, None]).any(1))
    expected = reference.confusion_matrix(labels, order[:, 0], labels=range(CLASSES))
    np.testing.assert_array_equal(found["confusion"], expected)


def test_outputs_that_are_not_finite_are_wrong():
    logits, labels = random_test(count=16)
    logits[np.arange(16), labels] = 9  # all are right
    for example, value in ((3, np.nan), (5, np.inf), (9, -np.inf)):
        logits[example, (labels[example] + example) % CLASSES] = value
    logits[12] = np.nan
    found = count_metrics(Classification(CLASSES, top=3, detailed=True), LAYOUTS["classes"], logits, labels)
    assert found["not_finite"] == 4
    assert found["accuracy"] == found["top_3_accuracy"] == 12 / 16
    np.testing.assert_array_equal(found["class_examples"], np.bincount(labels, minlength=CLASSES))
    np.testing.assert_array_equal(found["confusion"], np.diag(found["class_right"]))
    assert found["class_right"].sum() == 12


def test_voxels_are_counted_too():
    logits, labels = random_test(2, 9, 3, 2, 4)
    logits[4, 1, 1, 3, 2] = np.nan
    found = count_metrics(Segmentation(CLASSES, detailed=True), LAYOUTS["space"], logits, labels)
    keep = np.isfinite(logits).all(-1)
    predicted = logits.argmax(-1)
    expected = reference.confusion_matrix(labels[keep], predicted[keep], labels=range(CLASSES))
    np.testing.assert_array_equal(found["confusion"], expected)
    assert found["not_finite"] == 1 and found["class_examples"].sum() == labels.size
    predicted = np.where(keep, predicted, -1)
    dice = reference.f1_score(labels.ravel(), predicted.ravel(), labels=range(CLASSES), average=None)
    np.testing.assert_allclose([found[f"dice/{number}"] for number in range(CLASSES)], dice, rtol=1e-12)


def test_a_plain_test_counts_no_classes():
    logits, labels = random_test()
    assert not set(COUNTS) & set(count_metrics(Classification(CLASSES), LAYOUTS["batch"], logits, labels))


def test_of_very_many_classes_no_pairs_are_counted(monkeypatch):
    monkeypatch.setattr("mtf_hetero.cli.train.tasks.MOST_CONFUSED", 6)
    logits, labels = random_test()
    found = count_metrics(Classification(CLASSES, detailed=True), LAYOUTS["classes"], logits, labels)
    assert "confusion" not in found
    predicted = logits.argmax(1)
    np.testing.assert_array_equal(found["class_right"], np.bincount(labels[predicted == labels], minlength=CLASSES))


def test_a_task_without_classes_is_refused_what_it_lacks():
    regression = Regression(("omega",), (0.0,), (1.0,))
    assert evaluate._with_details(regression, argparse.Namespace()) is regression
    for flag in ("top", "confusion_matrix"):
        with pytest.raises(ValueError, match=f"--{flag} is given, but this model predicts targets, not classes"):
            evaluate._with_details(regression, argparse.Namespace(**{flag: "5"}))
    with pytest.raises(ValueError, match="there are 2,001 classes; it counts up to 2,000; remove it"):
        evaluate._with_details(Classification(2001), argparse.Namespace(confusion_matrix="c.png"))
    assert evaluate._with_details(Classification(5), argparse.Namespace()).top == 0
    assert evaluate._with_details(Segmentation(9), argparse.Namespace()).top == 0
    assert evaluate._with_details(Segmentation(9), argparse.Namespace(top=3)).top == 3


def small(names=("cat", "dog", "a bird whose name is very long", "fish")):
    matrix = np.array([[8, 2, 0, 0], [1, 3, 1, 5], [0, 0, 4, 0], [0, 0, 0, 0]])
    return results.of_classes(names, matrix.sum(1), np.diag(matrix), matrix)


def test_the_table_has_the_worst_class_first():
    assert results.table(small(), "images").splitlines() == [
        "class                     images  accuracy  most often taken for",
        "dog                           10    0.3000  fish (5)",
        "cat                           10    0.8000  dog (2)",
        "a bird whose name is ...       4    1.0000",
        "fish                           0         -",
    ]


def test_many_classes_are_folded():
    right = np.arange(1, 121)
    classes = results.of_classes((), np.full(120, 120), right, None)
    lines = results.table(classes, "images").splitlines()
    assert len(lines) == 12 and lines[1].split() == ["0", "120", "0.0083"]
    assert lines[-1] == "... 110 more classes, accuracy 0.0917 to 1.0000"
    assert max(map(len, lines)) <= 80


def test_json_has_a_line_for_each_row():
    text = results.dumps(
        {"model": "x", "metrics": {"loss": None}, "classes": results.as_rows(small()), "rows": [[1, 2]]}
    )
    assert json.loads(text)["classes"][3] == {"class": 3, "name": "fish", "examples": 0, "right": 0, "accuracy": None}
    assert '    {"class": 0, "name": "cat", "examples": 10, "right": 8, "accuracy": 0.8},\n' in text
    assert text.endswith('  "rows": [\n    [1, 2]\n  ]\n}\n')


def test_a_picture(tmp_path):
    matrix = np.array([[8, 2, 0], [1, 3, 1], [0, 0, 0]])
    confusion.draw(matrix, ("cat", "dog", "bird"), tmp_path / "c.png", title="lenet")
    data = (tmp_path / "c.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20]) == 800
