"""While a plan is looked for, Python does not look for garbage; so none may be left that only it would find."""

import gc
import weakref

import pytest

from mtf_hetero import Layout, mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.cost.transfers import of_step, step
from mtf_hetero.graph import live_operations


def test_it_is_looked_for_again_whatever_happens():
    with garbage.without_collection():
        with garbage.without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), garbage.without_collection():
        raise KeyError
    assert gc.isenabled()


def test_a_sketch_is_freed_at_once(monkeypatch):
    made = []

    class Kept(step.Sketch):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(weakref.ref(self))

    monkeypatch.setattr(step, "Sketch", Kept)
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        rows, units, others = (mtf.Dimension(*dim) for dim in (("rows", 4), ("units", 6), ("others", 5)))
        x = mtf.import_tf_tensor(mesh, tf.ones([4, 6]), mtf.Shape([rows, units]))
        y = mtf.layers.dense(x, [others], reduced_dims=[units], name="layer")
        gradients = mtf.gradients([mtf.reduce_mean(y)], [v.outputs[0] for v in graph.trainable_variables])
        mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, graph.trainable_variables)
    with garbage.without_collection():
        # A sum over the processors refers to its sketch
        assert of_step(live_operations(graph), Layout("all:2", "rows:all"))
        assert made and not any(sketch() for sketch in made)
