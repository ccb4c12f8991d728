"""The oracle over random programs on random layouts. For more: `python tests/test_random_programs.py FIRST LAST`."""

import collections
import sys

import oracle
import pytest
from random_programs import Program, random_layout

from mtf_hetero import mtf, tf

CHUNKS, PER_CHUNK = 10, 20


def refusal(seed):
    """Runs one program; returns why its layout is refused, or None. Raises AssertionError where a result is wrong."""
    program = Program(seed)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float64))
        layout = random_layout(seed, graph)
    options = {"momentum": oracle.MOMENTUM * (seed % 2), "exports": False}
    reference = oracle.one_device(program, **options)
    kind = (*oracle.KINDS, oracle.MIXED)[seed // 2 % 4]
    try:
        uneven = oracle.run(program, lambda: oracle.mesh_impl_of(layout), tf.float64, kind=kind, **options)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    try:
        oracle.assert_same(reference, uneven, 1e-9)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {layout}\n" + "\n".join(program.description)) from error
    return None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_programs(chunk):
    refused = [refusal(seed) for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK)]
    assert sum(why is not None for why in refused) <= 1, refused


def main(first, last):
    """Runs the programs of these seeds; prints how many were refused, and why."""
    refusals = collections.Counter()
    wrong = 0
    for seed in range(first, last):
        try:
            refusals[refusal(seed)] += 1
        except AssertionError as error:
            wrong += 1
            print(error, repr(error.__cause__)[:2000], flush=True)
    print(f"{last - first} programs, {wrong} wrong, {sum(refusals.values()) - refusals[None]} refused")
    for why, count in refusals.most_common():
        print(count, why)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
