"""Writes docs/operations.md, the operations of TensorFlow by the way in which an imported step has them.

PYTHONPATH=.:tests/programs python tests/programs/operations_page.py > docs/operations.md
"""

import importlib
import textwrap
from collections.abc import Iterable
from typing import Any

from mtf_hetero import tf
from mtf_hetero._support import facts
from mtf_hetero.importer import formulas, lists, reader, reading, table, variables

_HANDLES = (tf.resource, tf.variant, tf.string)
_TEXT = """# Operations

[`mtf_hetero.function`](any_step.md) and `mtf_hetero.keras.fit` follow the operations of TensorFlow's trace. This page
lists the {count} operations that TensorFlow {version} has for CPUs, by what the devices do with them. In a step of
yours, `divided.undivided` shows what was replicated.
"""
_SECTIONS = {
    "Split along every dimension": "Each element of the result needs one element of each operand.",
    "Split along some dimensions": "Each has a rule: some dimensions are split, or summed over with an all-reduce. The "
    "others are gathered first. A reshape and a transpose move no data.",
    "Followed": "Conditions, loops, `TensorArray`s, variables, batch norms and the updates of optimizers become other "
    "operations.",
    "Drawn": "Random numbers without a state are drawn on each device, and so are those of `RandomStandardNormal`, "
    "`RandomUniform`, `RandomUniformInt` and `TruncatedNormal`. Others with a state are drawn once and sent.",
    "Replicated": "No rule: each device computes all of it. So are tensors whose shapes depend on the data, as of "
    "`Where`, up to the next tensor of a fixed shape, with the conditions and loops around them. `Unique` is split "
    "where an optimizer sums and updates different rows.",
}
_REFUSED = """
## Refused ({count})

An error names the operation and the line of your program. These are operations on data sets, queues, readers, tables,
strings, summaries and other states that are no `tf.Variable`. The training process itself works on strings, reads
tables and samples classes, if that needs arguments of the step alone.
"""


def classes() -> dict[str, list[str]]:
    """{section: names of operations}; the last one, "", has those that are refused."""
    registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
    kernels = importlib.import_module("tensorflow.python.framework.kernels").get_all_registered_kernels().kernel
    on_cpu = {kernel.op for kernel in kernels if kernel.device_type == "CPU"}
    found: dict[str, list[str]] = {name: [] for name in [*_SECTIONS, ""]}
    for name in sorted(dir(tf.raw_ops)):
        definition = registry.get(name) if name[0].isupper() else None
        if definition is not None and name in on_cpu:
            found[_find_section(definition)].append(name)
    return found


def _find_section(definition: Any) -> str:
    name = definition.name
    rows = dict(
        zip(_SECTIONS, (facts.ELEMENTWISE, {*table.TABLE, *facts.REGROUPING}, _followed(), _drawn()), strict=False)
    )
    for section, names in rows.items():
        if name in names:
            return section
    args = [*definition.input_arg, *definition.output_arg]
    has_handles = any(tf.as_dtype(arg.type) in _HANDLES for arg in args if arg.type) or any(arg.is_ref for arg in args)
    return (
        ""
        if definition.is_stateful or name in facts.PYTHON or has_handles or name.endswith("Dataset")
        else "Replicated"
    )


def _followed() -> set[str]:
    return {
        *facts.RENAMING,
        *facts.CALLS,
        *facts.CONDITIONS,
        *facts.LOOPS,
        *lists.KINDS,
        *formulas.NORMS,
        *variables.KINDS,
        *reader.KINDS | reading.KINDS,
    }


def _drawn() -> frozenset[str]:
    return facts.STATELESS_DRAWS | facts.DRAWS


def _paragraph(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), 118, break_on_hyphens=False, break_long_words=False)


def page() -> str:
    """Return the page."""
    found = classes()
    version = ".".join(tf.version.VERSION.split(".")[:2])
    parts = [_TEXT.format(version=version, count=sum(map(len, found.values())))]
    for section, text in _SECTIONS.items():
        names = found[section]
        parts.append(f"\n## {section} ({len(names)})\n\n{textwrap.fill(text, 118)}\n\n{_paragraph(names)}\n")
    parts.append(_REFUSED.format(count=len(found[""])))
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
