"""A network namespace for this process and its children, in which nobody else can reach their ports.

TensorFlow's server listens on all network interfaces and asks nobody who he is. In a network namespace of its own there
is the loopback interface alone, and that is not the machine's.

The kernel gives one thread a namespace, and those that it starts later; and a user namespace, without which only root
may have a network namespace, to a process of a single thread. TensorFlow starts threads while it is imported. So a
program enters before that, and this module does without TensorFlow.
"""

import ctypes
import os
import socket
import struct
import sys

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # of linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914  # of linux/sockios.h
_IFF_UP = 1
_INTERFACE = "16sh14x"  # struct ifreq, with its flags
_LOOPBACK = "lo"

_failure = (
    "a program can enter a private network only before it imports TensorFlow: call "
    "mtf_hetero.cluster.emulation.isolation.enter() there, as mtf-hetero train does"
)


def enter() -> str:
    """Move this process into a network namespace of its own.

    Returns:
      Why it could not, for the user; "" where it could, or is in one.
    """
    global _failure
    if not why_not():
        return ""
    try:
        _check()
        _try_in_child()
        _unshare()
    except OSError as error:
        _failure = str(error.strerror or error)
    return why_not()


def why_not() -> str:
    """Return the reason why others may reach the ports of this process; "": it has a network of its own."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    return "" if _is_alone() else _failure


def _is_alone() -> bool:
    """Return whether loopback is the only network interface that is up."""
    import fcntl  # Linux alone has it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack(_INTERFACE, name.encode(), 0))
            if name != _LOOPBACK and struct.unpack(_INTERFACE, answer)[1] & _IFF_UP:
                return False
    return True


def _check() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise OSError(
            f"this process already has {threads} threads; the kernel gives a private network only to a single thread"
        )


def _try_in_child() -> None:
    """Try all steps in a child: raises OSError if the kernel refuses one, and this process stays as it is."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _unshare()
        except OSError as error:
            os.write(write_end, str(error.strerror or error).encode())
        except BaseException as error:
            os.write(write_end, repr(error).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        refusal = pipe.read().decode()
    os.waitpid(pid, 0)
    if refusal:
        raise OSError(f"the kernel refuses a network namespace here: {refusal.lower()}")


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET):  # as root; files, devices and control groups stay as they are
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # The user id stays the same: owners of files decide what the user may read, write and limit
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _bring_up(_LOOPBACK)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _bring_up(interface: str) -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack(_INTERFACE, interface.encode(), _IFF_UP))
