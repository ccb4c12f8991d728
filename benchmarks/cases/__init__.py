"""The table of cases that `python -m benchmarks.run` can measure."""

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.cases.any_step import AnyStep
from benchmarks.cases.dropout import Dropout
from benchmarks.cases.elastic import Elastic
from benchmarks.cases.faults import Faults
from benchmarks.cases.heterogeneous import Heterogeneous
from benchmarks.cases.keras_fit import KerasFit
from benchmarks.cases.keras_models import KerasModels
from benchmarks.cases.learning import ClusterCurve, Cosmology, LearningCurve, Segmentation
from benchmarks.cases.lowering import Lowering
from benchmarks.cases.one_device import Accounting, OneDevice
from benchmarks.cases.phases import Phases
from benchmarks.cases.planner import Planner
from benchmarks.cases.reading import Reading
from benchmarks.cases.sequences import Sequences
from benchmarks.cases.slots import Slots
from benchmarks.cases.spatial import Spatial
from benchmarks.cases.splitbrain import SplitBrain
from benchmarks.cases.stages import Stages
from benchmarks.cases.verdicts import Verdicts
from benchmarks.harness import Case

_ALL = (
    *(OneDevice(), Accounting(), Lowering(), Dropout(), LearningCurve(), ClusterCurve(), Heterogeneous()),
    *(
        SplitBrain(),
        Spatial(),
        Cosmology(),
        Segmentation(),
        Planner(),
        Reading(),
        Verdicts(),
        KerasModels(),
        KerasFit(),
        AnyStep(),
        Elastic(),
        Sequences(),
        Slots(),
        Stages(),
        Phases(),
        Faults(),
    ),
)
CASES: Mapping[str, Case] = MappingProxyType({case.name: case for case in _ALL})

__all__ = ["CASES", "Case"]
