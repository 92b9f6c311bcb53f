"""Whose fault it is when an exchange fails."""

from __future__ import annotations

import errno
import socket

import pytest
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientOSError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey

from pagetide_gateway.replicas.upstream import fault_of

KEY = ConnectionKey("h", 80, False, True, None, None, None)


def failed_to_connect(number: int) -> ClientConnectorError:
    return ClientConnectorError(KEY, OSError(number, "x"))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        pytest.param(failed_to_connect(errno.ECONNREFUSED), "process", id="refused"),
        pytest.param(ServerDisconnectedError(), "process", id="closed"),
        pytest.param(ClientOSError(errno.ECONNRESET, "x"), "process", id="reset"),
        pytest.param(failed_to_connect(errno.EHOSTUNREACH), "machine", id="no such machine"),
        pytest.param(failed_to_connect(errno.ETIMEDOUT), "machine", id="silence"),
        pytest.param(failed_to_connect(errno.EMFILE), "ours", id="too many open files"),
        pytest.param(failed_to_connect(errno.EADDRNOTAVAIL), "ours", id="no free port"),
        pytest.param(failed_to_connect(errno.ENETUNREACH), "ours", id="no network"),
        pytest.param(ClientConnectorDNSError(KEY, socket.gaierror(-3, "try again")), "ours", id="no DNS"),
    ],
)
def test_fault_of(error, fault):
    assert fault_of(error) == fault
