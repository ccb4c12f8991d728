"""Stages of an imported step: where it is cut, what crosses, and that layouts of them change no result."""

import collections

import keras
import numpy as np
import pytest
import staged_models
from import_oracle import DEVICES, check, ids, images, rows
from steps import adam, crossentropy, of_keras, sgd
from tiers import parametrize

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.planning import describe

MODELS = {
    "residual": of_keras(staged_models.residual, sgd, rows),
    "resnet": of_keras(staged_models.resnet, adam(), images),
    "transformer": of_keras(staged_models.transformer, adam(global_clipnorm=0.1), ids),
    "unet": of_keras(staged_models.unet, adam(), images),
    "recurrent": of_keras(staged_models.recurrent, adam(), ids),
}
STAGES = {"devices": DEVICES, "layout": "stages", "list_speed": [4, 2, 1]}
RESIDUAL = 14 * 12 * 8  # bytes between two blocks


def build_graph(step, inputs, is_staged=True):
    """The mtf graph of a step."""
    traced = Traced(step)
    traced.is_staged = is_staged
    program = traced.program(inputs)
    with tf.Graph().as_default():
        return step_lib.build(program).graph


def build_by_name(name, is_staged=True):
    step, _, inputs = MODELS[name]()
    return build_graph(step, inputs[0], is_staged)


def renames(graph):
    """{(stage, next stage): bytes} of all that gets another name of the batch."""
    found = collections.Counter()
    for op in graph.operations:
        if isinstance(op, mtf.ReshapeOperation):
            for a, b in zip(op.inputs[0].shape.dims, op.outputs[0].shape.dims):
                if a != b and "batch" in a.name:
                    found[stage(a.name), stage(b.name)] += op.outputs[0].shape.size * op.outputs[0].dtype.size
    return found


def stage(name):
    """The number of a stage, of the name of a batch."""
    first, _, _ = name.rpartition("/")[0].partition("/")
    return int(first.removeprefix("stage")) if first.startswith("stage") else 0


@parametrize("name", MODELS, first=["residual"])
def test_stages_give_what_tensorflow_gives(name, real_loops):
    """Also with two devices in the first stage and one in the others; with batch norm, dropout and tied weights."""
    graph = build_by_name(name)
    names = [n for n, _ in LAYOUTS["batch"](graph, mesh_shape="all:1").rules]
    sizes = {n: [8, 6, 0] if not stage(n) else [0, 0, 14] for n in names}
    layout = Layout("all:3", [(n, "all") for n in sizes], sizes=sizes)
    (placed, _) = check(MODELS[name], STAGES, {"devices": DEVICES, "layout": layout})
    assert len({max(sizes, key=sizes.get) for sizes in placed.sizes.values()}) > 1


CROSSING = [
    ("residual", {(0, 1): RESIDUAL, (1, 2): RESIDUAL, (2, 3): RESIDUAL}),
    ("resnet", {(0, 1): 50176, (1, 2): 50176, (2, 3): 25088}),
    ("transformer", {(0, 1): 5376, (1, 2): 5376, (2, 3): 5376}),
    ("unet", {(0, 1): 28672, (1, 2): 28672, (2, 3): 57344}),
]


@parametrize(("name", "crossing"), CROSSING, first=CROSSING[:1])
def test_an_activation_and_its_gradient_cross(name, crossing):
    """Between blocks, not within them; classes are fed where they are read."""
    found = {stages: size for stages, size in renames(build_by_name(name)).items() if len({*stages}) > 1}
    assert found == crossing | {(b, a): size for (a, b), size in crossing.items()}


@pytest.mark.full
@pytest.mark.parametrize(("name", "cuts"), [("ResNet50", 15), ("EfficientNetB0", 12), ("MobileNetV2", 13)])
def test_networks_are_cut_between_blocks(name, cuts):
    options = {"weights": None, "input_shape": (64, 64, 3), "classes": 5, "classifier_activation": None}
    model = getattr(keras.applications, name)(**options)
    model.compile("sgd", crossentropy())
    model._symbolic_build(data_batch=(np.zeros([4, 64, 64, 3], "float32"), np.zeros(4, "int32")))
    inputs = tf.TensorSpec([4, 64, 64, 3]), tf.TensorSpec([4], tf.int32)
    found = renames(build_graph(lambda x, y: model.train_step((x, y)), inputs))
    between = {(a, b): size for (a, b), size in found.items() if a != b}
    assert {*between} == {pair for a in range(cuts) for pair in ((a, a + 1), (a + 1, a))}
    assert all(size == between[b, a] for (a, b), size in between.items())


@parametrize("name", ["resnet", "transformer"], first=["resnet"])
def test_stages_of_equal_sizes_are_no_operations(name):
    """The lowered graph has the same operations as without stages."""
    step, _, inputs = MODELS[name]()
    names = [n for n, _ in LAYOUTS["batch"](build_by_name(name), mesh_shape="all:3").rules]
    kinds = []
    for rules in ("batch:all", ";".join(f"{n}:all" for n in names)):
        with mtf_hetero.function(step, inputs[0], devices=DEVICES, layout=rules, verify=False) as divided:
            kinds.append(collections.Counter(op.type for op in divided.runtime.graph.get_operations()))
    assert len(names) > 3
    assert kinds[0] == kinds[1]


def test_stages_exist_only_if_they_are_asked_for():
    step, _, inputs = MODELS["residual"]()
    for layout, has_stages in (("batch", False), ("stages", True), ("stage1/batch:all", True)):
        with mtf_hetero.function(step, inputs[0], devices=DEVICES, layout=layout, verify=False) as divided:
            names = {name for op in divided.graph.operations for y in op.outputs for name in y.shape.dimension_names}
        assert {"stage1/batch", "stage2/batch", "stage3/batch"} <= names or not has_stages
        assert has_stages or all(not name.startswith("stage") for name in names)


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_saved_plan_for_the_first_stage_alone_is_not_for_all(is_staged, tmp_path):
    """Its names are those of a step whose batch has one name."""
    step, _, inputs = MODELS["residual"]()
    machines = Machines(tuple(Machine(name, 1e9, 1e9) for name in DEVICES.split(",")), Link(1e-6, 1e9))
    plan = describe(build_by_name("residual", is_staged), machines, Layout([("all", 3)], [("batch", "all")]))
    plan_lib.save(plan, tmp_path / "plan.json")
    path = f"{tmp_path}/plan.json"
    with mtf_hetero.function(step, inputs[0], devices=DEVICES, layout=path, verify=False) as divided:
        names = {name for op in divided.graph.operations for y in op.outputs for name in y.shape.dimension_names}
        assert divided.layout.sizes == plan.layout.sizes
    assert any(name.startswith("stage") for name in names) == is_staged


def test_a_step_of_one_block_has_no_stages():
    weights = tf.Variable(np.ones([12, 5]), name="weights")
    message = r"^the batch, 'batch', has no other name that can be split, so no layer can be placed alone; "
    with pytest.raises(ValueError, match=message):
        mtf_hetero.function(lambda x: tf.reduce_sum(x @ weights), np.ones([14, 12]), **STAGES)
