"""Stages of a network that the backward pass computes again, to save the memory of their maps."""

from collections.abc import Callable, Sequence

import mtf_hetero.layers
from mtf_hetero import mtf

ALL = "all"  # every stage of a network


def stages_to_recompute(named: Sequence[str], stages: Sequence[str]) -> frozenset[str]:
    """Return the named stages of a network; ALL names every stage.

    Raises:
      ValueError: no such stage exists.
    """
    for name in named:
        if name != ALL and name not in stages:
            raise ValueError(f"recompute names {name!r}; it must be {ALL} or some of the stages {', '.join(stages)}")
    return frozenset(stages if ALL in named else named)


def recomputed(stage: Callable[..., mtf.Tensor], *inputs: mtf.Tensor) -> mtf.Tensor:
    """Return stage(*inputs), and keep only the inputs. The backward pass computes the stage again.

    Both computations are equal, so that the gradients are the same. The averages of a batch norm are updated once. It
    differs from mtf.recompute_grad in how the second computation waits for the backward pass. mtf adds a sum over all
    processors, times 1e-30, to each input. Here each processor waits for its own slice of the gradient.

    Args:
      stage: a function of mtf.Tensors that returns one mtf.Tensor and draws no random numbers.
      *inputs: mtf.Tensors.
    """
    return mtf.custom_gradient(stage, _gradient_of_recomputed, list(inputs))


def _gradient_of_recomputed(
    explicit_inputs: list[mtf.Tensor],
    all_inputs: list[mtf.Tensor],
    forward_operations: list[mtf.Operation],
    outputs: list[mtf.Tensor],
    output_grads: list[mtf.Tensor],
) -> list[mtf.Tensor]:
    again = {x: mtf_hetero.layers.AfterOperation(x, output_grads[0]).outputs[0] for x in explicit_inputs}
    repeated = [op for op in forward_operations if not isinstance(op, mtf.Assign)]
    operations, copies = outputs[0].graph.clone_operations(repeated, again)
    sources = [again.get(x, x) for x in all_inputs]
    gradients = mtf.gradients([copies[y] for y in outputs], sources, grad_ys=output_grads, operations=operations)
    return [
        mtf.zeros_like(x) if gradient is None else gradient for x, gradient in zip(all_inputs, gradients, strict=True)
    ]
