"""A name that does not exist: which one the user may have meant, and what a message says of the names that do."""

import difflib
import re
from collections.abc import Collection

_CLOSE = 0.8  # of difflib's ratio: "hiden" and "hidden" have 0.91, "al" and "all" 0.8, "d_ff" and "d_kv" 0.5
_MOST_LISTED = 10


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that a wrong one was most likely meant to be, or None.

    Names that differ in their digits alone are different names on purpose: "conv9/filters" is no misspelt
    "conv1/filters".

    Example:
      >>> nearest("dense/unit", ["dense/units", "batch"]), nearest("batch", ["heads"])
      ('dense/units', None)
    """
    other = [candidate for candidate in known if re.sub(r"\d+", "", candidate) != re.sub(r"\d+", "", name)]
    return next(iter(difflib.get_close_matches(name, other, n=1, cutoff=_CLOSE)), None)


def listing(name: str, known: Collection[str]) -> str:
    """The known names for a message, those most like a wrong one first; of many, the first ones.

    Example:
      >>> listing("hiden", ["batch", "hidden"])
      "hidden, batch; the nearest is 'hidden'"
    """
    ordered = sorted(known, key=lambda candidate: -difflib.SequenceMatcher(None, name, candidate).ratio())
    more = len(ordered) - _MOST_LISTED
    text = ", ".join(ordered[:_MOST_LISTED]) + (f" and {more} others" if more > 0 else "")
    close = difflib.get_close_matches(name, ordered, n=1)
    return f"{text}; the nearest is {close[0]!r}" if close else text or "none"


def check_axes(rules: Collection[tuple[str, str]], axes: Collection[str], mesh_text: str, size: int) -> None:
    """Raises ValueError where a layout rule names a mesh axis by mistake.

    As in Mesh-TensorFlow, whose own programs have one string of rules for meshes of several kinds, a rule for an absent
    axis has no effect. But a name that is nearly that of an axis is a mistake, and so are rules of which none names an
    axis of a mesh of several processors.

    Args:
      rules: (tensor dimension, mesh axis) pairs.
      axes: names of the mesh's axes.
      mesh_text: the mesh, for the message.
      size: processors of the mesh.
    """
    absent = [rule for rule in rules if rule[1] not in axes]
    for dim, axis in absent:
        if axes and (nearest(axis, axes) or (len(absent) == len(rules) and size > 1)):
            raise ValueError(absent_axis(f"layout rule {dim}:{axis} names", axis, axes, mesh_text))


def absent_axis(subject: str, axis: str, axes: Collection[str], mesh_text: str) -> str:
    """The message that something names a mesh axis that a mesh does not have: subject "shares name", for instance."""
    known = listing(axis, axes)
    return f"{subject} mesh axis {axis!r}, which the mesh {mesh_text} does not have; its axes are {known}"
