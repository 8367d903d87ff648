"""The server: a thread of its own, on a socket that is open before anybody is told of it."""

from __future__ import annotations

import functools
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from accumaudit.service.web.connection import Connection
from accumaudit.service.web.options import Options, address
from accumaudit.service.web.security import LARGEST_HEAD, LONGEST_TARGET

if TYPE_CHECKING:
    from starlette.applications import Starlette

STOP_SECONDS: Final = 3
"""That answers under way have before they are cut off."""


class ListenError(Exception):
    """The address cannot be had, or the certificate cannot be used."""


class Server:
    """Serves an application from `start` until `stop`."""

    def __init__(self, app: Starlette, options: Options) -> None:
        self._app = app
        config = _config(app, options)
        try:
            config.load()
        except OSError as error:  # ssl's errors are some of these
            raise ListenError(f"the certificate {options.certificate} cannot be used: {error}") from None
        self._socket = _bound(options)
        host, port = self._socket.getsockname()[:2]
        self.url = (
            f"{'https' if options.certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        )
        """Where it answers."""
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="accumaudit-web", daemon=True)

    @property
    def running(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; what is under way is ended within seconds."""
        self._app.state.stopping.set()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _bound(options: Options) -> socket.socket:
    """A socket that takes connections from now on; they wait for the thread."""
    host, port = address(options.listen)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {options.listen}: {error.strerror}") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        opened.listen(options.connections)
    except OSError as error:
        opened.close()
        raise ListenError(f"cannot listen on {options.listen}: {error.strerror}") from None
    return opened


def _config(app: Starlette, options: Options) -> uvicorn.Config:
    protocol: Any = functools.partial(Connection, options.connections, options.patience)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=options.connections,
        h11_max_incomplete_event_size=LONGEST_TARGET + LARGEST_HEAD,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
