"""The recipe of stages: which layers lie on which processor, and that it changes no result."""

import itertools

import oracle
import pytest
import tiers
import zeros
from hypothesis import strategies as st
from zeros import dims

from mtf_hetero import mtf
from mtf_hetero.graph.runs import divide_into_runs
from mtf_hetero.models import MODELS


def lay_out(build, mesh_shape="all:3", **options):
    return zeros.lay_out(build, "stages", mesh_shape=mesh_shape, **options)


def model(name):
    shape = [mtf.Dimension(n, s) for n, s in zip(("batch", "height", "width", "channels"), (20, 32, 32, 3))]
    return lambda feed: {"y": MODELS[name].build(feed("images", shape))}


def owners(layout):
    """{name: number of the only processor that has it}."""
    return {name: sizes.index(max(sizes)) for name, sizes in layout.sizes}


def chain(feed, *, layers=4):
    """Residual blocks that share all dimensions but the batch."""
    x = feed("x", dims("b:5 h:8"))
    for number in range(layers):
        if number:
            x = mtf.rename_dimension(x, x.shape.dims[0].name, f"{number}/batch")
        options = {"variable_dtype": mtf.VariableDType(x.dtype, x.dtype, x.dtype)}
        y = mtf.layers.dense(x, dims("f:9"), x.shape.dims[1:], activation=mtf.tanh, name=f"in{number}", **options)
        x = x + mtf.layers.dense(y, dims("h:8"), y.shape.dims[1:], name=f"out{number}", **options)
    return {"y": x}


@pytest.mark.parametrize(
    ("shares", "runs"),
    [([1, 1, 1, 1], [0, 1, 2, 3]), ([2, 2], [0, 0, 1, 1]), ([3, 1], [0, 0, 0, 1]), ([1, 3], [0, 1, 1, 1])],
)
def test_work_is_in_proportion_to_the_shares(shares, runs):
    layout = lay_out(chain, f"all:{len(shares)}", shares={"all": shares})
    assert owners(layout) == dict(zip(["b", "1/batch", "2/batch", "3/batch"], runs, strict=True))
    assert all(sorted(sizes)[:-1] == [0] * (len(shares) - 1) for _, sizes in layout.sizes)


def test_labels_that_are_read_first_do_not_move_the_last_layers():
    def labelled(feed):
        labels = mtf.square(feed("labels", dims("3/batch:5 h:8")))
        return {"y": chain(feed)["y"] - labels}

    layout = lay_out(labelled, "all:2", shares={"all": [2, 2]})
    assert owners(layout) == {"b": 0, "1/batch": 0, "2/batch": 1, "3/batch": 1}


def test_a_chain_is_as_on_one_device():
    oracle.check(chain, lay_out(chain, "all:2"), lay_out(chain, shares={"all": [2, 1, 1]}), **oracle.ONCE)


@pytest.mark.full
def test_blocks_of_a_network_stay_together():
    """Fewer bytes cross between two blocks of a ResNet than within one."""
    found = owners(lay_out(model("resnet18"), "all:2"))
    later = {name.rpartition("/conv")[0] for name, owner in found.items() if owner and "conv" in name}
    assert later == {f"stage{stage}/block{block}" for stage, block in ((3, 1), (3, 2), (4, 1), (4, 2))}


def test_a_processor_may_be_left_without_layers():
    layout = lay_out(lambda feed: chain(feed, layers=2), "all:3", shares={"all": [1, 1, 1]})
    assert sorted(owners(layout).values()) == [0, 1]
    assert sum(lay_out(chain, "all:9").split("b", 5)) == 5  # more processors than examples


def test_a_batch_of_one_name_has_no_stages():
    with pytest.raises(
        ValueError,
        match=r"^the batch, 'b', has no other name that can be split, so no layer can be placed alone; use the layout "
        r"batch, or rename the batch between layers by mtf\.rename_dimension$",
    ):
        lay_out(lambda feed: chain(feed, layers=1))


@tiers.given_in_tiers(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=1, max_size=3),
)
def test_runs_are_the_best_of_all(items, weights):
    work, crossing = zip((items[0][0], 0), *items[1:])

    def price(ends):
        runs = [*itertools.pairwise([0, *ends, len(work)])]
        longest = max(sum(work[a:b]) / weight for (a, b), weight in zip(runs, weights))
        return longest, sum(crossing[a] for a, b in runs[1:] if a < b)

    ways = [list(ends) for ends in itertools.combinations_with_replacement(range(len(work) + 1), len(weights) - 1)]
    least = min(price(ends)[0] for ends in ways)
    longest, crossing_bytes = price(divide_into_runs(work, crossing, weights))
    assert longest <= least * 1.1 + 1e-9
    assert crossing_bytes <= min(price(ends)[1] for ends in ways if price(ends)[0] <= least * 1.1)
