"""A training run that is there to be killed: two dense layers in float64 on one of several layouts.

    python -m benchmarks.faults.training MODEL_DIR --layout=three --steps=300 --save_steps=3

It says what it does on the standard output, a word and a step per line: `imported`, `begun 12`, `saving 15`, `saved 15`
and `ended 300`. The data are a function of the global step, so that a run that resumes is as one that never ended.

Exit codes: 0, 2 for a mistake, 130 and 143 after a signal.
"""

import argparse
import ctypes
import os
import sys
import time
from typing import Any

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero._support import command_line

BATCH, INPUTS, HIDDEN, OUTPUTS = (
    mtf.Dimension(name, size) for name, size in (("batch", 6), ("inputs", 5), ("hidden", 11), ("outputs", 3))
)
LAYOUTS = {
    "three": Layout("all:3", "hidden:all", {"all": [70, 25, 5]}),
    "batch": Layout("all:3", "batch:all", {"all": [3, 2, 1]}),
    "two": Layout("all:2", "hidden:all", {"all": [2, 1]}),
    "one": Layout("all:1", ""),
}


def _model_fn(features: Any, mode: str, params: Any) -> mtf_hetero.EstimatorSpec:
    del features
    step = tf.cast(tf.train.get_global_step(), tf.int32)
    x = tf.random.stateless_normal([BATCH.size, INPUTS.size], seed=tf.stack([1, step]), dtype=tf.float64)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    dtype = mtf.VariableDType(tf.float64)
    images = mtf.import_tf_tensor(mesh, x, mtf.Shape([BATCH, INPUTS]))
    hidden = mtf.layers.dense(
        images, HIDDEN, reduced_dims=[INPUTS], activation=mtf.tanh, variable_dtype=dtype, name="first"
    )
    y = mtf.layers.dense(hidden, OUTPUTS, reduced_dims=[HIDDEN], variable_dtype=dtype, name="second")
    wanted = mtf.import_tf_tensor(mesh, tf.math.sin(x[:, : OUTPUTS.size]), mtf.Shape([BATCH, OUTPUTS]))
    loss = mtf.reduce_mean(mtf.square(y - wanted))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = mtf.optimize.MomentumOptimizer(0.02, 0.9).apply_grads(gradients, variables)
    layout = LAYOUTS[params["layout"]]
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, [f"cpu:{i}" for i in range(layout.size)])
    lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
    with tf.control_dependencies([lowering.lowered_operation(op) for op in updates]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1).op
    return mtf_hetero.EstimatorSpec(mode, loss=lowering.export_to_tf_tensor(loss), train_op=train_op)


def _input_fn() -> Any:
    return tf.data.Dataset.from_tensors(0).repeat()  # the model reads the step instead


def say(word: str, step: int | None = None) -> None:
    """Print a line for the parent at once."""
    os.write(1, f"{word}\n".encode() if step is None else f"{word} {step}\n".encode())


class _Telling(tf.train.SessionRunHook):
    """Says at which step the session begins, and rests after each step."""

    def __init__(self, pause_seconds: float) -> None:
        self._pause_seconds = pause_seconds
        self.begun = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.begun = int(session.run(tf.train.get_global_step(session.graph)))
        say("begun", self.begun)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        time.sleep(self._pause_seconds)


class _TellingSaves(tf.train.CheckpointSaverListener):
    """Says when a checkpoint is begun and ended; has calls counted from the first of a step that this run made on."""

    def __init__(self, telling: _Telling) -> None:
        self._telling = telling

    def before_save(self, session: Any, global_step_value: int) -> None:
        counter = getattr(ctypes.CDLL(None), "start_counting", None)  # of kill_at_call.c, where that is loaded
        if counter is not None and global_step_value > self._telling.begun:
            counter()
        say("saving", global_step_value)

    def after_save(self, session: Any, global_step_value: int) -> None:
        say("saved", global_step_value)


def main() -> int:
    """Trains as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model_dir")
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--pause_seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    say("imported")
    tf.logging.set_verbosity(tf.logging.WARN)
    config = mtf_hetero.RunConfig(
        tf_random_seed=1,
        save_checkpoints_steps=arguments.save_steps,
        keep_checkpoint_max=arguments.keep,
        save_summary_steps=None,
        log_step_count_steps=None,
        session_config=tf.ConfigProto(
            device_count={"CPU": LAYOUTS[arguments.layout].size},
            inter_op_parallelism_threads=2,
            intra_op_parallelism_threads=1,
        ),
    )
    telling = _Telling(arguments.pause_seconds)
    try:
        estimator = mtf_hetero.Estimator(_model_fn, arguments.model_dir, config, {"layout": arguments.layout})
        estimator.train(
            _input_fn,
            hooks=[telling],
            max_steps=arguments.steps,
            saving_listeners=[_TellingSaves(telling)],
        )
    except ValueError as error:
        command_line.say(error)
        return command_line.WRONG_USAGE
    say("ended", arguments.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
