"""The results of a SavedModel, by TensorFlow's own loader: in this process, and in one without this project."""

import os
import subprocess
import sys

import numpy as np

from mtf_hetero import tf

LOAD = """
import sys
import numpy as np
import tensorflow as tf

serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
given = np.load(sys.argv[2])
results = [{name: value.numpy() for name, value in serve(**{sys.argv[3]: tf.constant(given[:count])}).items()}
           for count in map(int, sys.argv[5].split(","))]
assert not [name for name in sys.modules if name.split(".")[0] in ("mtf_hetero", "mesh_tensorflow", "models")]
np.savez(sys.argv[4], **{f"{number}/{name}": v for number, each in enumerate(results) for name, v in each.items()})
"""


def run_signature(directory, given, *, name="images", counts):
    """Return the results of a SavedModel for so many of the examples, and again."""
    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.load(session, ["serve"], str(directory)).signature_def["serving_default"]
        fed = signature.inputs[name].name
        fetches = {key: output.name for key, output in signature.outputs.items()}
        return [session.run(fetches, {fed: given[:count]}) for count in counts]


def run_signature_elsewhere(directory, given, tmp_path, *, counts, name="images"):
    """Return the same from a process without this project."""
    np.save(tmp_path / "given.npy", given)
    args = [directory, tmp_path / "given.npy", name, tmp_path / "served.npz", ",".join(map(str, counts))]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, args)],
        cwd=tmp_path,
        env=environment | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        check=True,
        timeout=300,
    )
    with np.load(tmp_path / "served.npz") as found:
        arrays = dict(found)
    return [
        {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{number}/")}
        for number in range(len(counts))
    ]
