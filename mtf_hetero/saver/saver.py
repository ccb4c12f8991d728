"""A tf.train.Saver that takes slices one after another: nobody holds the whole of a variable of which it has a part.

    saver = mtf_hetero.saver.Saver(builder=mtf_hetero.saver.SliceSaverBuilder())

A plain tf.train.Saver saves with one operation, to which all slices travel first, and a sharded one writes each
worker's slices to that worker's own disk. This one divides the slices into groups, none of which has two of one
variable. The chief fetches, writes and forgets a group before it asks for the next; then TensorFlow joins the files
under the checkpoint's name, so that a save that is cut short leaves no checkpoint of that name. The checkpoint has
TensorFlow's own format, which any Saver restores on any layout, and this one restores what any Saver wrote: each
slice is read by itself, and a group is with its devices before the next one is read.

Of a checkpoint with other slices, TensorFlow reads those that a slice overlaps, one at a time, in the chief's memory.

`Saver`, and any Saver after `save_once`, writes a checkpoint beside its place and puts it there when it is complete.
"""

import collections
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.saver import files, whole
from mtf_hetero.saver.failures import as_write_error

_GROUP_BYTES = 2**24
_Builder: Any = sys.modules[tf.train.Saver.__module__].BaseSaverBuilder  # TensorFlow exports the Saver alone


