"""The networks at toy size: their graphs, their layouts by the recipes, and programs of the oracle."""

from zeros import Zeros

from mtf_hetero import mtf, tf
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models import MODELS

TOY = {
    "alexnet": {"size": 8, "config": {"filters": (5, 7, 6, 5, 7), "units": (9, 7)}},
    "lenet": {"size": 16, "config": {"filters": (5, 7), "units": (11, 7)}},
    "marques": {"size": 8, "config": {"filters": (5, 7)}},
    "paper_mnist": {"size": 16, "config": {"stages": (((7, 5), (5, 7), (3, 11)),), "units": 13}},
    "paper_cifar": {"size": 16, "config": {"stages": (((3, 5), (3, 7)), ((3, 11), (3, 5))), "units": 7}},
    "resnet18": {"size": 8, "config": {"blocks": (1, 1), "filters": (5, 5, 7), "training": True}},
    "resnet34": {"size": 16, "config": {"blocks": (1,), "filters": (5, 6), "stem": "imagenet"}},
    "resnet50": {"size": 8, "config": {"blocks": (1, 1), "filters": (5, 3, 5), "training": True}},
    "vgg11": {"size": 4, "config": {"stages": ((5,), (7, 5)), "head": (9, 7)}},
    "vgg13": {"size": 4, "config": {"stages": ((5,), (6,)), "head": (9,), "batch_norm": True}},
    "vgg16": {"size": 4, "config": {"stages": ((5,), (6,)), "head": ()}},
    "vgg19": {"size": 4, "config": {"stages": ((5, 7),), "head": (7, 9, 5)}},
}
TOY["vgg13"]["config"] |= {"training": True, "dropout": 0.0}
MESHES = {"three": ("x:3", {"x": [70, 25, 5]}), "two": ("x:2", {"x": [1, 1.7]})}
PAIRS = {  # chosen so that each layout meets small and large networks, with and without shortcuts
    "alexnet": [("hybrid", "two")],
    "lenet": [("even", "three"), ("spatial", "two")],
    "marques": [("batch", "three")],
    "paper_cifar": [("filters", "three"), ("hybrid", "three")],
    "paper_mnist": [("batch", "two"), ("even", "two")],
    "resnet18": [("spatial", "two")],
    "resnet34": [("batch", "two"), ("stages", "three")],
    "resnet50": [("filters", "two"), ("stages", "two")],
    "vgg11": [("even", "two"), ("stages", "two")],
    "vgg13": [("filters", "three")],
    "vgg16": [("spatial", "two")],
    "vgg19": [("hybrid", "two")],
}


def toy_graph(name, **options):
    graph = mtf.Graph()
    with tf.Graph().as_default():
        toy_program(name, **options)(Zeros(graph))
    return graph


def toy_layout(name, recipe, mesh, **options):
    mesh_shape, shares = MESHES[mesh]
    return LAYOUTS[recipe](toy_graph(name, **options), mesh_shape=mesh_shape, shares=shares)


def toy_program(name, *, size=None, **changes):
    size, config = size or TOY[name]["size"], TOY[name]["config"] | changes

    def build(feed):
        shape = [("batch", 5), ("height", size), ("width", size), ("channels", MODELS[name].image_shape[2])]
        logits = MODELS[name].build(feed("images", mtf.Shape(shape)), classes=4, **config)
        classes = logits.shape.dims[-1]
        labels = mtf.one_hot(feed("labels", [logits.shape.dims[0]], below=4), classes, dtype=feed.dtype)
        loss = mtf.layers.softmax_cross_entropy_with_logits(logits, labels, classes)
        return {"logits": logits, "loss": mtf.reduce_mean(loss)}

    return build
