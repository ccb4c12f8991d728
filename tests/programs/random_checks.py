"""The oracle over random programs on random layouts: `python tests/programs/random_checks.py FIRST LAST`."""

import collections
import sys

import oracle
from random_programs import Program, random_layout

from mtf_hetero import mtf, tf

# Of the seeds that are tested, those whose layout is refused, and how what is said begins. Legal is what no tensor of
# the program forbids; a tensor that its gradients or its lowering make may forbid it all the same.
REFUSED = {
    20: "OneHotOperation 'top_k_1/gradients/one_hot': a tensor has dimensions '_one', 'n5', and the layout",
    51: "Conv2or3dBackpropInputOperation 'conv2d_1/gradients/conv2d_backprop' cannot all-reduce over mesh axis 'y'",
    61: "Conv2or3dBackpropInputOperation 'conv2d/gradients/conv2d_backprop' cannot all-reduce over mesh axis 'x'",
    70: "Conv2or3dBackpropInputOperation 'conv3d/gradients/conv3d_backprop' cannot all-reduce over mesh axis 'x'",
    99: "OneHotOperation 'top_k/gradients/one_hot': a tensor has dimensions 'n7', 'n1', and the layout",
    182: "OneHotOperation 'top_k/gradients/one_hot': a tensor has dimensions 'n5', 'n1', and the layout",
    184: "Conv2dTransposeOperation 'conv2d_transpose' cannot all-reduce over mesh axis 'x'",
}


def refusal(seed):
    """Runs one program; returns why its layout is refused, or None. Raises AssertionError where a result is wrong."""
    program = Program(seed)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float64))
        layout = random_layout(seed, graph)
    options = {"momentum": oracle.MOMENTUM * (seed % 2), "exports": False}
    try:
        reference = oracle.one_device(program, **options)
    except tf.errors.UnimplementedError:
        return "stock mtf cannot run it on one device"
    kind = (*oracle.KINDS, oracle.MIXED)[seed // 2 % 4]
    try:
        options["fused"] = seed % 3 == 0
        uneven = oracle.run(program, lambda: oracle.cpu_mesh_impl(layout), tf.float64, kind=kind, **options)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    try:
        oracle.assert_same(reference, uneven, 1e-9)
    except AssertionError as error:
        del options["fused"]
        if is_ill_conditioned(program, reference, options):
            return "ill-conditioned"
        raise AssertionError(f"seed {seed}: {layout}\n" + "\n".join(program.description)) from error
    return None


def is_ill_conditioned(program, reference, options):
    """Return whether rounding decides the result of stock mtf on one device, by a change of the inputs' last bits."""

    class Nudged(oracle.Feed):
        def __call__(self, name, shape, *, below=None):
            x = super().__call__(name, shape, below=below)
            return x * (1 + 2**-50) if x.dtype.is_floating else x

    nudged = oracle.one_device(lambda feed: program(Nudged(feed.mesh, feed.dtype)), **options)
    try:
        oracle.assert_same(reference, nudged, 1e-10)
    except AssertionError:
        return True
    return False


def main(first, last):
    """Runs the programs of these seeds; prints those that are wrong, and how many were refused, and why."""
    refusals = collections.Counter()
    wrong = 0
    for number, seed in enumerate(range(first, last), 1):
        try:
            refusals[refusal(seed)] += 1
        except Exception as error:
            wrong += 1
            print("WRONG", seed, error, repr(error.__cause__)[:2000], flush=True)
        if number % 100 == 0:
            print(f"{number} of {last - first}, {wrong} wrong", flush=True)
    print(f"{last - first} programs, {wrong} wrong, {sum(refusals.values()) - refusals[None]} refused")
    for why, count in refusals.most_common():
        print(count, why)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
