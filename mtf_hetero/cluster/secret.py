"""The secret that a training and the workers that register with it share.

It is an environment variable, which only its user can read, and never an argument, which all users of a machine see. It
is not sent: each side signs what it sends, and a number that the other side has drawn, so that no message can be used
again.
"""

import hashlib
import hmac
import json
import os
import secrets

VARIABLE = "MTF_HETERO_SECRET"
_LEAST_CHARACTERS = 16  # whoever records a signature can try all short secrets on it


def read() -> bytes | None:
    """Return the secret of this process; None: there is none.

    Raises:
      ValueError: it is too short.
    """
    text = os.environ.get(VARIABLE, "")
    if 0 < len(text) < _LEAST_CHARACTERS:
        raise ValueError(
            f"{VARIABLE} has {len(text)} characters; it needs {_LEAST_CHARACTERS} or more, such as the output of "
            "`openssl rand -hex 16`"
        )
    return text.encode(errors="surrogateescape") or None


def draw() -> str:
    """Return a random number as text."""
    return secrets.token_hex(16)


def sign(key: bytes, *parts: object) -> str:
    """Return the signature of values that JSON has."""
    return hmac.new(key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def is_signed(key: bytes, signature: object, *parts: object) -> bool:
    """Return whether a signature is that of some values."""
    return isinstance(signature, str) and hmac.compare_digest(signature.encode(), sign(key, *parts).encode())
