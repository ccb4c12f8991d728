"""Simulated dark matter: the spectrum it begins with, its normalisation, and what it becomes."""

import numpy as np
import pytest
from small_sets import read_batches

from mtf_hetero import data
from mtf_hetero.cli import data as binary
from mtf_hetero.data.preparing import cosmology
from mtf_hetero.data.preparing.cosmology import Parameters

PARAMETERS = Parameters(omega_m=0.3, sigma_8=0.85, n_s=0.96)


def test_transfer_function_is_that_of_colossus():
    """colossus 1.4.0, modelEisenstein98ZeroBaryon(k, 0.67, 0.3, 0.049, 2.7255)."""
    expected = [0.9914408188878562, 0.26642126612938394, 0.1260325309280888, 0.004307521613117839]
    np.testing.assert_allclose(cosmology.transfer(np.array([1e-3, 5e-2, 0.1, 1.0]), 0.3), expected, rtol=1e-12)


@pytest.mark.parametrize("sigma_8", [0.78, 0.95])
def test_the_spectrum_is_normalised(sigma_8):
    spectrum = cosmology.linear_spectrum(Parameters(0.27, sigma_8, 0.92))
    k = np.linspace(1e-4, 20, 400_001)  # another quadrature than the one that normalises
    variance = np.sum(spectrum(k) * cosmology.top_hat(8 * k) ** 2 * k**2) * (k[1] - k[0]) / (2 * np.pi**2)
    assert np.sqrt(variance) == pytest.approx(sigma_8, rel=1e-3)
    assert spectrum(np.zeros(1)) == 0


def test_the_gaussian_field_has_the_spectrum():
    size, cell, fields = 32, 8.0, 8
    spectrum, ratios, smoothed = cosmology.linear_spectrum(PARAMETERS), [], []
    for seed in range(fields):
        modes = cosmology.gaussian_modes(PARAMETERS, size, cell, np.random.default_rng(seed))
        field = np.fft.irfftn(modes, s=[size] * 3, axes=(0, 1, 2))
        assert field.mean() == pytest.approx(0, abs=1e-12)
        k, power = cosmology.power_spectrum(1 + field, cell, 8)
        ratios.append(power / spectrum(k))
        smoothed.append(np.var(field))
    np.testing.assert_allclose(np.mean(ratios, 0)[2:], 1, atol=0.03)  # the first bins are too wide for one k
    length, _ = cosmology._wave_numbers(size, cell)
    whole = 2 * spectrum(length).sum() - spectrum(length[..., 0]).sum() - spectrum(length[..., -1]).sum()
    assert np.mean(smoothed) == pytest.approx(whole / (size * cell) ** 3, rel=0.05)


def test_a_weak_field_becomes_the_density_that_it_stands_for():
    size, cell = 64, 4.0
    length, _ = cosmology._wave_numbers(size, cell)
    for seed in range(2):
        modes = cosmology.gaussian_modes(Parameters(0.3, 0.1, 0.96), size, cell, np.random.default_rng(seed))
        density = cosmology.clouds_in_cells(cosmology.displacements(modes, 0.3, cell), cell)
        linear, found = (  # on scales that the cells do not blur
            np.fft.irfftn(np.where(length < 0.15, part, 0), s=[size] * 3, axes=(0, 1, 2))
            for part in (modes, np.fft.rfftn(density - 1))
        )
        assert np.corrcoef(linear.ravel(), found.ravel())[0, 1] > 0.99
        assert np.std(found) == pytest.approx(np.std(linear), rel=0.03)


def test_second_order_of_two_crossing_waves():
    """The source of second order is the product of their contrasts, so that its displacement is known."""
    size, cell, height = 16, 2.0, 0.2
    x = 2 * np.pi * np.arange(size) / size
    waves = np.zeros([size] * 3) + height * np.cos(x)[:, None] + height * np.cos(x)
    moved = cosmology.displacements(np.fft.rfftn(waves), 0.3, cell)
    k = 2 * np.pi / (size * cell)
    second = 3 / 7 * 0.3 ** (-1 / 143) * height**2 / 2  # of the Laplacian's inverse, k^2 + k^2
    expected = -(height / k) * np.sin(x) - (second / k) * np.cos(x)[:, None] * np.sin(x)
    np.testing.assert_allclose(moved[2], np.zeros([size] * 3) + expected, atol=1e-9)
    np.testing.assert_allclose(moved[0], 0, atol=1e-9)


def test_mass_is_kept():
    rng = np.random.default_rng(0)
    density = cosmology.clouds_in_cells([rng.normal(0, 9, [12] * 3) for _ in range(3)], 2.0)
    assert density.sum() == pytest.approx(12**3) and density.min() >= 0
    np.testing.assert_allclose(cosmology.clouds_in_cells([np.full([12] * 3, 4.0)] * 3, 2.0), 1)


def test_parameters_are_within_their_ranges():
    rng = np.random.default_rng(0)
    drawn = [cosmology.draw_parameters(rng) for _ in range(200)]
    for name, (low, high) in cosmology.RANGES.items():
        values = [getattr(parameters, name) for parameters in drawn]
        assert low <= min(values) < low + 0.02 * high and high - 0.02 * high < max(values) <= high


def test_the_binary(tmp_path, capsys):
    for name in ("one", "two"):
        arguments = ["simulate", str(tmp_path / name), "--train=3", "--test=1", "--size=8", "--seed=7"]
        assert binary.main(arguments) == 0
        said = capsys.readouterr().out
        assert said.endswith("3 training and 1 test volumes of 8 x 8 x 8 x 1, float32, targets omega_m, sigma_8, n_s\n")
    one, two = (data.load_volumes(tmp_path / name) for name in ("one", "two"))
    assert str(one).endswith("one: 3 training and 1 test volumes of 8 x 8 x 8 x 1, simulated")
    ((image, _, target),) = read_batches(lambda: one.test_input_fn(1))
    ((again, _, _),) = read_batches(lambda: two.test_input_fn(1))
    np.testing.assert_array_equal(image, again)
    rng = np.random.default_rng([7, 3])
    parameters = cosmology.draw_parameters(rng)
    density = cosmology.simulate(parameters, 8, rng)
    np.testing.assert_allclose(
        np.expm1(image[0, ..., 0] * one.manifest.deviation + one.manifest.mean), density, atol=1e-4
    )
    found = target[0] * one.manifest.target_deviation + one.manifest.target_mean
    np.testing.assert_allclose(found, [parameters.omega_m, parameters.sigma_8, parameters.n_s], atol=1e-5)
    assert one.manifest.provenance["seed"] == 7
    assert binary.main(["simulate", str(tmp_path / "three"), "--train=1", "--size=1000000"]) == 2
    assert "size is 1000000, and a cube of 1,000,000 x 1,000,000 x 1,000,000 cells does not" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
