"""Pixels out of channels and back: a program, and layouts of it."""

from mtf_hetero import Layout, layers, mtf

B, H, W, C = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 5), ("w", 7), ("c", 12)])
DEPTH = mtf.Dimension("d", 3)
LAYOUTS = [
    Layout("x:3", "h:x", {"x": [5, 2, 1]}),
    Layout("x:3;y:2", "w:x;b:y", {"x": [1, 5, 2], "y": [3, 1]}),
    Layout("x:2;y:2", "c:x;h:y", {"x": [1, 2], "y": [1, 3]}),
    Layout("x:3", "c:x", sizes={"c": [3, 0, 9]}),
    Layout("x:3", "h:x", sizes={"h": [0, 3, 2]}),
]


def program(feed):
    image, volume = feed("image", [B, H, W, C]), feed("volume", [DEPTH, H, W, C])
    large = layers.depth_to_space(image, 2)
    return {
        "large": large,
        "uneven": layers.depth_to_space(image, (1, 3)),
        "small": layers.space_to_depth(layers.space_to_depth(large * large, 2), (5, 1)),
        "volume": layers.space_to_depth(layers.depth_to_space(volume, (1, 2, 3)), (3, 2, 1)),
    }
