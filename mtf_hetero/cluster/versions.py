"""The versions of a worker's software: the worker publishes them, and the training process compares its own.

TensorFlow supports no cluster of two versions: its wire protocol has no guarantees (tensorflow.org/guide/versions,
"Version skew in distributed TensorFlow"). A patch release fixes bugs only. So another major or minor version of
TensorFlow is refused, and any other difference is a warning: of mtf_hetero and Python, a worker runs only the program
that starts TensorFlow's server.
"""

import json
import re
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mtf_hetero._support import installed
from mtf_hetero.cluster import runtime

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

CONTAINER = "mtf-hetero"  # of a worker, shared by all sessions that bring no cluster along
_VARIABLE = "versions"
_MOST_CHARACTERS = 1000  # of the published text, which any client of the worker can replace
_TENSORFLOW = re.compile(r"[0-9]+\.[0-9]+[\w.+-]*")
_PART = re.compile(r"[\w.+ -]{1,50}")  # a name or a version
Versions = Mapping[str, str]


def own() -> dict[str, str]:
    """Return the versions of this process's software, by name."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"TensorFlow": runtime.load().__version__, "mtf_hetero": installed.version("mtf_hetero"), "Python": python}


def publish(target: str, versions: Versions) -> None:
    """Have a worker tell everyone which versions it has.

    Args:
      target: of the worker's sessions.
      versions: as `own` returns them.
    """
    tf = runtime.load()
    with tf.Graph().as_default(), tf.Session(target) as session:
        session.run(tf.raw_ops.AssignVariableOp(resource=_variable(), value=tf.constant(json.dumps(versions))))


def read(session: "tf.Session") -> dict[str, str]:
    """Return the versions of the worker of a session; empty: it published none, or no valid ones.

    Args:
      session: in the default graph, to the worker itself.
    """
    tf = runtime.load()
    try:
        return _parse(session.run(tf.raw_ops.ReadVariableOp(resource=_variable(), dtype=tf.string)))
    except tf.errors.FailedPreconditionError:  # another program than mtf-hetero worker, or an older one
        return {}
    except tf.errors.InvalidArgumentError:  # a client has replaced the text by a number
        return {}


def _parse(published: object) -> dict[str, str]:
    """Return the versions of a published text; empty if they are not valid."""
    if not isinstance(published, bytes) or len(published) > _MOST_CHARACTERS:
        return {}
    try:
        versions = json.loads(published)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(versions, dict) or not _TENSORFLOW.fullmatch(str(versions.get("TensorFlow"))):
        return {}
    parts = [*versions, *versions.values()]
    return versions if all(isinstance(part, str) and _PART.fullmatch(part) for part in parts) else {}


def _variable() -> "tf.Tensor":
    tf = runtime.load()
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=_VARIABLE, container=CONTAINER)


def check(workers: Mapping[int, str], versions: Mapping[int, Versions]) -> None:
    """Raise ValueError if workers have another TensorFlow, and warn of other differences.

    Args:
      workers: {index: "host:port"}.
      versions: {index: its versions}.
    """
    here = own()
    refusals, others = [], []
    for index, theirs in versions.items():
        name = f"worker {index} ({workers[index]})"
        differences = [f"{software} {version}" for software, version in theirs.items() if here.get(software) != version]
        if not theirs:
            others.append(f"{name} does not tell its versions")
        elif _minor(theirs["TensorFlow"]) != _minor(here["TensorFlow"]):
            refusals.append(f"{name} has TensorFlow {theirs['TensorFlow']}")
        elif differences:
            others.append(f"{name} has {', '.join(differences)}")
    if refusals:
        raise ValueError(
            f"{', '.join(refusals)}, but this process has {here['TensorFlow']}; TensorFlow supports no cluster of two "
            f"versions: pip install tensorflow=={here['TensorFlow']} there"
        )
    if others:
        all_here = ", ".join(f"{software} {version}" for software, version in here.items())
        warnings.warn(
            f"{', '.join(others)}, but this process has {all_here}; if something fails, install the same versions",
            UserWarning,
            stacklevel=1,
        )


def _minor(version: str) -> list[str]:
    """Return the major and the minor version of "2.21.0"."""
    return version.split(".")[:2]
