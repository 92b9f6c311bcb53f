"""What people read of a call that failed."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest
from aiohttp import ClientConnectorCertificateError, ClientConnectorDNSError, ClientConnectorError
from aiohttp.client_reqrep import ConnectionKey

from pagetide_spec.calls import describe_failed_call

KEY = ConnectionKey("h", 80, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(
            ClientConnectorError(KEY, ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")),
            "cannot connect to h:80", id="refused",
        ),
        pytest.param(
            ClientConnectorDNSError(KEY, socket.gaierror(-2, "Name or service not known")),
            "cannot connect to h:80: Name or service not known", id="no such name",
        ),
        pytest.param(
            ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "self-signed certificate")),
            "cannot connect to h:80: self-signed certificate", id="a certificate that nobody trusts",
        ),
        pytest.param(aiohttp.ServerDisconnectedError(), "the connection was closed", id="closed"),
        pytest.param(ValueError("an answer of more than 4 MiB"), "an answer of more than 4 MiB", id="in its own words"),
        pytest.param(TimeoutError(), "TimeoutError", id="without words"),
    ],
)  # fmt: skip
def test_a_failed_call_is_told_without_the_clients_settings(error, said):
    assert describe_failed_call(error) == said


async def test_what_is_told_of_a_port_where_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as caught:
            await session.get(f"http://127.0.0.1:{port}/")
    assert describe_failed_call(caught.value) == f"cannot connect to 127.0.0.1:{port}"
