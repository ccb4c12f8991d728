"""KerasHub's models in small, with random weights: texts. They are registered where KerasHub is installed."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from benchmarks.programs.pieces import integers, normal, padded
from benchmarks.programs.registry import KerasStep, Made, program
from mtf_hetero import tf

L = keras.layers
K: Any = keras.ops
WORDS, LENGTH, WIDTH, HEADS = 30, 8, 14, 2
SINGLE: dict[str, Any] = {"tolerance": 1e-6, "reason": "KerasHub computes its norms in float32"}
INSTALLED = importlib.util.find_spec("keras_hub") is not None
if not INSTALLED:
    tf.logging.warning("KerasHub is not installed; its programs are skipped. To run them: pip install keras-hub")


def of_hub(name: str, **options: Any) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Register a program of KerasHub, if KerasHub is installed. A decorator."""
    return program("hub", source=f"keras_hub.{name}", **options) if INSTALLED else lambda make: make


def hub() -> Any:
    """Return the module keras_hub, which takes seconds to load."""
    return importlib.import_module("keras_hub")


def text(**more: Any) -> dict[str, Any]:
    """Return token ids of unequal lengths, with their mask."""
    ids = padded(WORDS, LENGTH)
    ids[:, 0] = 1
    return {"token_ids": ids, "padding_mask": (ids > 0).astype("int32"), **more}


def sizes(**more: Any) -> dict[str, Any]:
    """Return options that most transformers share."""
    return {"vocabulary_size": WORDS, "num_layers": 1, "hidden_dim": WIDTH, "intermediate_dim": 28, **more}


def classified(model: Any, data: Any) -> KerasStep:
    """Compile a classifier of three classes."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return KerasStep(model, (data, integers(3)))


def continued(model: Any) -> KerasStep:
    """Compile a model of the next word; padding has no weight."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss, weighted_metrics=["accuracy"])
    data = text()
    wanted = np.roll(data["token_ids"], -1, axis=1)
    return KerasStep(model, (data, wanted, (wanted > 0).astype(keras.config.floatx())))


@of_hub("models.BertTextClassifier, keras.io guides/keras_hub/finetuning_on_glue_with_keras_hub.py")
def bert_text_classifier() -> Made:
    """BERT with a head for classes."""
    models = hub().models
    backbone = models.BertBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH))
    return classified(models.BertTextClassifier(backbone, 3), text(segment_ids=integers(2, LENGTH)))


@of_hub("models.BertMaskedLM")
def bert_masked_lm() -> Made:
    """BERT predicts words at given places."""
    models = hub().models
    model = models.BertMaskedLM(models.BertBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=["accuracy"])
    data = text(segment_ids=integers(2, LENGTH), mask_positions=integers(LENGTH, 2))
    return KerasStep(model, (data, integers(WORDS, 2), np.ones((14, 2))))


@of_hub("models.RobertaTextClassifier")
def roberta_text_classifier() -> Made:
    """RoBERTa with a head of two layers."""
    models = hub().models
    backbone = models.RobertaBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH))
    return classified(models.RobertaTextClassifier(backbone, 3, hidden_dim=WIDTH), text())


@of_hub("models.DebertaV3TextClassifier")
def deberta_text_classifier() -> Made:
    """DeBERTa: attention to words and, apart from them, to distances."""
    models = hub().models
    backbone = models.DebertaV3Backbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH, bucket_size=4))
    return classified(models.DebertaV3TextClassifier(backbone, 3), text())


@of_hub("models.DistilBertTextClassifier")
def distilbert_text_classifier() -> Made:
    """DistilBERT with a head for classes."""
    models = hub().models
    backbone = models.DistilBertBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH))
    return classified(models.DistilBertTextClassifier(backbone, 3), text())


@of_hub("models.AlbertTextClassifier")
def albert_text_classifier() -> Made:
    """ALBERT: one layer's weights are used several times."""
    models = hub().models
    options = sizes(num_heads=HEADS, embedding_dim=7, max_sequence_length=LENGTH)
    backbone = models.AlbertBackbone(**options)
    return classified(models.AlbertTextClassifier(backbone, 3), text(segment_ids=integers(2, LENGTH)))


