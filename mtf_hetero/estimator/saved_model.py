"""A lowered model as a SavedModel that plain TensorFlow serves: no mesh, no devices, its variables logical tensors.

mtf's shapes are numbers, so a lowered graph takes batches of one size. The saved one takes any: it runs as many whole
batches as there are, and then a graph for the rest, example by example. The variables are copied from the checkpoint a
piece at a time, so that no session holds them, whatever their size.
"""

import collections
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support import files
from mtf_hetero.checkpoint.copying import copy_variables
from mtf_hetero.checkpoint.failures import as_write_error

DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
Build = Callable[[int], tuple[tf.Tensor, Mapping[str, tf.Tensor]]]
BuildSignatures = Callable[[], tuple[Mapping[str, tf.Tensor], Mapping[str, Mapping[str, tf.Tensor]]]]
Key = Any  # of an output: a name, or names of a signature and of its output


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The part of a graph that leads from inputs to outputs, and the variables that it reads.

    Args:
      graph_def: the operations, without the placeholders and the reads, on no device.
      inputs: {input: name of the tensor that is fed}.
      outputs: {output: name of its tensor}.
      dtypes: {output: its dtype}.
      reads: {name of a tensor: (variable, begin, size)}: the slice of a logical variable.
      variables: {variable: (shape, dtype)}.
    """

    graph_def: tf.GraphDef
    inputs: Mapping[str, str]
    outputs: Mapping[Key, str]
    dtypes: Mapping[Key, tf.DType]
    reads: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]]
    variables: Mapping[str, tuple[tuple[int, ...], tf.DType]]

    def call(self, values: Mapping[str, tf.Tensor], variables: Mapping[str, tf.Tensor]) -> dict[Key, tf.Tensor]:
        """Return the outputs for some inputs, in the default graph.

        Args:
          values: the inputs.
          variables: the values of the logical variables.
        """
        mapped = {self.inputs[name]: value for name, value in values.items()}
        for tensor, (name, begin, size) in self.reads.items():
            whole = tf.identity(variables[name])  # in the body of a loop, where it comes from outside
            mapped[tensor] = whole if list(size) == whole.shape.as_list() else tf.slice(whole, begin, size)
        results = tf.import_graph_def(self.graph_def, mapped, list(self.outputs.values()), name="model")
        return dict(zip(self.outputs, results, strict=True))


def write(
    directory: str | os.PathLike,
    build: Build,
    *,
    checkpoint: str,
    example_shape: Sequence[int],
    batch_size: int = 32,
    input_name: str = "images",
    dtype: tf.DType = tf.float32,
) -> None:
    """Write a SavedModel with the signature "serving_default": as a whole, or nothing at all.

    Args:
      directory: where to; nothing may be there.
      build: builds the model for a batch of so many examples in the default graph; returns the placeholder
        [batch, *example_shape] and {name: output [batch, ...]}.
      checkpoint: path of a checkpoint that has the model's variables.
      example_shape: of an example.
      batch_size: examples that are computed at a time; those that are left over are computed one by one.
      input_name: what the input is called.
      dtype: of the input.

    Raises:
      ValueError: something is there, or the checkpoint does not have the variables.
      NotImplementedError: the model does with a variable what is not exported.
      mtf_hetero.checkpoint.WriteError: the disk is full, or fails; nothing is left.
    """
    directory = _new(directory)

    def build_part(size: int) -> tuple[Mapping[str, tf.Tensor], Mapping[str, tf.Tensor]]:
        fed, outputs = build(size)
        return {input_name: fed}, outputs

    parts = [_extract(functools.partial(build_part, size)) for size in dict.fromkeys((batch_size, 1))]
    with tf.Graph().as_default():
        variables = _make_variables(parts[0])
        examples = tf.placeholder(dtype, [None, *example_shape], input_name)
        values = {name: variable.read_value() for name, variable in variables.items()}
        outputs = _any_number(examples, parts, values, input_name, batch_size)
        signature = tf.saved_model.predict_signature_def({input_name: examples}, outputs)
        _save(directory, {DEFAULT: signature}, variables, checkpoint)


def write_signatures(directory: str | os.PathLike, build: BuildSignatures, *, checkpoint: str) -> None:
    """Write a SavedModel of a graph as it is: its batches have the size that it was built for.

    Args:
      directory: as of `write`.
      build: builds the model in the default graph; returns {input: placeholder} and {signature: {output: tensor}}.
      checkpoint: as of `write`.

    Raises:
      ValueError, NotImplementedError, mtf_hetero.checkpoint.WriteError: as of `write`.
    """
    directory = _new(directory)
    forms: dict[str, tuple[tf.DType, tf.TensorShape]] = {}

    def build_part() -> tuple[Mapping[str, tf.Tensor], Mapping[tuple[str, str], tf.Tensor]]:
        inputs, signatures = build()
        forms.update({name: (fed.dtype, fed.shape) for name, fed in inputs.items()})
        return inputs, {(key, name): tensor for key, outputs in signatures.items() for name, tensor in outputs.items()}

    part = _extract(build_part)
    with tf.Graph().as_default():
        variables = _make_variables(part)
        fed = {name: tf.placeholder(dtype, shape, name) for name, (dtype, shape) in forms.items()}
        results: dict[str, dict[str, tf.Tensor]] = collections.defaultdict(dict)
        for (key, name), tensor in part.call(fed, {name: v.read_value() for name, v in variables.items()}).items():
            results[key][name] = tensor
        made = {key: tf.saved_model.predict_signature_def(fed, outputs) for key, outputs in results.items()}
        _save(directory, made, variables, checkpoint)


def _new(directory: str | os.PathLike) -> str:
    directory = os.path.abspath(directory)
    if os.path.lexists(directory):
        raise ValueError(f"{directory!r} already exists; give a new directory")
    return directory


def _make_variables(part: _Part) -> dict[str, tf.Variable]:
    """Return the logical variables, in the default graph."""
    return {
        name: tf.get_variable(name, shape, dtype, tf.zeros_initializer(), trainable=False, use_resource=True)
        for name, (shape, dtype) in part.variables.items()
    }


def _save(
    directory: str, signatures: Mapping[str, object], variables: Mapping[str, tf.Variable], checkpoint: str
) -> None:
    """Write the default graph."""
    saver = _CopyingSaver(list(variables.values()), checkpoint)
    with as_write_error(f"cannot write {directory}"), files.new_directory(directory) as made:
        builder = tf.saved_model.Builder(str(made / "model"))
        builder.add_meta_graph_and_variables(
            None,
            [tf.saved_model.tag_constants.SERVING],
            dict(signatures),
            clear_devices=True,
            strip_default_attrs=True,
            saver=saver,
        )
        builder.save()
        _move_up(made)


def _move_up(made: pathlib.Path) -> None:
    """Make a directory; everything is on the disk before it gets its name. The Builder makes the directory itself."""
    for path in sorted((made / "model").iterdir()):
        path.rename(made / path.name)
    (made / "model").rmdir()
    for path in sorted(made.rglob("*"), reverse=True):
        files.sync(path)
    files.sync(made)


class _CopyingSaver(tf.train.Saver):
    """A Saver whose variables are not in a session: it copies them from a checkpoint."""

    def __init__(self, variables: Sequence[tf.Variable], checkpoint: str) -> None:
        super().__init__(variables)
        self._dtypes = {variable.op.name: variable.dtype.base_dtype for variable in variables}
        self._checkpoint = checkpoint

    def save(self, sess: tf.Session, save_path: str, *_: object, **__: object) -> str:
        copy_variables(self._checkpoint, save_path, self._dtypes)
        return save_path


def _any_number(
    examples: tf.Tensor, parts: Sequence[_Part], variables: Mapping[str, tf.Tensor], input_name: str, batch_size: int
) -> dict[str, tf.Tensor]:
    """Return the outputs for any number of examples."""
    shape = examples.shape.as_list()[1:]
    whole = tf.shape(examples)[0] // batch_size * batch_size
    chunks = [tf.reshape(examples[:whole], [-1, batch_size, *shape])]
    if batch_size > 1:
        chunks.append(examples[whole:][:, None])
    results: dict[str, list[tf.Tensor]] = collections.defaultdict(list)
    for part, each in zip(parts, chunks, strict=True):

        def call(batch: tf.Tensor, part: _Part = part) -> dict[str, tf.Tensor]:
            return part.call({input_name: batch}, variables)

        mapped = tf.map_fn(call, each, fn_output_signature=dict(part.dtypes), parallel_iterations=1)
        for name, value in mapped.items():
            results[name].append(tf.reshape(value, [-1, *value.shape.as_list()[2:]]))
    return {name: tf.concat(values, 0, name=name) for name, values in results.items()}


def _extract(build: Callable[[], tuple[Mapping[str, tf.Tensor], Mapping[Key, tf.Tensor]]]) -> _Part:
    """Build the model in a graph of its own, and take what leads to its outputs out of it."""
    with tf.Graph().as_default() as graph:
        fed, outputs = build()
        known = _logical(graph)
        needed, reads = _ancestors([tensor.op for tensor in outputs.values()], [tensor.op for tensor in fed.values()])
    sources = {}
    for read in reads:
        handle = read.inputs[0].op.name
        if handle not in known:
            raise NotImplementedError(
                f"{read.name} reads a variable that no checkpoint has; such a model cannot be exported"
            )
        sources[read.outputs[0].name] = known[handle]
    graph_def = graph.as_graph_def()
    kept = [node for node in graph_def.node if node.name in needed]
    del graph_def.node[:]
    for node in kept:
        node.device = ""
        inputs = [name for name in node.input if not name.startswith("^") or name[1:] in needed]
        del node.input[:]
        node.input.extend(inputs)
        graph_def.node.append(node)
    return _Part(
        graph_def,
        {name: tensor.name for name, tensor in fed.items()},
        {name: tensor.name for name, tensor in outputs.items()},
        {name: tensor.dtype for name, tensor in outputs.items()},
        {tensor: (name, begin, size) for tensor, (name, begin, size, _, _) in sources.items()},
        {name: (shape, dtype) for name, _, _, shape, dtype in sources.values()},
    )


def _logical(graph: tf.Graph) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], tf.DType]]:
    """{handle: (logical variable, begin, size, shape, dtype)} of the variables that a checkpoint has."""
    known = {}
    saved = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    copies = graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)  # replicas, and slices of nothing
    for variable in [*saved, *(variable for variable in copies if variable._save_slice_info is not None)]:
        info, shape = variable._save_slice_info, tuple(variable.shape.as_list())
        name = variable.op.name if info is None else info.full_name
        begin, full = ((0,) * len(shape), shape) if info is None else (tuple(info.var_offset), tuple(info.full_shape))
        known[variable.handle.op.name] = (name, begin, shape, full, variable.dtype.base_dtype)
    return known


def _ancestors(roots: Sequence[tf.Operation], fed: Sequence[tf.Operation]) -> tuple[set[str], list[tf.Operation]]:
    """Names of the operations that compute these from what is fed, and the reads of variables, which are not followed.

    Raises:
      NotImplementedError: one of them does something else with a variable.
    """
    found, reads, left = set(), {}, list(roots)
    while left:
        op = left.pop()
        if op.name in found or op.name in reads or op in fed:
            continue
        if op.type == "ReadVariableOp":
            reads[op.name] = op
            continue
        if any(tensor.dtype == tf.resource for tensor in op.inputs):
            raise NotImplementedError(
                f"{op.name}, a {op.type}, uses a variable without ReadVariableOp; such a model cannot be exported"
            )
        found.add(op.name)
        left += [tensor.op for tensor in op.inputs]
        left += op.control_inputs
    return found, list(reads.values())
