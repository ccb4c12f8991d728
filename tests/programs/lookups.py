"""A program of lookups in tables between reshapes, and layouts for it."""

from operations import variable

from mtf_hetero import layers, mtf

B, L, V, D, E = (mtf.Dimension(*dim) for dim in [("b", 7), ("l", 3), ("v", 11), ("d", 5), ("e", 2)])


def between_reshapes(look_up):
    """Rows that are looked up by ids of another name, and have yet others where they are used."""

    def build(feed):
        ids, table = feed("ids", [B, L], below=V.size), variable(feed, "matrix", [V, D])
        other, used, columns = (mtf.Dimension(name, dim.size) for name, dim in (("o", B), ("u", B), ("c", D)))
        rows = look_up(table, mtf.reshape(ids, [other, L]), V)
        y = mtf.einsum(
            [mtf.reshape(rows, [used, L, columns]), variable(feed, "kernel", [columns, E])], mtf.Shape([used, L, E])
        )
        return {"y": y, "x": look_up(table, ids, V)}

    return build


lookups_between_reshapes = between_reshapes(layers.lookup)
LAYOUTS_BETWEEN_RESHAPES = (
    "v:x",
    "v:x;b:y",
    "v:x;o:y",
    "v:x;o:y;u:x",
    "v:x;c:x",
    "v:y;l:x",
    "d:x;o:y",
    "d:y;c:x",
    "b:x;o:x;l:y",
    "u:x",
)
