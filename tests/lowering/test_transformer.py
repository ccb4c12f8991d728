"""A small Transformer language model under uneven splits of heads, d_ff, vocabulary, batch and the rest."""

import collections
import dataclasses
import itertools
import math

import numpy as np
import pytest
from language_model import EVERYTHING, LAYOUTS, SIZES, TWO_AXES, language_model, random_tokens
from oracle import (
    FED,
    KINDS,
    LEARNING_RATE,
    MIXED,
    ONCE,
    SEED,
    TOLERANCE,
    VARIABLE,
    Feed,
    Result,
    assert_same,
    check,
    cpu_mesh_impl,
    one_device,
    run,
)
from tiers import parametrize

import mtf_hetero
from mtf_hetero import Layout, mtf, tf

pytestmark = pytest.mark.xdist_group("transformer")  # so that one process has the reference that they share
TEXT = """the sea is wide and the ship is small, the wind is in the sail, the men sing and the sea is calm.
when the wind is still the ship is still, and the men sit in the sun and sing to the sea.
"""


RATE = LEARNING_RATE[tf.float32]  # of the steps: mtf.layers.layer_norm holds its variables in float32


def assert_same_as_held(reference, uneven, tolerance=TOLERANCE[tf.float64]):
    """Compare like the oracle, with the tolerance of float32 for values held in float32 or computed from them."""
    for first, dtype in ((True, np.float64), (True, np.float32), (False, None)):
        parts = (
            dataclasses.replace(
                result,
                steps=[
                    {name: own for name, own in step.items() if dtype in (None, np.asarray(own[0]).dtype)}
                    for step in (result.steps[:1] if first else result.steps[1:])
                ],
            )
            for result in (reference, uneven)
        )
        assert_same(*parts, tolerance if dtype == np.float64 else TOLERANCE[tf.float32])


@pytest.fixture(scope="module")
def tied_on_one_device():
    return one_device(random_tokens(), rate=RATE)


@parametrize(
    ("name", "kind"),
    itertools.product(LAYOUTS, KINDS),
    first=[("length", VARIABLE), ("model", FED)],
)
def test_logits_loss_gradients_and_a_step_are_those_of_one_device(name, kind, tied_on_one_device):
    uneven = run(random_tokens(), lambda: cpu_mesh_impl(LAYOUTS[name]), tf.float64, kind=kind, rate=RATE)
    assert len([key for key in uneven.slices if key.startswith("gradient of variable ")]) == 11
    assert_same_as_held(tied_on_one_device, uneven)


@pytest.mark.full
def test_two_layers_and_an_output_projection_of_its_own():
    program = random_tokens(tied=False, layers=2)
    uneven = run(program, lambda: cpu_mesh_impl(EVERYTHING), tf.float64, rate=RATE)
    assert_same_as_held(one_device(program, rate=RATE), uneven)


@pytest.mark.full
def test_float32():
    check(random_tokens(), EVERYTHING, dtype=tf.float32, **ONCE)


@pytest.mark.full
def test_dropout_does_not_depend_on_the_layout(tied_on_one_device):
    """Against one processor of ours: mtf's own draws other numbers."""
    program = random_tokens(dropout=0.3)
    reference = run(program, lambda: cpu_mesh_impl(Layout("m:1", "")), tf.float64, rate=RATE)
    assert np.abs(reference.slices["logits"][0] - tied_on_one_device.slices["logits"][0]).max() > 0.1
    for layout in (EVERYTHING, LAYOUTS["batch"]):
        uneven = run(program, lambda layout=layout: cpu_mesh_impl(layout), tf.float64, rate=RATE)
        assert_same_as_held(reference, uneven)


