"""Wrong flags and values: one line, exit code 2, and nothing is begun."""

from benchmarks.faults.fault import DATA, LENET, PROFILE, TRAIN, WORKER, Fault, command

_THREE = ("--model=lenet", "--devices=cpu:0,cpu:1,cpu:2")
_DENSE = "--graph=benchmarks.faults.graphs:dense"

_TRAIN = (
    ("an unknown flag", (*LENET, "--speed=3"), "Unknown command line flag 'speed'"),
    ("no flag", ("lenet",), "'lenet' is not a flag"),
    ("a number that is none", (*LENET, "--batch_size=many"), "--batch_size"),
    ("a batch of none", (*LENET, "--batch_size=0"), "--batch_size is 0"),
    ("a rate that is none", (*LENET, "--learning_rate=nan"), "--learning_rate is nan"),
    ("an unknown model", ("--model=vgg",), "--model is 'vgg'"),
    ("an unknown data set", (*LENET, "--dataset=mnist60k"), "mnist60k"),
    ("an unknown layout", (*LENET, "--layout=diagonal"), "--layout is 'diagonal'"),
    ("a layout of an unknown dimension", (*_THREE, "--layout=conv9/filters:all"), "conv9/filters"),
    ("two dimensions on one axis", (*_THREE, "--layout=conv2/filters:all;conv2/channels:all"), "conv2/channels"),
    ("an unknown device", ("--model=lenet", "--devices=tpu:0"), "--devices names 'tpu:0'"),
    ("a GPU that is not there", ("--model=lenet", "--devices=gpu:99"), "gpu:99"),
    ("too few shares", (*_THREE, "--list_speed=70,30"), "2 numbers for 3 processors"),
    ("a share of nothing", (*_THREE, "--list_speed=70,30,0"), "[70.0, 30.0, 0.0]"),
    ("fewer images than processors", (*_THREE, "--layout=batch", "--batch_size=2"), "'batch' of size 2"),
    ("a mesh of another size", (*_THREE, "--mesh_shape=all:2"), "mesh all:2 has 2 processors"),
    ("a bad address", ("--model=lenet", "--workers=here"), "'here' is not host:port"),
    ("a port out of range", ("--model=lenet", "--workers=localhost:99999"), "99999"),
    ("a worker twice", ("--model=lenet", "--workers=localhost:1,localhost:1"), "given twice"),
    ("cores that are no number", ("--model=lenet", "--local_cluster=1.0,fast"), "'fast' is not a number"),
    ("a memory limit without measuring", (*LENET, "--memory_limit=16"), "--memory_limit"),
    (
        "a memory limit that is too small",
        (*LENET, "--list_speed=auto", "--memory_limit=0.000001", "--layout=batch", "--measure_seconds=1"),
        "no layout fits these: cpu:0 1e-06 GB",
    ),
    ("a file as model directory", (*LENET, "--model_dir=/proc/version"), "which is a file"),
    ("a directory that cannot be made", (*LENET, "--model_dir=/proc/no/such"), "cannot be made"),
)
_WORKER = (
    ("an unknown flag", ("--port=0", "--speed=3"), "--speed"),
    ("a port that is no number", ("--port=many",), "--port"),
    ("a port out of range", ("--port=99999",), "--port is 99999"),
    ("no port", (), "--port is missing"),
    ("no CPU", ("--port=0", "--cpus=0"), "--cpus is 0"),
    ("a GPU that is not there", ("--port=0", "--gpus=99"), "--gpus is '99'"),
)
_PROFILE = (
    ("no graph", (), "--graph"),
    ("a graph that is not there", ("--graph=benchmarks.faults.graphs:missing",), "missing"),
    ("a graph that is none", ("--graph=benchmarks.faults.graphs:nothing",), "return an mtf.Graph"),
    ("an unknown flag", (_DENSE, "--speed=3"), "--speed"),
    ("an unknown device", (_DENSE, "--devices=tpu:0"), "tpu:0"),
    ("a worker that is not there", (_DENSE, "--workers=127.0.0.1:1"), "127.0.0.1:1"),
)
_DATA = (
    ("an unknown command", ("paint",), "paint"),
    ("an unknown set", ("prepare", "mnist60k", "--from={here}"), "mnist60k"),
    ("a source that is not there", ("prepare", "mnist", "--from={here}/none", "--data_dir={here}"), "none"),
    ("a source without the set", ("prepare", "mnist", "--from={here}", "--data_dir={here}"), "{here}"),
    ("a number that is none", ("simulate", "{here}/set", "--train=many"), "--train"),
    ("no volume", ("simulate", "{here}/set", "--train=0"), "train"),
    ("volumes that are no file of volumes", ("convert", "{here}/set", "--from", "/proc/version"), "/proc/version"),
)


def _faults(program: str, module: tuple[str, ...], table: tuple) -> tuple[Fault, ...]:
    return tuple(
        command(f"{program}: {name}", (*module, *arguments), says.replace("{here}", ""))
        for name, arguments, says in table
    )


FAULTS = (
    *_faults("train", TRAIN, _TRAIN),
    *_faults("worker", WORKER, _WORKER),
    *_faults("profile", PROFILE, _PROFILE),
    *_faults("data", DATA, _DATA),
)
