"""KerasHub's models in small, with random weights: images."""

import importlib
from typing import Any

import keras
import numpy as np

from benchmarks.programs.hub import SINGLE, WORDS, classified, hub, of_hub
from benchmarks.programs.pieces import integers, normal, uniform
from benchmarks.programs.registry import BATCH, KerasStep, Made

L = keras.layers
K: Any = keras.ops


def _resnet(size: int, **options: Any) -> Any:
    return hub().models.ResNetBackbone(
        *([64], [3], [64, 14, 14], [1, 1, 1], [1, 2, 2]),
        **{"block_type": "basic_block", "image_shape": (size, size, 3)} | options,
    )


@of_hub("models.ViTImageClassifier")
def vit_image_classifier() -> Made:
    """Return a vision transformer with dropout."""
    models, options = hub().models, {"dropout_rate": 0.1, "attention_dropout": 0.1}
    backbone = models.ViTBackbone((16, 16, 3), 4, 2, 2, 14, 28, **options)
    return classified(models.ViTImageClassifier(backbone, 3), uniform(16, 16, 3))


@of_hub("models.DeiTImageClassifier")
def deit_image_classifier() -> Made:
    """Return a vision transformer with a token of distillation."""
    models = hub().models
    backbone = models.DeiTBackbone((16, 16, 3), 4, 2, 2, 14, 28, dropout_rate=0.1)
    return classified(models.DeiTImageClassifier(backbone, 3), uniform(16, 16, 3))


@of_hub("models.ResNetImageClassifier")
def resnet_image_classifier() -> Made:
    """Residual blocks with batch norms."""
    return classified(hub().models.ResNetImageClassifier(_resnet(16), 3), uniform(16, 16, 3))


@of_hub("models.DenseNetImageClassifier")
def densenet_image_classifier() -> Made:
    """Blocks that see the results of all before them."""
    models = hub().models
    backbone = models.DenseNetBackbone([2, 2], image_shape=(32, 32, 3), growth_rate=7)
    return classified(models.DenseNetImageClassifier(backbone, 3), uniform(32, 32, 3))


@of_hub("models.SwinTransformerImageClassifier")
def swin_image_classifier() -> Made:
    """Attention in shifted windows, with paths that are dropped."""
    models = hub().models
    backbone = models.SwinTransformerBackbone((32, 32, 3), 8, [2, 1], [2, 2], 4, dropout_rate=0.1)
    return classified(models.SwinTransformerImageClassifier(backbone, 3), uniform(32, 32, 3))


@of_hub("models.MiTImageClassifier")
def mit_image_classifier() -> Made:
    """Return the encoder of SegFormer: attention to fewer keys."""
    models = hub().models
    backbone = models.MiTBackbone([1, 1], 2, [1, 2], [4, 2], 0.1, [3, 3], [2, 2], (16, 16, 3), [7, 14])
    return classified(models.MiTImageClassifier(backbone, 3), uniform(16, 16, 3))


