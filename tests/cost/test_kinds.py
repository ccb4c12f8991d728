"""The table of kinds: spellings of names, plausible figures, and the nearest names to an unknown one."""

import pytest

from mtf_hetero.cost import kinds
from mtf_hetero.cost.devices_file import convert_to_machines
from mtf_hetero.cost.kinds import KINDS, KindName


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("RTX-3060", ["rtx3060", "RTX 3060", "rtx-3060", "NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060 12GB"]),
        ("RTX-A6000", ["a6000", "NVIDIA RTX A6000"]),
        ("RTX-6000-Ada", ["NVIDIA RTX 6000 Ada Generation"]),
        ("T4", ["Tesla T4"]),
        ("A100", ["NVIDIA A100-SXM4-40GB"]),
        ("H100", ["NVIDIA H100 80GB HBM3"]),
        ("MI250X", ["AMD Instinct MI250X"]),
        ("Apple-M2", ["Apple M2", "m2"]),
        ("i7-1165G7", ["Intel(R) Core(TM) i7-1165G7"]),
        ("Xeon-8480", ["Intel Xeon Platinum 8480+"]),
        ("EPYC-7742", ["AMD EPYC 7742"]),
    ],
)
def test_spellings_of_one_kind(name, spellings):
    assert {KindName().read(spelling) for spelling in [name, *spellings]} == {name}


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
        ("rtx3065", "the nearest are RTX-3060 and RTX-5060"),
        ("A100-SXM4-80GB", ""),
        ("H300", "the nearest are H100 and H200"),
    ],
)
def test_an_unknown_kind(name, nearest):
    with pytest.raises(ValueError, match=f"kind is '{name}', which is not a known kind; {nearest}") as caught:
        KindName().read(name)
    assert "--kinds` lists all" in str(caught.value)
    assert "peak_bytes_per_second and memory_bytes of its data sheet" in str(caught.value)


def test_the_list():
    lines = kinds.listing().splitlines()
    assert len(lines) == len(KINDS) + 4 and max(map(len, lines)) <= 80
    assert "RTX-3090          35.6    936   24 GB" in lines
