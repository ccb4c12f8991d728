"""The variables of an uneven mesh: slices only, no master copy, each made of its part of the initial value."""

from mtf_hetero.variables.variables import LaidOutVariable, SlicedVariable, get_variable, initial_value_feed

__all__ = ["LaidOutVariable", "SlicedVariable", "get_variable", "initial_value_feed"]