@of_hub("models.FNetTextClassifier, keras.io examples/nlp/fnet_classification_with_keras_hub.py")
def fnet_text_classifier() -> Made:
    """FNet: Fourier transforms in place of attention."""
    models = hub().models
    backbone = models.FNetBackbone(**sizes(max_sequence_length=LENGTH))
    data = {"token_ids": integers(WORDS, LENGTH), "segment_ids": integers(2, LENGTH)}
    return classified(models.FNetTextClassifier(backbone, 3), data)


@of_hub("models.XLNetBackbone")
def xlnet() -> Made:
    """XLNet with relative positions, and a dense layer on its mean."""
    backbone = hub().models.XLNetBackbone(**sizes(num_heads=HEADS))
    x = L.GlobalAveragePooling1D()(backbone.output)
    return classified(keras.Model(backbone.input, L.Dense(3)(x)), text(segment_ids=integers(2, LENGTH)))


@of_hub("models.GPT2CausalLM")
def gpt2_causal_lm() -> Made:
    """GPT-2 predicts the next word."""
    models = hub().models
    return continued(models.GPT2CausalLM(models.GPT2Backbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH))))


@of_hub("models.GPT2CausalLM, keras.io examples/nlp/parameter_efficient_finetuning_of_gpt2_with_lora.py")
def gpt2_lora() -> Made:
    """GPT-2 of which only low-rank changes of queries and values are trained."""
    models = hub().models
    model = models.GPT2CausalLM(models.GPT2Backbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH)))
    model.backbone.enable_lora(4)
    return continued(model)


@of_hub("models.OPTCausalLM")
def opt_causal_lm() -> Made:
    """OPT predicts the next word."""
    models = hub().models
    return continued(models.OPTCausalLM(models.OPTBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH))))


@of_hub("models.LlamaCausalLM", **SINGLE)
def llama_causal_lm() -> Made:
    """Llama: rotary positions, grouped queries, gated dense layers."""
    models = hub().models
    backbone = models.LlamaBackbone(**sizes(num_query_heads=HEADS, num_key_value_heads=1) | {"hidden_dim": 16})
    return continued(models.LlamaCausalLM(backbone))


@of_hub("models.GemmaCausalLM", **SINGLE)
def gemma_causal_lm() -> Made:
    """Gemma: tied embeddings, soft caps of logits."""
    options = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "dropout": 0.1}
    options |= {"attention_logit_soft_cap": 50.0, "final_logit_soft_cap": 30.0, "use_post_ffw_norm": True}
    models = hub().models
    return continued(models.GemmaCausalLM(models.GemmaBackbone(**sizes(**options))))


@of_hub("models.MistralCausalLM", **SINGLE)
def mistral_causal_lm() -> Made:
    """Mistral: attention to a window of words."""
    models = hub().models
    options = sizes(num_query_heads=2, num_key_value_heads=1, sliding_window=4) | {"hidden_dim": 16}
    return continued(models.MistralCausalLM(models.MistralBackbone(**options)))


@of_hub(
    "models.MixtralCausalLM", dtype="float32", tolerance=1e-4, reason="KerasHub's mixture of experts fails in float64"
)
def mixtral_causal_lm() -> Made:
    """Mixtral: two of four experts for each word."""
    models = hub().models
    options = sizes(num_query_heads=2, num_key_value_heads=1, num_experts=4) | {"hidden_dim": 16}
    return continued(models.MixtralCausalLM(models.MixtralBackbone(**options)))


@of_hub("models.BloomCausalLM")
def bloom_causal_lm() -> Made:
    """BLOOM: distances are added to attention."""
    models = hub().models
    return continued(models.BloomCausalLM(models.BloomBackbone(**sizes(num_heads=HEADS))))


@of_hub("models.FalconCausalLM")
def falcon_causal_lm() -> Made:
    """Falcon: attention and dense layers side by side."""
    models = hub().models
    return continued(models.FalconCausalLM(models.FalconBackbone(**sizes(num_attention_heads=HEADS))))


@of_hub("models.Qwen2CausalLM", **SINGLE)
def qwen2_causal_lm() -> Made:
    """Qwen 2 predicts the next word."""
    models = hub().models
    options = sizes(num_query_heads=2, num_key_value_heads=1) | {"hidden_dim": 16}
    return continued(models.Qwen2CausalLM(models.Qwen2Backbone(**options)))


