"""Sessions of programs written by hand: they have the devices of the mesh, or one line says how they get them."""

import pytest
from estimator_oracle import line_data

import mtf_hetero
from mtf_hetero import mtf, tf
from mtf_hetero.cluster import gpus

pytestmark = pytest.mark.usefixtures("own_graph")
MISSING = (
    r"^this session has no cpu:1 or cpu:2, which a mesh names; make the session with "
    r"tf\.Session\(config=mtf_hetero\.session_config\(mesh_impl\)\)$"
)


def lower(*devices, implementation=mtf_hetero.UnevenMeshImpl):
    """Lowers 12 ones, split over devices; returns the mesh implementation and the sum."""
    graph = mtf.Graph()
    mesh, size = mtf.Mesh(graph, "mesh"), mtf.Dimension("size", 12)
    total = mtf.reduce_sum(mtf.ones(mesh, mtf.Shape([size])))
    mesh_impl = implementation(mtf.convert_to_shape(f"all:{len(devices)}"), "size:all", list(devices))
    return mesh_impl, mtf_hetero.Lowering(graph, {mesh: mesh_impl}).export_to_tf_tensor(total)


THREE = ("cpu:0", "/device:CPU:1", "/job:localhost/task:0/device:CPU:2")


def test_a_session_has_the_devices_of_a_mesh():
    mesh_impl, total = lower(*THREE)
    config = mtf_hetero.session_config(mesh_impl)
    assert dict(config.device_count) == {"CPU": 3}
    assert mtf_hetero.session_config(THREE) == config
    with tf.Session(config=config) as session:
        assert session.run(total) == 12


def test_a_session_without_them_is_one_line_when_it_is_made():
    lower(*THREE)
    for config in (None, tf.ConfigProto(), tf.ConfigProto(device_count={"CPU": 1})):
        with pytest.raises(ValueError, match=MISSING):
            tf.Session(config=config)
    with pytest.raises(ValueError, match=MISSING):
        tf.InteractiveSession()
    with tf.Graph().as_default(), tf.Session() as session:  # another graph
        assert session.run(tf.constant(1)) == 1


def test_a_session_that_is_there_before_is_one_line_when_the_mesh_is_lowered():
    with tf.Session(), pytest.raises(ValueError, match=MISSING):
        lower(*THREE)


def test_mtfs_own_mesh_is_checked_too():
    lower("cpu:0", "cpu:1", implementation=mtf.placement_mesh_impl.PlacementMeshImpl)
    with pytest.raises(ValueError, match=r"^this session has no cpu:1, which a mesh names"):
        tf.Session()


def test_soft_placement_is_the_users_choice():
    _, total = lower(*THREE)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        assert session.run(total) == 12


def test_a_gpu_that_does_not_exist(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    monkeypatch.setattr(gpus, "has_driver", lambda: False)
    mesh_impl, _ = lower("cpu:0", "gpu:0")
    with pytest.raises(ValueError, match="device 'gpu:0' does not exist: TensorFlow finds no GPU; "):
        mtf_hetero.session_config(mesh_impl)
    with pytest.raises(ValueError, match=r"no gpu:0, which a mesh names; .*; or name other devices$"):
        tf.Session()


def test_a_workers_device_needs_its_cluster():
    with pytest.raises(ValueError, match=r"^device 'worker:0/cpu:0' is not of this process; give the session the con"):
        mtf_hetero.session_config(["cpu:0", "worker:0/cpu:0"])


@pytest.mark.parametrize(("config", "cpus"), [(None, 2), (tf.ConfigProto(device_count={"CPU": 3}), 3)])
def test_an_estimator_has_the_devices_of_its_mesh(config, cpus, tmp_path):
    found = []

    class Devices(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            found.extend(device.name for device in session.list_devices() if device.device_type == "CPU")

    def model_fn(features, labels, mode):
        _, total = lower("cpu:0", "cpu:1")
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return mtf_hetero.EstimatorSpec(mode, loss=tf.cast(total, tf.float32), train_op=train_op)

    run_config = mtf_hetero.RunConfig(session_config=config)
    mtf_hetero.Estimator(model_fn, tmp_path, run_config).train(line_data, hooks=[Devices()], max_steps=1)
    assert len(found) == cpus
