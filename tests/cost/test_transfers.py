"""The two backends agree: a sketch counts the messages of the graph that TensorFlow's backend makes.

Each method of a backend meets each kind of layout, and each operation that has a rule is in a program.
"""

import collections
import contextlib
import itertools

import oracle
import pytest
from graph_operations import PROGRAMS as GRAPH_PROGRAMS
from normalization import IMAGES, moments, normalised
from operations import PROGRAMS, SHARES, B, C, F, H, W, layouts, layouts_with_zeros, variable
from random_checks import REFUSED
from random_programs import Program, random_layout
from reshapes import flatten, outstanding_sum
from rounds import program as rounds
from shuffling import program as shuffles
from tiers import parametrize
from toy_models import toy_layout, toy_program
from training_steps import training

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero.cost.transfers import Transfer, of_step
from mtf_hetero.cost.transfers.sketch import Sketch
from mtf_hetero.lowering.choice import ChoiceOperation, ListOperation, LoopOperation
from mtf_hetero.lowering.execution import Execution
from mtf_hetero.mesh import collectives, traffic
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.ops.backend import BackendOf
from mtf_hetero.ops.functions import Function
from mtf_hetero.ops.registry import COUNTINGS

WORKERS = [f"/job:worker/task:{i}/device:CPU:0" for i in range(9)]


def by_link(transfers):
    """{(source, target): the sizes of all messages, in order}."""
    links = collections.defaultdict(list)
    for transfer in transfers:
        links[transfer.source, transfer.target].append(transfer.bytes)
    return {link: sorted(sizes) for link, sizes in links.items()}


def check(program, layout, **options):
    """Asserts that each message is one of the lowered graph's, and the other way round; returns the messages."""
    number = {WORKERS[place]: layout.places.index(place) for place in layout.places}  # the first slot stands for all
    with tf.Graph().as_default() as tf_graph:
        step = training(program, **options)
        made = len(tf_graph.get_operations())
        found = of_step(step.graph, layout, fetched=step.fetched)
        assert len(tf_graph.get_operations()) == made, "it creates no operation of TensorFlow"
        lowering = Lowering(step.graph, {step.mesh: UnevenMeshImpl.from_layout(layout, WORKERS[: layout.device_count])})
        exports = [lowering.export_to_tf_tensor(x) for x in step.fetched]
        all_sends = traffic.sends([*map(lowering.lowered_operation, step.updates), *exports], graph=step.graph)
    to_chief = [send for send in all_sends if send.source in number and send.target not in number]
    assert len(to_chief) <= len(step.fetched), "nothing else goes to the training process"
    sends = [send for send in all_sends if {send.source, send.target} <= number.keys()]
    expected = [Transfer(number[s.source], number[s.target], s.bytes, s.operation) for s in sends]
    assert by_link(found) == by_link(expected), layout
    totals = {tuple(map(number.get, link)): size for link, size in traffic.links(sends).items()}
    assert {link: sum(sizes) for link, sizes in by_link(found).items() if sum(sizes)} == totals
    assert {transfer.operation for transfer in found} <= {op.name for op in step.graph.operations}
    return found


def product(feed):
    return {"y": mtf.einsum([feed("x", [B, C]), variable(feed, "w", [C, F])], [B, F], name="product")}


def overlapping_pools(feed):
    x = feed("x", [B, H, W, C]) * variable(feed, "w", [C])
    return {kind: layers.pool(x, kind=kind, size=3, strides=2, padding="SAME") for kind in ("max", "avg")}


def scattered(feed):
    """A sum whose parts are split along another name than its addends."""
    return {"y": mtf.rename_dimension(product(feed)["y"], "f", "scattered")}


def grouped(feed):
    """On split space, each piece of a halo is flattened where it is received."""
    x = feed("x", [B, mtf.Dimension("h", 9), mtf.Dimension("w", 7), mtf.Dimension("c", 4)])
    options = {"filter_size": (3, 2), "variable_dtype": mtf.VariableDType(feed.dtype)}
    return {
        "depthwise": layers.depthwise_conv2d(x, multiplier=2, name="depthwise", **options),
        "grouped": layers.grouped_conv2d(x, F._replace(size=6), groups=2, name="grouped", **options),
    }


