"""Steps over workers: on any layout, planned, and what is said of a lost worker."""

import os
import signal

import numpy as np
import pytest
from import_oracle import check
from steps import STEPS
from tiers import on_workers

import mtf_hetero
from mtf_hetero.cluster import LocalCluster, UnreachableWorkerError
from mtf_hetero.cost import machines
from mtf_hetero.planner import planning

PLACE = {"devices": "worker:0/cpu:0,worker:1/cpu:0,worker:2/cpu:0", "layout": "batch", "list_speed": "4,2,1"}


@on_workers
@pytest.mark.full
@pytest.mark.parametrize(("name", "layout"), [("perceptron", "filters"), ("LSTM", "batch")])
def test_over_workers(workers, name, layout):
    check(STEPS[name], {**PLACE, "workers": workers.addresses, "layout": layout})


@on_workers
@pytest.mark.full
def test_a_later_kind_of_inputs(workers):
    """Its messages are arranged too, in a graph that the workers ran already."""

    def make():
        step, variables, inputs = STEPS["convolutional"]()
        return step, variables, [(x[:n], y[:n]) for (x, y), n in zip(inputs, (14, 7, 14))]

    check(make, {**PLACE, "workers": ",".join(workers.addresses)})


@on_workers
@pytest.mark.full
def test_planned_for_workers(workers):
    (divided,) = check(STEPS["perceptron"], {"workers": ",".join(workers.addresses), "measure_seconds": 5})
    assert 1 <= divided.layout.size <= 3


@pytest.mark.full
def test_a_plan():
    step, _, inputs = STEPS["transformer"]()
    with mtf_hetero.function(step, inputs[0], devices="cpu:0", layout="batch") as divided:
        graph = divided.graph
    described = [machines.Machine(f"cpu:{i}", 4e8 / (i + 1), 4e9 / (i + 1), operation_seconds=1e-7) for i in range(3)]
    plan = planning.find(graph, machines.Machines(tuple(described)))
    assert any(len(sizes) > 1 for _, sizes in plan.layout.sizes)
    check(STEPS["transformer"], {"layout": plan.layout, "devices": list(plan.devices)})


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
