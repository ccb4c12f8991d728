"""The versions of a worker's software: the worker publishes them, and the training process compares its own.

TensorFlow supports no cluster of two versions: its wire protocol has no guarantees (tensorflow.org/guide/versions,
"Version skew in distributed TensorFlow"). A patch release fixes bugs only. So another major or minor version of
TensorFlow is refused, and any other difference is a warning: of mtf_hetero and Python, a worker runs only the program
that starts TensorFlow's server.
"""

import json
import re
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import installed
from mtf_hetero.cluster import runtime
from mtf_hetero.cluster.probe import Answer

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

CONTAINER = "mtf-hetero"  # of a worker, shared by all sessions that bring no cluster along
_VARIABLE = "versions"
_MOST_CHARACTERS = 1000  # of the published text, which any client of the worker can replace
_TENSORFLOW = re.compile(r"[0-9]+\.[0-9]+[\w.+-]*")
_ASK_SECONDS, _PUBLISH_SECONDS = 5.0, 1.0  # to answer; and from the first answer to the published versions
_PART = re.compile(r"[\w.+ -]{1,50}")  # a name or a version
Versions = Mapping[str, str]


def own() -> dict[str, str]:
    """Return the versions of this process's software, by name."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"TensorFlow": runtime.load().__version__, "mtf_hetero": installed.version("mtf_hetero"), "Python": python}


def publish(target: str, versions: Versions) -> None:
    """Have a worker tell everyone which versions it has."""
    tf = runtime.load()
    with tf.Graph().as_default(), tf.Session(target) as session:
        session.run(tf.raw_ops.AssignVariableOp(resource=_variable(), value=tf.constant(json.dumps(versions))))


def read(session: "tf.Session") -> dict[str, str]:
    """Return the versions of the worker of a session; empty: it published none, or no valid ones."""
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
        refusal, difference = _compare(theirs, here)
        refusals += [f"{name} {refusal}"] if refusal else []
        others += [f"{name} {difference}"] if difference else []
    if refusals:
        raise ValueError(_describe_refusals(refusals, here))
    if others:
        warnings.warn(_describe_differences(others, here), UserWarning, stacklevel=1)


def _compare(theirs: Versions, here: Versions) -> tuple[str, str]:
    """Return why a worker is refused, and how else it differs; each is "" if that is not so."""
    differences = [f"{software} {version}" for software, version in theirs.items() if here.get(software) != version]
    if not theirs:
        return "", "does not tell its versions"
    if _minor(theirs["TensorFlow"]) != _minor(here["TensorFlow"]):
        return f"has TensorFlow {theirs['TensorFlow']}", ""
    return "", f"has {', '.join(differences)}" if differences else ""


def _describe_refusals(refusals: Sequence[str], here: Versions) -> str:
    return (
        f"{', '.join(refusals)}, but this process has {here['TensorFlow']}; TensorFlow supports no cluster of two "
        f"versions: pip install tensorflow=={here['TensorFlow']} there"
    )


def _describe_differences(differences: Sequence[str], here: Versions) -> str:
    all_here = ", ".join(f"{software} {version}" for software, version in here.items())
    return f"{', '.join(differences)}, but this process has {all_here}; if something fails, install the same versions"


_lock = threading.Lock()
_compared: dict[str, tuple[bytes, str]] = {}  # "host:port": the process that was compared, and why it is refused


def find_refused(workers: Mapping[int, str], answers: Mapping[int, Answer]) -> dict[int, str]:
    """Return {index: reason} of workers that were restarted with another TensorFlow, and log each difference once.

    A worker that is asked for the first time is accepted, because `check` has compared its versions.

    Args:
      workers: {index: "host:port"}.
      answers: of those that were asked; they tell a restarted process from the one before.
    """
    refused = {}
    with _lock:
        for index, address in workers.items():
            answer = answers.get(index)
            if answer is None or answer.failure:
                continue
            if address not in _compared:
                _compared[address] = answer.status, ""
            if _compared[address][0] != answer.status and (theirs := _ask(address)) is not None:
                _compared[address] = answer.status, _compare_restarted(f"worker {index} ({address})", theirs)
            if reason := _compared[address][1]:
                refused[index] = reason
    return refused


def _ask(address: str) -> dict[str, str] | None:
    """Return the versions of a worker; empty: it published none within a second; None: it is lost again."""
    tf = runtime.load()
    config = tf.ConfigProto(operation_timeout_in_ms=round(_ASK_SECONDS * 1000))
    try:
        with tf.Graph().as_default(), tf.Session(f"grpc://{address}", config=config) as session:
            versions = read(session)
            if not versions:  # a worker answers a moment before it publishes them
                time.sleep(_PUBLISH_SECONDS)
                versions = read(session)
            return versions
    except tf.errors.OpError:
        return None


def _compare_restarted(name: str, theirs: Versions) -> str:
    """Log how a restarted worker differs; return why it is refused, or ""."""
    from mtf_hetero._compat import tf  # here, for workers, which publish their versions without it

    here = own()
    refusal, difference = _compare(theirs, here)
    if refusal:
        line = _describe_refusals([f"{name} came back and {refusal}"], here)
        tf.logging.warning("%s; it takes no part until it is started again with that version", line)
        return f"it {refusal}, but this process has {here['TensorFlow']}"
    if difference:
        tf.logging.warning("%s", _describe_differences([f"{name} {difference}"], here))
    return ""


def _minor(version: str) -> list[str]:
    """Return the major and the minor version of "2.21.0"."""
    return version.split(".")[:2]
