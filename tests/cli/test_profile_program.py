"""mtf-hetero profile: it measures devices on a program, keeps what it measured, and saves it for a plan."""

import re

import pytest
from training_runs import check_mistake

from mtf_hetero import mtf, tf
from mtf_hetero.cli.profile import main
from mtf_hetero.cost import devices_file


def build():
    graph = mtf.Graph()
    batch, inputs, hidden = mtf.Dimension("batch", 8), mtf.Dimension("inputs", 6), mtf.Dimension("hidden", 4)
    x = mtf.import_tf_tensor(mtf.Mesh(graph, "mesh"), tf.zeros([8, 6]), mtf.Shape([batch, inputs]))
    loss = mtf.reduce_mean(mtf.square(mtf.layers.dense(x, hidden, reduced_dims=[inputs], name="dense")))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, variables)
    return graph


def without_updates():
    graph = mtf.Graph()
    mtf.zeros(mtf.Mesh(graph, "mesh"), mtf.Shape([]))
    return graph


def not_a_graph():
    return 7


def test_prints_saves_and_measures_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mtf_hetero._support.extras.has_progress_bars", lambda: False)  # nor does it need them
    saved, cache = tmp_path / "devices.json", tmp_path / "cache"
    flags = [f"--graph={__name__}:build", "--devices=cpu:0,cpu:1", f"--cache_dir={cache}"]
    assert main([*flags, f"--save={saved}"]) == 0
    first, _ = capsys.readouterr()
    assert re.search(r"^cpu:0 .* GFLOP/s .* GB$", first, re.MULTILINE)
    assert "\ncpu:1 shares the cores of cpu:0\n" in first
    assert "\nspeeds: --devices=cpu:0 --list_speed=100\n" in first
    assert f"\nnext: mtf-hetero plan --graph={__name__}:build --simulate={saved}\n" in first
    assert all(len(line) <= 80 for line in first.splitlines() if str(tmp_path) not in line)
    assert devices_file.load(saved).names == ("cpu:0",)
    (kept,) = cache.iterdir()
    before = kept.read_text()
    assert main(flags) == 0
    second, _ = capsys.readouterr()
    assert first.splitlines()[:2] == second.splitlines()[:2]
    assert "measured before: --fresh measures again" in second
    assert f"--graph={__name__}:build --simulate=devices.json (after profile --save=devices.json)\n" in second
    assert kept.read_text() == before
    assert main([*flags, "--fresh"]) == 0
    assert kept.read_text() != before


@pytest.mark.full
def test_a_model_and_a_step_of_tensorflow_are_measured(tmp_path, capsys):
    for network in (["--model=lenet", "--batch_size=2", "--image_size=32"], ["--step=dense_steps:tensorflow_step"]):
        saved = tmp_path / "devices.json"
        assert main([*network, "--devices=cpu:0", f"--cache_dir={tmp_path}", f"--save={saved}"]) == 0
        assert f"next: mtf-hetero plan {' '.join(network)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([f"--graph={__name__}:not_a_graph"], "which returned 7; return an mtf.Graph"),
        ([f"--graph={__name__}:without_updates"], "assigns no variable in a step; apply an optimizer"),
        ([f"--graph={__name__}:build", "--save=/dev/null"], "--save is '/dev/null': it is a"),
    ],
)
def test_mistakes_are_one_line(flags, message, capsys, tmp_path):
    check_mistake(capsys, message, lambda: main([*flags, "--devices=cpu:0", f"--cache_dir={tmp_path}"]))
