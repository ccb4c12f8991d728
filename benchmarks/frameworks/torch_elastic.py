"""A training by PyTorch's DistributedDataParallel under torchrun, which continues from a checkpoint after a restart.

    torchrun --nnodes=1:3 ... -m benchmarks.frameworks.torch_elastic --directory=DIR --batch_size=128

Each rank has an equal part of the batch. Rank 0 saves a checkpoint every few steps, and writes a line for each step to
DIR/metrics.jsonl, with the number of ranks. A rank that finds another one lost writes a line before it ends.
"""

import argparse
import json
import os
import pathlib
import time

import torch  # pyright: ignore[reportMissingImports] - the test extra does not have it
import torch.distributed  # pyright: ignore[reportMissingImports]

from benchmarks.frameworks.torch_nets import DistributedSlice

LOST, TRAIN = "lost", "train"  # kinds of lines


def _append(path: pathlib.Path, **values: object) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**values, "time": time.time()}) + "\n")


def main() -> None:
    """Train until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--network", required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--save_steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    whole, rest = divmod(options.batch_size, ranks)
    batches = [whole + (index < rest) for index in range(ranks)]
    trainer = DistributedSlice(options.network, options.batch_size, options.seed, batches=batches, rank=rank)
    path, log, step = options.directory / "checkpoint.pt", options.directory / "metrics.jsonl", 0
    if path.exists():
        step = trainer.load(path)
    while os.getppid() != 1:  # the agent may be killed
        try:
            loss = trainer.step()
        except RuntimeError:
            _append(log, kind=LOST, step=step)
            raise
        step += 1
        if rank == 0:
            _append(log, kind=TRAIN, step=step, loss=loss, ranks=ranks)
            if step % options.save_steps == 0:
                trainer.save(path, step)


if __name__ == "__main__":
    main()
