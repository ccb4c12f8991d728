"""Checkpoints: slices saved as logical tensors, one checkpoint written as a whole, and whose turn it is to write."""

from mtf_hetero.saver.copying import copy_variables
from mtf_hetero.saver.failures import WriteError, as_write_error, quiet_summary_writers
from mtf_hetero.saver.files import check_names, clear_leftovers
from mtf_hetero.saver.lock import run_lock
from mtf_hetero.saver.saver import Saver, SliceSaverBuilder, save_once, set_restored
from mtf_hetero.saver.whole import Found, find, find_damage, resume

__all__ = [
    "Found",
    "Saver",
    "SliceSaverBuilder",
    "WriteError",
    "as_write_error",
    "check_names",
    "clear_leftovers",
    "copy_variables",
    "find",
    "find_damage",
    "quiet_summary_writers",
    "resume",
    "run_lock",
    "save_once",
    "set_restored",
]