class Training:
    """A program with an optimizer, on a layout or, without one, as stock Mesh-TensorFlow on one device.

    Stock mtf on TensorFlow 2 lets a variable's update race with its reads; there, a step is two runs: the first fetches
    what is to be assigned, the second assigns it.
    """

    def __init__(self, program, optimizer, layout=None):
        tf.set_random_seed(SEED)
        tf.train.get_or_create_global_step()
        self._graph = mtf.Graph()
        mesh = mtf.Mesh(self._graph, "mesh")
        loss = program(Feed(mesh, tf.float64))["loss"]
        variables = self._graph.trainable_variables
        updates = optimizer().apply_grads(mtf.gradients([loss], [v.outputs[0] for v in variables]), variables)
        one = mtf.placement_mesh_impl.PlacementMeshImpl([], [], [""])
        self._mesh_impl = one if layout is None else cpu_mesh_impl(layout)
        self._lowering = mtf_hetero.Lowering(self._graph, {mesh: self._mesh_impl}, autostack=False)
        self._loss = self._lowering.export_to_tf_tensor(loss)
        if layout is None:
            self._prepare(updates)
        else:
            self._values, self._placeholders = (), ()
            self._step = [self._lowering.lowered_operation(op) for op in updates]
        self.session = tf.Session(config=tf.ConfigProto(device_count={"CPU": max(1, self._mesh_impl.size)}))
        self.session.run(tf.global_variables_initializer())
        self.session.run([tf.local_variables_initializer(), self._lowering.copy_masters_to_slices()])

    def _slices(self, variable):
        return self._lowering.variables[variable].laid_out_tensor.tensor_list

    def _prepare(self, updates):
        assigned = [(op.assign_fn, v, x) for op in updates for v, x in zip(op.variables, op.inputs)]
        self._values = [self._lowering.tensors[x].to_laid_out_tensor().tensor_list[0] for _, _, x in assigned]
        self._placeholders = [tf.placeholder(value.dtype, value.shape) for value in self._values]
        self._step = [fn(v, self._slices(v)[0], p) for (fn, v, _), p in zip(assigned, self._placeholders)]

    def step(self):
        """Takes one step; returns the loss before it."""
        loss, values = self.session.run([self._loss, list(self._values)])
        self.session.run(self._step, dict(zip(self._placeholders, values)))
        return loss

    def result(self):
        """Every processor's slice of all variables, those of the optimizer too."""
        variables = self._graph.all_variables
        slices = self.session.run({v.name: self._slices(v) for v in variables})
        return Result([slices], {v.name: v.shape for v in variables}, self._mesh_impl)


def train(program, optimizer, layout, steps):
    """The loss before each step, and the variables after the last."""
    with tf.Graph().as_default():
        training = Training(program, optimizer, layout)
        with training.session:
            return [training.step() for _ in range(steps)], training.result()


OPTIMIZERS = {  # mtf's adaptive ones compute in float32
    "sgd": (lambda: mtf.optimize.SgdOptimizer(0.1), tf.float64),
    "adafactor": (lambda: mtf.optimize.AdafactorOptimizer(min_dim_size_to_factor=4), tf.float32),
    "adam": (lambda: mtf.optimize.AdamWeightDecayOptimizer(0.01), tf.float32),
}


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_an_optimizer_is_that_of_one_device(name):
    optimizer, dtype = OPTIMIZERS[name]
    (start,), reference = train(random_tokens(), optimizer, None, 1)
    for layout in (EVERYTHING, TWO_AXES) if name == "sgd" else (EVERYTHING,):
        (loss,), uneven = train(random_tokens(), optimizer, layout, 1)
        assert math.isclose(loss, start, rel_tol=1e-9)
        assert_same_as_held(reference, uneven, TOLERANCE[dtype])


def next_character(feed):
    """Windows of the text; each character is to be told from those before it."""
    alphabet = sorted(set(TEXT))
    tokens = np.array([alphabet.index(character) for character in TEXT], np.int32)
    length = 17
    batch = (len(tokens) - 1) // length
    sizes = SIZES | {"batch": batch, "length": length, "d_model": 16, "vocab": len(alphabet)}
    dims = {name: mtf.Dimension(name, size) for name, size in sizes.items()}
    windows = [
        mtf.import_tf_tensor(feed.mesh, part[: batch * length].reshape(batch, length), [dims["batch"], dims["length"]])
        for part in (tokens, tokens[1:])
    ]
    return language_model(*windows, dims, dtype=feed.dtype)


@pytest.mark.full
def test_training_on_a_text_follows_the_curve_of_one_device():
    counts = np.array([*collections.Counter(TEXT).values()])
    unigram_entropy = -np.sum(counts * np.log(counts / len(TEXT))) / len(TEXT)
    optimizer, _ = OPTIMIZERS["adam"]
    expected, _ = train(next_character, optimizer, None, 40)
    actual, _ = train(next_character, optimizer, EVERYTHING, 40)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    assert actual[0] > unigram_entropy
    assert actual[-1] < unigram_entropy / 5


def layer_stack(*layers):
    """The layers with root mean square norms and residuals, in the order that mtf's defaults.gin gives."""
    transformer = mtf.transformer.transformer
    per_layer = (transformer.sublayer_rms_norm, transformer.sublayer_call_layer, transformer.sublayer_residual)
    return transformer.LayerStack(
        layers,
        sublayers_initial=[],
        sublayers_per_layer=per_layer,
        sublayers_final=[transformer.sublayer_rms_norm],
    )


ATTENTION = {
    "num_heads": SIZES["heads"],
    "key_value_size": SIZES["d_kv"],
    "attention_kwargs": {"float32_logits": False},  # by default it takes the softmax in float32
}


def dense():
    return mtf.transformer.transformer_layers.DenseReluDense(hidden_size=SIZES["d_ff"])


