"""A tf.train.Saver that saves slices one after another, so that no device needs memory for a complete variable.

    saver = mtf_hetero.checkpoint.Saver(builder=mtf_hetero.checkpoint.SliceSaverBuilder())

A plain tf.train.Saver saves with one operation, to which all slices travel first. A sharded one writes each worker's
slices to that worker's own disk. This one divides the slices into groups, with one slice of a variable in a group. The
chief fetches, writes and forgets a group before it fetches the next. Then TensorFlow joins the files under the
checkpoint's name, so that an interrupted save leaves no checkpoint of that name. The checkpoint has TensorFlow's own
format: any Saver restores it on any layout, and this Saver restores the checkpoint of any Saver. Each slice is read by
itself, and a group reaches its devices before the next one is read.

If a checkpoint has other slices, TensorFlow reads the overlapping ones, one at a time, into the chief's memory.

`Saver`, and any Saver after `save_once`, writes a checkpoint beside its place and moves it there when it is complete.

A `Saver` with `is_background` copies the slices to this process's memory. A thread writes them while the session
continues to train. Without enough memory, it saves them one after another.
"""

import collections
import concurrent.futures
import errno
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import BaseSaverBuilder, SaveableObject, tf
from mtf_hetero._support import threads
from mtf_hetero._support.free_memory import free_bytes
from mtf_hetero._support.grouping import group_by_bytes
from mtf_hetero.checkpoint import files, whole
from mtf_hetero.checkpoint.failures import as_write_error
from mtf_hetero.checkpoint.state import State, size_bytes

Step = int | np.integer | tf.Tensor | tf.Variable | None
_GROUP_BYTES = 2**24  # through the chief at a time, so that it never holds all variables


