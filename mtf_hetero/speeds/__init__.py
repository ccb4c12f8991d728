"""Time models: how long a device takes for n units of a layer, and what follows for a split. Pure, no TensorFlow.

Speed is a function of the size and not a number (functional performance models, as in FuPerMod): a device is measured
at several sizes, and a split is chosen such that all devices end together. `mtf_hetero.profile` measures; here
measurements are read, kept as JSON, and turned into shares or exact sizes.

Example:
  >>> work = Work((Layer("conv1", "conv", "filters", 60),), {"filters": {"filters": 60}})
  >>> models = {"gpu:0": TimeModel(((60, 1.0, 0.0),)), "cpu:0": TimeModel(((60, 3.0, 0.0),))}
  >>> profile = Profile({device: {"conv": model} for device, model in models.items()})
  >>> shares_from(profile, work, ["gpu:0", "cpu:0"])
  (75.0, 25.0)
"""

from mtf_hetero.speeds.choice import (
    Split,
    alone_seconds,
    best_split,
    communication_seconds,
    predicted_step_seconds,
    shares_from,
    sizes_from,
)
from mtf_hetero.speeds.models import Layer, Link, Profile, TimeModel, Work
from mtf_hetero.speeds.store import ProfileError, dumps, load, loads, save, update

__all__ = [
    "Layer",
    "Link",
    "Profile",
    "ProfileError",
    "Split",
    "TimeModel",
    "Work",
    "alone_seconds",
    "best_split",
    "communication_seconds",
    "dumps",
    "load",
    "loads",
    "predicted_step_seconds",
    "save",
    "shares_from",
    "sizes_from",
    "update",
]
