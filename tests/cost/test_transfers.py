"""The predicted messages of a step equal the messages counted in the lowered graph."""

import collections
import dataclasses
import itertools

import oracle
import pytest
from language_model import LAYOUTS as TRANSFORMERS
from language_model import random_tokens
from lookups import LAYOUTS_BETWEEN_RESHAPES, lookups_between_reshapes
from normalization import IMAGES, moments, normalised
from random_checks import REFUSED
from random_programs import Program, random_layout
from reshapes import flatten, outstanding_sum, rename
from rounds import LAYOUTS as ROUNDS
from rounds import program as rounds
from shuffling import LAYOUTS as SHUFFLES
from shuffling import program as shuffles
from tiers import parametrize
from toy_models import MESHES, toy_layout, toy_program
from training_steps import OPTIMIZERS, training

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, layers, mtf, tf
from mtf_hetero.cost import traffic
from mtf_hetero.cost.transfers import Transfer, of_step
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.mesh import collectives
from mtf_hetero.models import MODELS

SHARES = {"x": [5, 2, 1], "y": [3, 1]}
FIVE = ("x:5", {"x": [5, 1, 2, 1, 3]})


def worker_devices(count):
    return [f"/job:worker/task:{i}/device:CPU:0" for i in range(count)]


def by_link(transfers, number_of=lambda processor: processor):
    """{(source, target): the sizes of all messages, in order}."""
    links = collections.defaultdict(list)
    for transfer in transfers:
        links[number_of(transfer.source), number_of(transfer.target)].append(transfer.bytes)
    return {link: sorted(sizes) for link, sizes in links.items()}


def check(program, layout, **options):
    """Asserts that each message is one of the lowered graph's, and the other way round; returns the messages."""
    devices = worker_devices(layout.size)
    number = {device: pnum for pnum, device in enumerate(devices)}
    with tf.Graph().as_default() as tf_graph:
        step = training(program, **options)
        made = len(tf_graph.get_operations())
        found = of_step(step.graph, layout, fetched=step.fetched)
        assert len(tf_graph.get_operations()) == made, "it creates no operation of TensorFlow"
        mesh_impl = UnevenMeshImpl.from_layout(layout, devices)
        lowering = Lowering(step.graph, {step.mesh: mesh_impl})
        exports = [lowering.export_to_tf_tensor(x) for x in step.fetched]
        all_sends = traffic.sends([*map(lowering.lowered_operation, step.updates), *exports], graph=step.graph)
    to_chief = [send for send in all_sends if send.source in number and send.target not in number]
    assert len(to_chief) <= len(step.fetched), "nothing else goes to the training process"
    sends = [send for send in all_sends if {send.source, send.target} <= number.keys()]
    assert by_link(found) == by_link(sends, number.get), layout
    totals = {tuple(map(number.get, link)): size for link, size in traffic.links(sends).items()}
    bytes_of = collections.Counter()
    for transfer in found:
        bytes_of[transfer.source, transfer.target] += transfer.bytes
    assert +bytes_of == totals
    assert {transfer.operation for transfer in found} <= {op.name for op in step.graph.operations}
    return found


def make_layout(program, recipe, mesh, **options):
    """The layout that a recipe makes for a program."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float32))
        mesh_shape, shares = mesh
        return LAYOUTS[recipe](graph, mesh_shape=mesh_shape, shares=shares, **options)


def with_zeros(program, layout, variant):
    """The layout with an exact size of zero in each dimension, of one processor or another."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float32))
    dims = [dim for op in graph.operations for x in op.outputs for dim in x.shape.dims]
    sizes = {}
    for number, (name, axis) in enumerate(layout.rules):
        extent, count = max(dim.size for dim in dims if dim.name == name), dict(layout.mesh_shape)[axis]
        if extent >= count > 1:
            empty = (variant + number) % count
            parts = [0 if i == empty else 1 for i in range(count)]
            parts[empty - 1] += extent - sum(parts)
            sizes[name] = parts
    return dataclasses.replace(layout, sizes=sizes)


CASES = [
    *((name, recipe, mesh) for name in ("paper_cifar", "vgg11", "resnet18") for recipe in LAYOUTS for mesh in MESHES),
    *((name, recipe, "five") for name in ("paper_cifar", "vgg11") for recipe in ("batch", "filters", "even")),
    ("alexnet", "spatial", "two"),
    ("vgg13", "batch", "three"),
    ("resnet50", "filters", "two"),
]
FIRST = [("paper_cifar", "filters", "three"), ("vgg11", "batch", "three"), ("resnet18", "spatial", "two")]
RECIPES_ON_THREE = {
    ("paper_cifar", "spatial", "three"),
    ("vgg11", "spatial", "three"),
    ("resnet18", "spatial", "three"),
}


