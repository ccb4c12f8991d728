"""Plan programs of benchmarks/programs for two GPUs, each as a user would: `python planned_programs.py PART PARTS`.

Prints one line per program: its name and the verdict, or its name, an error's kind and text.
"""

import sys

from tiers import in_turn

import mtf_hetero
from benchmarks.frameworks import any_step
from benchmarks.programs import KerasStep, programs


def verdict(name):
    """The first sentence on a program's plan."""
    program = programs()[name]
    with any_step.floats(program.dtype):
        made = any_step.make(program)
        step = (made.model, made.data) if isinstance(made, KerasStep) else (made.step, made.inputs)
        planned = mtf_hetero.plan(*step, devices="RTX 3090, GTX 1080 Ti", link="pcie4")
    return str(planned).partition(".\n")[0].replace("\n", " ")


def main(part, parts):
    for name in in_turn(sorted(programs()))[int(part) :: int(parts)]:
        try:
            print(name, verdict(name), sep=": ", flush=True)
        except Exception as error:  # of any kind: the test shows it
            print(name, f"failed with {type(error).__name__}: {error}", sep=": ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
