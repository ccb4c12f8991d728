"""The training binary on volumes: regression and segmentation, divided in space, and sets that are damaged."""

import re

import numpy as np
import pytest
from small_volumes import labelled
from tiers import on_workers, parametrize
from training_runs import check_mistake, check_variables, run, variables

from mtf_hetero import Layout, data, tf
from mtf_hetero.cli.train import prepare as prepare_lib
from mtf_hetero.cli.train import program as network
from mtf_hetero.cli.train.tasks import Regression, Segmentation
from mtf_hetero.data.preparing.cosmology import write_universes
from mtf_hetero.models.registry import MODELS

pytestmark = pytest.mark.usefixtures("toys")
TWO = "cpu:0,cpu:1"
COMMON = {"devices": TWO, "batch_size": 2, "max_steps": 2, "optimizer": "sgd", "layout": "spatial"}
COMMON |= {"mesh_shape": "depth:2", "list_speed": "2,1"}


@pytest.fixture(scope="module")
def universes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sets") / "universes"
    write_universes(directory, train=5, test=3, size=16)
    return directory


@pytest.fixture(scope="module")
def balls(tmp_path_factory):
    return labelled(tmp_path_factory.mktemp("sets") / "balls")


@pytest.fixture(scope="module")
def options(universes, balls):
    return {
        "cosmoflow_small": COMMON | {"model": "cosmoflow_small", "dataset": universes},
        "unet3d_small": COMMON | {"model": "unet3d_small", "dataset": balls},
    }


def read_test_numbers(out):
    """The numbers of the lines on the test."""
    lines = [line for line in out.splitlines() if line.startswith(("mean absolute error", "test "))]
    return [float(number) for line in lines for number in re.findall(r"-?\d+\.\d+(?:e-\d+)?", line)]


NUMBER = r"-?\d\S*"
EACH = ", ".join(rf"{name} {NUMBER} \(R2 {NUMBER}\)" for name in ("omega_m", "sigma_8", "n_s"))
SAID = {
    "cosmoflow_small": {
        "set": "16 x 16 x 16 x 1, simulated, targets omega_m, sigma_8, n_s",
        "scores": [rf"mean absolute error of 3 volumes: {EACH}"],
    },
    "unet3d_small": {
        "set": "8 x 8 x 8 x 1, 3 classes of voxels",
        "scores": [
            r"test accuracy: \d\.\d{4} of the voxels of 3 volumes",
            r"test Dice: \d\.\d{4}, the mean of all classes but 0; of each class, 0: \d\.\d{4}, 1: .*",
        ],
    },
}


def assert_as_one_device(given, divided, tmp_path, capfd):
    """A run on one device and a divided one train the same network, and say the same of it."""
    given = given | {"learning_rate_schedule": "cosine", "augment": True}
    one = {name: value for name, value in given.items() if name not in ("mesh_shape", "list_speed")}
    assert run(**one | {"devices": "cpu:0", "layout": "batch"}, model_dir=tmp_path / "one") == 0
    expected, scores = variables(tmp_path / "one"), read_test_numbers(capfd.readouterr().out)
    assert len(scores) >= 5
    given = {name: value for name, value in given.items() if name != "devices"}
    assert run(**given | divided, model_dir=tmp_path / "divided") == 0
    check_variables(tmp_path / "divided", expected, atol=1e-4)
    out = capfd.readouterr().out
    np.testing.assert_allclose(read_test_numbers(out), scores, atol=2e-3)
    assert re.search(r"\n  depth +\d+ over depth: \d+, \d+\n", out)
    model = given["model"]
    said = SAID[model]
    assert out.startswith(f"{model}: ")
    assert f"{given['dataset']}: 5 training and 3 test volumes of {said['set']}\n" in out
    for pattern in (*said["scores"], r"volumes per second: \d+\.\d"):
        assert re.search(rf"\n{pattern}\n", out), pattern


FOUR = {"mesh_shape": "batch:2;depth:2", "devices": f"{TWO},cpu:2,cpu:3", "list_speed": "batch:1,1;depth:3,1"}


DEPTH = {"devices": TWO}


@parametrize(
    ("model", "divided"),
    [("cosmoflow_small", FOUR), ("cosmoflow_small", DEPTH), ("unet3d_small", DEPTH)],
    first=[("cosmoflow_small", DEPTH)],
)
def test_a_divided_depth_trains_and_tests_as_one_device(options, model, divided, tmp_path, capfd):
    assert_as_one_device(options[model], divided, tmp_path, capfd)


