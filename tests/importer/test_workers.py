"""Steps over workers: on any layout, planned, and what is said of a lost worker."""

import os
import signal

import keras
import numpy as np
import pytest
from import_oracle import check, rows
from steps import STEPS
from tiers import on_workers

import mtf_hetero
import mtf_hetero.keras
from mtf_hetero.cluster import LocalCluster, UnreachableWorkerError
from mtf_hetero.cost import machines
from mtf_hetero.planner import planning

NAMES = "worker:0/cpu:0,worker:1/cpu:0,worker:2/cpu:0"


@on_workers
@pytest.mark.full
@pytest.mark.parametrize(("name", "layout"), [("transformer", "batch"), ("perceptron", "filters"), ("LSTM", "batch")])
def test_over_workers(workers, name, layout):
    place = {"workers": ",".join(workers.addresses), "devices": NAMES, "layout": layout, "list_speed": "4,2,1"}
    check(STEPS[name], place)


@on_workers
@pytest.mark.full
def test_a_later_kind_of_inputs(workers):
    """Its messages are arranged too, in a graph that the workers ran already."""

    def make():
        step, variables, inputs = STEPS["convolutional, momentum"]()
        return step, variables, [(x[:n], y[:n]) for (x, y), n in zip(inputs, (14, 7, 14))]

    check(make, {"workers": ",".join(workers.addresses), "devices": NAMES, "layout": "batch", "list_speed": "4,2,1"})


@on_workers
@pytest.mark.full
def test_planned_for_workers(workers):
    (divided,) = check(STEPS["perceptron"], {"workers": ",".join(workers.addresses), "measure_seconds": 20})
    assert 1 <= divided.layout.size <= 3


@pytest.mark.full
@pytest.mark.parametrize("name", ["convolutional, momentum", "transformer"])
def test_plans(name):
    step, _, inputs = STEPS[name]()
    with mtf_hetero.function(step, inputs[0], devices="cpu:0", layout="batch") as divided:
        graph = divided.graph
    described = [machines.Machine(f"cpu:{i}", 4e8 / (i + 1), 4e9 / (i + 1), operation_seconds=1e-7) for i in range(3)]
    plan = planning.find(graph, machines.Machines(tuple(described)))
    assert any(len(sizes) > 1 for _, sizes in plan.layout.sizes)
    check(STEPS[name], {"layout": plan.layout, "devices": list(plan.devices)})


@pytest.mark.full
@pytest.mark.usefixtures("impatient")
def test_a_lost_worker_is_said_in_one_line():
    local = LocalCluster([1.0, 1.0], report=lambda line: None)
    step, variables, inputs = STEPS["perceptron"]()
    with local as cluster:
        place = {"workers": cluster.workers, "layout": "batch", "list_speed": [1, 1]}
        divided = mtf_hetero.function(step, inputs[0], **place)
        divided(*inputs[0])
        divided.pull()
        pulled = [v.numpy() for v in variables]
        divided(*inputs[1])
        os.kill(local.pids[1], signal.SIGKILL)

        def go_on():
            for _ in range(100):
                divided(*inputs[2])

        with pytest.raises(UnreachableWorkerError, match="^a worker was lost .*; the tf.Variables have the values of "):
            go_on()
        for variable, array in zip(variables, pulled, strict=True):
            np.testing.assert_array_equal(variable.numpy(), array)
        divided.close()


@on_workers
@pytest.mark.full
def test_fit_over_workers(workers):
    def trained(fit, **place):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Lambda(lambda x: x * 2.0), keras.layers.Dense(5)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adafactor(0.01), loss, metrics=["accuracy"])
        x, y = rows(count=17)[0]
        return fit(model, x.astype("float32"), y, batch_size=8, epochs=2, shuffle=False, verbose=0, **place).history

    place = {"workers": ",".join(workers.addresses), "devices": NAMES, "layout": "batch", "list_speed": "4,2,1"}
    found, expected = trained(mtf_hetero.keras.fit, **place), trained(keras.Model.fit)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert found["accuracy"] == pytest.approx(expected["accuracy"])
