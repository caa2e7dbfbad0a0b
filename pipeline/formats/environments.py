"""The LMDB environments that this process has open, and what must happen to them at a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import lmdb


class Environment:
    """One open environment; closes when its last user lets go.

    Attributes:
        handle: the lmdb.Environment.
        leases: ids of the leases whose views may still be looked at; a dictionary, since a lease may end anywhere.
        spare: open read transactions that no lease holds.
    """

    def __init__(self, path: Path) -> None:
        self.leases: dict[int, None] = {}
        self.spare: deque[Any] = deque()
        self.handle: Any = lmdb.open(
            str(path),
            subdir=False,
            readonly=True,
            create=False,
            lock=False,
            readahead=False,
            meminit=False,
            max_spare_txns=16,
        )


class Environments:
    """Open environments, one for a file however many sources read it, since LMDB allows no more in a process.

    A forked child inherits them as open and must close them before it can open its own; lmdb's close waits for reads
    in flight, and for those of a thread that the child does not have it would wait for ever. So look-ups happen inside
    `with environments:`, a fork first waits until none is in flight, and the child closes what it inherited at once,
    unless views into it live on. Decoding from a view happens outside, so no fork waits for a decoder.
    """

    def __init__(self) -> None:
        self._fork_hooks = False
        self._reset()

    def _reset(self) -> None:
        self._gate = threading.Lock()
        self._idle = threading.Condition(self._gate)
        self._in_flight = 0
        self._opening = threading.Lock()
        self._open: weakref.WeakValueDictionary[tuple[int, int], Environment] = weakref.WeakValueDictionary()

    def __enter__(self) -> None:
        with self._gate:
            self._in_flight += 1

    def __exit__(self, *unused: object) -> None:
        with self._gate:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.notify_all()

    def open(self, path: Path) -> Environment:
        """The environment of a data file, opened unless it is. Call it inside `with environments:`.

        Raises:
            lmdb.Error, OSError: as `lmdb.open`.
        """
        status = os.stat(path)
        key = (status.st_dev, status.st_ino)
        with self._opening:
            if not self._fork_hooks:
                # At the first use, not at import; a child inherits the hooks and this flag.
                os.register_at_fork(
                    before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
                )
                self._fork_hooks = True
            environment = self._open.get(key)
            if environment is None:
                environment = self._open[key] = Environment(path)
            return environment

    def _before_fork(self) -> None:
        self._gate.acquire()
        while self._in_flight:
            self._idle.wait()

    def _after_fork(self) -> None:
        self._gate.release()

    def _after_fork_in_child(self) -> None:
        inherited = list(self._open.items())
        self._reset()
        for key, environment in inherited:
            if environment.leases:
                # Views into it live on in this process, too, so its map must stay. It is read without locks and never
                # written, so that nothing but the map is shared with the parent, and the child can go on with it.
                self._open[key] = environment
            else:
                # Unmaps it here; the parent's stays as it is.
                environment.handle.close()


ENVIRONMENTS = Environments()
