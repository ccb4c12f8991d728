"""The table of facts about operations: each one in one row, and TensorFlow's own knowledge beside it."""

import collections
import importlib

from mtf_hetero import tf
from mtf_hetero._support import facts

registry = importlib.import_module("tensorflow.python.framework.op_def_registry")


def test_each_operation_is_in_one_row_and_in_tensorflow():
    assert [kind for kind, count in collections.Counter(facts.TYPES).items() if count > 1] == []
    assert [kind for kind in facts.TYPES if registry.get(kind) is None] == []


def test_operations_on_elements_are_those_of_vectorized_loops():
    """A new version of TensorFlow tells what is new. Loops vectorize logical_xor under a name without an operation."""
    pfor = importlib.import_module("tensorflow.python.ops.parallel_for.pfor")
    converters = {kind: getattr(rule, "func", rule).__name__ for kind, rule in pfor._pfor_converter_registry.items()}
    vectorized = {kind for kind, rule in converters.items() if rule == "_convert_cwise" and registry.get(kind)}
    assert len(vectorized) > 100 and vectorized <= facts.ELEMENTWISE
    assert "LogicalXor" not in vectorized


def of_registry(is_stateful):
    return {kind for kind in facts.TYPES if registry.get(kind).is_stateful == is_stateful}


def test_facts_agree_with_the_definitions_of_operations():
    stateful = of_registry(is_stateful=True)
    assert stateful >= facts.DRAWS | facts.VARIABLE_READS | facts.VARIABLE_WRITES | facts.SAMPLERS
    assert stateful.isdisjoint(facts.ELEMENTWISE - facts.CHECKS) and stateful.isdisjoint(facts.STATELESS_DRAWS)
    for kind in facts.VARIABLE_READS | facts.VARIABLE_WRITES:
        assert registry.get(kind).input_arg[0].type == tf.resource.as_datatype_enum


def test_facts_agree_with_each_other():
    assert facts.ACTIVATIONS | facts.DIVISIONS | facts.EXACT - {"Identity"} <= facts.ELEMENTWISE
    assert facts.RENAMING | facts.REGROUPING | facts.CHECKS <= facts.ALIASES
    assert facts.ALIASES.isdisjoint(facts.FORWARDING)
    assert facts.PRODUCTS <= facts.SUMS and facts.VARIABLE_WRITES.isdisjoint(facts.VARIABLE_READS)
