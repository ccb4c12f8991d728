"""Simulate volumes of dark matter with known cosmological parameters, for regression like CosmoFlow's.

A Gaussian field with the linear power spectrum of today (Eisenstein and Hu 1998, ApJ 496, 605, without wiggles,
normalised to sigma_8) moves one particle per cell by second-order Lagrangian perturbation theory (2LPT; Bouchet et al.
1995, A&A 296, 575), and clouds in cells make a density of the particles. Lengths are in Mpc/h.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np

from mtf_hetero._support import extras
from mtf_hetero.data._volumes_files import SIMULATION, Manifest, Planes, write_volumes
from mtf_hetero.data.source import TEST, TRAIN

_MOST_CELLS = 1024  # along an edge: 8 GiB for each array of the simulation
HUBBLE = 0.67  # H0 in 100 km/s/Mpc
OMEGA_B = 0.049  # baryons
CMB_KELVIN = 2.7255  # Fixsen 2009, ApJ 707, 916
SIGMA_8_RADIUS = 8.0  # Mpc/h, by the definition of sigma_8
RANGES = {"omega_m": (0.25, 0.35), "sigma_8": (0.78, 0.95), "n_s": (0.9, 1.0)}  # Mathuriya et al. 2018, CosmoFlow


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of a flat universe.

    Args:
      omega_m: density of matter, in units of the critical density.
      sigma_8: standard deviation of the linear density today in spheres of 8 Mpc/h.
      n_s: slope of the primordial power spectrum.
    """

    omega_m: float
    sigma_8: float
    n_s: float


def draw_parameters(rng: np.random.Generator) -> Parameters:
    """Draw parameters, uniformly in RANGES."""
    return Parameters(**{name: float(rng.uniform(*bounds)) for name, bounds in RANGES.items()})


def transfer(k: np.ndarray, omega_m: float) -> np.ndarray:
    """Return the transfer function without wiggles, Eisenstein and Hu 1998, equations 26 and 28 to 31.

    Args:
      k: wave numbers in h/Mpc, not 0.
      omega_m: density of matter.
    """
    matter, baryons, ratio = omega_m * HUBBLE**2, OMEGA_B * HUBBLE**2, OMEGA_B / omega_m
    sound_horizon = 44.5 * np.log(9.83 / matter) / np.sqrt(1.0 + 10.0 * baryons**0.75)  # Mpc
    alpha = 1.0 - 0.328 * np.log(431.0 * matter) * ratio + 0.38 * np.log(22.3 * matter) * ratio**2
    gamma = omega_m * HUBBLE * (alpha + (1.0 - alpha) / (1.0 + (0.43 * k * HUBBLE * sound_horizon) ** 4))
    q = k * (CMB_KELVIN / 2.7) ** 2 / gamma
    logarithm = np.log(2.0 * np.e + 1.8 * q)
    return logarithm / (logarithm + (14.2 + 731.0 / (1.0 + 62.5 * q)) * q**2)


def linear_spectrum(parameters: Parameters) -> Callable[[np.ndarray], np.ndarray]:
    """Return today's linear power spectrum, (Mpc/h)^3, as a function of wave numbers in h/Mpc, 0 at 0."""

    def shape(k: np.ndarray) -> np.ndarray:
        return k**parameters.n_s * transfer(k, parameters.omega_m) ** 2

    log_k = np.linspace(np.log(1e-5), np.log(1e2), 4000)
    k = np.exp(log_k)
    density = shape(k) * top_hat(k * SIGMA_8_RADIUS) ** 2 * k**3 / (2.0 * np.pi**2)  # of variance, per log k
    variance = density.sum() * (log_k[1] - log_k[0])
    amplitude = parameters.sigma_8**2 / variance

    def spectrum(k: np.ndarray) -> np.ndarray:
        return np.where(k > 0, amplitude * shape(np.where(k > 0, k, 1.0)), 0.0)

    return spectrum


