"""A small Transformer language model under uneven splits of heads, d_ff, vocabulary, batch and the rest."""

import dataclasses
import itertools

import numpy as np
import pytest
from language_model import EVERYTHING, SIZES, TWO_AXES, random_tokens
from language_model import LAYOUTS as UNEVEN
from oracle import KINDS, LEARNING_RATE, ONCE, TOLERANCE, assert_same, check, cpu_mesh_impl, one_device, run
from tiers import parametrize

from mtf_hetero import Layout, mtf, tf

pytestmark = pytest.mark.xdist_group("transformer")  # so that one process has the reference that they share
LAYOUTS = UNEVEN | {
    "empty": Layout(
        "m:3", "heads:m;d_ff:m;vocab:m", sizes={"heads": [3, 0, 2], "d_ff": [0, 23, 0], "vocab": [0, 30, 1]}
    ),
    "empty batch": Layout("b:2;m:2", "batch:b;heads:m", sizes={"batch": [7, 0], "heads": [0, 5]}),
}
KIND = dict(zip(LAYOUTS, itertools.cycle(KINDS)))  # of the inputs on each layout
RATE = LEARNING_RATE[tf.float32]  # of the steps: mtf.layers.layer_norm holds its variables in float32


def assert_same_as_held(reference, uneven):
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
        assert_same(*parts, TOLERANCE[tf.float64 if dtype == np.float64 else tf.float32])


@pytest.fixture(scope="module")
def tied_on_one_device():
    return one_device(random_tokens(), rate=RATE)


@parametrize("name", LAYOUTS, first=["length", "empty"])
def test_logits_loss_gradients_and_a_step_are_those_of_one_device(name, tied_on_one_device):
    uneven = run(random_tokens(), lambda: cpu_mesh_impl(LAYOUTS[name]), tf.float64, kind=KIND[name], rate=RATE)
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


def layer_stack(*layers):
    """The layers with root mean square norms and residuals, in the order that mtf's defaults.gin gives."""
    transformer = mtf.transformer.transformer
    per_layer = (transformer.sublayer_rms_norm, transformer.sublayer_call_layer, transformer.sublayer_residual)
    return transformer.LayerStack(
        layers, sublayers_initial=[], sublayers_per_layer=per_layer, sublayers_final=[transformer.sublayer_rms_norm]
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


@parametrize("program", [decoder_only, encoder_and_decoder, decoding], first=[decoding])
def test_mtfs_transformer_package(program):
    """Outputs, gradients and a step. It puts heads and their channels together: 15 "heads" beside the 5."""
    check(program, TWO_AXES, **ONCE)


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
    "best eight of an expert": experts(moe_gating="expert_selection"),
}
WITH_EXPERTS = Layout("b:3;m:2", "batch:b;experts:b;expert_hidden:m;heads:m;vocab:m", {"b": [4, 2, 1], "m": [3, 1]})


@pytest.mark.full
@pytest.mark.parametrize("gating", EXPERTS)
def test_mixture_of_experts(gating):
    """Against one processor of ours: mtf's own draws other numbers. The gate computes in float32."""
    program = EXPERTS[gating]
    reference = run(program, lambda: cpu_mesh_impl(Layout("b:1", "")), tf.float64, rate=RATE)
    if gating == "best two":
        assert_same(one_device(program, rate=RATE), reference, TOLERANCE[tf.float32])
    for layout in (WITH_EXPERTS, Layout("e:3", "experts:e", {"e": [2, 1, 1]})):
        uneven = run(program, lambda layout=layout: cpu_mesh_impl(layout), tf.float64, rate=RATE)
        assert_same(reference, uneven, TOLERANCE[tf.float32])
