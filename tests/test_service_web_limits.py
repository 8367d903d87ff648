"""What the service refuses, and how little one client can take from the others."""

from __future__ import annotations

import base64
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from accumaudit.service.board import Board
from accumaudit.service.judging.setup import Asked
from accumaudit.service.snapshot import RunView
from accumaudit.service.web.app import create_app
from accumaudit.service.web.options import Options
from accumaudit.service.web.reports import Reports
from accumaudit.service.web.server import ListenError, Server
from tests.shown import ask, board_of, connected, faulty_run, named, news, serving

pytestmark = pytest.mark.slow  # clients that wait until they are given up

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return faulty_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def server(run: RunView) -> Iterator[Server]:
    with serving(board_of(run)) as started:
        yield started


def test_every_answer_tells_browsers_to_be_strict(server: Server) -> None:
    for target in (
        "/",
        "/runs/faulty",
        "/runs/other",
        "/metrics",
        "/api/runs",
        "/static/live.js",
        "/healthz",
    ):
        headers = ask(server, target).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
    assert ask(server, "/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST.:9464", 200), ("127.0.0.1:1", 200), ("[::1]:9464", 200)),
        *(("evil.example", 421), ("evil.example:9464", 421), ("127.0.0.1.evil.example", 421), ("", 421)),
        *(("localhost@evil.example", 421), ("192.0.2.1", 421), ("[::1", 421), ("a:b:c", 421)),
    ],
)
def test_a_strangers_name_that_leads_here_is_refused(server: Server, host: str, status: int) -> None:
    assert ask(server, "/", {"Host": host}).status == status


def test_names_can_be_allowed_and_addresses_are_right_beyond_loopback(run: RunView) -> None:
    with serving(board_of(run), allowed_hosts=("Monitor.example",)) as server:
        assert ask(server, "/", {"Host": "monitor.example:80"}).status == 200
        assert ask(server, "/", {"Host": "example"}).status == 421
    with serving(board_of(run), listen="0.0.0.0:0") as server:
        for host in ("192.0.2.1:9464", "[2001:db8::1]", "localhost", socket.gethostname()):
            assert ask(server, "/", {"Host": host}).status == 200
        assert ask(server, "/", {"Host": "evil.example"}).status == 421


def test_pages_of_other_sites_cannot_read_and_links_there_may_lead_here(server: Server) -> None:
    from_elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert ask(server, "/events", from_elsewhere).status == 403
    assert ask(server, "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200
    assert ask(server, "/api/runs", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}).status == 200
    assert "access-control-allow-origin" not in ask(server, "/", {"Origin": "http://evil.example"}).headers


def test_a_token_is_asked_for_everywhere_but_for_the_sign_of_life(run: RunView) -> None:
    def basic(text: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    with serving(board_of(run), token=TOKEN) as server:
        for target in ("/", "/runs/faulty", "/metrics", "/api/runs", "/events", "/readyz", "/static/live.js"):
            answer = ask(server, target)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == 'Bearer, Basic realm="accumaudit", charset="UTF-8"'
            assert "faulty" not in answer.text
        assert ask(server, "/healthz").status == 200
        for given in ({"Authorization": f"Bearer {TOKEN}"}, basic(f"anybody:{TOKEN}"), basic(f":{TOKEN}")):
            assert ask(server, "/", given).status == 200
        for wrong in (
            *({"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Bearer {TOKEN[:-1]}"}),
            *({"Authorization": TOKEN}, {"Authorization": "Bearer"}, {"Authorization": "Basic ===="}),
            *(basic(TOKEN), {"Authorization": "Bearer \xff\xfe"}, {"Authorization": f"Digest {TOKEN}"}),
        ):
            assert ask(server, "/", wrong).status == 401
        assert ask(server, f"/?token={TOKEN}").status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "NONSENSE"])
def test_nothing_can_be_changed(server: Server, method: str) -> None:
    answer = ask(server, "/api/runs", method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_what_no_honest_client_sends_is_refused(server: Server) -> None:
    assert ask(server, "/", body=b"x" * 10).status == 413
    assert ask(server, "/", {"Transfer-Encoding": "chunked"}).status == 413
    assert ask(server, "/?" + "q" * 20_000).status == 414
    assert ask(server, "/runs/" + "n" * 12_000).status == 404
    assert ask(server, "/", {"X-Large": "h" * 40_000}).status == 431
    assert ask(server, "/", method="HEAD").body == b""
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 500 + b"\r\n\r\n",
    ):
        with connected(server) as client:
            client.sendall(nonsense)
            assert client.recv(100).startswith(b"HTTP/1.1 400")
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x" * 24}
    assert ask(server, "/", upgrade).status == 200


def test_a_request_that_does_not_end_is_not_kept(run: RunView) -> None:
    with serving(board_of(run), patience=3600) as server, connected(server) as client:
        with suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"GET / HTTP/1.1\r\nX-Large: " + b"h" * 1000)
        assert _ended(client)


