"""Measuring: what a step consists of, that it is measured at all, kept and used again. No claim about times."""

import re
import sys

import numpy as np
import pytest
from tiers import parametrize

from mtf_hetero import Layout, mtf, profile, speeds, tf
from mtf_hetero.cluster import Cluster
from mtf_hetero.profile.__main__ import main
from mtf_hetero.profile.hardware import cache_directory, representatives
from mtf_hetero.profile.link import fit
from mtf_hetero.profile.schedule import sizes_between, sizes_to_measure
from mtf_hetero.profile.timing import Point, build_loop, convert_to_loop_config
from mtf_hetero.profile.work import read

QUICK = profile.Effort(sizes=3, repeats=1, sample_seconds=1e-4, budget_seconds=1e-3)
OFF = 2  # of TensorFlow's RewriterConfig.Toggle
LAYOUT = Layout("all:2", "conv1/filters:all;conv2/channels:all")


def build(*, train=True, twins=False):
    """Two convolutions, P and R, with relu, and a dense layer; with twins, another such pair after it."""
    tf.train.create_global_step()
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    shape = mtf.Shape([mtf.Dimension(n, s) for n, s in (("batch", 2), ("height", 4), ("width", 4), ("channels", 3))])
    x = mtf.import_tf_tensor(mesh, tf.zeros(shape.to_integer_list), shape)
    for number in (1, 2, 3, 4) if twins else (1, 2):
        x = mtf.rename_dimension(x, x.shape.dims[-1].name, f"conv{number}/channels")
        filters = mtf.Dimension(f"conv{number}/filters", 6 if number % 2 else 3)
        x = mtf.relu(mtf.layers.conv2d(x, filters, filter_size=(3, 3), name=f"conv{number}"))
    y = mtf.layers.dense(x, mtf.Dimension("units", 2), reduced_dims=x.shape.dims[1:], name="dense1")
    loss = mtf.reduce_mean(mtf.square(y))
    if train:
        variables = graph.trainable_variables
        rate = mtf.import_tf_tensor(mesh, tf.cast(tf.train.get_global_step(), tf.float32) * 0.1, mtf.Shape([]))
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        mtf.optimize.AdafactorOptimizer(learning_rate=rate).apply_grads(gradients, variables)
    return graph


def build_graph():
    """What --graph names."""
    return build()


def not_a_graph():
    return 7


def recipe(graph, *, mesh_shape):
    assert isinstance(graph, mtf.Graph)
    return Layout(mesh_shape, LAYOUT.rules)


class TestWork:
    def test_renamed_dimensions_are_one(self):
        with tf.Graph().as_default():
            work, groups = read(build(), LAYOUT)
        assert work.dims == {"conv1/filters": {"conv1/filters": 6, "conv2/channels": 6}}
        split = {layer.name for layer in work.layers_of("conv1/filters")}
        assert split == {"conv1", "conv2"}
        assert {layer.name for layer in work.layers_of(None)} >= {"conv2", "dense1"}
        operations = [op for group in groups for op in group.operations]
        assert len(set(operations)) == len(operations)
        assert not any(isinstance(op, (mtf.Variable, mtf.Assign, mtf.ImportOperation)) for op in operations)

    def test_sums_over_the_processors(self):
        with tf.Graph().as_default():
            work, _ = read(build(train=False), LAYOUT)
        reduced = [size for layer in work.layers for size in layer.reduced_bytes]
        assert reduced == [2 * 4 * 4 * 3 * 4]  # conv2's output [2, 4, 4, 3] in float32

    def test_layers_that_are_alike_have_one_key(self):
        rules = (*LAYOUT.rules, ("conv3/filters", "all"), ("conv4/channels", "all"))
        with tf.Graph().as_default():
            work, _ = read(build(train=False, twins=True), Layout("all:2", rules))
        keys = {layer.name: layer.key for layer in work.layers if layer.dim is not None}
        assert keys["conv2"] == keys["conv4"]
        assert keys["conv1"] == keys["conv3"] != keys["conv2"]
        assert len(work.dims) == 2

    def test_keys_are_the_same_in_another_graph(self):
        with tf.Graph().as_default():
            first, _ = read(build(), LAYOUT)
        with tf.Graph().as_default():
            second, _ = read(build(), LAYOUT)
        assert [layer.key for layer in first.layers] == [layer.key for layer in second.layers]

    def test_memory(self):
        with tf.Graph().as_default():
            work, _ = read(build(train=False), LAYOUT)
        relu1 = 2 * 4 * 4 * 6 * 4
        kernels = 3 * 3 * (3 * 6 + 6 * 3) * 4
        assert work.dim_bytes == {"conv1/filters": kernels + relu1}  # relu takes the convolution's buffer over
        assert work.fixed_bytes >= 4 * 4 * 3 * 2 * 4  # the dense kernel

    @pytest.mark.parametrize(
        ("rules", "message"),
        [
            ("other:all", "splits no dimension of the graph"),
            ("batch:rows;conv1/filters:cols", "over the mesh axes cols, rows; times are measured for a layout that"),
        ],
    )
    def test_layouts_that_cannot_be_measured(self, rules, message):
        with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
            read(build(train=False), Layout("rows:2;cols:2;all:2", rules))


