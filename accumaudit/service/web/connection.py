"""One client's connection: what it costs is bounded in count, in time and in bytes that wait for it."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class Connection(H11Protocol):
    """Closed where it is one too many, sends no whole request for long, or does not take its answer."""

    def __init__(self, most: int, patience: float, **given: Any) -> None:
        super().__init__(**given)
        self._most = most
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._last_cycle: object = self
        """That of the look before; itself, which is none, before the first."""
        self._blocked_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._give_up()
            return
        self._timer = self.loop.call_later(self._patience / 2, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More waits for the client than is held for it."""
        self._blocked_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._blocked_since = None
        super().resume_writing()

    def _look(self) -> None:
        """Give up a client that has owed us something since the look before."""
        cycle: RequestResponseCycle | None = self.cycle
        is_idle = cycle is None or cycle.response_complete or self.transport.is_closing()
        is_blocked = (
            self._blocked_since is not None and self.loop.time() - self._blocked_since >= self._patience
        )
        if is_blocked or (is_idle and cycle is self._last_cycle):
            self._give_up()
            return
        self._last_cycle = cycle if is_idle else self
        self._timer = self.loop.call_later(self._patience / 2, self._look)

    def _give_up(self) -> None:
        """Close at once: without this option the system would keep what was not sent, for minutes."""
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()
