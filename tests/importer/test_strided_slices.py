"""Slices, paddings, joins and turns of every axis are those of TensorFlow: many in one step, values and gradients."""

import itertools

import numpy as np
import pytest
from import_oracle import BATCH, ONE, arrays, same

import mtf_hetero
from mtf_hetero import tf

ROWS, WIDTH = 7, 3
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((ROWS, WIDTH)), RNG.standard_normal((ROWS, WIDTH))
SOURCES = {  # of what is sliced; all but the first have twice the rows, which are pieces of the batch or not
    "plain": lambda x, y: x * 2.0,
    "joined": lambda x, y: tf.concat([x, y], 0),
    "tiled": lambda x, y: tf.tile(x, [2, 1]),
    "merged": lambda x, y: tf.reshape(tf.stack([x, y]), (2 * ROWS, WIDTH)),
}
ALL, BACK = slice(None), slice(None, None, -1)


def rows(source):
    return ROWS if source == "plain" else 2 * ROWS


def find_wrong(cases, place, most=150):
    """Return the cases whose values or gradients are not those of TensorFlow.

    Args:
      cases: (name of a source, what is done, a function that does it to the source).
      place: what `function` is given of devices and layouts.
      most: number of cases in a step.
    """
    wrong = []
    for first in range(0, len(cases), most):
        some = cases[first : first + most]
        step = make_step(some)
        expected = tf.compat.v2.function(step, autograph=False)(X, Y)
        with mtf_hetero.function(step, (X, Y), **place) as divided:
            found = divided(X, Y)
        for (name, what, _), one, other in zip(some, found, expected, strict=True):
            pairs = zip(arrays(one), arrays(other), strict=True)
            if not all(a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e-9) for a, b in pairs):
                wrong.append((name, what))
    return wrong


def make_step(cases):
    """Make a step that gives the values and the gradient of each case."""

    def step(x, y):
        sources, found = {name: make(x, y) for name, make in SOURCES.items()}, []
        for name, _, function in cases:
            parts = tf.nest.flatten(function(sources[name]))
            (gradient,) = tf.compat.v1.gradients(parts, [sources[name]], [3.0 * part for part in parts])
            found.append([*parts, gradient])
        return found

    return step


def sliced(source, *parts):
    return source, parts, lambda z: z[parts]


def every_slice(source, extent, before=()):
    """Slices of an axis: one of all that have the same elements, and one more that begins before the tensor."""
    ends, found = [None, 0, 1, ROWS, -ROWS, -2, -extent - ROWS, extent + 3], {}
    for some in itertools.starmap(slice, itertools.product(ends, ends, (1, 2, -1, -2))):
        key = tuple(range(extent)[some]), some.start == -extent - ROWS
        found.setdefault(key, sliced(source, *before, some))
    return list(found.values())


def slices_of_both(source):
    first = [ALL, BACK, slice(7, None), slice(7), slice(-7, None), slice(1, -1), slice(None, None, 2), slice(-28, 7)]
    other = [ALL, BACK, slice(1, None), slice(-9, 9), slice(-1, None, -1), slice(1), slice(2, None, -2), slice(0)]
    return [sliced(source, *pair) for pair in itertools.product(first, other)]


def slices_with_masks(source):
    """Numbers, new axes and an ellipsis among slices."""
    parts, found = [ALL, slice(7, None), BACK, 0, -1, None, ...], []
    for count in (1, 2, 3, 4):
        for some in itertools.product(parts, repeat=count):
            is_short = sum(part not in (None, ...) for part in some) <= 2 and max(map(some.count, (None, ...))) < 2
            if is_short and (count < 4 or (None in some and ... in some)):
                found.append(sliced(source, *some))
    return found


def boxes(source):
    n = rows(source)
    for corner in itertools.product((0, 3, 7), (0, 1, 3)):
        for size in itertools.product((-1, 0, 4, 7), (-1, 0, 2, 3)):
            if all(a + max(k, 0) <= m for a, k, m in zip(corner, size, (n, WIDTH), strict=True)):
                yield source, f"Slice {corner} {size}", lambda z, a=corner, k=size: tf.slice(z, a, k)


def paddings(source):
    for pads in itertools.product([(0, 0), (7, 0), (0, 7), (1, 2), (7, 7), (6, 14)], [(0, 0), (1, 0), (1, 2)]):
        yield source, f"Pad {pads}", lambda z, p=pads: tf.pad(z, p)
        yield source, f"PadV2 {pads}", lambda z, p=pads: tf.pad(z, p, constant_values=2.0)
        for mode, least in (("REFLECT", 1), ("SYMMETRIC", 0)):
            if all(max(pair) <= m - least for pair, m in zip(pads, (rows(source), WIDTH), strict=True)):
                yield source, f"{mode} {pads}", lambda z, p=pads, mode=mode: tf.pad(z, p, mode)