IN_TURN = [  # optimizers update slice by slice: each is tried on a third of the cases
    (*case, optimizer)
    for case, optimizer in zip((case for case in CASES if case not in RECIPES_ON_THREE), itertools.cycle(OPTIMIZERS))
]


@parametrize(("name", "recipe", "mesh", "optimizer"), IN_TURN, first=[case for case in IN_TURN if case[:3] in FIRST])
def test_models(name, recipe, mesh, optimizer):
    program = toy_program(name)
    layout = make_layout(program, recipe, FIVE) if mesh == "five" else toy_layout(name, recipe, mesh)
    found = check(program, layout, optimizer=optimizer)
    assert found or not layout.rules


EMPTY = [  # networks and recipes, and which processors have nothing
    (name, recipe, (row + column) % 3)
    for row, name in enumerate(("paper_cifar", "vgg11", "resnet18"))
    for column, recipe in enumerate(("batch", "filters", "even"))
]


@parametrize(("name", "recipe", "variant"), EMPTY, first=[("vgg11", "filters", 2)])
def test_models_of_which_some_processors_have_nothing(name, recipe, variant):
    program = toy_program(name)
    check(program, with_zeros(program, toy_layout(name, recipe, "three"), variant), optimizer="adam")
    check(program, with_zeros(program, toy_layout(name, recipe, "two"), variant), fetches="all")


@pytest.mark.parametrize("small_bytes", [0, 2**20], ids=["divide", "collect"])
def test_sums_to_which_some_processors_have_nothing_to_add(small_bytes, monkeypatch):
    """Cases with one or several owners."""
    monkeypatch.setattr(collectives, "SMALL_BYTES", small_bytes)
    for sizes in ([5, 0, 0, 2, 1], [0, 8, 0, 0, 0], [0, 3, 5, 0, 0]):
        layout = Layout("x:5", "b:x", sizes={"b": sizes})
        check(outstanding_sum, layout, fetches="all")
        check(outstanding_sum, dataclasses.replace(layout, rules="b:x;scattered:x"), fetches="all")


@parametrize("name", ["paper_cifar", "resnet18", "vgg11"], first=["paper_cifar"])
def test_models_on_two_mesh_axes(name):
    program = toy_program(name)
    rules = [(dim, "f") for dim, _ in toy_layout(name, "filters", "two").rules]
    rules += [(dim, "b") for dim, _ in toy_layout(name, "batch", "two").rules]
    layout = Layout("b:3;f:2", rules, {"b": [3, 1, 1], "f": [5, 2]})
    check(program, layout)
    check(program, with_zeros(program, layout, 1))


NAMES = ("batch", "depth", "height", "width", "channels")


def feed_volumes(feed, batch, edge):
    dims = [mtf.Dimension(name, size) for name, size in zip(NAMES, (batch, edge, edge, edge, 2))]
    return feed("volumes", dims)


def thin_cosmoflow(edge, **config):
    def build(feed):
        config_ = {"filters": (2, 3, 2, 3), "strided": 3, "head": (5, 4), "dropout": 0.3, "batch_norm": True, **config}
        y = MODELS["cosmoflow"].build(feed_volumes(feed, 3, edge), training=True, **config_)
        return {"loss": mtf.reduce_mean(mtf.square(y - feed("targets", y.shape)))}

    return build


def thin_unet(edge):
    def build(feed):
        config = {"down": ((2, 3), (3, 2)), "bottom": (3, 4), "up": ((2, 3), (3, 2))}
        logits = MODELS["unet3d"].build(feed_volumes(feed, 2, edge), training=True, **config)
        classes = logits.shape.dims[-1]
        labels = mtf.one_hot(feed("labels", logits.shape.dims[:-1], below=3), classes, dtype=feed.dtype)
        return {"loss": mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, labels, classes))}

    return build


@pytest.mark.parametrize("rule", ["b:x", "h:x", "c:x"])
@pytest.mark.parametrize("mesh", ["x:2", "x:3"])
def test_moments(mesh, rule):
    """Two processors that have values exchange theirs, one sends what it has, and of more one collects them."""
    (size,) = (dim.size for dim in IMAGES if dim.name == rule[0])
    for sizes in {}, {rule[0]: (0, size, 0)[: int(mesh[-1])]}:
        for program in moments(IMAGES[-1]), normalised:
            check(program, Layout(mesh, rule, {}, sizes))