def unitransformer(name, *layers, outputs=True):
    """A model of mtf.transformer: self-attention, and the layers after it."""
    return mtf.transformer.transformer.Unitransformer(
        layer_stack(mtf.transformer.transformer_layers.SelfAttention(**ATTENTION), *layers),
        d_model=SIZES["d_model"],
        input_vocab_size=SIZES["vocab"],
        output_vocab_size=SIZES["vocab"] if outputs else None,
        autoregressive=outputs,
        max_length=SIZES["length"],
        vocab_divisor=1,
        shared_embedding_and_softmax_weights=outputs,
        layout=mtf.LayoutRules([]),  # groups of experts depend on it: the program is to be the same everywhere
        mesh_shape=mtf.Shape([]),
        name=name,
    )


def fed_variable_dtype(feed):
    return mtf.VariableDType(feed.dtype, feed.dtype, feed.dtype)


def feed_tokens(feed, name):
    return feed(name, [mtf.Dimension(dim, SIZES[dim]) for dim in ("batch", "length")], below=SIZES["vocab"])


def decoder_only(feed):
    targets = feed_tokens(feed, "targets")
    inputs = mtf.transformer.transformer.autoregressive_inputs(targets)
    logits, loss = unitransformer("decoder_only", dense()).call_simple(
        inputs, targets, compute_loss=True, variable_dtype=fed_variable_dtype(feed)
    )
    return {"logits": logits, "loss": loss}


def encoder_and_decoder(feed):
    encoder = unitransformer("encoder", dense(), outputs=False)
    decoder = unitransformer("decoder", mtf.transformer.transformer_layers.EncDecAttention(**ATTENTION), dense())
    logits, loss = mtf.transformer.transformer.Bitransformer(encoder, decoder).call_simple(
        feed_tokens(feed, "inputs"),
        feed_tokens(feed, "targets"),
        compute_loss=True,
        variable_dtype=fed_variable_dtype(feed),
    )
    return {"logits": logits, "loss": loss}


def decoding(feed):
    """Token by token, in a while loop."""
    start = mtf.zeros(feed.mesh, feed_tokens(feed, "targets").shape, tf.int32)
    return {
        "tokens": unitransformer("decoder_only", dense()).sample_autoregressive(
            start, temperature=0.0, variable_dtype=fed_variable_dtype(feed), has_partial_sequences=False
        )
    }


PACKAGE = [decoder_only, encoder_and_decoder, decoding]


@parametrize(
    ("program", "kinds"),
    itertools.product(PACKAGE, [(MIXED,), KINDS]),
    first=[(decoder_only, (MIXED,)), (decoding, (MIXED,))],
)
def test_mtfs_transformer_package(program, kinds):
    """Outputs, gradients and a step. It puts heads and their channels together: 15 "heads" beside the 5."""
    check(program, TWO_AXES, kinds=kinds)


def experts(**options):
    """Self-attention, and a layer of experts, each for some of the tokens; all are sent to where their expert is."""

    def build(feed):
        layer = mtf.transformer.moe.MoE1D(num_experts=4, hidden_size=9, group_size=14, **options)
        targets = feed_tokens(feed, "targets")
        logits, loss = unitransformer("experts", layer).call_simple(
            mtf.transformer.transformer.autoregressive_inputs(targets),
            targets,
            compute_loss=True,
            variable_dtype=fed_variable_dtype(feed),
            sequence_id=feed("sequences", targets.shape, below=2),
        )
        return {"logits": logits, "loss": loss}

    return build


EXPERTS = {
    "best two": experts(second_policy_train="none"),
    "best two, sampled": experts(),
    "best": experts(moe_gating="switch", switch_policy_train="argmax"),
    "best, of noise": experts(moe_gating="switch", switch_policy_train="input_jitter"),
    "best eight of an expert": experts(moe_gating="expert_selection"),
}
WITH_EXPERTS = Layout("b:3;m:2", "batch:b;experts:b;expert_hidden:m;heads:m;vocab:m", {"b": [4, 2, 1], "m": [3, 1]})


@parametrize("gating", EXPERTS, first=["best two"])
def test_mixture_of_experts(gating):
    """Against one processor of ours: mtf's own draws other numbers. The gate computes in float32."""
    program = EXPERTS[gating]
    reference = run(program, lambda: cpu_mesh_impl(Layout("b:1", "")), tf.float64, rate=RATE)
    if gating in ("best two", "best"):
        assert_same(one_device(program, rate=RATE), reference, TOLERANCE[tf.float32])
    for layout in (WITH_EXPERTS, Layout("e:3", "experts:e", {"e": [2, 1, 1]})):
        uneven = run(program, lambda layout=layout: cpu_mesh_impl(layout), tf.float64, rate=RATE)
        assert_same(reference, uneven, TOLERANCE[tf.float32])