def top_hat(x: np.ndarray) -> np.ndarray:
    """Return the Fourier transform of a sphere of radius R and volume 1, at x = k R."""
    return 3.0 * (np.sin(x) - x * np.cos(x)) / x**3


@functools.lru_cache(maxsize=1)
def _wave_numbers(size: int, cell: float) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return |k| and (k_z, k_y, k_x) of a real field's modes, in h/Mpc, with components 0 at half the grid's rate."""
    full = 2.0 * np.pi * np.fft.fftfreq(size, cell)
    half = 2.0 * np.pi * np.fft.rfftfreq(size, cell)
    length = np.sqrt(full[:, None, None] ** 2 + full[:, None] ** 2 + half**2)
    pointing = [np.where(np.isclose(np.abs(k), np.pi / cell), 0.0, k) for k in (full, full, half)]
    return length, (pointing[0][:, None, None], pointing[1][:, None], pointing[2])


def gaussian_modes(parameters: Parameters, size: int, cell: float, rng: np.random.Generator) -> np.ndarray:
    """Draw modes of a Gaussian density contrast with the linear spectrum, complex [size, size, size / 2 + 1]."""
    length, _ = _wave_numbers(size, cell)
    noise = np.fft.rfftn(rng.standard_normal([size] * 3))
    return noise * np.sqrt(linear_spectrum(parameters)(length) / cell**3)


def displacements(modes: np.ndarray, omega_m: float, cell: float) -> list[np.ndarray]:
    """Return 2LPT's displacement of the particle of each cell until today, [z, y, x] of [size, size, size] in Mpc/h.

    Args:
      modes: of the linear density contrast today.
      omega_m: density of matter.
      cell: edge of a cell, Mpc/h.
    """
    size = modes.shape[0]
    length, k = _wave_numbers(size, cell)
    inverse = np.where(length > 0, 1.0 / np.square(np.where(length > 0, length, 1.0)), 0.0)

    def real(spectrum: np.ndarray) -> np.ndarray:
        return np.fft.irfftn(spectrum, s=[size] * 3, axes=(0, 1, 2))

    first = -modes * inverse  # the potential, whose Laplacian is the contrast
    diagonal = [real(-k[axis] * k[axis] * first) for axis in range(3)]
    source = diagonal[0] * diagonal[1] + diagonal[0] * diagonal[2] + diagonal[1] * diagonal[2]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        source -= np.square(real(-k[one] * k[other] * first))
    second = -np.fft.rfftn(source) * inverse
    growth = -3.0 / 7.0 * omega_m ** (-1.0 / 143.0)  # of second order, relative to the first order
    return [real(1j * k[axis] * (growth * second - first)) for axis in range(3)]


def clouds_in_cells(moved: list[np.ndarray], cell: float) -> np.ndarray:
    """Return the density of particles that began one in each cell, in units of the mean, [size, size, size].

    Args:
      moved: displacements, [z, y, x] of [size, size, size] in Mpc/h; the box is periodic.
      cell: edge of a cell, Mpc/h.
    """
    size = moved[0].shape[0]
    low, weight = [], []
    for axis, shift in enumerate(moved):
        start = np.arange(size).reshape([-1 if other == axis else 1 for other in range(3)])
        place = (start + shift / cell).ravel()
        whole = np.floor(place)
        low.append(whole.astype(np.int64))
        weight.append(place - whole)
    density = np.zeros(size**3)
    for corner in range(8):
        index, mass = np.zeros(1, np.int64), np.ones(1)
        for axis in range(3):
            upper = corner >> axis & 1
            index = index * size + (low[axis] + upper) % size
            mass = mass * (weight[axis] if upper else 1.0 - weight[axis])
        density += np.bincount(index, mass, size**3)
    return density.reshape([size] * 3)


def simulate(parameters: Parameters, size: int, rng: np.random.Generator, *, cell: float = 2.0) -> np.ndarray:
    """Simulate today's density of dark matter in a periodic cube, in units of its mean, [size, size, size].

    Args:
      parameters: of the universe.
      size: cells along an edge.
      rng: draws the initial field.
      cell: edge of a cell, Mpc/h.
    """
    modes = gaussian_modes(parameters, size, cell, rng)
    return clouds_in_cells(displacements(modes, parameters.omega_m, cell), cell)


def power_spectrum(density: np.ndarray, cell: float, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power spectrum of a density in a periodic cube, averaged in bins of |k|.

    Args:
      density: in units of its mean, [size, size, size].
      cell: edge of a cell, Mpc/h.
      bins: number of bins, equally wide, up to half the grid's rate.

    Returns:
      (k, power): mean wave number, h/Mpc, and mean power, (Mpc/h)^3, of each bin, [bins].
    """
    size = density.shape[0]
    length, _ = _wave_numbers(size, cell)
    power = np.square(np.abs(np.fft.rfftn(density))) * (cell / size) ** 3
    counts = np.full(length.shape, 2.0)  # a mode and its conjugate
    counts[..., 0] = 1.0
    if size % 2 == 0:
        counts[..., -1] = 1.0
    edges = np.linspace(np.pi / size / cell, np.pi / cell, bins + 1)  # from half the lowest rate on: without the mean
    bin_numbers = np.digitize(length.ravel(), edges) - 1
    inside = (bin_numbers >= 0) & (bin_numbers < bins)
    modes, lengths, powers = (
        np.bincount(bin_numbers[inside], (counts * values).ravel()[inside], bins) for values in (1.0, length, power)
    )
    return lengths / np.maximum(modes, 1), powers / np.maximum(modes, 1)


