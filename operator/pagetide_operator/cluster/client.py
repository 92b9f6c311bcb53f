"""HTTP with the API server, under the identity that the kubernetes client finds (kubeconfig or service account)."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import kubernetes.client
import kubernetes.config

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.errors import SettingError

TIMEOUT_SECONDS = 30


class ApiError(Exception):
    """The API server refused a request.

    Attributes:
        code: HTTP status; 0 where no answer came.
        reason: the server's word for it, such as `NotFound` or `Forbidden`.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason, self.message = code, reason, message
        super().__init__(message)

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later with nothing changed by anybody."""
        return self.code in (0, 408, 409, 410, 429, 502, 503, 504)


def load_configuration() -> kubernetes.client.Configuration:
    """Where the API server is and who we are: the pod's account, else the kubeconfig.

    Raises:
        kubernetes.config.ConfigException: neither is there.
    """
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException:
        kubernetes.config.load_kube_config(client_configuration=configuration)
    return configuration


def authorization(configuration: kubernetes.client.Configuration) -> str | None:
    """The Authorization header, if any; asked for each time, since a service account's token is renewed on the way."""
    found = configuration.auth_settings().get("BearerToken")
    return str(found["value"]) if found else None


class Client:
    """JSON requests to one API server.

    Raises:
        SettingError: a certificate or key of the configuration cannot be read.
    """

    def __init__(self, configuration: kubernetes.client.Configuration) -> None:
        self._configuration, self._tls = configuration, _tls(configuration)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            ApiError: the server refused it, or could not be reached.
        """
        try:
            async with self._open().request(
                method,
                self._configuration.host + path,
                params=query,
                data=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type, "Accept": "application/json", **self._identity()},
            ) as reply:
                return _checked(reply.status, await reply.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = f"no answer from the API server: {describe_failed_call(error)}"
            raise ApiError(0, "Unreachable", problem) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=32)
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=True)
        return self._session

    def _identity(self) -> dict[str, str]:
        header = authorization(self._configuration)
        return {"Authorization": header} if header else {}


class Fenced(Client):
    """A client that writes only while `may_write` says so: what has lost its right must not act on what it knew."""

    def __init__(self, client: Client, may_write: Callable[[], bool]) -> None:
        self._client, self._may_write = client, may_write

    async def close(self) -> None:
        """Nothing: the connections are the other client's."""

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """As `Client.request`; a write without the right to it is an ApiError that nobody answered."""
        if method != "GET" and not self._may_write():
            raise ApiError(0, "NotLeader", "not the leader any more")
        return await self._client.request(method, path, query, body, content_type)


def _checked(code: int, text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text) if text else {}
    except json.JSONDecodeError:
        body = {"message": text[:500].decode(errors="replace")}
    if code >= 400:
        raise ApiError(code, body.get("reason") or str(code), body.get("message") or f"HTTP status {code}")
    return dict(body)


def _tls(configuration: kubernetes.client.Configuration) -> ssl.SSLContext | bool:
    if not configuration.host.startswith("https"):
        return True
    with _named("certificate-authority", configuration.ssl_ca_cert):
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        with _named("client-certificate", configuration.cert_file):
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


@contextlib.contextmanager
def _named(field: str, path: str | None) -> Iterator[None]:
    """An error within is one of this field of the kubeconfig."""
    try:
        yield
    except OSError as error:  # also what ssl finds wrong with a file
        raise SettingError(field, path, f"cannot be used: {error.strerror or error}") from None
