"""The versions of installed packages."""

from importlib import metadata


def version(package: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
