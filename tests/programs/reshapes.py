"""Programs of the oracle that reshape and rename, and reshapes between random layouts."""

import itertools
import math

from hypothesis import strategies as st

from mtf_hetero import Layout, mtf


def rename(feed):
    x = feed("x", [mtf.Dimension("f0", 8), mtf.Dimension("k", 6)])
    return {"y": mtf.rename_dimension(x, "f0", "r0") * 2.0, "k": mtf.rename_dimension(x, "k", "n")}


def flatten(feed):
    shape = [mtf.Dimension(n, s) for n, s in [("b", 5), ("h", 2), ("w", 3), ("c", 7)]]
    flat = mtf.reshape(feed("x", shape), [shape[0], mtf.Dimension("k", 42)])
    back = mtf.reshape(flat * 2.0, [shape[0], mtf.Dimension("h2", 6), mtf.Dimension("c2", 7)])
    return {"flat": flat, "back": back, "whole": mtf.reshape(back, [mtf.Dimension("n", 210)])}


def outstanding_sum(feed):
    """Renames of a sum that is still outstanding: kept so, cut, scattered, and used twice."""
    a, b, c = mtf.Dimension("a", 9), mtf.Dimension("b", 8), mtf.Dimension("c", 7)
    y = mtf.einsum([feed("x", [a, b]), feed("w", [b, c])], [a, c])
    same = mtf.rename_dimension(y, "c", "same")
    return {
        "kept": same + mtf.rename_dimension(y * 1.0, "c", "same"),
        "twice": mtf.relu(same),
        "scattered": mtf.rename_dimension(y, "c", "scattered"),
        "cut": mtf.rename_dimension(y, "c", "cut"),
        "again": mtf.rename_dimension(mtf.rename_dimension(y, "a", "a2"), "c", "cut"),
        "sum": y + mtf.einsum([feed("x2", [a, b]), feed("w2", [b, c])], [a, c]),
    }


@st.composite
def reshards(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    old = [mtf.Dimension(f"a{i}", s) for i, s in enumerate(sizes)]
    total, new_sizes = math.prod(sizes), []
    while total > 1 and len(new_sizes) < 3:
        new_sizes.append(draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0])))
        total //= new_sizes[-1]
    new = [mtf.Dimension(f"b{i}", s) for i, s in enumerate([*new_sizes, total])]
    mesh = {axis: draw(st.integers(1, 3)) for axis in ("x", "y", "z")[: draw(st.integers(1, 3))]}
    rules, sizes_of = [], {}
    for dimensions in (old, new):
        free = list(mesh)
        for dim in draw(st.permutations(dimensions)):
            if free and draw(st.booleans()):
                axis = draw(st.sampled_from(free))
                is_exact = draw(st.booleans())  # a division into sizes of which some may be zero
                if is_exact or mesh[axis] <= dim.size:
                    free.remove(axis)
                    rules.append((dim.name, axis))
                if is_exact:
                    cuts = sorted(
                        draw(st.lists(st.integers(0, dim.size), min_size=mesh[axis] - 1, max_size=mesh[axis] - 1))
                    )
                    sizes_of[dim.name] = [b - a for a, b in itertools.pairwise([0, *cuts, dim.size])]
    shares = {axis: draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)) for axis, n in mesh.items()}
    return Layout(tuple(mesh.items()), rules, shares, sizes_of), old, new