@pytest.mark.full
def test_a_dry_run(options, capfd, monkeypatch):
    """It counts each device's own slab of the volumes; and what is computed again takes less."""
    monkeypatch.setattr(prepare_lib, "MODELS", MODELS)
    given = options["cosmoflow_small"] | {"dry_run": True, "batch_size": 5}
    activations = []
    for recompute in ("", "all"):
        assert run(**given, recompute=recompute) == 0
        lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith(tuple(TWO.split(",")))]
        activations.append([float(line.split()[4]) for line in lines])
    assert activations[0][0] > activations[0][1]
    assert activations[0][0] > activations[1][0] and activations[0][1] >= activations[1][1]


MISTAKES = [
    ({"dataset": "mnist5k"}, "--dataset is 'mnist5k', but --model=cosmoflow_small takes volumes; give a directory"),
    ({"dataset": "/no/such/set"}, "--dataset is '/no/such/set', but --model=cosmoflow_small takes volumes"),
    ({"dataset": "tests"}, "tests/manifest.json cannot be read (No such file or directory)"),
    ({"model": "lenet"}, "a set of volumes, but --model=lenet takes images; give a model of volumes, such as"),
    ({"model": "unet3d"}, "has targets, omega_m, sigma_8, n_s, and no labels of voxels to segment"),
    ({"dataset": "BALLS"}, "has labels of voxels and no targets to predict; give a set with targets"),
    ({"dataset": "ODD"}, "volumes are of 12 x 12 x 12 voxels; give cubes whose edge is a power of two from 4 to 64"),
    ({"dataset": "ODD", "model": "unet3d"}, "the network halves them 3 times; give multiples of 8"),
    ({"batch_size": 6}, "--batch_size is 6, but"),
    ({"recompute": "conv1,conv9"}, "recompute names 'conv9'; it must be all or some of the stages conv1, conv2, conv3"),
    ({"layout": "hybrid", "mesh_shape": "a:2", "dense_rounds": True}, "--dense_rounds is given, which --model="),
    ({"mesh_shape": "a:2;b:1;c:1;d:1"}, "need one to 3 mesh axes"),
    ({"mesh_shape": "depth:3"}, "shares of mesh axis 'depth' are [2.0, 1.0]: 2 numbers for 3 processors"),
    ({"layout": "conv1/time:depth"}, "dimension 'conv1/time', which no tensor of the graph has"),
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sets") / "odd"
    planes = data.Planes((12, 12, 12, 1), "uint8", targets=("a",))
    with data.write_volumes(directory, planes, provenance={}) as writer:
        for number in range(2):
            writer.add("train", [(np.zeros(planes.shape), None)], [number])
    return directory, labelled(tmp_path_factory.mktemp("sets") / "odd_labelled", size=12, train=2)


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=[str(values) for values, _ in MISTAKES])
def test_a_mistake_gives_one_line_and_exit_code_2(options, balls, odd, values, message, capfd):
    values = dict(values)
    values["dataset"] = {"BALLS": balls, "ODD": odd["unet" in values.get("model", "")]}.get(
        values.get("dataset"), values.get("dataset", options["cosmoflow_small"]["dataset"])
    )
    check_mistake(capfd, message, **options["cosmoflow_small"] | values)


@pytest.mark.full
def test_a_set_without_test_volumes(tmp_path, options, capfd):
    directory = labelled(tmp_path / "set", test=0)
    one = {"devices": "cpu:0", "layout": "batch", "mesh_shape": "all:1", "list_speed": "1", "max_steps": 1}
    assert run(**options["unet3d_small"] | one | {"dataset": directory}, model_dir=tmp_path / "model") == 0
    assert "\nnot tested: there are no test volumes\n" in capfd.readouterr().out