VOLUMES = {"cosmoflow": thin_cosmoflow(32), "unet": thin_unet(32)}
VOLUME_MESHES = {
    "two": ("depth:2", {"depth": [1, 1.7]}),
    "three": ("depth:3", {"depth": [5, 2, 3]}),
    "five": ("depth:5", {"depth": [5, 1, 2, 1, 3]}),
    "depth and height": ("d:2;h:3", {"d": [3, 2], "h": [2, 1, 1]}),
    "batch and depth": ("batch:2;depth:3", {"batch": [2, 1], "depth": [2, 1, 1]}),
}


@parametrize("mesh", VOLUME_MESHES, first=["three"])
@parametrize("name", VOLUMES, first=["cosmoflow"])
def test_volumes_on_a_split_depth(name, mesh):
    layout = make_layout(VOLUMES[name], "spatial", VOLUME_MESHES[mesh], least_values=1)
    assert check(VOLUMES[name], layout)


@pytest.mark.full
@pytest.mark.parametrize("recipe", ["batch", "filters"])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_on_other_layouts(name, recipe):
    layout = make_layout(VOLUMES[name], recipe, MESHES["two"])
    assert check(VOLUMES[name], layout, optimizer="adam")
    check(VOLUMES[name], with_zeros(VOLUMES[name], layout, 0))


@pytest.mark.full
@pytest.mark.parametrize("mesh", ["three", "batch and depth"])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_of_which_some_processors_have_nothing(name, mesh):
    program = VOLUMES[name]
    layout = make_layout(program, "spatial", VOLUME_MESHES[mesh], least_values=1)
    for variant in range(2):
        check(program, with_zeros(program, layout, variant))


@pytest.mark.full
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    for optimizer, fetches in (("adam", "loss"), ("momentum", "all")):
        check(random_tokens(), TRANSFORMERS[name], optimizer=optimizer, fetches=fetches)
    check(random_tokens(dropout=0.3), TRANSFORMERS[name], fetches="")
    check(random_tokens(), with_zeros(random_tokens(), TRANSFORMERS[name], 0))


@pytest.mark.full
@pytest.mark.parametrize("kind", oracle.KINDS)
def test_reshapes_and_sums_that_are_outstanding(kind):
    for program, rules in (
        (rename, ["f0:x", "r0:x", "f0:x;r0:y", "f0:x;n:y", "r0:x;f0:x;n:y"]),
        (flatten, ["c:x", "c:x;k:x", "h:y;k:x", "k:y;c2:x", "b:y;n:x"]),
        (outstanding_sum, ["b:x", "b:x;scattered:x", "b:x;cut:y", "b:y;scattered:y;cut:x", "b:x;a:y"]),
    ):
        for rule in rules:
            layout = Layout("x:3;y:2", rule, SHARES)
            check(program, layout, kind=kind, fetches="all")
            check(program, with_zeros(program, layout, 1), kind=kind, fetches="all")


@pytest.mark.parametrize("sizes", [(3, 1, 3), (2, 5)])
def test_rounds(sizes):
    for layout in ROUNDS:
        if "rounds/b" not in dict(layout.rules) or min(sizes) > 1:
            check(rounds(sizes), layout, fetches="all")
            check(rounds(sizes), with_zeros(rounds(sizes), layout, 1), fetches="all")


@parametrize("layout", SHUFFLES, first=[SHUFFLES[0], SHUFFLES[3]])
def test_pixels_out_of_channels(layout):
    assert check(shuffles, layout, fetches="all")
    check(shuffles, with_zeros(shuffles, layout, 1))


def make_dims(text):
    return [mtf.Dimension(name, int(size)) for name, size in (pair.split(":") for pair in text.split())]


def in_groups(feed):
    """A depthwise convolution and one in groups."""
    options = {"variable_dtype": mtf.VariableDType(feed.dtype)}
    x = feed("x", make_dims("b:3 h:9 w:7 c:6"))
    (filters,) = make_dims("f:6")
    return {
        "depthwise": layers.depthwise_conv2d(x, multiplier=2, filter_size=(3, 3), name="depthwise", **options),
        "grouped": layers.grouped_conv2d(x, filters, groups=3, filter_size=(3, 2), name="grouped", **options),
    }


def of_two_batch_dims(feed):
    """A convolution and a transposed one, of images that two dimensions count."""
    x, (filters,), window = feed("x", make_dims("a:2 b:3 h:9 w:7 c:4")), make_dims("f:5"), make_dims("kh:3 kw:3")
    channels = x.shape.dims[-1]
    w, v = (
        mtf.get_variable(feed.mesh, name, mtf.Shape([*window, *dims]))
        for name, dims in (("w", [channels, filters]), ("v", [filters, channels]))
    )
    return {
        "convolved": mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0],
        "transposed": mtf.Conv2dTransposeOperation(x, v, [1, 2, 2, 1], "SAME").outputs[0],
    }


