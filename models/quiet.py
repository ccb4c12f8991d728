"""Holds back what native code writes to the standard error, which no Python setting reaches."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def stderr_held_back() -> Iterator[None]:
    """Sends file descriptor 2 to a temporary file; after an error that is none of the user's, shows what came.

    TensorFlow writes several lines about the CPU and about missing GPU drivers while it is imported, whatever
    TF_CPP_MIN_LOG_LEVEL says. ValueError, NotImplementedError, KeyboardInterrupt and SystemExit are the caller's to
    report.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back:
        stderr = os.dup(2)
        os.dup2(held_back.fileno(), 2)
        show = False
        try:
            yield
        except (ValueError, NotImplementedError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            show = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            if show:
                held_back.seek(0)
                sys.stderr.write(held_back.read().decode(errors="replace"))
