"""What the server is told: where it listens, who may ask, and how much it takes on."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHORTEST_TOKEN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked as it is made: ValueError says what is wrong."""

    listen: str = "127.0.0.1:9464"
    """HOST:PORT, [ADDRESS]:PORT for IPv6; port 0 takes a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, without a port, by which the service may be asked besides its own."""
    token: str | None = None
    """What a request must bring; None: nothing."""
    certificate: Path | None = None
    """A PEM file with the certificate and its chain; None: no TLS."""
    key: Path | None = None
    """A PEM file with the certificate's key; None: it is in the same file."""
    connections: int = 128
    """Held at once; more are closed as they come."""
    streams: int = 32
    """Browsers that wait for news at once."""
    patience: float = 20.0
    """Seconds that a client may take to send a request, or to take what it was sent."""

    def __post_init__(self) -> None:
        address(self.listen)
        if self.key and not self.certificate:
            raise ValueError("a key for TLS needs its certificate too")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ValueError(f"a token has at least {SHORTEST_TOKEN} characters, or it is guessed")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ValueError("a token is made of printable ASCII characters")

    @property
    def on_loopback(self) -> bool:
        """Whether this machine alone can ask."""
        return is_loopback(address(self.listen)[0])

    @property
    def warnings(self) -> list[str]:
        """What somebody who starts the service so should know, in sentences."""
        if self.on_loopback:
            return []
        found = [f"{self.listen} can be reached from other machines."]
        if self.token is None:
            found.append("Whoever reaches it reads everything: a token would keep strangers out.")
        if self.certificate is None:
            what = "it sends" if self.token is None else "it sends, and the token,"
            found.append(f"What {what} can be read on the way: a certificate would encrypt it.")
        return found


def address(listen: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{listen!r} is no HOST:PORT (127.0.0.1:9464, [::1]:9464)")
    if ":" in host and not bracketed:
        raise ValueError(f"{listen!r}: an IPv6 address stands in brackets, [::1]:9464")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and no other can reach it there."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Whether a host is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