@parametrize("program", [in_groups, of_two_batch_dims], first=[in_groups])
def test_convolutions_whose_images_are_flattened(program):
    """On split space, each piece of a halo is flattened where it is received."""
    for rule in ("h:x", "h:x;w:y", "h:x;b:y"):
        layout = Layout("x:3;y:2", rule, SHARES)
        assert check(program, layout)
        check(program, with_zeros(program, layout, 0))


@parametrize("rule", LAYOUTS_BETWEEN_RESHAPES, first=["v:x;o:y", "v:x;c:x"])
def test_lookups(rule):
    program, layout = lookups_between_reshapes, Layout("x:3;y:2", rule, SHARES)
    for variant, optimizer in enumerate(("sgd", "momentum", "adam")):
        check(program, layout, optimizer=optimizer)
        check(program, with_zeros(program, layout, variant), fetches="all")


def random_step(seed, *, zeros=False):
    """Checks one random program."""
    program = Program(seed)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float64))
        layout = random_layout(seed, graph)
    if zeros:
        layout = with_zeros(program, layout, seed)
    options = {"dtype": (tf.float64, tf.float32)[seed % 2], "kind": (*oracle.KINDS, oracle.MIXED)[seed // 2 % 4]}
    fetches = ("loss", "", "all")[seed % 3]
    try:
        return check(program, layout, fetches=fetches, optimizer=("momentum", "adam", "sgd")[seed // 3 % 3], **options)
    except (NotImplementedError, ValueError) as error:
        return str(error)


@parametrize("chunk", range(21, 30, 2), first=[27])
def test_random_programs(chunk):
    for seed in range(5 * chunk, 5 * chunk + 5):
        result = random_step(seed)
        assert isinstance(result, str) == (seed in REFUSED), f"seed {seed}: {result}"


@parametrize("chunk", range(6), first=[1])
def test_random_programs_of_which_some_processors_have_nothing(chunk):
    results = [random_step(seed, zeros=True) for seed in range(5 * chunk, 5 * chunk + 5)]
    assert any(not isinstance(result, str) for result in results), results


def product(feed):
    rows, units, others = (mtf.Dimension(name, size) for name, size in [("rows", 3), ("units", 8), ("others", 5)])
    return mtf.einsum([feed("x", [rows, units]), feed("w", [units, others])], [rows, others], name="product")


def make_operation(make):
    with tf.Graph().as_default():
        return make(oracle.Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float32)).operation


def test_one_operation():
    op = make_operation(product)
    layout = Layout("x:2", "units:x", sizes={"units": [6, 2]})
    assert of_step([op], layout) == (Transfer(1, 0, 60, op.name), Transfer(0, 1, 60, op.name))
    assert of_step([op], Layout("x:2", "rows:x")) == ()
    relu = make_operation(lambda feed: mtf.relu(product(feed)))
    assert of_step([relu], layout) == ()
    renamed = make_operation(lambda feed: mtf.rename_dimension(product(feed), "rows", "lines"))
    assert of_step([renamed], Layout("x:2", "lines:x;rows:x")) == ()
    assert of_step([renamed], Layout("x:2", "lines:x")) == ()
    assert {t.bytes for t in of_step([renamed], Layout("x:2", "rows:x"))} == {40, 20}


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


class Unknown(mtf.Operation):
    """An operation of somebody else."""

    def __init__(self, x, shape):
        super().__init__([x], name="unknown")
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]

    def lower(self, lowering):
        raise AssertionError


def test_operations_that_are_not_known():
    rows, units = mtf.Dimension("rows", 4), mtf.Dimension("units", 6)
    op = make_operation(lambda feed: Unknown(feed("x", [rows, units]), mtf.Shape([units])).outputs[0])
    assert of_step([op], Layout("x:2", "units:x")) == ()
    with pytest.raises(NotImplementedError, match="Unknown 'unknown': the planner has no rule for the traffic"):
        of_step([op], Layout("x:2", "rows:x"))
    turns = make_operation(
        lambda feed: mtf.while_loop(
            lambda x: mtf.less(mtf.reduce_sum(x), 3.0), lambda x: [mtf.relu(x)], [feed("x", [rows])]
        )[0]
    )
    with pytest.raises(NotImplementedError, match="WhileLoopOperation .* cannot count the traffic of a loop"):
        of_step([turns], Layout("x:2", "rows:x"))
    with tf.Graph().as_default():
        graph = mtf.Graph()
        meshes = [mtf.Mesh(graph, name) for name in "ab"]
        for mesh in meshes:
            mtf.zeros(mesh, mtf.Shape([rows]))
        with pytest.raises(ValueError, match="operations on 2 meshes; give operations of one mesh"):
            of_step(graph, Layout("x:2", "rows:x"))
