"""Programs of many kinds, whose steps are divided and compared with TensorFlow's own."""

from benchmarks.programs.registry import BATCH, EXACT, KerasStep, Loop, Made, Program, program, programs

__all__ = ["BATCH", "EXACT", "KerasStep", "Loop", "Made", "Program", "program", "programs"]
