"""The table of kinds: spellings of names, plausible figures, and the nearest names to an unknown one."""

import pytest

from mtf_hetero.cost import kinds
from mtf_hetero.cost.devices_file import convert_to_machines
from mtf_hetero.cost.kinds import KINDS, KindName, find_kind


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("RTX-3060", ["rtx3060", "RTX 3060", "rtx-3060", "NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060 12GB"]),
        ("GTX-1060-3GB", ["NVIDIA GeForce GTX 1060 3GB"]),
        ("RTX-3080-Ti", ["NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"]),
        ("RTX-4060-Ti-16GB", ["RTX 4060 Ti 16 GB"]),
        ("RTX-4090-Laptop", ["RTX 4090 Laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Mobile"]),
        ("RTX-A6000", ["a6000", "NVIDIA RTX A6000"]),
        ("RTX-6000-Ada", ["NVIDIA RTX 6000 Ada Generation"]),
        ("RTX-PRO-6000", ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"]),
        ("Quadro-RTX-6000", ["Quadro RTX 6000"]),
        ("Titan-RTX", ["NVIDIA TITAN RTX"]),
        ("T4", ["Tesla T4"]),
        ("K80", ["Tesla K80"]),
        ("V100-32GB", ["Tesla V100-SXM2-32GB"]),
        ("A10", ["NVIDIA A10"]),
        ("A100", ["NVIDIA A100-SXM4-40GB"]),
        ("A100-80GB", ["A100 80GB", "NVIDIA A100-SXM4-80GB"]),
        ("A100-PCIe-80GB", ["NVIDIA A100 80GB PCIe"]),
        ("H100", ["NVIDIA H100 80GB HBM3"]),
        ("H100-PCIe", ["H100 PCIe", "NVIDIA H100 PCIe"]),
        ("MI250X", ["AMD Instinct MI250X"]),
        ("RX-7900-XTX", ["AMD Radeon RX 7900 XTX"]),
        ("Apple-M2", ["Apple M2", "m2"]),
        ("Apple-M4-Max", ["Apple M4 Max"]),
        ("i7-1165G7", ["Intel(R) Core(TM) i7-1165G7", "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz"]),
        ("Xeon-8480", ["Intel Xeon Platinum 8480+"]),
        ("Xeon-E5-2680-v4", ["Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"]),
        ("EPYC-7742", ["AMD EPYC 7742", "AMD EPYC 7742 64-Core Processor"]),
    ],
)
def test_spellings_of_one_kind(name, spellings):
    assert {KindName().read(spelling) for spelling in [name, *spellings]} == {name}


def test_no_two_kinds_share_a_name():
    for name, kind in KINDS.items():
        assert find_kind(name) == name
        assert find_kind(name if name.endswith("GB") else f"{name} {kind.memory_bytes / 1e9:.0f}GB") == name


@pytest.mark.parametrize("name", ["NVIDIA GeForce GT 1030", "Tesla T40", "NVIDIA TITAN", "Quadro 5000", ""])
def test_no_kind(name):
    assert find_kind(name) is None


def test_each_kind_makes_a_device():
    devices = convert_to_machines({"devices": [{"kind": name} for name in KINDS]})
    assert devices.names == tuple(KINDS)
    for machine, kind in zip(devices.devices, KINDS.values(), strict=True):
        assert kind.source and machine.memory_bytes == kind.memory_bytes
        assert 1e11 < machine.flops_per_second < kind.flops_per_second < 2e15
        assert 1 < kind.flops_per_second / kind.bytes_per_second < 400


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rtx3065", "the nearest are RTX-3060 and RTX-3070"),
        ("RTX 3085", "the nearest are RTX-3080 and RTX-3090"),
        ("GTX 1080 TI Super", "the nearest are GTX-1080-Ti and GTX-1080"),
        ("H300", "the nearest are H200 and H100"),
        ("Tesla M40", "the nearest is M60"),
        ("GTX 9080 Ti", "the nearest are GTX-1080-Ti and"),
        ("TITAN X", "the nearest are Titan-Xp and Titan-RTX"),
        ("abacus", "`mtf-hetero plan --kinds` lists all"),
    ],
)
def test_an_unknown_kind(name, nearest):
    with pytest.raises(ValueError, match=f"kind is '{name}', which is not a known kind; {nearest}") as caught:
        KindName().read(name)
    assert "--kinds` lists all" in str(caught.value)
    assert "peak_bytes_per_second and memory_bytes of its data sheet" in str(caught.value)


def test_a_name_of_many_digits():
    with pytest.raises(ValueError, match="^kind is .* which is not a known kind; "):
        KindName().read("9" * 5000)


def test_the_list():
    lines = kinds.listing().splitlines()
    assert len(lines) == len(KINDS) + 4 and max(map(len, lines)) <= 80
    assert ["RTX-3090", "35.6", "936", "24", "GB"] in [line.split() for line in lines]
