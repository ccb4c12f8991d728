"""Programs of moments and batch norm of images."""

from mtf_hetero import layers, mtf

B, H, W, C = (mtf.Dimension(n, s) for n, s in [("b", 5), ("h", 11), ("w", 7), ("c", 5)])
IMAGES = [B, H, W, C]


def moments(*dims):
    """Build moments of numbers whose mean is large."""

    def build(feed):
        x = feed("x", IMAGES) * 3.0 + 1000.0
        mean, variance = layers.MomentsOperation(x, mtf.Shape(list(dims))).outputs
        return {"mean": mean, "variance": variance}

    return build


def normalised(feed):
    """Batch norm of images."""
    return {"y": layers.batch_norm(feed("x", IMAGES), training=True)}
