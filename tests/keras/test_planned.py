"""`mtf_hetero.plan`: Keras models and steps of TensorFlow, planned for devices in words; assumptions and memory."""

import os
import re

import forked
import keras
import numpy as np
import planned_programs
import pytest
from documents import ROOT

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.cost.devices_file import parse_devices
from mtf_hetero.planner import fitting
from mtf_hetero.planner.fitting import ShortOfMemoryError

TWO = "RTX 3090, GTX 1080 Ti"


@pytest.fixture(scope="module")
def model():
    layers = [keras.layers.Conv2D(64, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    made = keras.Sequential([keras.Input((32, 32, 3)), *layers])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


@pytest.fixture(scope="module")
def batch():
    return np.zeros([8, 32, 32, 3], np.float32), np.zeros([8], np.int32)


def test_a_model_is_planned_in_words(model, batch):
    before = model.get_weights()
    found = mtf_hetero.plan(model, batch, batch_size=256, devices=TWO, link="pcie4")
    assert found.plan.devices == ("RTX-3090", "GTX-1080-Ti")
    assert found.plan.layout.sizes and all(map(all, dict(found.plan.layout.sizes).values()))
    text = str(found)
    assert text.startswith("Split over RTX-3090, GTX-1080-Ti: ") and "\nMemory per device: about " in text
    assert "\nFor batches of 256. Assumed: steps reach 40 % of the peak arithmetic.\n" in text
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))
    keras_own = model.fit(*batch, verbose=0)  # the model is as it was
    assert len(keras_own.history["loss"]) == 1


def test_where_the_verdict_flips(model, batch):
    apart = mtf_hetero.plan(model, batch, batch_size=8, devices=TWO)
    assert apart.plan.devices == ("RTX-3090",)
    text = " ".join(str(apart).split())
    assert "Assumed: 10 Gbit/s between devices, steps reach 40 % of the peak arithmetic." in text
    assert "Over PCIe 4.0, split over RTX-3090, GTX-1080-Ti: " in text
    assert str(apart).endswith("explain=True says when the devices that are not used would pay off.")
    sure = mtf_hetero.plan(model, batch, batch_size=8, devices=TWO, link="10Gbit/s")
    assert sure.plan.devices == apart.plan.devices and "Over PCIe" not in str(sure)


def test_the_least_price(model, batch):
    options = {"batch_size": 256, "devices": "RTX 3090 at 0.22, GTX 1080 Ti at 0.08", "link": "pcie4"}
    found = mtf_hetero.plan(model, batch, objective="cost", **options)
    fast = mtf_hetero.plan(model, batch, **options)
    assert fast.plan.devices == ("RTX-3090", "GTX-1080-Ti") and len(found.plan.devices) == 1
    assert all("\n1,000 steps cost 0.0" in str(each) for each in (found, fast))
    limit = 1.01 * fast.plan.seconds
    assert mtf_hetero.plan(model, batch, objective="cost", most_seconds=limit, **options).plan.seconds <= limit


def test_a_step_is_planned():
    weight = tf.compat.v2.Variable(tf.random.normal([256, 256]))

    @tf.compat.v2.function
    def step(x):
        with tf.compat.v2.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    found = mtf_hetero.plan(step, tf.TensorSpec([4096, 256]), devices=parse_devices("2 x V100", "nvlink"))
    assert found.plan.devices == ("V100:0", "V100:1")
    assert "Assumed: steps reach 40 % of the peak arithmetic." in str(found)


def test_a_model_with_a_train_step_of_its_own_takes_a_batch_without_labels(model):
    class Autoencoder(keras.Sequential):
        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x["images"]) - x["images"]) ** 2)
            weights = self.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    made = Autoencoder([keras.Input((32,)), keras.layers.Dense(8), keras.layers.Dense(32)])
    made.compile("adam")
    batch = {"images": tf.TensorSpec([64, 32])}
    assert str(mtf_hetero.plan(made, batch, batch_size=96, devices=TWO)).count("For batches of 96.") == 1
    with pytest.raises(ValueError, match=r"give a batch as a tuple, \(x, y\)"):
        mtf_hetero.plan(model, batch, devices=TWO)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"step": 3}, "step is 3; give a compiled keras.Model, a tf.function or a function of tensors"),
        ({"batch_size": "a"}, "batch_size is 'a'; it must be"),
        ({"inputs": np.zeros([2, 32, 32, 3])}, r"give a batch as a tuple, \(x, y\)"),
        ({"step": lambda x: x, "batch_size": 3}, "batch_size is of a keras.Model, but step is a function"),
        ({"step": keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])}, "is not compiled"),
        ({"devices": "RTX 3085"}, "which is not a known kind; the nearest"),
        ({"link": "fast"}, "link: 'fast' is not a known link"),
        ({"objective": "price"}, "objective is 'price'; it must be time or cost"),
        ({"most_seconds": 1}, "most_seconds is 1, but the objective is time"),
        ({"objective": "cost"}, "device 'RTX-3090' has no price per hour"),
        ({"devices": parse_devices("V100"), "link": "pcie4"}, "link is given twice"),
    ],
)
def test_mistakes(model, batch, options, problem):
    arguments = {"step": model, "inputs": batch, "devices": TWO} | options
    with pytest.raises(ValueError, match=problem):
        mtf_hetero.plan(**arguments)


@pytest.mark.full
def test_what_does_not_fit_says_which_batch_does(model, batch):
    def plan(count):
        return mtf_hetero.plan(model, batch, batch_size=count, devices="GTX 1080, gpu:1=GTX 1080 Ti", link="pcie3")

    with pytest.raises(
        ShortOfMemoryError, match=r"nearest needs about .* on .* \(\d+ GB\), .*; add devices, or use a"
    ) as short:
        plan(2_000_000)  # images of 25 GB
    largest = short.value.batch_size
    assert largest is not None
    found = plan(largest).plan
    assert fitting.fits(found, parse_devices("GTX 1080, gpu:1=GTX 1080 Ti"))
    with pytest.raises(ShortOfMemoryError):
        plan(round(1.3 * largest))


@pytest.mark.full
def test_a_program_that_people_write_is_planned():
    assert re.match(r"(Use|Split over|Pipeline of) .* per step", planned_programs.verdict("vision/mnist_convnet"))


PARTS = 12  # of a third of the programs, each a process, whose memory grows with each program


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_programs_that_people_write_are_planned(part):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [planned_programs.__file__, str(part), str(PARTS)]
    found = forked.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) >= 5
    assert [line for line in lines if not re.search(r": (Use|Split over|Pipeline of) .* per step", line)] == []
