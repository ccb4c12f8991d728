"""The project's networks in plain Keras layers: a twin of each, which Keras loads without mtf_hetero."""

from mtf_hetero.keras.twins.images import alexnet, lenet, marques, paper, resnet, vgg
from mtf_hetero.keras.twins.volumes import cosmoflow, unet3d

__all__ = ["alexnet", "cosmoflow", "lenet", "marques", "paper", "resnet", "unet3d", "vgg"]
