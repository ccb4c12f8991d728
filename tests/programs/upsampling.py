"""A program that upsamples an image and a volume, by each method and several factors."""

from mtf_hetero import layers, mtf

B, H, W, C = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 5), ("w", 7), ("c", 3)])
DEPTH = mtf.Dimension("d", 3)


def program(feed):
    image, volume = feed("image", [B, H, W, C]), feed("volume", [B, DEPTH, H, W, C])
    outputs = {
        f"{method} {factors}": layers.upsample(image, factors, method=method)
        for method in ("nearest", "bilinear")
        for factors in (2, (3, 1), (1, 4))
    }
    return {**outputs, "volume": layers.upsample(volume, (2, 1, 3), method="bilinear")}