METHODS = {  # of a backend: a program, and its rules on one axis and on two
    "make": (PROGRAMS["lookup"][0], "v:x", "v:x;b:y"),
    "make_all": (moments(IMAGES[-1]), "b:x", "b:x;h:y"),
    "mtf_lower": (PROGRAMS["bias"][0], "c:x", "h:x;c:y"),
    "outstanding": (product, "c:x", "c:x;f:y"),
    "derived": (outstanding_sum, "b:x", "b:x;cut:y"),
    "allreduce": (PROGRAMS["reductions"][0], "b:x", "b:x;c:y"),
    "join": (normalised, "b:x", "b:x;h:y"),
    "reduce_scatter": (scattered, "c:x;scattered:x", "c:x;scattered:x;b:y"),
    "move": (flatten, "c:x;k:x", "k:y;c2:x"),
    "fetch": (shuffles, "h:x", "w:x;b:y"),
    "concat": (PROGRAMS["along"][0], "h:x", "h:x;b:y"),
    "halos": (grouped, "h:x", "h:x;w:y"),
    "wait": (rounds((3, 1, 3)), "b:x;u:x", "b:x;i:y"),
}
KINDS = {  # of layouts
    "one axis": ("x:2", {}),  # two processors exchange their addends to a sum
    "uneven": ("x:3", {"x": [5, 2, 1]}),  # the first collects small sums
    "five processors": ("x:5", {"x": [5, 1, 2, 1, 3]}),  # each sums a part
    "two axes": ("x:3;y:2", SHARES),
    "zeros": ("x:3;y:2", SHARES),  # some processors have nothing
    "slots": ("x:5", {"x": [5, 1, 2, 1, 3]}),  # three devices
}


@pytest.fixture
def called(monkeypatch):
    """{backend: its methods that have been called}."""
    calls = {Execution: set(), Sketch: set()}

    def recorded(backend, name):
        method = getattr(backend, name)

        def record(*args, **options):
            calls[backend].add(name)
            return method(*args, **options)

        return record

    for backend, name in itertools.product(calls, BackendOf.__abstractmethods__):
        monkeypatch.setattr(backend, name, recorded(backend, name))
    return calls


FIRST = [
    *itertools.product(METHODS, ["five processors", "two axes"]),
    *itertools.product(["make", "derived", "join", "reduce_scatter"], ["zeros", "slots"]),
    ("join", "one axis"),
]


@parametrize(("method", "kind"), itertools.product(METHODS, KINDS), first=FIRST)
def test_each_method_on_each_kind_of_layout(method, kind, called, monkeypatch):
    if kind == "five processors":
        monkeypatch.setattr(collectives, "SMALL_BYTES", 0)
    (program, one, two), (mesh, shares) = METHODS[method], KINDS[kind]
    rule = two if "y" in mesh else one
    slots = {"x": [2, 2, 1]} if kind == "slots" else {}
    layout = next(layouts_with_zeros(program, [rule])) if kind == "zeros" else Layout(mesh, rule, shares, slots=slots)
    found = check(program, layout, fetches="all")
    assert found
    for methods in called.values():
        assert {method, "laid_out", "set"} <= methods


def test_the_table_has_every_method():
    """Each program reads slices and sets outputs."""
    assert METHODS.keys() | {"laid_out", "set"} == BackendOf.__abstractmethods__


@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
def test_sums_to_which_some_processors_have_nothing_to_add(small_bytes, monkeypatch):
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    check(outstanding_sum, Layout("x:5", "b:x", sizes={"b": [5, 0, 0, 2, 1]}), fetches="all")


@pytest.mark.parametrize("sizes", [[0, 5], [0, 5, 0], [3, 0, 2]])
def test_sums_to_which_one_or_two_processors_add(sizes):
    """The sums of moments, which are joined, too."""
    check(normalised, Layout(f"x:{len(sizes)}", "b:x", sizes={"b": sizes}))
    check(product, Layout(f"x:{len(sizes)}", "c:x", sizes={"c": sizes}), fetches="all")
    check(scattered, Layout(f"x:{len(sizes)}", "c:x;scattered:x", sizes={"c": sizes}), fetches="all")


def make_draw(draw, operands, feed, part=None):
    """Random numbers of a library's function."""
    operation = layers.OnceOperation if part is None else layers.DrawOperation
    options = {} if part is None else {"part": part}
    function = Function(draw, {}, lambda: "")
    return operation(function, operands, mtf.Shape([B, C]), tf.float32, feed.mesh, "draw", **options).outputs[0]


def drawn(feed):
    """Random numbers: of a key, of TensorFlow alone, of the training process, and those that each device draws."""
    mesh, shape = feed.mesh, mtf.Shape([B, C])
    seed = mtf.import_tf_tensor(mesh, [1, 2], mtf.Shape([mtf.Dimension("seed", 2)]))

    def part(seed, first, count):
        return tf.random.stateless_uniform([B.size * C.size], seed)[first : first + count]

    def draw(seed):
        return tf.random.stateless_uniform([B.size, C.size], seed)

    return {
        "key": mtf.random_uniform(mesh, shape) * variable(feed, "w", [C]),
        "whole": mtf.RandomOperation(mesh, shape, tf.random.gamma, alpha=2.0).outputs[0],
        "once": make_draw(draw, [seed], feed),
        "rows": make_draw(draw, [seed], feed, part),
    }


