"""`mtf_hetero.keras.fit` over workers that read their own examples: each batch has the logs of Keras."""

import os
import signal

import keras
import numpy as np
import pytest
from batch_oracle import Blind
from estimator_oracle import await_wanted, log_lines
from fit_oracle import make_model, network, same, state
from keras_oracle import floatx
from tiers import losing_workers, on_workers

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.data.cutting import Loader
from mtf_hetero.importer.staging import Stage
from mtf_hetero.training import Elastic, course

Dataset = tf.compat.v2.data.Dataset
COUNT = 35  # the last batch of eight has three
LABELS = np.arange(COUNT) % 5
IMAGES = np.random.default_rng(0).standard_normal((COUNT, 6, 6, 3))


def compiled(**options):
    model = network(dropout=0.3)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    return model


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number, image in enumerate(IMAGES):
        (folder / f"{number:02}").write_bytes(image.tobytes())
    return [str(path) for path in sorted(folder.iterdir())]


def read(path, y):
    return tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.float64), [6, 6, 3]), y


def files(paths):
    dataset = Dataset.from_tensor_slices((paths, LABELS)).shuffle(20, seed=3)
    return dataset.map(read, tf.data.AUTOTUNE).batch(8).prefetch(2)


def augmented(paths):
    """Images mirrored or not, and brighter or not, by numbers that go with each of them."""

    def change(example, number):
        image, y = read(*example)
        draws = tf.random.stateless_uniform([2], [7, number])
        image = tf.where(draws[0] < 0.5, image[:, ::-1], image)
        return image * tf.cast(0.5 + draws[1], image.dtype), y

    examples = Dataset.from_tensor_slices((paths, LABELS))
    numbered = Dataset.zip((examples, Dataset.range(COUNT))).shuffle(20, seed=3)
    return numbered.map(change, tf.data.AUTOTUNE).batch(8).prefetch(2)


def generated(paths):
    def generate():
        for start in range(0, COUNT, 8):
            yield IMAGES[start : start + 8], LABELS[start : start + 8]

    return generate()


DATA = {  # makes the arguments of fit
    "files": lambda paths: {"x": files(paths), "validation_data": files(paths)},
    "files, some steps": lambda paths: {"x": files(paths).repeat(), "steps_per_epoch": 3},
    "files, several steps at once": lambda paths: {"x": files(paths)},
    "class weights": lambda paths: {"x": files(paths), "class_weight": {0: 2.0, 4: 0.5}},
    "functions of batches": lambda paths: {"x": files(paths).map(lambda x, y: (x * 2.0, y))},
    "all of it": lambda paths: {"x": augmented(paths), "class_weight": {0: 2.0, 4: 0.5}, "epochs": 60},
    "arrays": lambda paths: {"x": IMAGES, "y": LABELS, "batch_size": 8, "validation_split": 0.2, "epochs": 6},
    "arrays, one pass": lambda paths: {"x": IMAGES, "y": LABELS, "batch_size": 8, "epochs": 1},
    "batches as they are": lambda paths: {"x": Dataset.from_tensor_slices((IMAGES, LABELS)).shuffle(9, 1).batch(8)},
    "a generator": lambda paths: {"x": generated(paths), "epochs": 1, "steps_per_epoch": 5},
}
LOADED = {
    "files",
    "files, some steps",
    "files, several steps at once",
    "class weights",
    "functions of batches",
    "arrays",
}


def train(fit, name, paths, callback, **place):
    """Return the model, and its history."""
    options = {"steps_per_execution": 3} if "at once" in name else {}
    with floatx(tf.float64):
        model = make_model(lambda: compiled(**options))
        history = fit(
            model,
            **{"epochs": 3, "verbose": 0, "shuffle": "arrays" in name, **DATA[name](paths)},
            callbacks=[callback],
            **place,
        )
    return model, history.history


def check(name, paths, workers, acts=None, **place):
    """Assert that fit gives what Keras gives, batch by batch."""
    ours, theirs = Blind(acts), Blind()
    reference, expected = train(keras.Model.fit, name, paths, theirs)
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": "4,2,1", "verify": False} | place
    model, found = train(mtf_hetero.keras.fit, name, paths, ours, **place)
    for mine, own in zip(ours.logs, theirs.logs, strict=True):
        same(mine, own, 1e-12)
    same(found, expected, 1e-12)
    same(state(model), state(reference), 1e-9)