class TestLoop:
    @pytest.mark.parametrize("units", [1, 2, 6])
    def test_runs_the_operations_of_a_slice(self, units):
        """The first processor's convolution runs in each iteration, and the other's never."""
        with tf.Graph().as_default():
            _, groups = read(build(train=False), LAYOUT)
            group = next(g for g in groups if g.layer.name == "conv2" and g.names)
            iterations = tf.placeholder(tf.int32, [])
            loop = build_loop(group, units, "cpu:0", iterations)
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True)
            found = tf.RunMetadata()
            with tf.Session(config=convert_to_loop_config(tf.ConfigProto())) as session:
                session.run(loop, {iterations: 3}, options=options, run_metadata=found)
        ran = [node.node_name for stats in found.step_stats.dev_stats for node in stats.node_stats]
        assert sum("Conv2D" in name for name in ran) == 3

    def test_more_iterations_take_longer(self):
        calls = []
        point = Point("key", "cpu:0", 1, calls.append)
        point.warm_up(1e-9)
        point.sample()
        assert point.seconds > 0
        assert set(calls) == {0, 1}
        assert point.error == float("inf")

    def test_statistics(self):
        point = Point("key", "cpu:0", 1, lambda _: None, iterations=2)
        point.samples, point.empty = [5.0, 5.0, 7.0, 9.0, 100.0], [1.0, 1.0, 1.0]
        assert (point.seconds, point.spread) == (3.0, 2.0)