@pytest.mark.full
def test_speeds_are_measured(options, tmp_path, capfd, monkeypatch):
    given = {name: value for name, value in options["cosmoflow_small"].items() if name != "mesh_shape"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run(**given | {"list_speed": "auto"}, model_dir=tmp_path / "model") == 0
    assert "mean absolute error of 3 volumes" in capfd.readouterr().out


@pytest.mark.full
@on_workers
def test_workers_each_read_their_own_slab(options, workers, tmp_path, capfd):
    assert_as_one_device(options["unet3d_small"], {"workers": ",".join(workers.addresses[:2])}, tmp_path, capfd)


# What the tasks count


def evaluated(task, outputs, labels, weights, layout):
    """The metrics of batches of outputs, (batches, examples, ...), which the layout splits."""
    images = outputs  # the network hands its input on
    devices = [f"cpu:{pnum}" for pnum in range(layout.size)]
    with tf.Graph().as_default():
        batches = tf.data.Dataset.from_tensor_slices(({"image": images, "weight": weights}, labels))
        iterator = tf.data.make_one_shot_iterator(batches)
        features, label = iterator.get_next()
        made = network.Program(lambda x, training: x, network.Optimizer("sgd"), task, outputs.shape[1:2])
        spec = made.model_fn(features, label, "eval", layout=layout, devices=devices)
        assert spec.eval_metric_ops is not None
        values = {name: value for name, (value, _) in spec.eval_metric_ops.items()}
        update = [update for _, update in spec.eval_metric_ops.values()]
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            session.run(tf.local_variables_initializer())
            losses = [session.run([spec.loss, update])[0] for _ in outputs]
            return losses, session.run(values)


SPLIT = [Layout("x:1", ""), Layout("x:3", "batch:x", {"x": [2, 1, 1]}), Layout("x:2", "channels:x")]


@pytest.mark.parametrize("layout", [*SPLIT, Layout("x:2;y:2", "depth:x;width:y", {"x": [3, 1]})])
def test_segmentation_counts(layout):
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=[2, 4, 4, 2, 4, 3]).astype(np.float32)
    labels = rng.integers(0, 3, outputs.shape[:-1]).astype(np.int32)
    labels[labels == 2] = 0
    outputs[..., 2] = -9  # a class that is neither found nor there
    weights = np.array([[1, 1, 1, 1], [1, 0, 1, 0]], np.float32)
    losses, found = evaluated(Segmentation(3), outputs, labels, weights, layout)
    right, dice = [], []
    classes, there = outputs.argmax(-1)[weights > 0], labels[weights > 0]
    right = (classes == there).mean()
    dice = [2 * ((classes == i) & (there == i)).sum() / ((classes == i).sum() + (there == i).sum()) for i in (0, 1)]
    np.testing.assert_allclose(found["accuracy"], right)
    np.testing.assert_allclose([found["dice/0"], found["dice/1"], found["dice"]], [*dice, dice[1]], rtol=1e-6)
    assert np.isnan(found["dice/2"])
    log = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    each = -np.take_along_axis(log, labels[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses, [each[i][weights[i] > 0].mean() for i in range(2)], rtol=1e-5)


@pytest.mark.parametrize("layout", SPLIT)
def test_regression_counts(layout):
    rng = np.random.default_rng(2)
    outputs = rng.normal(size=[2, 4, 2]).astype(np.float32)
    labels = (0.7 * outputs + rng.normal(size=outputs.shape)).astype(np.float32)
    weights = np.array([[1, 1, 1, 1], [1, 0, 1, 0]], np.float32)
    task = Regression(("a", "b"), (10.0, 20.0), (3.0, 0.5))
    losses, found = evaluated(task, outputs, labels, weights, layout)
    one, two = outputs[weights > 0], labels[weights > 0]
    error = np.abs(one - two).mean(0) * task.deviation
    r2 = 1 - np.square(one - two).sum(0) / np.square(two - two.mean(0)).sum(0)
    for i, name in enumerate("ab"):
        np.testing.assert_allclose(found[f"mean_absolute_error/{name}"], error[i], rtol=1e-5)
        np.testing.assert_allclose(found[f"r2/{name}"], r2[i], rtol=1e-4)
    mean = [np.square(outputs[i] - labels[i])[weights[i] > 0].mean() for i in range(2)]
    np.testing.assert_allclose(losses, mean, rtol=1e-5)
    with tf.Graph().as_default(), tf.Session() as session:
        told = session.run(task.predictions(tf.constant(outputs[0])))["targets"]
    np.testing.assert_allclose(told, outputs[0] * [3.0, 0.5] + [10.0, 20.0], rtol=1e-6)


def test_cosine_decay():
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        rate = network.Optimizer("adam", 0.1, 8, "cosine")._rate()
        found = []
        for value in (0, 2, 4, 8, 9):
            step.load(value, session)
            found.append(session.run(rate))
    np.testing.assert_allclose(found, [0.1, 0.05 * (1 + np.cos(np.pi / 4)), 0.05, 0, 0], atol=1e-8)