@of_hub("models.DeepLabV3ImageSegmenter, keras.io guides/keras_hub/semantic_segmentation_deeplab_v3.py")
def deeplab_image_segmenter() -> Made:
    """Dilated convolutions over the features of a ResNet."""
    models = hub().models
    options = {"low_level_feature_key": "P2", "spatial_pyramid_pooling_key": "P4", "dilation_rates": [2, 3]}
    options |= {"upsampling_size": 4, "projection_filters": 7, "image_shape": (32, 32, 3)}
    backbone = models.DeepLabV3Backbone(_resnet(32), **options)
    model = models.DeepLabV3ImageSegmenter(backbone, 3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
    return KerasStep(model, (uniform(32, 32, 3), integers(3, 32, 32)))


@of_hub("models.RetinaNetObjectDetector, keras.io guides/keras_hub/object_detection_retinanet.py")
def retinanet_object_detector() -> Made:
    """Boxes and their classes at several scales, matched to the true ones in the step."""
    models = hub().models
    options = {"min_level": 3, "max_level": 4, "use_p5": False, "image_shape": (32, 32, 3)}
    backbone = models.RetinaNetBackbone(_resnet(32), **options)
    model = models.RetinaNetObjectDetector(backbone, 3, bounding_box_format="xyxy", pre_logits_num_conv_layers=1)
    model.compile(
        keras.optimizers.SGD(1e-3),
        box_loss=keras.losses.MeanAbsoluteError(reduction="sum"),
        classification_loss=keras.losses.BinaryFocalCrossentropy(from_logits=True, reduction="sum"),
    )
    corner = 16 * uniform(2, 2)
    boxes = np.concatenate([corner, corner + 4 + 10 * uniform(2, 2)[::-1]], axis=-1)
    return KerasStep(model, (uniform(32, 32, 3), {"boxes": boxes, "labels": integers(3, 2)}))


@of_hub("models.SAMImageSegmenter")
def sam_image_segmenter() -> Made:
    """Segment Anything: an encoder of images, one of prompts, and a decoder of masks."""
    models, layers = hub().models, hub().layers
    options = {"num_heads": 2, "global_attention_layer_indices": [0], "patch_size": 4, "num_output_channels": 8}
    encoder = models.ViTDetBackbone(14, 1, 28, window_size=2, image_shape=(16, 16, 3), **options)
    prompts = layers.SAMPromptEncoder(
        hidden_size=8, image_embedding_size=(4, 4), input_image_size=(16, 16), mask_in_channels=4
    )
    head = {"iou_head_depth": 2, "iou_head_hidden_dim": 7}
    decoder = layers.SAMMaskDecoder(
        num_layers=1, hidden_size=8, intermediate_dim=14, num_heads=2, embedding_dim=8, num_multimask_outputs=3, **head
    )
    model = models.SAMImageSegmenter(models.SAMBackbone(encoder, prompts, decoder))
    outputs = ("masks", "iou_pred")
    model.compile(keras.optimizers.Adam(1e-3), dict.fromkeys(outputs, "mse"), metrics=dict.fromkeys(outputs, "mae"))
    data = {"images": uniform(16, 16, 3), "points": 16 * uniform(1, 2), "labels": np.ones((BATCH, 1))}
    data |= {"boxes": 16 * uniform(1, 2, 2), "masks": normal(1, 16, 16, 1)}
    return KerasStep(model, (data, {"masks": normal(4, 16, 16), "iou_pred": uniform(4)}))


@of_hub("models.StableDiffusion3Backbone, its transformer", **SINGLE)
def stable_diffusion_transformer() -> Made:
    """Return the diffusion transformer of Stable Diffusion 3: words and patches in one attention."""
    module = importlib.import_module("keras_hub.src.models.stable_diffusion_3.mmdit")
    shapes = {"latent_shape": (8, 8, 4), "context_shape": (6, 12), "pooled_projection_shape": (9,)}
    model = module.MMDiT(2, 14, 2, 2, 8, qk_norm="rms_norm", dual_attention_indices=(0,), **shapes)
    model.compile(keras.optimizers.AdamW(1e-3), "mse")
    data = {"latent": normal(8, 8, 4), "context": normal(6, 12), "pooled_projection": normal(9), "timestep": uniform(1)}
    return KerasStep(model, (data, normal(8, 8, 4)[::-1].copy()))


@of_hub("models.StableDiffusion3Backbone, its autoencoder")
def stable_diffusion_autoencoder() -> Made:
    """Return the variational autoencoder of Stable Diffusion 3."""
    module = importlib.import_module("keras_hub.src.models.vae.vae_backbone")
    model = module.VAEBackbone([32, 32], [1, 1], [32, 32], [1, 1], sample_channels=8)
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return KerasStep(model, (uniform(16, 16, 3), uniform(16, 16, 3)))


@of_hub("models.CLIPTextEncoder")
def clip_text_encoder() -> Made:
    """Return the encoder of words of Stable Diffusion 3, with a dense layer on its last word."""
    encoder = hub().models.CLIPTextEncoder(WORDS, 14, 14, 2, 2, 28, max_sequence_length=8)
    x = encoder.output["sequence_output"] if isinstance(encoder.output, dict) else encoder.output
    x = x[0] if isinstance(x, (list, tuple)) else x
    return classified(keras.Model(encoder.input, L.Dense(3)(x[:, -1])), {"token_ids": integers(WORDS, 8)})