class TestMeasure:
    @pytest.fixture(autouse=True)
    def few_hops(self, monkeypatch):
        """Links are measured in no time; those of the binary, below, as ever."""
        monkeypatch.setattr("mtf_hetero.profile.link.HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})

    def test_measures_keeps_and_uses_again(self, tmp_path):
        cluster = Cluster.local(["cpu:0", "cpu:1"])
        with tf.Graph().as_default():
            first = profile.measure(build(), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path)
        with tf.Graph().as_default():
            second = profile.measure(build(), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path)
        assert first.new == len({layer.key for layer in first.work.layers})
        assert second.new == 0
        assert second.profile.models == first.profile.models
        assert first.profile.models["cpu:0"] == first.profile.models["cpu:1"]
        assert first.shares() == pytest.approx((50, 50))
        conv1 = next(layer for layer in first.work.layers if layer.dim is not None)
        sizes = [n for n, _, _ in first.profile.model("cpu:0", conv1.key).points]
        assert {1, 3, 6} <= set(sizes)
        assert first.profile.provenance["tensorflow"] == tf.__version__
        split = first.best_split(least_gain=-1e9)
        assert sum(split.sizes["conv2/channels"]) == 6
        assert all(limit is not None and limit > 1e8 for limit in first.memory_limits.values())

    def test_fresh_measures_again_and_the_rest_stays(self, tmp_path):
        cluster = Cluster.local(["cpu:0"])
        with tf.Graph().as_default():
            profile.measure(build(train=False), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path)
        (path,) = tmp_path.glob("*.json")
        with tf.Graph().as_default():
            again = profile.measure(build(train=False), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path, fresh=True)
        assert again.new > 0
        assert len(speeds.load(path).models) == 1

    @parametrize("content", [b"{", b"\xff", b'{"schema": 99}', b""], first=[b"{"])
    def test_measurements_that_are_damaged_are_made_anew(self, tmp_path, content):
        cluster = Cluster.local(["cpu:0"])
        with tf.Graph().as_default():
            profile.measure(build(train=False), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path)
        (path,) = tmp_path.glob("*.json")
        path.write_bytes(content)
        with tf.Graph().as_default():
            again = profile.measure(build(train=False), LAYOUT, cluster, effort=QUICK, cache_dir=tmp_path)
        assert again.new > 0
        (note,) = again.notes
        assert note.startswith("measured anew: ") and str(path) in note and "\n" not in note
        assert len(speeds.load(path).models) == 1

    def test_what_cannot_be_kept_is_used_all_the_same(self, tmp_path):
        (tmp_path / "file").touch()
        with tf.Graph().as_default():
            found = profile.measure(
                build(train=False), LAYOUT, Cluster.local(["cpu:0"]), effort=QUICK, cache_dir=tmp_path / "file" / "dir"
            )
        assert found.new > 0 and found.shares() == (100,)
        assert len(found.notes) == 1
        assert re.match(r"not kept: profile .*/file/dir/profile-.*json' cannot be written: ", found.notes[0])

    def test_sessions_are_configured_as_those_of_training(self, monkeypatch):
        """What TensorFlow's optimisers may do is what they do in training, but for what would undo the measuring."""
        own = Cluster.session_config

        def marked(cluster):
            config = own(cluster)
            config.inter_op_parallelism_threads = 3
            config.graph_options.rewrite_options.remapping = OFF
            return config

        configs = []

        class Session(tf.Session):
            def __init__(self, target="", graph=None, config=None):
                configs.append(config)
                super().__init__(target, graph, config)

        monkeypatch.setattr(Cluster, "session_config", marked)
        monkeypatch.setattr(tf, "Session", Session)
        cluster = Cluster.local(["cpu:0", "cpu:1"])
        with tf.Graph().as_default():
            profile.measure(build(), LAYOUT, cluster, effort=QUICK)
        loops, link = configs
        loops.graph_options.rewrite_options.dependency_optimization = 0
        link.graph_options.rewrite_options.disable_meta_optimizer = False
        assert loops == link == marked(cluster)

    @pytest.mark.parametrize(
        ("name", "value"), [("sizes", 1), ("repeats", 0), ("precision", 0), ("sample_seconds", -1)]
    )
    def test_effort(self, name, value):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be a "):
            profile.Effort(**{name: value})


class TestParts:
    @pytest.mark.parametrize("units", [1, 2, 3, 10, 64, 480])
    @pytest.mark.parametrize("count", [2, 3, 4, 6, 7])
    @pytest.mark.parametrize("granule", [1, 8])
    def test_sizes_to_measure(self, units, count, granule):
        sizes = sizes_to_measure(units, count, granule)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == units
        assert len(sizes) <= count
        assert all(n % granule == 0 for n in sizes[:-1])
        assert units <= granule or sizes[0] == granule

    def test_sizes_between(self):
        assert sizes_between([(1, 1.0), (10, 10.0), (20, 20.0)]) == []
        assert sizes_between([(8, 1.0), (32, 1.0), (64, 2.0)], 8) == [16, 48]

    def test_fit(self):
        link = fit([(n, 1e-4 + n / 1e9) for n in (1 << 10, 1 << 16, 1 << 20, 1 << 23)])
        assert link.latency_seconds == pytest.approx(1e-4, rel=1e-3)
        assert link.bytes_per_second == pytest.approx(1e9, rel=1e-3)
        assert fit([(1, 1.0), (2, 1.0)]).bytes_per_second == 1e13

    def test_logical_cpus_of_a_process_are_one_cpu(self):
        worker = "/job:worker/task:{}/device:{}"
        devices = ["gpu:0", "gpu:1", "cpu:1", "cpu:0", *(worker.format(t, "CPU:0") for t in (0, 1))]
        found = representatives(devices)
        assert found == {device: device for device in devices} | {"cpu:0": "cpu:1"}

    def test_cache_directory(self, tmp_path):
        assert cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "mtf_hetero"
        assert cache_directory({}).parts[-2:] == (".cache", "mtf_hetero")
        assert cache_directory({"XDG_CACHE_HOME": "relative"}) == cache_directory({})


QUICKLY = ["--sizes=2", "--repeats=1", "--sample_seconds=1e-4", "--budget_seconds=1e-3"]


class TestBinary:
    def test_prints_and_saves(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("mtf_hetero._support.extras.has_progress_bars", lambda: False)  # nor does it need them
        flags = ["--devices=cpu:0,cpu:1", f"--cache_dir={tmp_path}", f"--save={tmp_path}/p.json", *QUICKLY]
        (tmp_path / "file").touch()
        flags.append(f"--cache_dir={tmp_path}/file")
        code = main([f"--graph={__name__}:build_graph", f"--recipe={__name__}:recipe", *flags])
        out, err = capsys.readouterr()
        assert re.search(r"^warning: not kept: .* cannot be written: .*; name another file$", err, re.M)
        assert code == 0
        assert "conv1, of conv1/filters" in out
        assert re.search(r"--devices=cpu:0,cpu:1 --list_speed=50,50\n", out)
        assert re.search(r"^(not )?split", out, re.MULTILINE)
        saved = speeds.load(tmp_path / "p.json")
        assert set(saved.models) == {"cpu:0", "cpu:1"}
        assert np.isfinite(saved.links["cpu:0", "cpu:1"].seconds(1000))

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--graph=nowhere", "--layout=a:all"], "--graph is 'nowhere'; write module:function"),
            (["--graph=nowhere_at_all:f", "--layout=a:all"], "which cannot be imported: No module named"),
            (["--graph=sys:f", "--layout=a:all"], "which cannot be imported: module 'sys' has no attribute 'f'"),
            ([f"--graph={__name__}:not_a_graph", "--layout=a:all"], "which returned 7; return an mtf.Graph"),
            ([f"--graph={__name__}:build_graph", "--layout=a:all"], "splits no dimension of the graph"),
            ([f"--graph={__name__}:build_graph", "--layout=a"], "layout 'a': 'a' is not a pair"),
            (["--graph=sys:exit", "--layout=a:all", "--sizes=0"], "sizes is 0; it must be a whole number, 2 or more"),
        ],
    )
    def test_mistakes_are_one_line(self, flags, message, capsys, tmp_path):
        assert main([*flags, "--devices=cpu:0", f"--cache_dir={tmp_path}"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert message in captured.err
        assert captured.err.count("\n") == 1

    @pytest.mark.parametrize("flags", [["--graph=a:b"], ["--layout=a:all"], ["--graph=a:b", "--layout=c", "--nosuch"]])
    def test_flags_that_are_missing_or_unknown(self, flags, capsys):
        with pytest.raises(SystemExit) as stop:
            main(flags)
        assert stop.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert "mtf_hetero.profile" in sys.modules