class SliceSaverBuilder(_Builder):
    """The `builder` of a tf.train.Saver that saves and restores slices one after another, through the chief.

    Args:
      group_bytes: so many bytes are taken at a time, or one slice that has more.
    """

    def __init__(self, group_bytes: int = _GROUP_BYTES) -> None:
        super().__init__()
        self._group_bytes = group_bytes

    def save_op(self, filename_tensor: tf.Tensor, saveables: Sequence[Any]) -> tf.Tensor:
        groups = _groups(saveables, self._group_bytes)
        if len(groups) == 1:
            return super().save_op(filename_tensor, saveables)
        # Of a shard, beside it: there is no directory yet in which TensorFlow could make another
        prefix = tf.strings.regex_replace(
            tf.strings.join([filename_tensor, "_temp/part"]), r"(_temp/part-\d+-of-\d+)_temp/part$", r"\1_group"
        )
        files, written = [], []
        for number, group in enumerate(groups):
            files.append(tf.raw_ops.ShardedFilename(basename=prefix, shard=number, num_shards=len(groups)))
            with tf.control_dependencies(written):
                written = [super().save_op(files[-1], group)]
        with tf.control_dependencies(written):
            return tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=files, destination_prefix=filename_tensor)

    def bulk_restore(
        self, filename_tensor: tf.Tensor, saveables: Sequence[Any], preferred_shard: int, restore_sequentially: bool
    ) -> list[tf.Tensor]:
        del preferred_shard, restore_sequentially  # of the old format; of groups, always
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

    def _read(self, filename_tensor: tf.Tensor, group: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """The tensors of each saveable."""
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


def _groups(saveables: Sequence[Any], group_bytes: int) -> list[list[Any]]:
    """Divides what is to be saved: the first slices of all tensors, the second ones, ...; a group up to some bytes."""
    places: dict[str, int] = collections.defaultdict(int)
    ranks: dict[int, list[Any]] = collections.defaultdict(list)
    for saveable in saveables:
        name = saveable.specs[0].name if saveable.specs else saveable.name
        ranks[places[name]].append(saveable)
        places[name] += 1
    groups: list[list[Any]] = []
    for rank in sorted(ranks):
        size = group_bytes
        for saveable in ranks[rank]:
            size += _bytes(saveable)
            if size > group_bytes:
                size = _bytes(saveable)
                groups.append([])
            groups[-1].append(saveable)
    return groups


def _bytes(saveable: Any) -> int:
    """Size of what is saved, as far as it is known; a slice has at least one byte."""
    shape: Any = getattr(saveable.op, "shape", None) or getattr(saveable, "shape", None)
    if not isinstance(shape, tf.TensorShape):
        return 1
    return 1 + (shape.num_elements() or 0) * saveable.specs[0].dtype.size


class Saver(tf.train.Saver):
    """A tf.train.Saver whose checkpoints are there as a whole or not at all, and are written once.

    What it restored, or saved, under the number of a step is not saved once more. Another checkpoint of that name is
    set aside, with a warning. A name without a step is replaced, as tf.train.Saver does.

    Raises:
      WriteError: `save`, where the disk is full or fails; nothing is left of that checkpoint.
      ValueError: `restore`, of a variable that was saved in another type.
    """

    def save(self, sess: tf.Session, save_path: Any, global_step: Any = None, *args: Any, **options: Any) -> str | None:
        return _save(self, super().save, sess, save_path, global_step, *args, **options)

    def restore(self, sess: tf.Session, save_path: Any) -> None:
        try:
            super().restore(sess, save_path)
        except tf.errors.InvalidArgumentError as error:
            found = re.search(
                r"tensor_name = (\S+); expected dtype (\w+) does not equal original dtype (\w+)", str(error)
            )
            if found is None:
                raise
            name, wanted, saved = found[1], tf.as_dtype(found[2]).name, tf.as_dtype(found[3]).name
            remedy = f"give the variable master_dtype=tf.{saved}, or dtype=tf.{saved} if it has only one type"
            if saved == "float16":
                remedy = "convert the checkpoint to float32: TensorFlow cannot read slices of float16"
            raise ValueError(
                f"{save_path} has variable {name!r} as {saved}, but this program saves it as {wanted}; {remedy}"
            ) from error


def save_once(saver: tf.train.Saver) -> None:
    """Makes any tf.train.Saver save as a `Saver` does."""
    if not isinstance(saver, Saver) and "save" not in vars(saver):
        saver.save = functools.partial(_save, saver, saver.save)


def set_restored(saver: tf.train.Saver, path: str, kept: Sequence[str]) -> None:
    """Tells a Saver which checkpoint was restored, and which ones are there to be deleted one day.

    Args:
      saver: any tf.train.Saver.
      path: the checkpoint that was restored.
      kept: that one and those before it, the oldest first.
    """
    _known(saver).add(os.path.abspath(path))
    saver.set_last_checkpoints_with_time([(other, os.stat(f"{other}.index").st_mtime) for other in kept])


def _known(saver: tf.train.Saver) -> set[str]:
    """The checkpoints that a Saver restored or wrote: to save one of them again would change nothing."""
    return vars(saver).setdefault("_mtf_hetero_known", set())


def _save(
    saver: tf.train.Saver,
    write: Callable[..., Any],
    sess: tf.Session,
    save_path: Any,
    global_step: Any = None,
    latest_filename: str | None = None,
    meta_graph_suffix: str = "meta",
    write_meta_graph: bool = True,
    write_state: bool = True,
    **options: Any,
) -> str | None:
    """tf.train.Saver.save, of which `write` is the original."""
    if saver._is_empty or saver.saver_def.version != tf.train.SaverDef.V2:
        return write(
            sess, save_path, global_step, latest_filename, meta_graph_suffix, write_meta_graph, write_state, **options
        )
    path = _checkpoint_path(saver, sess, os.fspath(save_path), global_step)
    directory, key = os.path.dirname(path), os.path.abspath(path)
    with as_write_error(f"cannot save {path}", also=(errno.ENOENT, errno.EACCES)):
        if global_step is not None and os.path.exists(f"{path}.index"):
            if key in _known(saver):
                return path
            tf.logging.warning("%s already existed; it was moved to %s", path, files.set_aside(path))
        with files.replaced_as_a_whole(path, meta_graph_suffix) as temporary:
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
    whole.know_whole(path)
    _known(saver).add(key)
    if write_state:
        saver._RecordLastCheckpoint(path)
        with as_write_error(f"cannot write to {directory}"), files.deleted(_too_old(saver), meta_graph_suffix):
            whole.write_state(directory, path, saver.last_checkpoints, latest_filename or files.STATE)
    return path


def _checkpoint_path(saver: tf.train.Saver, sess: tf.Session, save_path: str, global_step: Any) -> str:
    if global_step is None:
        return save_path
    if not isinstance(global_step, (int, np.integer)):
        global_step = tf.train.global_step(sess, global_step)
    return f"{save_path}-{global_step:08d}" if saver._pad_step_number else f"{save_path}-{global_step}"


def _too_old(saver: tf.train.Saver) -> list[str]:
    """Returns what exceeds max_to_keep, but for one checkpoint in keep_checkpoint_every_n_hours, as TensorFlow does.

    TensorFlow drops one checkpoint per save. A process that was killed after a save can leave one more than that.
    """
    listed, dropped = saver._last_checkpoints, saver._checkpoints_to_be_deleted
    while saver.saver_def.max_to_keep and len(listed) > saver.saver_def.max_to_keep:
        dropped.append(listed.pop(0))
    paths = []
    while dropped:
        path, saved_at = dropped.pop(0)
        if saved_at > saver._next_checkpoint_time:
            saver._next_checkpoint_time += saver.saver_def.keep_checkpoint_every_n_hours * 3600
        else:
            paths.append(path)
    return paths
