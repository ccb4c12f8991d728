"""Profiles as JSON text and files."""

import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from mtf_hetero._support import files, loading
from mtf_hetero.speeds.models import Link, Profile, TimeModel

SCHEMA = 1


class ProfileError(ValueError):
    """A file that is not a profile, or one of another version."""


def dumps(profile: Profile) -> str:
    """A profile as JSON."""
    models = {
        device: {key: [list(point) for point in model.points] for key, model in models.items()}
        for device, models in profile.models.items()
    }
    links = [
        {"from": a, "to": b, "latency_seconds": link.latency_seconds, "bytes_per_second": link.bytes_per_second}
        for (a, b), link in profile.links.items()
    ]
    value = {"schema": SCHEMA, "provenance": dict(profile.provenance), "devices": models, "links": links}
    return json.dumps(value, indent=1) + "\n"


def loads(text: str, *, source: str = "the text") -> Profile:
    """A profile from JSON.

    Args:
      text: what `dumps` made.
      source: what a message calls it.

    Raises:
      ProfileError: in one line, what is wrong with it.
    """
    try:
        value = loading.parse_json(text)
    except ValueError as error:
        raise ProfileError(f"{source} is not a profile: {error}; measure again with --fresh") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        schema = value.get("schema") if isinstance(value, dict) else None
        raise ProfileError(f"{source} has schema {schema!r}, not {SCHEMA}; measure again with --fresh")
    try:
        models = {
            device: {key: TimeModel(tuple(points)) for key, points in _mapping(models).items()}
            for device, models in _mapping(value["devices"]).items()
        }
        links = {
            (str(link["from"]), str(link["to"])): Link(link["latency_seconds"], link["bytes_per_second"])
            for link in value["links"]
        }
        provenance = {str(name): str(entry) for name, entry in _mapping(value["provenance"]).items()}
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ProfileError(f"{source} is not a profile: {problem}; measure again with --fresh") from error
    return Profile(models, links, provenance)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return value


def save(profile: Profile, path: str | os.PathLike) -> None:
    """Writes a profile to a file, which is either complete or not there.

    Raises:
      ProfileError: the file cannot be written.
    """
    path = pathlib.Path(path)
    _write(lambda: files.write_text(path, dumps(profile)), path)


def update(profile: Profile, path: str | os.PathLike) -> None:
    """Adds measurements to those in a file, where other processes may add theirs at the same time.

    What is no profile is written over; a file that is not there is begun.

    Raises:
      ProfileError: the file cannot be written.
    """
    path = pathlib.Path(path)

    def merge() -> None:
        with files.locked(path):
            try:
                kept = load(path)
            except ProfileError:
                kept = Profile({})
            files.write_text(path, dumps(kept.merge(profile)))

    _write(merge, path)


def load(path: str | os.PathLike) -> Profile:
    """Reads a profile from a file.

    Raises:
      ProfileError: it cannot be read, or is not a profile.
    """
    try:
        text = files.read_text(path)
    except ValueError as error:
        raise ProfileError(f"profile {str(path)!r} cannot be read: {error}; name another file") from error
    return loads(text, source=str(path))


def _write(action: Callable[[], None], path: pathlib.Path) -> None:
    try:
        action()
    except OSError as error:
        raise ProfileError(f"profile {str(path)!r} cannot be written: {error.strerror}; name another file") from error