def waiting(feed):
    """Summaries, prints, and results that wait for others."""
    x, w = feed("x", [B, C]), variable(feed, "w", [C])
    mtf.scalar_summary("mean", mtf.reduce_mean(x))
    counter = mtf.get_variable(feed.mesh, "counter", mtf.Shape([C]), trainable=False).operation
    assign = mtf.assign(counter, mtf.reduce_sum(x, output_shape=[C]))
    printed = mtf.Print(x * w + mtf.ReadVariable(counter).outputs[0], [mtf.reduce_sum(x)], "sum")
    return {"y": mtf.depend(printed, [assign, mtf.reduce_max(x, reduced_dim=B)])}


def functions_of_slices(feed):
    """Functions of slices, whose results are slices or addends, and slices that somebody else has made."""
    x, z = feed("x", [B, C]) * variable(feed, "w", [C]), feed("z", [B, C])
    function = Function(lambda x: tf.reduce_sum(x, 0), {}, lambda: "")
    slices = LaidOutTensor([tf.ones([size]) for size in (4, 2, 1)])
    return {
        "slices": mtf.slicewise(tf.exp, [x], x.shape, x.dtype, splittable_dims=x.shape.dims),
        "sum": layers.PartialSumOperation(function, [z], mtf.Shape([C]), z.dtype, z.shape.dims, [B], "sum").outputs[0],
        "made": mtf.import_laid_out_tensor(feed.mesh, slices, mtf.Shape([B])) * 2.0,
    }


OPERATIONS = {  # programs of operations that are in no program of a method, and rules that split them
    "drawn": (drawn, "b:x;c:y"),
    "waiting": (waiting, "b:x;c:y"),
    "functions of slices": (functions_of_slices, "b:x"),
    "custom gradient": (GRAPH_PROGRAMS["custom_gradient"], "b:x"),
    "batches of two dimensions": (PROGRAMS["conv2d_two_batch_dims"][0], "h:x;b:y"),
    "transposed": (PROGRAMS["conv2d_transpose_wide"][0], "h:x;w:y"),
    "volumes": (PROGRAMS["conv3d_same"][0], "h:y;d:x"),
    "transposed volumes": (PROGRAMS["conv3d_transpose"][0], "h:y;d:x"),
    "pools": (PROGRAMS["pool2d"][0], "h:y;b:x"),
    "overlapping pools": (overlapping_pools, "h:y;b:x"),
    **{name: (PROGRAMS[name][0], "b:x;c:y") for name in ("einsum", "broadcast", "elementwise", "reductions")},
    "softmax_loss": (PROGRAMS["softmax_loss"][0], "v:x;h:y"),
}
UNCOUNTED = {ListOperation, LoopOperation, ChoiceOperation, mtf.WhileLoopOperation}  # in graphs that cannot be counted


COUNTED = ["drawn", "waiting", "functions of slices", "transposed", "volumes", "overlapping pools"]


@parametrize("name", OPERATIONS, first=COUNTED)
def test_operations(name):
    program, rules = OPERATIONS[name]
    check(program, *layouts(rules), fetches="all")


def test_the_tables_have_each_operation_that_has_a_rule():
    classes = set()
    for program in {program for program, *_ in (*METHODS.values(), *OPERATIONS.values())}:
        with tf.Graph().as_default():
            classes |= {type(op) for op in training(program).graph.operations}
    assert {rule for rule in COUNTINGS if not any(issubclass(each, rule) for each in classes)} == UNCOUNTED


NETWORKS = [  # batch norm on split space; sums that are scattered; examples
    ("resnet18", "spatial", "two", "sgd"),
    ("paper_cifar", "filters", "three", "momentum"),
    ("vgg11", "hybrid", "three", "adam"),
]


@parametrize(("name", "recipe", "mesh", "optimizer"), NETWORKS, first=NETWORKS[:1])
def test_networks(name, recipe, mesh, optimizer):
    assert check(toy_program(name), toy_layout(name, recipe, mesh), optimizer=optimizer)


