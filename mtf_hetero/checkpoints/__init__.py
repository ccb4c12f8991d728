"""Checkpoints on the disk: which are whole, how one comes and goes as a whole, and whose turn it is to write them."""

from mtf_hetero.checkpoints.failures import WriteError, as_write_error, quiet_summary_writers
from mtf_hetero.checkpoints.files import clear_leftovers
from mtf_hetero.checkpoints.lock import run_lock
from mtf_hetero.checkpoints.whole import Found, find, find_damage, resume

__all__ = [
    "Found",
    "WriteError",
    "as_write_error",
    "clear_leftovers",
    "find",
    "find_damage",
    "quiet_summary_writers",
    "resume",
    "run_lock",
]
