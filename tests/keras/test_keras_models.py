"""Whole Keras models: outputs, gradients and three steps as Keras has them, on one device and by recipes."""

import keras
import numpy as np
import oracle
import pytest
from keras import layers
from keras_oracle import check, floatx, inferred, make_layouts
from networks import NETWORKS, nested

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.keras import build


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_every_kind_of_layout(name):
    with floatx(tf.float64):
        check(NETWORKS[name](), training=True, dtype=tf.float64, layouts=make_layouts, tolerance=1e-8)


def test_dropout_has_its_rate_and_no_layout():
    inputs = keras.Input((40, 30, 5))
    x = layers.Dropout(0.25)(inputs)
    model = keras.Model(inputs, layers.Add()([x, layers.Dropout(0.5, noise_shape=(None, 1, 1, 1))(inputs)]))
    ones = np.ones((6, 40, 30, 5), np.float32)
    whole = inferred(build(model), ones, training=True)
    divided = inferred(build(model), ones, "batch", training=True)
    np.testing.assert_array_equal(whole, divided)
    kept = np.abs(whole % 2 - 1 / 0.75) < 1e-3
    assert 0.73 < kept.mean() < 0.77
    assert set(np.unique(np.round(whole.astype(float), 2))) == {0.0, 1.33, 2.0, 3.33}
    assert all(len(np.unique(example >= 2)) == 1 for example in whole)  # the second dropped whole examples
    np.testing.assert_array_equal(inferred(build(model), ones), 2 * ones)


def test_dropout_draws_anew_in_each_step():
    inputs = keras.Input((40,))
    builder, steps = build(keras.Model(inputs, layers.Dropout(0.5)(inputs))), []
    for layout in (Layout("all:1", ()), Layout("all:3", "batch:all", {"all": [4, 2, 1]})):
        with tf.Graph().as_default():
            tf.set_random_seed(3)
            mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
            shape = mtf.Shape([mtf.Dimension("batch", 7), mtf.Dimension("inputs", 40)])
            y = builder(mtf.import_tf_tensor(mesh, tf.ones([7, 40]), shape), training=True)
            assert not graph.all_variables  # a checkpoint has no states of random numbers
            lowering = mtf_hetero.Lowering(graph, {mesh: oracle.cpu_mesh_impl(layout)})
            exported = lowering.export_to_tf_tensor(y)
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
                steps.append([session.run(exported) for _ in range(3)])
    np.testing.assert_array_equal(*steps)
    assert (steps[0][0] != steps[0][1]).any() and (steps[0][1] != steps[0][2]).any()


SAMPLING = {  # models of which a call without `training` drops half of what comes in
    "keyword": lambda x: layers.Dropout(0.5)(x, training=True),
    "nested twice": lambda x: keras.Sequential([keras.Sequential([layers.Dropout(0.5)])])(x, training=True),
}


@pytest.mark.parametrize("name", SAMPLING)
def test_dropout_that_samples_in_inference(name):
    inputs = keras.Input((10, 10, 3))
    model = keras.Model(inputs, SAMPLING[name](inputs))
    builder, ones = build(model), np.ones((6, 10, 10, 3), np.float32)
    for training in (None, False, True):
        found, expected = (
            np.mean(y == 0) for y in (inferred(builder, ones, training=training), model(ones, training=training))
        )
        assert abs(found - expected) < 0.1, (training, found, expected)
    np.testing.assert_array_equal(
        inferred(builder, ones, training=None), inferred(builder, ones, "batch", training=None)
    )


def test_a_call_that_infers_within_one_that_says_nothing():
    inputs = keras.Input((10, 10, 3))
    inner = keras.Sequential([keras.Input((10, 10, 3)), layers.Dropout(0.5)])
    x = layers.Dropout(0.5)(keras.Sequential([keras.Input((10, 10, 3)), inner])(inputs, training=False))
    ones = np.ones((6, 10, 10, 3), np.float32)
    np.testing.assert_array_equal(inferred(build(keras.Model(inputs, x)), ones, training=None), ones)


