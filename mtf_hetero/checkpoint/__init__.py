"""Save slices as logical tensors, write each checkpoint completely or not at all, and lock a model directory.

Example:
  >>> saver = Saver(builder=SliceSaverBuilder())  # a tf.train.Saver; it writes each logical tensor once
  >>> saver.save(session, "model/model.ckpt", global_step=100)
  >>> found = find("model")  # the newest intact one
  >>> saver.restore(other_session, found.path)  # of any other layout, shares or number of devices
"""

from mtf_hetero.checkpoint.copying import copy_variables
from mtf_hetero.checkpoint.failures import WriteError, as_write_error, quiet_summary_writers
from mtf_hetero.checkpoint.files import check_names, clear_leftovers
from mtf_hetero.checkpoint.lock import run_lock
from mtf_hetero.checkpoint.saver import Saver, SliceSaverBuilder, save_once, set_restored
from mtf_hetero.checkpoint.state import State
from mtf_hetero.checkpoint.whole import Found, find, find_damage, resume

__all__ = [
    "Found",
    "Saver",
    "SliceSaverBuilder",
    "State",
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
