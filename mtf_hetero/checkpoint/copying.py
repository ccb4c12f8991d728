"""Copy variables from a checkpoint to another file of TensorFlow's format, in pieces and on the CPU only."""

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero._compat import tf

PIECE_BYTES = 2**24  # in memory at a time, so that no process holds a whole variable


def copy_variables(
    checkpoint: str, path: str, variables: Mapping[str, tf.DType], *, piece_bytes: int = PIECE_BYTES
) -> None:
    """Copy some variables of a checkpoint, with one piece of a variable in memory at a time.

    The copy is a checkpoint without `checkpoint` and checksums; TensorFlow restores it, and the variables of a
    SavedModel are one. Each variable is read in pieces that are cut along its first dimensions.

    Args:
      checkpoint: path of the checkpoint, as `Estimator.latest_checkpoint` gives it.
      path: path of the copy, in a directory that exists.
      variables: {name of a logical variable: its type in the copy}.
      piece_bytes: bytes to read at a time.

    Raises:
      ValueError: the checkpoint has no variable of a name.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for name in variables:
        if name not in shapes:
            raise ValueError(
                f"checkpoint {checkpoint} has no variable {name!r}; export it with the model that saved it"
            )
    groups: list[list[tuple[str, str]]] = []
    room = 0
    for name in variables:
        for spec, size in slice_specs(shapes[name], dtypes[name].size, piece_bytes=piece_bytes):
            room -= size
            if room < 0 or (groups and groups[-1][-1][0] == name):
                room = piece_bytes - size
                groups.append([])
            groups[-1].append((name, spec))
    with tempfile.TemporaryDirectory(prefix=".pieces_", dir=os.path.dirname(path)) as directory:
        parts = [os.path.join(directory, f"part-{number}") for number in range(len(groups))]
        for group, part in zip(groups, parts, strict=True):
            types = [(dtypes[name], variables[name]) for name, _ in group]
            _copy_group(checkpoint, part, group, types)
        with tf.Graph().as_default(), _session() as session:
            merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=parts, destination_prefix=path, delete_old_dirs=False
            )
            session.run(merge)


def _session() -> tf.Session:
    return tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))


def _copy_group(
    checkpoint: str, path: str, pieces: Sequence[tuple[str, str]], types: Sequence[tuple[tf.DType, tf.DType]]
) -> None:
    """Copy pieces, (name, TensorFlow's text), each from a type to a type."""
    names, specs = zip(*pieces, strict=True)
    dtypes, copied_dtypes = zip(*types, strict=True)
    with tf.Graph().as_default(), _session() as session:
        read = tf.raw_ops.RestoreV2(prefix=checkpoint, tensor_names=names, shape_and_slices=specs, dtypes=dtypes)
        copied = [tf.cast(x, dtype) for x, dtype in zip(read, copied_dtypes, strict=True)]
        session.run(tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=specs, tensors=copied))


def slice_specs(shape: Sequence[int], element_bytes: int, *, piece_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield (TensorFlow's text, bytes) of the pieces of a tensor; the text is "" for a single piece.

    Example:
      >>> list(slice_specs([3, 4], 4, piece_bytes=32))
      [('3 4 0,2:0,4', 32), ('3 4 2,1:0,4', 16)]
    """
    size = element_bytes
    for extent in shape:
        size *= extent
    if size <= piece_bytes:
        yield "", size
        return
    inner, first = element_bytes, len(shape)
    while first and inner * shape[first - 1] <= piece_bytes:  # the trailing dimensions that are never cut
        first -= 1
        inner *= shape[first]
    cut, rows = first - 1, max(1, piece_bytes // inner)
    for outer in itertools.product(*(range(extent) for extent in shape[:cut])):
        for begin in range(0, shape[cut], rows):
            count = min(rows, shape[cut] - begin)
            extents = [*((place, 1) for place in outer), (begin, count), *((0, extent) for extent in shape[first:])]
            yield f"{' '.join(map(str, shape))} {':'.join(f'{b},{s}' for b, s in extents)}", count * inner
