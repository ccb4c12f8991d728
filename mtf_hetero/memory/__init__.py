"""How much memory a training step needs on each device: estimated from its lowered graph, and measured."""

from mtf_hetero.memory.estimation import Estimate, estimate
from mtf_hetero.memory.measurement import ProcessPeaks, allocator_peaks, gpu_peaks
from mtf_hetero.memory.report import table

__all__ = ["Estimate", "ProcessPeaks", "allocator_peaks", "estimate", "gpu_peaks", "table"]
