"""Ctrl-C is held back while results are put where they belong."""

import os
import signal
import threading

import pytest

from mtf_hetero._support import interrupts


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_at_the_end():
    done = []

    def run() -> None:
        with interrupts.defer():
            press()
            done.append("results")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["results"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_users_handler_gets_it():
    arrived = []
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    try:
        with interrupts.defer():
            press()
            assert not arrived
        assert arrived == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_in_between_is_not_lost():
    def fail() -> None:
        with interrupts.defer():
            press()
            raise OSError

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, OSError)


def test_other_threads_are_left_alone():
    handlers = []

    def run() -> None:
        with interrupts.defer():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
