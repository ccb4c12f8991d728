"""--config: a file of flags, what is refused in it, and the one that a run leaves in its directory."""

import dataclasses

import pytest
import yaml
from absl.testing import flagsaver
from training_runs import ONE, check_mistake, check_variables, run, variables

from mtf_hetero._support import command_line
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train import config_file
from mtf_hetero.cli.train.config import Config


def read(*args):
    with flagsaver.flagsaver():
        command_line.parse_flags(["train", *args])
        return train.read_config()


def write_config(directory, text):
    path = directory / "run.yaml"
    path.write_text(text)
    return path


def test_flags_on_the_command_line_win(tmp_path):
    path = write_config(
        tmp_path,
        "model: lenet\nbatch_size: 50\nlearning_rate: 1e-3\ndevices: [cpu:0, CPU:1]\naugment: true\nmax_steps: null\n"
        'trace_steps: [1, 2]\nlist_speed: "2,1"\nmodel_dir: runs/lenet\n',
    )
    config = read(f"--config={path}", "--batch_size=20", "--noaugment", "--trace_steps=")
    assert config == Config(
        model="lenet",
        batch_size=20,
        learning_rate=1e-3,
        devices=("cpu:0", "cpu:1"),
        list_speed="2,1",
        model_dir="runs/lenet",
    )
    assert read(f"--config={path}").trace_steps == (1, 2)
    assert read(f"--config={write_config(tmp_path, 'devices: cpu:0, cpu:1')}").devices == ("cpu:0", "cpu:1")
    assert read(f"--config={write_config(tmp_path, '# nothing')}") == read("--config=") == Config()


MISTAKES = [
    ("batch_sizes: 3", "'batch_sizes' is not a flag; the flags are model, dataset, data_dir"),
    ("config: other.yaml", "'config' is not a flag"),
    ("batch_size: many", "batch_size is 'many'; it must be a whole number"),
    ("batch_size: 2.5", "batch_size is 2.5; it must be a whole number"),
    ("batch_size: null", "batch_size is null; it must be a whole number"),
    ("batch_size: 0", "batch_size is 0; it must be a whole number, 1 or more"),
    ("batch_size: 3\nbatch_size: 4", "'batch_size' appears twice"),
    ("learning_rate: fast", "learning_rate is 'fast'; it must be a number"),
    ("augment: 1", "augment is 1; it must be true or false"),
    ("list_speed: [2, 1]", "list_speed is [2, 1]; it must be text, in quotes where"),
    ("devices: {cpu: 0}", "devices is {'cpu': 0}; it must be a list, such as [cpu:0, cpu:1]"),
    ("trace_steps: [a]", "--trace_steps is 'a'; write steps"),
    ("- model", "the file is ['model']; it must be an object with the flags model, dataset"),
    ("model: [", "expected the node content, but found '<stream end>'"),
    ("? [a]\n: b", "found unhashable key"),
    ("model: \x00", "special characters are not allowed"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_gives_one_line_and_exit_code_2(text, message, tmp_path, capfd):
    check_mistake(capfd, message, config=write_config(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path, capfd):
    message = "none.yaml', which cannot be read: No such file or directory; correct it"
    check_mistake(capfd, message, config=tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    check_mistake(capfd, "which cannot be read: it is not text", config=tmp_path / "bytes.yaml")


def test_every_value_comes_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "manifest.json").touch()
    (tmp_path / "plan.json").touch()
    config = Config(
        model="unet3d",
        dataset="set",
        data_dir="data",
        learning_rate=1e-5,
        layout="plan.json",
        trace_steps=(1, 2),
        devices=("cpu:0", "worker:1/gpu:0"),
        recompute=("down1", 'a "quoted" näme'),
        max_steps=7,
    )
    config_file.save(config, str(tmp_path))
    found = Config(**config_file.load(str(tmp_path / "config.yaml")))
    here = {"dataset": f"{tmp_path}/set", "data_dir": f"{tmp_path}/data", "layout": f"{tmp_path}/plan.json"}
    assert found == dataclasses.replace(config, **here)


def test_a_model_dir_alone_gives_the_flags_of_its_run(tmp_path, capsys):
    config = Config(model="lenet", layout="batch", devices=("cpu:0", "cpu:1"), augment=True, trace_steps=(1,), seed=2)
    config_file.save(config, str(tmp_path))
    taken = f"from {tmp_path}/config.yaml: --model=lenet --augment"
    directory, same = f"--model_dir={tmp_path}", {"model_dir": str(tmp_path), "trace_steps": ()}
    assert read(directory) == dataclasses.replace(config, **same)
    assert capsys.readouterr().out == f"{taken} --layout=batch --devices=cpu:0,cpu:1 --seed=2\n"
    elsewhere = same | {"layout": "filters", "devices": ("cpu:0",), "seed": 3, "augment": False}
    assert read(directory, "--devices=cpu:0", "--seed=3", "--noaugment") == dataclasses.replace(config, **elsewhere)
    assert capsys.readouterr().out == f"from {tmp_path}/config.yaml: --model=lenet\n"
    assert read(directory, "--quiet") == dataclasses.replace(config, quiet=True, **same)
    with pytest.raises(ValueError, match=r"new', where there is no config.yaml of a run to resume; name another"):
        read(f"--model_dir={tmp_path / 'new'}")
    new = str(tmp_path / "new")
    assert read(f"--model_dir={new}", "--model=lenet") == Config(model_dir=new, model="lenet")
    assert read(f"--config={write_config(tmp_path, '')}", directory) == Config(model_dir=str(tmp_path))
    assert capsys.readouterr().out == ""


def test_a_run_leaves_a_file_that_repeats_it(tmp_path, capfd):
    assert run(**ONE | {"max_steps": 1}, model_dir=tmp_path / "first", seed=3, learning_rate=0.02) == 0
    path = tmp_path / "first" / "config.yaml"
    assert {"model": "lenet", "seed": 3, "max_steps": 1, "save_checkpoints_secs": 60}.items() <= yaml.safe_load(
        path.read_text()
    ).items()
    assert run(config=path, model_dir=tmp_path / "second") == 0
    check_variables(tmp_path / "second", variables(tmp_path / "first"))
    assert run(model_dir=tmp_path / "first", max_steps=2) == 0
    assert variables(tmp_path / "first")["global_step"] == 2