def test_a_softmax_of_what_is_flattened_is_over_all_of_it():
    inputs = keras.Input((5, 4, 3))
    model = keras.Model(inputs, layers.Activation("softmax")(layers.Flatten()(inputs)))
    images = np.random.default_rng(0).standard_normal((3, 5, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(inferred(build(model), images), np.asarray(model(images)), rtol=1e-5)


def test_variables_have_the_names_and_shapes_of_checkpoints_and_go_back():
    inputs = keras.Input((4, 3, 2))
    x = layers.Conv2D(6, 1, name="conv")(inputs)
    x = layers.LayerNormalization(name="norm")(x)
    x = keras.Sequential([layers.Flatten(), layers.Dense(4, name="dense")], name="tower")(x)
    model = keras.Model(inputs, layers.Dense(1, name="my.head")(x))
    builder = check(model, layouts=lambda graph: [Layout("all:1", ())])
    assert {name: list(weight.shape) for name, weight in builder.variables.items()} == {
        "conv/kernel": [1, 1, 2, 6],
        "conv/bias": [6],
        "norm/gamma": [6],
        "norm/beta": [6],
        "tower/dense/kernel": [4, 3, 6, 4],
        "tower/dense/bias": [4],
        "my_head/kernel": [4, 1],
        "my_head/bias": [1],
    }
    for weight in builder.variables.values():
        value = np.asarray(weight.variable)
        weight.put_back(weight.to_mtf(value) + 1)
        np.testing.assert_array_equal(np.asarray(weight.variable), value + 1)
    assert {id(weight.variable) for weight in builder.variables.values()} == {id(v) for v in model.variables}


def test_a_layer_that_is_frozen_is_not_trained():
    model = nested()
    tower = model.get_layer("tower")
    tower.trainable = False
    builder = check(model, training=True, layouts=lambda graph: [Layout("all:1", ())])
    assert all(not weight.variable.trainable for name, weight in builder.variables.items() if "tower" in name)


def test_two_models_in_one_graph_have_variables_of_their_own():
    models = [keras.Sequential([keras.Input((3,)), layers.Dense(2, name="dense")]) for _ in range(2)]
    first, second = (build(model) for model in models)
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="built in a tf.Graph, where Keras has no weights"):
            build(models[0])
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        shape = mtf.Shape([mtf.Dimension("batch", 2), mtf.Dimension("inputs", 3)])
        x = mtf.import_tf_tensor(mesh, tf.zeros([2, 3]), shape)
        first(x, training=True)
        first(x)
        with pytest.raises(ValueError, match="has another variable 'dense/kernel'; give layers"):
            second(x)
        with tf.variable_scope("second"):
            second(x)
    assert list(second.variables) == ["second/dense/kernel", "second/dense/bias"]
    assert len(mesh.graph.all_variables) == 4


class Doubled(layers.Dense):
    """A layer of the user's own, with a variable that Keras does not know and one that each training step changes."""

    def build(self, shape):
        super().build(shape)
        self.factor = tf.Variable(tf.ones([], self.dtype), name="factor")
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="moving_largest")

    def call(self, x, training=False):
        y = 2 * self.factor * tf.sort(super().call(x), axis=0)
        if training:
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y)))
        return y


def test_layers_of_the_users_own():
    with floatx(tf.float64):
        inputs = keras.Input((4,))
        x = layers.Dense(6, activation=lambda x: x * tf.cumsum(x, axis=1), name="odd")(inputs)
        model = keras.Model(inputs, Doubled(3, name="mine")(x))
        builder = check(model, training=True, dtype=tf.float64, tolerance=1e-9)
    names = {"odd/kernel", "mine/kernel", "mine/bias", "mine/factor", "mine/moving_largest"}
    assert names <= builder.variables.keys()


def test_a_model_that_is_not_built():
    with pytest.raises(ValueError, match="model 'empty' is not built; give its first layer a keras.Input"):
        build(keras.Sequential([layers.Dense(3)], name="empty"))


def test_a_model_of_the_users_own_class():
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.first, self.second = layers.Dense(4, name="first"), layers.Dense(2, name="second")

        def call(self, x, training=False):
            y = self.first(x["one"])
            return {"sum": self.second(y + x["two"]), "first": y}

    builder = build(Own())
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        batch = [mtf.Dimension("rows", 2), mtf.Dimension("columns", 3)]
        x = {
            name: mtf.import_tf_tensor(mesh, tf.ones([2, 3, n]), mtf.Shape([*batch, mtf.Dimension(name, n)]))
            for name, n in (("one", 1), ("two", 4))
        }
        outputs = builder(
            {name: mtf.reshape(y, [mtf.Dimension("batch", 6), y.shape.dims[-1]]) for name, y in x.items()}
        )
        assert {name: y.shape.to_string for name, y in outputs.items()} == {
            "sum": "Shape[batch=6, second/kernel/1=2]",
            "first": "Shape[batch=6, two=4]",
        }
    assert list(builder.variables) == ["first/kernel", "first/bias", "second/kernel", "second/bias"]


def test_a_batch_of_two_dimensions():
    model = NETWORKS["residual"]()
    builder = build(model)
    images = np.random.default_rng(0).standard_normal((6, 14, 14, 3)).astype(np.float32)
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        names = ("rows", "columns", "height", "width", "channels")
        shape = mtf.Shape([mtf.Dimension(*dim) for dim in zip(names, (2, 3, 14, 14, 3), strict=True)])
        y = builder(mtf.import_tf_tensor(mesh, tf.constant(images.reshape(2, 3, 14, 14, 3)), shape))
        assert y.shape.dimension_names[:2] == ["rows", "columns"] and y.shape.to_integer_list == [2, 3, 5]
        layout = Layout("a:2;b:2", "rows:a;columns:b", {"b": [2, 1]})
        lowering = mtf_hetero.Lowering(graph, {mesh: oracle.cpu_mesh_impl(layout)})
        exported = lowering.export_to_tf_tensor(y)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            session.run(tf.global_variables_initializer())
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
            found = session.run(exported)
    np.testing.assert_allclose(found.reshape(6, 5), np.asarray(model(images)), atol=1e-5)


def test_inputs_that_a_model_does_not_take():
    builder = build(nested())
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    x = mtf.import_tf_tensor(
        mesh, np.zeros((2, 3), np.float32), mtf.Shape([mtf.Dimension("batch", 2), mtf.Dimension("c", 3)])
    )
    with pytest.raises(ValueError, match=r"has 2 inputs, but got 1; give \[batch, 9, 9, 3\], \[batch, 9, 9, 3\]"):
        builder(x)
    with pytest.raises(ValueError, match=r"needs \[batch, 9, 9, 3\], but got Shape\[batch=2, c=3\]"):
        builder([x, x])
