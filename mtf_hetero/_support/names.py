"""Suggest the name that a user may have meant, and list the names that exist."""

import difflib
import re
from collections.abc import Collection

_CLOSE = 0.8  # of difflib's ratio: "hiden" and "hidden" have 0.91, "al" and "all" 0.8, "d_ff" and "d_kv" 0.5
_MOST_LISTED = 10  # so that a message stays one readable line


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is nearest to a wrong one, or None.

    Names that differ only in digits differ on purpose: "conv9/filters" is no misspelt "conv1/filters".

    Example:
      >>> nearest("dense/unit", ["dense/units", "batch"]), nearest("batch", ["heads"])
      ('dense/units', None)
    """
    other = [candidate for candidate in known if re.sub(r"\d+", "", candidate) != re.sub(r"\d+", "", name)]
    return next(iter(difflib.get_close_matches(name, other, n=1, cutoff=_CLOSE)), None)


def listing(name: str, known: Collection[str]) -> str:
    """Return a text of the known names, the nearest to a wrong one first. A long list is cut.

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
    """Raise ValueError if a layout rule names a mesh axis by mistake.

    In Mesh-TensorFlow a rule for an absent axis has no effect, because programs use one string of rules for several
    meshes. But a name that nearly equals an axis is a mistake. Rules that name no axis of a mesh of several processors
    are one too.

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
    """Return the message that a mesh has no such axis. The subject is "shares name", for instance."""
    known = listing(axis, axes)
    return f"{subject} mesh axis {axis!r}, which the mesh {mesh_text} does not have; its axes are {known}"