def splits(source):
    for axis in (0, 1, -1, -2):
        extent = WIDTH if axis in (1, -1) else rows(source)
        for sizes in [k for k in (1, 2, 3, 7, 14) if extent % k == 0]:
            yield source, f"Split {sizes} {axis}", lambda z, k=sizes, a=axis: tf.split(z, k, a)
        for sizes in ([1, -1], [-1, 2, 0], [extent], [1, extent - 1], [7, -1], [7, 0, -1]):
            if sum(max(size, 0) for size in sizes) <= extent:
                yield source, f"SplitV {sizes} {axis}", lambda z, k=sizes, a=axis: tf.split(z, k, a)


def joins_and_turns(source):
    for axis in (0, 1, -1, -2):
        for count, part in itertools.product((1, 2, 3), (slice(None), slice(1, 3), slice(0))):
            index = (ALL, part) if axis in (1, -1) else (part,)
            join = lambda z, i=index, k=count, a=axis: tf.concat([*[z] * k, -z[i], z + 1.0], a)  # noqa: E731
            yield source, f"Concat {count} {part} {axis}", join
        for shift in (1, -1, 7, 20):
            yield source, f"Roll {shift} {axis}", lambda z, k=shift, a=axis: tf.roll(z, k, a)
    yield source, "Roll both", lambda z: tf.roll(z, [7, 1], [0, -1])
    for axes in ([], [0], [1], [-1], [-2], [0, 1]):
        yield source, f"Reverse {axes}", lambda z, a=axes: tf.reverse(z, a)
    for counts in ((1, 1), (2, 1), (1, 2), (3, 2), (0, 1)):
        yield source, f"Tile {counts}", lambda z, k=counts: tf.tile(z, k)
        yield source, f"Tile {counts} of a row", lambda z, k=counts: tf.tile(z[:1], [k[0] * rows(source), k[1]])


def others(source):
    """Other operations that take parts of axes, put something beside them, or turn them."""
    return [*boxes(source), *paddings(source), *splits(source), *joins_and_turns(source)]


def slices_that_were_wrong():
    """Slices of one axis that were taken for all of it, and begins before the tensor."""
    plain = [sliced("plain", *parts) for parts in [(ALL, BACK), (..., BACK), (None, ALL, BACK), (ALL, BACK, None)]]
    for source in ("joined", "merged", "tiled"):
        for parts in [
            *[(ALL, BACK), (BACK, BACK), (slice(7, None), BACK), (slice(-28, 7),), (slice(-21, None),)],
            *[(slice(7, None), slice(1, None)), (slice(7, 7),), (slice(-7, None),), (slice(7), None), (7,)],
        ]:
            plain.append(sliced(source, *parts))
    return plain


def test_an_axis_backwards_is_not_all_of_it():
    assert find_wrong(slices_that_were_wrong(), ONE) == []


def test_some_of_every_kind():
    some = [*slices_that_were_wrong()[::3], *slices_with_masks("joined")[::61]]
    some += [case for source in SOURCES for case in others(source)[::61]]
    assert find_wrong(some, BATCH) == []


@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES)
def test_every_slice(source):
    cases = every_slice(source, rows(source)) + slices_of_both(source)
    if source in ("plain", "joined"):
        cases += every_slice(source, WIDTH, [ALL]) + slices_with_masks(source)[source == "joined" :: 2]
    assert find_wrong(cases, BATCH) == []


@pytest.mark.full
@pytest.mark.parametrize("source", SOURCES)
def test_every_padding_split_join_and_turn(source):
    cases = others(source)
    assert find_wrong(cases if source in ("plain", "joined") else cases[::4], BATCH) == []


IMAGES = RNG.standard_normal((ROWS, 5, 4, 3))
W = RNG.standard_normal((5, 4, 3))
FACTORS = RNG.standard_normal((ROWS, 5, 4, 3))


@pytest.mark.parametrize("place", [pytest.param(ONE, marks=pytest.mark.full), BATCH], ids=["one", "batch"])
def test_gradients_of_images_and_sequences_backwards(place):
    def step(images, w):
        turned = images * w
        row = tf.reshape(turned, (ROWS, 20, 3))[:, ::-1, :]
        found = [turned[:, ::-1], turned[:, :, ::-1], turned[..., ::-1], tf.reshape(row, IMAGES.shape)]
        loss = tf.add_n([tf.reduce_sum(each**2 * FACTORS) for each in found])
        return tf.compat.v1.gradients(loss, [images, w])

    expected = arrays(tf.compat.v2.function(step, autograph=False)(IMAGES, W))
    with mtf_hetero.function(step, (IMAGES, W), **place) as divided:
        same(arrays(divided(IMAGES, W)), expected, 1e-9)
