"""Devices as they are written in a file."""

import pytest

from mtf_hetero.cost import machines
from mtf_hetero.cost.kinds import EFFICIENCY, KINDS
from mtf_hetero.cost.machines import Link, Machine, Machines, convert_to_machines

CPU = {"name": "cpu", "flops_per_second": 8e11, "bytes_per_second": 5e10}


def test_a_file_of_kinds_and_figures(tmp_path):
    path = tmp_path / "devices.yaml"
    path.write_text(
        """
        devices:
          - {kind: RTX-3090, count: 2}
          - {name: cpu, flops_per_second: 8e11, bytes_per_second: 5e10, memory_bytes: 64e9}
        link: {latency_seconds: 1e-4, bytes_per_second: 1.2e9}
        links:
          - {from: "RTX-3090:0", to: "RTX-3090:1", latency_seconds: 1e-5, bytes_per_second: 2e10}
        """
    )
    found = machines.load(path)
    assert found.names == ("RTX-3090:0", "RTX-3090:1", "cpu")
    assert found.devices[0].flops_per_second == EFFICIENCY * KINDS["RTX-3090"].flops_per_second
    assert found.devices[2] == Machine("cpu", 8e11, 5e10, 64e9)
    assert found.link_between(0, 1) == found.link_between(1, 0) == Link(1e-5, 2e10)
    assert found.link_between(0, 2) == Link(1e-4, 1.2e9)
    assert found.only([0, 2]).links == {}


@pytest.mark.parametrize("name", KINDS)
def test_a_device_typed_from_its_datasheet_is_its_kind(name):
    kind = KINDS[name]
    typed = {
        "name": name,
        "peak_flops_per_second": kind.flops_per_second,
        "peak_bytes_per_second": kind.bytes_per_second,
        "memory_bytes": kind.memory_bytes,
    }
    assert convert_to_machines({"devices": [typed]}) == convert_to_machines({"devices": [{"kind": name}]})
    changed = {"kind": name, "peak_flops_per_second": 2 * kind.flops_per_second}
    (machine,) = convert_to_machines({"devices": [changed]}).devices
    assert machine.flops_per_second == pytest.approx(2 * EFFICIENCY * kind.flops_per_second)
    reached = {"kind": name, "flops_per_second": 0.6 * kind.flops_per_second}
    assert convert_to_machines({"devices": [reached]}).devices[0].flops_per_second == 0.6 * kind.flops_per_second


def test_what_is_written_is_read_again(tmp_path):
    first = Machine("/job:worker/task:0/device:CPU:0", 8e10, 5e9, None, 1e-6, 2e-10, 1e-4, {"relu": 0.5, "": 2.0})
    both = (first, Machine("other", 1e9, 1e9, 3e9))
    expected = Machines(both, Link(1e-4, 1e9), {("other", first.name): Link(1e-5, 2e9)}, step_seconds=3e-3)
    path = tmp_path / "devices.json"
    path.write_text(machines.dumps(expected))
    assert machines.load(path) == expected


def test_an_operation_takes_its_arithmetic_or_its_memory():
    machine = Machine("gpu:0", 1e12, 1e11, operation_seconds=1e-6)
    assert machine.seconds(0, 0) == 0.0
    assert machine.seconds(1e9, 1) == pytest.approx(1.001e-3)
    assert machine.seconds(1, 1e9) == pytest.approx(1.0001e-2, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], r"the file is \[\]; it must be an object with the fields devices, link, links, step_seconds"),
        ({}, "'devices' is missing; it must be a list of 1 to 10000 devices, such as"),
        ({"devices": []}, r"devices is \[\]; it must be a list of 1 to 10000 devices, such as .{kind: V100, count: 2}"),
        (
            {"devices": [{"kind": "K9"}]},
            r"devices\[0\].kind is 'K9', which is not a known kind; `mtf-hetero plan --kinds` lists all; for another",
        ),
        ({"devices": [{"name": "cpu"}]}, "has no flops_per_second; give it, or peak_flops_per_second, or a kind"),
        (
            {"devices": [{**CPU, "speed": 3}]},
            r"'speed' is not a field of devices\[0\]; the fields are name, kind, count",
        ),
        (
            {"devices": [{**CPU, "count": 0}]},
            r"devices\[0\].count is 0; it must be a whole number, 1 or more and at most 10,000",
        ),
        ({"devices": [{**CPU, "flops_per_second": -1}]}, "1 or more"),
        ({"devices": [{**CPU, "memory_bytes": 0}]}, "1 or more"),
        (
            {"devices": [CPU], "link": {"latency_seconds": 1}},
            "'link.bytes_per_second' is missing; it must be a number, 1 or",
        ),
        ({"devices": [{**CPU, "factors": 2}]}, "factors is 2; it must be an object, {kind of operation: factor}"),
        (
            {"devices": [{**CPU, "peak_flops_per_second": 2e12}]},
            r"devices\[0\] has peak_flops_per_second and flops_per_second, .* one",
        ),
        ({"devices": [{**CPU, "peak_bytes_per_second": 1}]}, "has peak_bytes_per_second and bytes_per_second, .* one"),
        (
            {"devices": [{"peak_flops_per_second": 1e12}]},
            "no bytes_per_second; give it, or peak_bytes_per_second, or a k",
        ),
        (
            {"devices": [{"kind": "V100", "flops_per_second": 15.7e12}]},
            r"peak of a V100 is 1.57e\+13: .*; call a datasheet's figure peak_flops",
        ),
        ({"devices": [{"kind": "T4", "flops_per_second": "6.5e13"}]}, r"is 6.5e\+13, and the peak of a T4 is 8.1e"),
        (
            {"devices": [CPU], "links": [{"from": "cpu", "to": "gpu", "latency_seconds": 0, "bytes_per_second": 1}]},
            "a link joins 'cpu' and 'gpu'; the devices are cpu",
        ),
    ],
)
def test_mistakes(value, problem):
    with pytest.raises(ValueError, match=problem):
        convert_to_machines(value)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file or directory; correct it, or name"):
        machines.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("devices: [")
    with pytest.raises(ValueError, match="bad.yaml' cannot be read: while parsing a flow node"):
        machines.load(tmp_path / "bad.yaml")


def test_two_devices_of_one_name():
    with pytest.raises(ValueError, match="device 'cpu' is given twice"):
        Machines((Machine("cpu", 1, 1), Machine("cpu", 2, 2)))


def test_a_device_alone_is_as_fast_as_it_is_while_the_others_rest():
    both = Machines((Machine("a", 4e10, 1e10, alone_factor=0.8), Machine("b", 1e10, 1e10)), step_seconds=1e-3)
    (alone,) = both.only([0]).devices
    assert (alone.flops_per_second, alone.bytes_per_second, alone.alone_factor) == (5e10, 1.25e10, 1.0)
    assert both.only([0, 1]).devices == both.devices
    with pytest.raises(ValueError, match="alone_factor of device 'a' is 0; it must be greater than zero"):
        Machine("a", 1.0, 1.0, alone_factor=0)
    with pytest.raises(ValueError, match="granule of device 'a' is 0.5; it must be a whole number, 1 or more"):
        Machine("a", 1.0, 1.0, granule=0.5)
