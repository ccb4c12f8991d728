"""Devices as they are written in a file."""

import pytest

from mtf_hetero.cost import devices_file
from mtf_hetero.cost.devices_file import convert_to_machines, parse_devices
from mtf_hetero.cost.kinds import EFFICIENCY, KINDS
from mtf_hetero.cost.links import LINKS, parse_link
from mtf_hetero.cost.machines import Link, Machine, Machines

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
    found = devices_file.load(path)
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
    both = (first, Machine("other", 1e9, 1e9, 3e9, price_per_hour=0.0))
    expected = Machines(both, Link(1e-4, 1e9), {("other", first.name): Link(1e-5, 2e9)}, step_seconds=3e-3)
    path = tmp_path / "devices.json"
    path.write_text(devices_file.dumps(expected))
    assert path.read_text().count("price_per_hour") == 1
    assert devices_file.load(path) == expected


def test_an_operation_takes_its_arithmetic_or_its_memory():
    machine = Machine("gpu:0", 1e12, 1e11, operation_seconds=1e-6)
    assert machine.seconds(0, 0) == 0.0
    assert machine.seconds(1e9, 1) == pytest.approx(1.001e-3)
    assert machine.seconds(1, 1e9) == pytest.approx(1.0001e-2, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], r"the file is \[\]; it must be an object with the fields devices, link, inner_link, links, step"),
        ({}, "'devices' is missing; it must be a list of 1 to 10000 devices, such as"),
        ({"devices": []}, r"devices is \[\]; it must be a list of 1 to 10000 devices, such as .{kind: V100, count: 2}"),
        (
            {"devices": [{"kind": "K9"}]},
            r"devices\[0\].kind is 'K9', which is not a known kind; `mtf-hetero plan --kinds` lists all; for another",
        ),
        ({"devices": [{"name": "cpu"}]}, "has no flops_per_second; give it, or peak_flops_per_second, or a kind"),
        (
            {"devices": [{**CPU, "speed": 3}]},
            r"'speed' is not a field of devices\[0\]; the fields are name, kind, machine, count",
        ),
        (
            {"devices": [{**CPU, "count": 0}]},
            r"devices\[0\].count is 0; it must be a whole number, 1 or more and at most 10,000",
        ),
        ({"devices": [{**CPU, "flops_per_second": -1}]}, "1 or more"),
        ({"devices": [{**CPU, "memory_bytes": 0}]}, "1 or more"),
        (
            {"devices": [{**CPU, "price_per_hour": -1}]},
            r"devices\[0\].price_per_hour is -1; it must be a number, 0 or more",
        ),
        ({"devices": ["T4 at 1 USD"]}, r"devices\[0\].price_per_hour is '1 USD'; it must be a number, 0 or more"),
        ({"devices": ["T4 at"]}, r"devices\[0\].kind is 'T4 at', which is not a known kind"),
        (
            {"devices": [CPU], "link": {"latency_seconds": 1}},
            "'link.bytes_per_second' is missing; it must be a number, 1 or",
        ),
        ({"devices": [CPU], "link": "pci4"}, "link: 'pci4' is not a known link; the nearest are pcie4 and pcie"),
        ({"devices": [CPU], "link": 7}, "link is 7; it must be an object with the fields .*, or words such as pcie4"),
        ({"devices": ["RTX 3085"]}, r"devices\[0\].kind is 'RTX 3085', which is not a known kind; the nearest"),
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


def test_devices_in_words():
    found = parse_devices("2 x RTX 3090, gpu:5=gtx 1080 ti", "pcie4")
    assert found.names == ("RTX-3090:0", "RTX-3090:1", "gpu:5")
    assert found.link == LINKS["pcie4"]
    assert found.assumed == {"rates": "steps reach 40 % of the peak arithmetic"}
    entries = ["2 x RTX 3090", {"kind": "GTX-1080-Ti", "name": "gpu:5"}]
    assert convert_to_machines({"devices": entries, "link": "pcie4"}) == found
    assert parse_devices("V100").assumed == found.assumed
    assert parse_devices("V100,T4").assumed["link"] == "10 Gbit/s between devices"


def test_devices_with_prices_in_words():
    found = parse_devices("gpu:5=2 x RTX 3090 AT 0.22, T4 at .35; V100", "pcie4")
    assert [machine.price_per_hour for machine in found.devices] == [0.22, 0.22, 0.35, None]
    assert found.names == ("gpu:5:0", "gpu:5:1", "T4", "V100")
    assert convert_to_machines({"devices": [{"kind": "T4", "price_per_hour": "0.35"}]}) == parse_devices("T4 at 0.35")


def test_devices_of_two_machines():
    found = parse_devices("4 x RTX 4090; 2 x RTX 3080", "10Gbit/s", "pcie3")
    between = {found.link_between(a, b) for a, b in [(0, 4), (3, 5)]}
    within = {found.link_between(a, b) for a, b in [(0, 3), (1, 2), (4, 5)]}
    assert between == {Link(5e-5, 1e9)}
    assert within == {LINKS["pcie3"]}
    assert found.assumed == {"rates": "steps reach 40 % of the peak arithmetic"}
    assumed = parse_devices("2 x RTX 4090; RTX 3080").assumed
    assert (assumed["link"], assumed["inner_link"]) == ("10 Gbit/s between machines", "PCIe 4.0 within a machine")
    one = {"from": "RTX-4090:1", "to": "RTX-4090:0", "latency_seconds": 1e-5, "bytes_per_second": 5e10}
    entries = [{"kind": "RTX-4090", "count": 2, "machine": "a"}, {"kind": "T4", "machine": 2}]
    bridged = convert_to_machines({"devices": entries, "links": [one]})
    assert bridged.link_between(0, 1).bytes_per_second == 5e10
    assert bridged.link_between(0, 2) == bridged.link


@pytest.mark.parametrize(
    ("words", "bytes_per_second"),
    [
        ("10Gbit/s", 1e9),
        ("10 Gbps", 1e9),
        ("2.5Gb/s", 2.5e8),
        ("400 Mbit/s", 4e7),
        ("12 GB/s", 9.6e9),
        ("PCIe 4", 25.2e9),
        ("NVLink", 240e9),
        ("Wi-Fi", 0.5 * 867e6 / 8),
    ],
)
def test_links_in_words(words, bytes_per_second):
    assert parse_link(words).bytes_per_second == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("words", ["", "0Gbit/s", "10", "fast", "10 Gbit", "1e9 B/s", "-1Gbit/s"])
def test_words_that_are_no_link(words):
    with pytest.raises(ValueError, match="is not a known link.*; write pcie3, .*, or a rate such as 10Gbit/s"):
        parse_link(words)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file or directory; correct it, or name"):
        devices_file.load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("devices: [")
    with pytest.raises(ValueError, match="bad.yaml' cannot be read: while parsing a flow node"):
        devices_file.load(tmp_path / "bad.yaml")


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
    with pytest.raises(ValueError, match="price_per_hour of device 'a' is -1.0; it must be zero or more"):
        Machine("a", 1.0, 1.0, price_per_hour=-1.0)
    with pytest.raises(ValueError, match="granule of device 'a' is 0.5; it must be a whole number, 1 or more"):
        Machine("a", 1.0, 1.0, granule=0.5)