class SliceSaverBuilder(BaseSaverBuilder):
    """Builder of a tf.train.Saver that saves and restores slices one after another, through the chief.

    Args:
      group_bytes: bytes to save at a time; a larger slice is saved alone.
    """

    def __init__(self, group_bytes: int = _GROUP_BYTES) -> None:
        super().__init__()
        self._group_bytes = group_bytes

    def save_op(self, filename_tensor: tf.Tensor, saveables: Sequence[SaveableObject]) -> tf.Operation:
        groups = _groups(saveables, self._group_bytes)
        if len(groups) == 1:
            return super().save_op(filename_tensor, saveables)
        # Beside the shard, because the directory in which TensorFlow would make one does not exist yet
        prefix = tf.strings.regex_replace(
            tf.strings.join([filename_tensor, "_temp/part"]), r"(_temp/part-\d+-of-\d+)_temp/part$", r"\1_group"
        )
        files, previous = [], []
        for number, group in enumerate(groups):
            files.append(tf.raw_ops.ShardedFilename(basename=prefix, shard=number, num_shards=len(groups)))
            with tf.control_dependencies(previous):
                previous = [super().save_op(files[-1], group)]
        with tf.control_dependencies(previous):
            return tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=files, destination_prefix=filename_tensor)

    def bulk_restore(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[SaveableObject],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[tf.Tensor]:
        del preferred_shard, restore_sequentially  # for the old format; groups are always sequential
        restored: dict[int, list[tf.Tensor]] = {}
        arrived: list[tf.Tensor] = []
        for group in _groups(saveables, self._group_bytes):
            with tf.control_dependencies(arrived):
                arrived = []
                for saveable, tensors in zip(group, self._read(filename_tensor, group), strict=True):
                    with tf.device(saveable.device):
                        restored[id(saveable)] = [tf.identity(tensor) for tensor in tensors]
                    arrived += restored[id(saveable)]
        return [tensor for saveable in saveables for tensor in restored[id(saveable)]]

    def _read(self, filename_tensor: tf.Tensor, group: Sequence[SaveableObject]) -> list[list[tf.Tensor]]:
        """Return the tensors of each saveable."""
        specs = [spec for saveable in group for spec in saveable.specs]
        with tf.device("cpu:0"):
            tensors = tf.raw_ops.RestoreV2(
                prefix=filename_tensor,
                tensor_names=[spec.name for spec in specs],
                shape_and_slices=[spec.slice_spec for spec in specs],
                dtypes=[spec.dtype for spec in specs],
            )
        tensors = iter(tensors)
        return [[next(tensors) for _ in saveable.specs] for saveable in group]


def _groups(saveables: Sequence[SaveableObject], group_bytes: int) -> list[list[SaveableObject]]:
    """Divide the slices into groups up to some bytes: the first slices of all tensors, the second slices, ..."""
    places: dict[str, int] = collections.defaultdict(int)
    ranks: dict[int, list[SaveableObject]] = collections.defaultdict(list)
    for saveable in saveables:
        name = saveable.specs[0].name if saveable.specs else saveable.name
        ranks[places[name]].append(saveable)
        places[name] += 1
    return [group for rank in sorted(ranks) for group in group_by_bytes(ranks[rank], _bytes, group_bytes)]


def _bytes(saveable: SaveableObject) -> int:
    """Return the known size of a saveable; a slice has at least one byte."""
    shape = getattr(saveable.op, "shape", None) or getattr(saveable, "shape", None)
    if not isinstance(shape, tf.TensorShape):
        return 1
    return 1 + (shape.num_elements() or 0) * saveable.specs[0].dtype.size


class Saver(tf.train.Saver):
    """A tf.train.Saver that writes each checkpoint once, completely or not at all.

    A checkpoint with a step that it restored or saved is not saved again. Another checkpoint of that name is set
    aside, with a warning. A name without a step is replaced, as tf.train.Saver does.

    Raises:
      WriteError: the disk is full or fails during `save`; the checkpoint is deleted.
      ValueError: `restore` of a variable that was saved in another type.
    """

    is_background = False  # whether `save` returns once the state is copied, and a thread writes the checkpoint
    _writing: concurrent.futures.Future[str | None] | None = None
    _meta_graph: tuple[tf.Graph, bytes] | None = None  # cached: making it takes longer than writing it
    _finds_variables = False  # whether it saves all variables that the graph has, so that a later one counts too

    def build(self) -> None:
        """Build the operations that save and restore, and again once the graph has other variables."""
        if not self._is_built:
            self._finds_variables = self._var_list is None and self.saver_def is None
        elif self._finds_variables:
            present = [*tf.global_variables(), *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
            if [*map(id, present)] != [*map(id, self._var_list)]:
                self._is_built, self._var_list, self.saver_def = False, None, None
        super().build()

    def save(self, sess: tf.Session, save_path: Any, global_step: Any = None, *args: Any, **options: Any) -> str | None:
        self.join()
        state, path = None, ""
        if self.is_background and isinstance(global_step, (int, np.integer)):
            path = _checkpoint_path(self, sess, os.fspath(save_path), global_step)
            if os.path.abspath(path) in _saved_paths(self) and os.path.exists(f"{path}.index"):
                return path
            state = copied(self, sess)
        if state is None:
            return _save(self, super().save, sess, save_path, global_step, *args, **options)
        write = functools.partial(self._write, state, sess.graph)
        self._writing = threads.begin(
            lambda: _save(self, write, sess, save_path, global_step, *args, **options), "checkpoint_writer"
        )
        return path

    def join(self) -> None:
        """Wait until the checkpoint that a thread writes is complete.

        Raises:
          WriteError: it could not be written, and is deleted.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raise the error of a thread's failed write, without waiting for a running one."""
        if self._writing is not None and self._writing.done():
            self.join()

    def _write(
        self,
        state: State,
        graph: tf.Graph,
        sess: tf.Session,
        path: str,
        step: None,
        latest_filename: str | None,
        meta_graph_suffix: str,
        write_meta_graph: bool,
        **options: Any,
    ) -> None:
        """Write a state in place of the session's own, while the session continues to train."""
        state.write(path)
        if write_meta_graph:
            if self._meta_graph is None or self._meta_graph[0] is not graph:
                with graph.as_default():
                    self._meta_graph = graph, self.export_meta_graph().SerializeToString()
            with open(f"{path}.{meta_graph_suffix}", "wb") as file:
                file.write(self._meta_graph[1])

    def restore(self, sess: tf.Session, save_path: str) -> None:
        try:
            super().restore(sess, save_path)
        except tf.errors.InvalidArgumentError as error:
            match = re.search(
                r"tensor_name = (\S+); expected dtype (\w+) does not equal original dtype (\w+)", str(error)
            )
            if match is None:
                raise
            name, new_type, saved_type = match[1], tf.as_dtype(match[2]).name, tf.as_dtype(match[3]).name
            remedy = f"give the variable master_dtype=tf.{saved_type}, or dtype=tf.{saved_type} if it has only one type"
            if saved_type == "float16":
                remedy = "convert the checkpoint to float32: TensorFlow cannot read slices of float16"
            raise ValueError(
                f"{save_path} has variable {name!r} as {saved_type}, but this program saves it as {new_type}; {remedy}"
            ) from error


def copied(saver: tf.train.Saver, session: tf.Session) -> State | None:
    """Copy the variables that a Saver would save into this process's memory; None: they cannot be copied."""
    return State.of(session) if can_be_copied(saver, session.graph) else None


def can_be_copied(saver: tf.train.Saver, graph: tf.Graph) -> bool:
    """Return whether a Saver saves the global variables, and they need at most a quarter of the free memory."""
    variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    own = saver._var_list if isinstance(saver._var_list, list) else []
    if {id(variable) for variable in own} != {id(variable) for variable in variables}:
        return False
    return 4 * size_bytes(graph) <= free_bytes()


def save_once(saver: tf.train.Saver) -> None:
    """Make any tf.train.Saver save like a `Saver`."""
    if not isinstance(saver, Saver) and "save" not in vars(saver):
        vars(saver)["save"] = functools.partial(_save, saver, saver.save)


def set_restored(saver: tf.train.Saver, path: str, checkpoints: Sequence[str]) -> None:
    """Tell a Saver the restored checkpoint, and the checkpoints that it deletes later.

    Args:
      saver: any tf.train.Saver.
      path: the checkpoint that was restored.
      checkpoints: the restored checkpoint and older ones, the oldest first.
    """
    _saved_paths(saver).add(os.path.abspath(path))
    saver.set_last_checkpoints_with_time([(other, os.stat(f"{other}.index").st_mtime) for other in checkpoints])


def _saved_paths(saver: tf.train.Saver) -> set[str]:
    """Return the checkpoints that a Saver restored or wrote. Saving one of them again would change nothing."""
    return vars(saver).setdefault("_mtf_hetero_known", set())


def _save(
    saver: tf.train.Saver,
    write: Callable[..., str | None],
    sess: tf.Session,
    save_path: str,
    global_step: Step = None,
    latest_filename: str | None = None,
    meta_graph_suffix: str = "meta",
    write_meta_graph: bool = True,
    write_state: bool = True,
    **options: Any,
) -> str | None:
    """Save like tf.train.Saver.save; `write` is its original."""
    if saver._is_empty or saver.saver_def.version != tf.train.SaverDef.V2:
        return write(
            sess, save_path, global_step, latest_filename, meta_graph_suffix, write_meta_graph, write_state, **options
        )
    path = _checkpoint_path(saver, sess, os.fspath(save_path), global_step)
    directory, key = os.path.dirname(path), os.path.abspath(path)
    with as_write_error(f"cannot save {path}", also=(errno.ENOENT, errno.EACCES)):
        if global_step is not None and os.path.exists(f"{path}.index"):
            if key in _saved_paths(saver):
                return path
            tf.logging.warning("%s already existed; it was moved to %s", path, files.set_aside(path))
        with files.new_checkpoint(path, meta_graph_suffix) as temporary:
            write(
                sess,
                temporary,
                None,
                latest_filename,
                meta_graph_suffix,
                write_meta_graph,
                write_state=False,
                **options,
            )
    whole.mark_intact(path)
    _saved_paths(saver).add(key)
    if write_state:
        saver._RecordLastCheckpoint(path)
        with as_write_error(f"cannot write to {directory}"), files.delete_after(_too_old(saver), meta_graph_suffix):
            whole.write_state(directory, path, saver.last_checkpoints, latest_filename or files.STATE)
    return path


def _checkpoint_path(saver: tf.train.Saver, sess: tf.Session, save_path: str, global_step: Step) -> str:
    if global_step is None:
        return save_path
    if not isinstance(global_step, (int, np.integer)):
        global_step = tf.train.global_step(sess, global_step)
    return f"{save_path}-{global_step:08d}" if saver._pad_step_number else f"{save_path}-{global_step}"


def _too_old(saver: tf.train.Saver) -> list[str]:
    """Return the checkpoints beyond max_to_keep, except one in keep_checkpoint_every_n_hours, as TensorFlow does.

    TensorFlow drops one checkpoint per save. A process killed after a save can leave one more.
    """
    checkpoints, to_delete = saver._last_checkpoints, saver._checkpoints_to_be_deleted
    while saver.saver_def.max_to_keep and len(checkpoints) > saver.saver_def.max_to_keep:
        to_delete.append(checkpoints.pop(0))
    paths = []
    while to_delete:
        path, saved_at = to_delete.pop(0)
        if saved_at > saver._next_checkpoint_time:
            saver._next_checkpoint_time += saver.saver_def.keep_checkpoint_every_n_hours * 3600
        else:
            paths.append(path)
    return paths
