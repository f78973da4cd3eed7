"""`iet serve` as a process: its socket, uvicorn's settings, and its log."""

from __future__ import annotations

import ipaddress
import logging
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import uvicorn

from iet.errors import InputError, check_number
from iet.service.access_log import AccessLog
from iet.service.app import AuditService

GRACE_SECONDS = 5.0
"""Added to the time of an audit, for answers to be sent between SIGTERM and the end."""

MAX_HEADER_BYTES = 1 << 14


def listen(host: str, port: int, *, loopback: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        host: name or address.
        port: 0 to 65535; 0 selects a free one.
        loopback: whether to refuse addresses that other machines reach.

    Raises:
        InputError: The host has no address or, with `loopback`, an address that other machines reach; or the
            port is out of range or in use.
    """
    check_number("port", port, 0, 65535)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"host: got {host!r:.80}, which has no address ({error.strerror})") from None
    except UnicodeError:  # from Python's IDNA codec, which checks all names
        raise InputError(
            f"host: got {host!r:.80}, expected an address, or a name with 1 to 63 letters between dots"
        ) from None
    if loopback and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise InputError(
            f"host: got {host!r:.80} and --no-auth, expected 127.0.0.1 or ::1: other machines reach it"
        )
    try:
        listening = socket.create_server(
            address,
            family=family,
            dualstack_ipv6=family is socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise InputError(
            f"host, port: got {host!r:.80}, {port}, where this process cannot listen ({error.strerror})"
        ) from None
    # Connections inherit this; asyncio sets it only for sockets of its own. Without it the body of an answer
    # waits up to 40 ms for the client to acknowledge the headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def run(
    service: AuditService, app: Any, listening: socket.socket, trusted_proxies: Sequence[str] = ()
) -> None:
    """Serve until SIGTERM or SIGINT. Then new requests are refused, and those in progress are finished.

    Args:
        service: what is served.
        app: its ASGI application.
        listening: from `listen`; closed at the end.
        trusted_proxies: addresses or networks of proxies whose X-Forwarded-For names the client.
    """
    limits = service.limits
    config = uvicorn.Config(
        AccessLog(app, service.metrics),
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would show paths, which clients write
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=[form for proxy in trusted_proxies for form in proxy_forms(proxy)],
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=round(limits.seconds + limits.wait + GRACE_SECONDS),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    _UvicornServer(config, service).run(sockets=[listening])


def proxy_forms(proxy: str) -> list[str]:
    """Return an address or a network, and the form of IPv4 that a socket of IPv6 shows."""
    network = ipaddress.ip_network(proxy)
    if network.version == 6:
        return [proxy]
    return [proxy, f"::ffff:{network.network_address}/{96 + network.prefixlen}"]


class _UvicornServer(uvicorn.Server):
    """A server that stops the service before it waits for its requests, and ends with exit code 0."""

    def __init__(self, config: uvicorn.Config, service: AuditService) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: Any = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # uvicorn would raise them again at the end


def log_to_stderr() -> None:
    """Write the log to stderr, without what clients write."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("iet.service", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False