@parametrize("chunk", [1, 2, 4, 10, 19, 27], first=[1, 27])
def test_random_programs(chunk):
    """Half of them on layouts with exact sizes, zeros among them."""
    for seed in range(5 * chunk, 5 * chunk + 5):
        with tf.Graph().as_default():
            graph = mtf.Graph()
            Program(seed)(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float64))
        options = {"dtype": (tf.float64, tf.float32)[seed % 2], "kind": (*oracle.KINDS, oracle.MIXED)[seed // 2 % 4]}
        options |= {"fetches": ("loss", "", "all")[seed % 3], "optimizer": ("momentum", "adam", "sgd")[seed // 3 % 3]}
        refused = pytest.raises((NotImplementedError, ValueError)) if seed in REFUSED else contextlib.nullcontext()
        with refused:
            check(Program(seed), random_layout(seed, graph), **options)


def make_operation(make):
    with tf.Graph().as_default():
        return make(oracle.Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float32)).operation


def test_one_operation():
    """A sum over seven by eleven numbers; a renamed dimension that is split, or not, before and after."""
    op = make_operation(lambda feed: product(feed)["y"])
    layout, sizes = Layout("x:2", "c:x", sizes={"c": [4, 1]}), 4 * B.size * F.size
    assert of_step([op], layout) == (Transfer(1, 0, sizes, op.name), Transfer(0, 1, sizes, op.name))
    assert of_step([op], Layout("x:2", "b:x")) == ()
    relu = make_operation(lambda feed: mtf.relu(product(feed)["y"]))
    assert of_step([relu], layout) == ()
    renamed = make_operation(lambda feed: mtf.rename_dimension(product(feed)["y"], "b", "lines"))
    assert of_step([renamed], Layout("x:2", "lines:x;b:x")) == ()
    assert of_step([renamed], Layout("x:2", "lines:x")) == ()
    assert {t.bytes for t in of_step([renamed], Layout("x:2", "b:x"))} == {4 * F.size * 4, 4 * F.size * 3}


def test_a_step_is_its_operations():
    """Layers without outstanding sums between them, all of which are needed."""
    program, layout = toy_program("paper_cifar"), toy_layout("paper_cifar", "filters", "three")
    with tf.Graph().as_default():
        step = training(program)
        whole = of_step(step.graph, layout, fetched=step.fetched)
        convolutions = [op for op in step.graph.operations if isinstance(op, mtf.Conv2dOperation)]
        for op in convolutions:
            own = [transfer for transfer in whole if transfer.operation == op.name]
            assert by_link(own) == by_link(of_step([op], layout))


def test_each_block_of_a_choice_and_a_turn_of_a_loop_are_counted_once():
    """Only the data say how often they run."""
    layout = Layout("x:2", "c:x")
    with tf.Graph().as_default():
        feed = oracle.Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float32)
        x, w = feed("x", [B, C]), feed("w", [C, F])
        chosen = mtf.constant(feed.mesh, 0, dtype=tf.int32)

        def multiplied(x):
            return mtf.einsum([x, w], [B, F])

        def turn(i, x):
            return [i + 1, mtf.einsum([multiplied(x), w], [B, C])]

        blocks = [lambda: [multiplied(x)], lambda: [multiplied(x * 2.0)]]
        choice = ChoiceOperation(chosen, blocks, [x, w], "choice")
        loop = LoopOperation(lambda i, x: mtf.less(i, 3), turn, [chosen, x], [w], "loop")
        once = of_step([multiplied(x).operation], layout)
        assert len(once) == 2
        for op, times in ((choice, 2), (loop, 1)):
            assert sorted(t[:3] for t in of_step([op], layout)) == sorted(t[:3] for t in once * times)


class Unknown(mtf.Operation):
    """An operation of somebody else."""

    def __init__(self, x, shape):
        super().__init__([x], name="unknown")
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]

    def lower(self, lowering):
        raise AssertionError


def test_operations_that_are_not_known():
    op = make_operation(lambda feed: Unknown(feed("x", [B, C]), mtf.Shape([C])).outputs[0])
    assert of_step([op], Layout("x:2", "c:x")) == ()
    with pytest.raises(NotImplementedError, match="Unknown 'unknown': the planner has no rule for the traffic"):
        of_step([op], Layout("x:2", "b:x"))
    turns = make_operation(
        lambda feed: mtf.while_loop(
            lambda x: mtf.less(mtf.reduce_sum(x), 3.0), lambda x: [mtf.relu(x)], [feed("x", [B])]
        )[0]
    )
    with pytest.raises(NotImplementedError, match="WhileLoopOperation .* cannot count the traffic of a loop"):
        of_step([turns], Layout("x:2", "b:x"))
    with tf.Graph().as_default():
        graph = mtf.Graph()
        for mesh in [mtf.Mesh(graph, name) for name in "ab"]:
            mtf.zeros(mesh, mtf.Shape([B]))
        with pytest.raises(ValueError, match="operations on 2 meshes; give operations of one mesh"):
            of_step(graph, Layout("x:2", "b:x"))