def test_a_bounded_number_of_clients_waits_fornews(run: RunView) -> None:
    with serving(board_of(run), streams=2) as server, news(server) as first:
        next(first)
        with news(server) as second:
            next(second)
            busy = ask(server, "/events")
            assert (busy.status, busy.headers["retry-after"]) == (503, "5")
        _ask_until(server, "/events", 200, method="HEAD")


def test_a_bounded_number_of_connections_is_held(run: RunView) -> None:
    with serving(board_of(run), connections=3) as server:
        held = [connected(server) for _ in range(3)]
        with suppress(ConnectionResetError), connected(server) as one_too_many:  # or not even seen to stand
            assert _ended(one_too_many)
        held.pop().close()
        _ask_until(server, "/healthz", 200)
        for client in held:
            client.close()


def test_who_sends_half_a_request_or_nothing_is_given_up(run: RunView) -> None:
    with (
        serving(board_of(run), patience=0.2) as server,
        connected(server) as silent,
        connected(server) as slow,
    ):
        slow.sendall(b"GET / HTTP/1.1\r\nHost: local")
        assert _ended(silent)
        assert _ended(slow)
        with connected(server) as again:
            again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /")
            _until(again, b"ok\n")
            assert _ended(again)


def test_who_does_not_take_the_answer_is_given_up_and_others_are_served(run: RunView) -> None:
    large = board_of(*(named(run, f"run-{index}") for index in range(100)))
    with serving(large, patience=0.3) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        slow.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        assert ask(server, "/healthz").status == 200
        gone = select.poll()
        gone.register(slow, 0)  # an end alone: what has come is not read
        assert gone.poll(60_000)
        slow.close()


def test_stopping_ends_waiting_clients_and_frees_the_port(run: RunView) -> None:
    with serving(board_of(run)) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        client = connected(server)
        client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _until(client, b"data: ")
        assert server.running
        server.stop()
        assert not server.running
        assert _ended(client)
        client.close()
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(address)


def test_a_server_over_tls_shows_its_certificate(run: RunView, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    with serving(board_of(run), certificate=certificate, key=key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert ask(server, "/healthz", trusted=certificate).text == "ok\n"
    with pytest.raises(ListenError, match=r"the certificate .*missing\.pem cannot be used: .*No such file"):
        _server(certificate=tmp_path / "missing.pem")
    with pytest.raises(ListenError, match=r"cannot be used"):
        _server(certificate=certificate)  # without its key


def test_an_address_that_is_taken_or_none_is_said(run: RunView) -> None:
    with serving(board_of(run)) as server:
        taken = server.url.removeprefix("http://")
        with pytest.raises(ListenError, match=f"cannot listen on {taken}: Address already in use"):
            _server(listen=taken)
    with pytest.raises(ListenError, match=r"cannot listen on nowhere\.invalid:0: "):
        _server(listen="nowhere.invalid:0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listen": "9464"}, "'9464' is no HOST:PORT"),
        ({"listen": ":9464"}, "':9464' is no HOST:PORT"),
        ({"listen": "localhost:70000"}, "is no HOST:PORT"),
        ({"listen": "::1:9464"}, "an IPv6 address stands in brackets"),
        ({"token": "short"}, "a token has at least 16 characters"),
        ({"token": "ü" * 20}, "printable ASCII"),
        ({"key": Path("key.pem")}, "a key for TLS needs its certificate too"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**given)  # type: ignore[arg-type]


def test_listening_beyond_loopback_is_warned_of() -> None:
    for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"):
        assert Options(listen=listen).warnings == []
    for listen in ("0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"):
        assert Options(listen=listen).warnings == [
            f"{listen} can be reached from other machines.",
            "Whoever reaches it reads everything: a token would keep strangers out.",
            "What it sends can be read on the way: a certificate would encrypt it.",
        ]
    safe = Options(listen="0.0.0.0:1", token=TOKEN, certificate=Path("c.pem"))
    assert safe.warnings == ["0.0.0.0:1 can be reached from other machines."]


def _server(**options: object) -> Server:
    """One that is made and never started."""
    given = Options(**{"listen": "127.0.0.1:0", **options})  # type: ignore[arg-type]
    return Server(create_app(Board(), given, Reports(Asked())), given)


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def _until(client: socket.socket, end: bytes) -> bytes:
    """Read until these bytes have come."""
    read = b""
    while end not in read:
        more = client.recv(65536)
        assert more, f"the connection ended after {read!r}"
        read += more
    return read


def _ended(client: socket.socket) -> bool:
    """Wait until the server has closed the connection."""
    with suppress(ConnectionError):
        while client.recv(65536):
            pass
    return True


def _ask_until(server: Server, target: str, status: int, method: str = "GET") -> None:
    """Ask again until the server knows that a client has gone."""
    for _ in range(600):
        with suppress(ConnectionError):
            if ask(server, target, method=method).status == status:
                return
        time.sleep(0.05)
    raise AssertionError(f"{target} was never answered with {status}")
