"""Plans of random programs on random devices: each has a layout, which runs, a table and an explanation."""

import numpy as np
import oracle
import pytest
from random_checks import is_ill_conditioned
from random_programs import Program
from tiers import parametrize
from training_steps import training

from mtf_hetero import planner, tf
from mtf_hetero.cost import Link, Machine, Machines
from mtf_hetero.planner import explain, picture, plan, show, verdict

SAME_NAME = 30278  # the units of one layer are the inputs of the next, under the same name


def random_machines(seed):
    rng = np.random.default_rng(seed)
    names = [f"cpu:{number}" for number in range(int(rng.integers(2, 6)))]
    speeds = [(10 ** rng.uniform(5, 8), rng.uniform(0.3, 2)) for _ in names]
    link = Link(10 ** rng.uniform(-7, -3), 10 ** rng.uniform(5, 12))
    return Machines(tuple(Machine(name, speed, part * speed) for name, (speed, part) in zip(names, speeds)), link)


@parametrize("seed", [SAME_NAME, *range(30000, 30008), 30039], first=[SAME_NAME, 30000, 30002])
def test_a_random_program(seed, tmp_path):
    program, machines = Program(seed), random_machines(seed)
    with tf.Graph().as_default():
        graph = training(program).graph
        found = planner.find(graph, machines)
        assert found.seconds <= found.alone[1]
        used = machines.only([machines.names.index(name) for name in found.devices])
        assert planner.describe(graph, used, found.layout).seconds == pytest.approx(found.seconds, rel=1e-9)
        if len(found.devices) > 1:
            assert show.table(found) and show.alternatives(explain.explain(graph, used, found))
        else:
            assert show.costs(explain.layer_costs(graph, machines, found))
    assert verdict.verdict(found, machines.names)
    assert plan.loads(plan.dumps(found)) == found
    picture.draw(found, tmp_path / "plan.png", offered=machines.names)
    reference = oracle.one_device(program, exports=False)
    uneven = oracle.run(program, lambda: oracle.cpu_mesh_impl(found.layout), tf.float64, exports=False)
    try:
        oracle.assert_same(reference, uneven, 1e-9)
    except AssertionError:
        assert is_ill_conditioned(program, reference, {"exports": False})