@pytest.fixture
def sent(monkeypatch):
    """Counts the batches that are fed, and the examples that this process makes."""
    counts = {"fed": 0, "made": 0, "loaded": 0}
    put, load, load_here = Stage.put, Stage.load, Loader.load_here

    def count_fed(stage, *arguments):
        counts["fed"] += 1
        put(stage, *arguments)

    def count_loaded(stage, *arguments, **options):
        counts["loaded"] += 1
        return load(stage, *arguments, **options)

    def count_made(loader, fed):
        counts["made"] += len(fed[0])
        return load_here(loader, fed)

    monkeypatch.setattr(Stage, "put", count_fed)
    monkeypatch.setattr(Stage, "load", count_loaded)
    monkeypatch.setattr(Loader, "load_here", count_made)
    return counts


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("layout", ["batch", "filters"])
@pytest.mark.parametrize("name", [name for name in DATA if name != "all of it"])
def test_each_batch_is_kerass(name, layout, paths, workers, sent):
    check(name, paths, workers, layout=layout)
    assert sent["loaded"] == 0 if name not in LOADED else sent["loaded"] >= 9
    if name in LOADED and name != "arrays":
        assert sent["fed"] == 0
        assert sent["made"] <= 6  # of each worker one example, and for the validation, is compared


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("layout", ["batch", "filters"])
@pytest.mark.parametrize("name", ["files", "arrays"])
def test_evaluated_and_predicted_without_a_batch_here(name, layout, paths, workers, sent):
    place = {"workers": workers.addresses, "layout": layout, "list_speed": "4,2,1", "verify": False, "verbose": 0}
    with floatx(tf.float64):
        model = make_model(compiled)
        data = (files(paths),) if name == "files" else (IMAGES, LABELS)
        found = mtf_hetero.keras.evaluate(model, *data, return_dict=True, **place)
        same(found, model.evaluate(*data, return_dict=True, verbose=0), 1e-12)
        inputs = Dataset.from_tensor_slices(paths).map(lambda path: read(path, 0)[0]).batch(8)
        found = mtf_hetero.keras.predict(model, inputs if name == "files" else IMAGES, **place)
        np.testing.assert_allclose(found, model.predict(IMAGES, verbose=0), rtol=1e-12)
    assert (sent["fed"] == 0) == (name == "files")


@on_workers
def test_workers_read_their_own_examples(paths, workers, sent):
    check("files", paths, workers, verify=True)
    assert sent["fed"] == 4 and sent["loaded"] >= 2 * 3 * 5 - 4  # fed are the first batches of each kind, to compare


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("how", ["a file is missing", "a file is another one"])
def test_files_that_workers_lack_are_read_here(how, paths, workers, sent, monkeypatch):
    lines, load, tried = log_lines(monkeypatch), Stage.load, []

    def fail(stage, *arguments, **options):
        tried.append(stage)
        if how == "a file is another one":
            return load(stage, *arguments, **options) or "worker:1 reads another example"
        raise tf.errors.NotFoundError(None, None, "images/7.png; No such file or directory")

    monkeypatch.setattr(Stage, "load", fail)
    check("files", paths, workers)
    asked = [line for line in lines if "do not read" in line]
    assert len(asked) == len(tried) == 2  # once for the data and for the validation data, not for each size of a batch
    assert all(line.endswith("put the same files at the same path on every worker") for line in asked)


@on_workers
@pytest.mark.full
def test_an_example_that_nobody_can_read_is_kerass_error(paths, workers):
    with pytest.raises(tf.errors.NotFoundError, match="missing"):
        check("files", [*paths[:-1], "missing"], workers)


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("layout", ["batch", "filters"])
def test_no_two_workers_draw_other_random_numbers(layout, workers, sent):
    """The labels are what was drawn: whoever draws anew for the images has another loss than zero."""

    def draw(number):
        drawn = tf.random.uniform([4], dtype=tf.float64)
        return drawn, drawn

    tf.compat.v2.random.set_seed(None)
    dataset = Dataset.range(24).map(draw, tf.data.AUTOTUNE).batch(8)
    with floatx(tf.float64):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, None, False, "identity")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        place = {"workers": workers.addresses, "layout": layout, "list_speed": "4,2,1", "verify": False}
        history = mtf_hetero.keras.fit(model, dataset, epochs=2, verbose=0, shuffle=False, **place)
    assert max(history.history["loss"]) < 1e-20
    assert (sent["loaded"] > 0) == (layout == "batch")


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("name", "batch"), [("files", 1), ("files", 7), ("files, some steps", 4), ("arrays", 17)])
def test_no_example_is_read_twice_after_a_loss(name, batch, paths, workers):
    try:
        lose = {batch: lambda: os.kill(workers.pids[1], signal.SIGKILL)}
        check(name, paths, workers, lose, wait_for_workers=1)
    finally:
        workers.restart(1)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_three_hundred_steps_are_kerass(paths, workers, monkeypatch):
    """Shuffled, augmented, the last batch smaller, weights of classes; a worker is lost, returns, and is lost again."""
    monkeypatch.setattr("mtf_hetero.training.elastic._LOOK_SECONDS", 0.2)
    made = []
    monkeypatch.setattr(course, "Elastic", lambda **options: made.append(Elastic(**options)) or made[-1])
    acts = {
        70: lambda: os.kill(workers.pids[1], signal.SIGKILL),
        120: lambda: (workers.restart(1), await_wanted(made[0])),
        230: lambda: os.kill(workers.pids[2], signal.SIGSTOP),
    }
    lines = log_lines(monkeypatch)
    try:
        check("all of it", paths, workers, acts, wait_for_workers=1)
        assert sum("training continues from step" in line for line in lines) == 3
    finally:
        workers.restart(1)
        workers.restart(2)
