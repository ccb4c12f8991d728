"""A program in rounds: two dense layers over one part of a batch after another, and layouts for it."""

from zeros import dims

from mtf_hetero import Layout, layers, mtf

SIZES = (3, 1, 3)


def program(sizes):
    def build(feed):
        x = feed("x", dims("outer:2 b:7 i:5"))
        w = feed("w", dims("i:5 u:6"))
        v = feed("v", dims("u:6 o:3"))
        b = x.shape.dims[1]

        def function(part):
            y = mtf.tanh(mtf.einsum([part, w], [*part.shape.dims[:2], w.shape.dims[1]]))
            return mtf.einsum([y, v], [*part.shape.dims[:2], v.shape.dims[1]])

        y = function(x) if sizes is None else layers.in_rounds(x, function, dim=b, sizes=sizes)
        return {"y": y}

    return build


LAYOUTS = [
    Layout("x:1", ""),
    Layout("x:3", "b:x", sizes={"b": SIZES}),
    Layout("x:3", "b:x;u:x", {"x": [3, 1, 2]}),
    Layout("x:2", "rounds/b:x"),
    Layout("x:2;y:2", "outer:x;b:y;u:y", {"y": [2, 1]}),
    Layout("x:2;y:2", "b:x;i:y", {"x": [5, 2]}),
    Layout("x:2", "i:x"),
]
