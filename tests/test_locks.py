"""Locks: exclusive, reentrant, copied as new ones, free after a fork."""

import copy
import pickle
import threading

from qipf.locks import Lock
from tests.forks import in_child


def test_one_thread_at_a_time_may_hold_it_again_and_again():
    lock, held, entered = Lock(), threading.Event(), threading.Event()

    def enter():
        held.wait()
        with lock:
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    with lock, lock:
        held.set()
        assert not entered.wait(0.1)
    thread.join()
    assert entered.is_set()


def test_copies_are_free_locks_of_their_own():
    lock, found = Lock(), []

    def enter(copied):
        with copied:
            found.append(copied)

    with lock:
        for copied in (pickle.loads(pickle.dumps(lock)), copy.deepcopy(lock)):
            thread = threading.Thread(target=enter, args=(copied,))
            thread.start()
            thread.join()
    assert len({id(each) for each in (lock, *found)}) == 3


def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    lock, held, over = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait()

    def enter():
        with lock:
            return True

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(enter)
    finally:
        over.set()
        thread.join()
