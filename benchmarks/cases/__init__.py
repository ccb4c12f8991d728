"""The table of cases: what `python -m benchmarks.run` may be told to measure."""

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.cases.accounting import Accounting
from benchmarks.cases.base import Case
from benchmarks.cases.heterogeneous import Heterogeneous
from benchmarks.cases.learning_curve import LearningCurve
from benchmarks.cases.lowering import Lowering
from benchmarks.cases.one_device import OneDevice

CASES: Mapping[str, Case] = MappingProxyType(
    {case.name: case for case in (OneDevice(), Accounting(), Lowering(), LearningCurve(), Heterogeneous())}
)

__all__ = ["CASES", "Case"]