def check_numbers(*, train: int, test: int, size: int, cell: float, seed: int) -> None:
    """Raise ValueError unless `write_universes` accepts these numbers."""
    for name, value, least in (("train", train, 1), ("test", test, 0), ("size", size, 4), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be a whole number, {least} or more")
    if size > _MOST_CELLS:
        raise ValueError(
            f"size is {size}, and a cube of {size:,} x {size:,} x {size:,} cells does not fit in memory; it must be at "
            f"most {_MOST_CELLS}"
        )
    if not 0 < cell < float("inf"):
        raise ValueError(f"cell is {cell}; it must be a positive length in Mpc/h")


def write_universes(
    directory: str | os.PathLike,
    *,
    train: int,
    test: int,
    size: int = 64,
    cell: float = 2.0,
    seed: int = 0,
    progress: bool = False,
) -> Manifest:
    """Write a set of simulated volumes, log(1 + density) [size, size, size, 1], with their parameters as targets.

    The seed and the number of a volume decide its content.

    Args:
      directory: the place of the set, which must not exist yet.
      train: number of training volumes.
      test: number of test volumes.
      size: cells along an edge.
      cell: edge of a cell, Mpc/h.
      seed: for all parameters and fields.
      progress: whether to show a bar.

    Returns:
      The manifest of the set.

    Raises:
      ValueError: a number is too small or too large, or the directory exists or cannot be written to.
    """
    check_numbers(train=train, test=test, size=size, cell=cell, seed=seed)
    provenance = {
        "method": SIMULATION,
        "values": "log(1 + density)",
        "cell": cell,
        "seed": seed,
        "hubble": HUBBLE,
        "omega_b": OMEGA_B,
        "numpy": np.__version__,
    }
    planes = Planes((size, size, size, 1), "float32", targets=tuple(RANGES))
    hide = None if progress else True
    with (
        write_volumes(directory, planes, provenance=provenance) as writer,
        extras.progress_bar(total=train + test, desc="universes", unit="universe", disable=hide, leave=False) as bar,
    ):
        for number in range(train + test):
            rng = np.random.default_rng([seed, number])
            parameters = draw_parameters(rng)
            density = simulate(parameters, size, rng, cell=cell)
            split = TRAIN if number < train else TEST
            writer.add(split, [(np.log1p(density)[..., None], None)], dataclasses.astuple(parameters))
            bar.update()
    return writer.manifest(provenance)
