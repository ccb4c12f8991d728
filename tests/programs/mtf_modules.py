"""Modules of mesh_tensorflow."""

import importlib

from absl import flags


def import_module(name):
    """Imports a module of mesh_tensorflow, and forgets its flags: several programs, of ours too, define the same."""
    defined = vars(flags.FLAGS)["__flags"]
    known = dict(defined)
    defined.clear()
    try:
        return importlib.import_module(name)
    finally:
        defined.clear()
        defined.update(known)
