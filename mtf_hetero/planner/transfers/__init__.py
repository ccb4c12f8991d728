"""What a training step sends from processor to processor under a layout: to the byte, before anything is lowered."""

from mtf_hetero.planner.transfers import windows  # registers its rules
from mtf_hetero.planner.transfers.step import Transfer, of_operation, of_step

__all__ = ["Transfer", "of_operation", "of_step", "windows"]
