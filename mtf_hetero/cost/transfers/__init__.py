"""Messages of a training step between processors under a layout: to the byte, before anything is lowered."""

from mtf_hetero.cost.transfers.step import Messages, Step, Transfer, of_step

__all__ = ["Messages", "Step", "Transfer", "of_step"]