@of_hub("models.Phi3CausalLM", **SINGLE)
def phi3_causal_lm() -> Made:
    """Phi-3 predicts the next word."""
    models = hub().models
    options = sizes(num_query_heads=2, num_key_value_heads=2, dropout=0.1) | {"hidden_dim": 16}
    return continued(models.Phi3CausalLM(models.Phi3Backbone(**options)))


def _pairs() -> dict[str, Any]:
    """Return token ids of an encoder and of a decoder, with their masks."""
    one = text()
    two = {name: x[::-1].copy() for name, x in one.items()}
    return {f"{side}_{name}": x for side, of in (("encoder", one), ("decoder", two)) for name, x in of.items()}


def _translated(backbone: Any, data: dict[str, Any]) -> KerasStep:
    """Compile an encoder and a decoder with a dense layer that predicts words."""
    model = keras.Model(backbone.input, L.Dense(WORDS)(backbone.output["decoder_sequence_output"]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=["accuracy"])
    wanted = np.roll(data["decoder_token_ids"], -1, axis=1)
    return KerasStep(model, (data, wanted, (wanted > 0).astype(keras.config.floatx())))


@of_hub("models.T5Backbone")
def t5() -> Made:
    """T5: an encoder and a decoder with biases of distances in buckets."""
    return _translated(hub().models.T5Backbone(**sizes(num_heads=HEADS)), _pairs())


@of_hub("models.BartBackbone")
def bart() -> Made:
    """BART: an encoder and a decoder."""
    return _translated(hub().models.BartBackbone(**sizes(num_heads=HEADS, max_sequence_length=LENGTH)), _pairs())


@of_hub("models.WhisperBackbone")
def whisper() -> Made:
    """Whisper: an encoder of spectra and a decoder of words."""
    options = sizes(num_heads=HEADS, num_mels=10, dropout=0.1)
    backbone = hub().models.WhisperBackbone(**options, max_encoder_sequence_length=16, max_decoder_sequence_length=8)
    words = text()
    data = {"encoder_features": normal(16, 10), **{f"decoder_{name}": x for name, x in words.items()}}
    return _translated(backbone, data)


@of_hub("layers, keras.io examples/nlp/neural_machine_translation_with_keras_hub.py")
def neural_machine_translation() -> Made:
    """KerasHub's layers of encoders and decoders, with masks of their embeddings."""
    layers = hub().layers
    source, target = keras.Input((LENGTH,), dtype="int32"), keras.Input((LENGTH,), dtype="int32")
    embed = [layers.TokenAndPositionEmbedding(WORDS, LENGTH, WIDTH, mask_zero=True) for _ in range(2)]
    encoded = layers.TransformerEncoder(28, HEADS, dropout=0.1)(embed[0](source))
    x = layers.TransformerDecoder(28, HEADS, dropout=0.1)(embed[1](target), encoder_sequence=encoded)
    model = keras.Model([source, target], L.Dense(WORDS, "softmax")(L.Dropout(0.5)(x)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ids = text()["token_ids"]
    return KerasStep(model, ((ids, ids[::-1].copy()), np.roll(ids[::-1], -1, axis=1)))


@of_hub("layers, keras.io guides/keras_hub/transformer_pretraining.py")
def transformer_pretraining() -> Made:
    """Masked words are predicted by the transposed embedding."""
    layers = hub().layers
    inputs = {"token_ids": keras.Input((LENGTH,), dtype="int32"), "positions": keras.Input((2,), dtype="int32")}
    embedding = layers.TokenAndPositionEmbedding(WORDS, LENGTH, WIDTH)
    x = L.Dropout(0.1)(L.LayerNormalization()(embedding(inputs["token_ids"])))
    for _ in range(2):
        x = layers.TransformerEncoder(28, HEADS, dropout=0.1)(x)
    head = layers.MaskedLMHead(token_embedding=embedding.token_embedding, activation="softmax")
    model = keras.Model(inputs, head(x, mask_positions=inputs["positions"]))
    options = {"jit_compile": False, "weighted_metrics": ["sparse_categorical_accuracy"]}
    model.compile(keras.optimizers.AdamW(5e-4), "sparse_categorical_crossentropy", **options)
    data = {"token_ids": integers(WORDS, LENGTH), "positions": integers(LENGTH, 2)}
    return KerasStep(model, (data, integers(WORDS, 2), np.ones((14, 2))))
