"""The table of operations: which have a signature, and which are done whole or drawn."""

from mtf_hetero.importer import algebra, arrays, rows, vision, windows
from mtf_hetero.importer.program import Operation
from mtf_hetero.importer.signature import Signature

RULES = {**arrays.TABLE, **algebra.TABLE, **rows.TABLE, **vision.TABLE, **windows.TABLE}
STATELESS = {  # random numbers that follow from their operands
    "StatelessMultinomial",
    "StatelessRandomBinomial",
    "StatelessRandomGammaV2",
    "StatelessShuffle",
    "StatelessParameterizedTruncatedNormal",
    "StatelessRandomGammaV3",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessRandomPoisson",
    "StatelessRandomUniform",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
}


def signature_of(op: Operation) -> Signature | None:
    """Return the Signature of an operation; None if nothing is known of it."""
    rule = RULES.get(op.type)
    signature = rule(op) if rule else None
    return signature and signature.without_ones(op)


def is_elementwise(op: Operation) -> bool:
    """Return whether an operation has one result, of which each element depends on one element of each operand."""
    kinds = op.type in arrays.ELEMENTWISE or op.type in ("BiasAdd", "Bitcast", "Select")
    return kinds and len(op.outputs) == 1 and signature_of(op) is not None


def is_drawn(op: Operation) -> bool:
    """Return whether an operation draws random numbers from its operands alone, each device all of them."""
    return op.type in STATELESS
