"""Errors of layouts that a program may catch."""


class UnevenShapeError(ValueError):
    """One slice shape was asked for of a tensor whose slices differ from processor to processor."""


class CannotSplitError(NotImplementedError):
    """A layout splits a dimension that an operation needs whole."""
