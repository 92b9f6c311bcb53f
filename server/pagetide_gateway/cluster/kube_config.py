"""Where the API server is and who we are: the pod's service account, else a kubeconfig.

A pod needs nothing beyond the base install. A kubeconfig is read by the official client, which knows all ways to log in
(`exec` plugins of the clouds among them) and merges several files.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pagetide_spec.errors import SettingError, install_hint

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True)
class KubeConfig:
    """`token` is asked for each time: a service account's is renewed on the way. `tls` is None for plain HTTP."""

    server: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]
    source: str


def load(environment: Mapping[str, str], account: Path = ACCOUNT_FOLDER) -> KubeConfig:
    """The pod's account, or the kubeconfig that KUBECONFIG names, or the one in the home folder.

    Raises:
        SettingError: there is none, or it cannot be used.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if host and (account / "token").exists():
        host = f"[{host}]" if ":" in host else host
        server = f"https://{host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
        try:
            tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise SettingError("ca.crt", str(account / "ca.crt"), f"cannot be used: {_first_line(error)}") from None
        return KubeConfig(server, tls, _file_token(account / "token"), "the pod's service account")
    default = Path(environment.get("HOME", "/")) / ".kube" / "config"
    paths = environment.get("KUBECONFIG", "").strip(os.pathsep) or str(default)
    if paths == str(default) and not default.exists():
        problem = "no cluster: this is no pod, and there is no kubeconfig; give --service to name replicas by hand"
        raise SettingError("KUBECONFIG", paths, problem)
    return _from_kubeconfig(paths)


def _file_token(path: Path) -> Callable[[], str | None]:
    return lambda: path.read_text().strip()


def _from_kubeconfig(paths: str) -> KubeConfig:
    """From one file, or several with a colon between them."""
    try:
        import kubernetes
    except ModuleNotFoundError:
        problem = f"needs the official client: {install_hint('operator')}; or give --service"
        raise SettingError("KUBECONFIG", paths, problem) from None
    found = kubernetes.client.Configuration()
    found.proxy = None  # it begins with the environment's, and aiohttp is not to use that one, either
    try:
        kubernetes.config.load_kube_config(paths, client_configuration=found, persist_config=False)
        if found.proxy or found.tls_server_name:
            raise ValueError("proxy-url and tls-server-name are not supported")
        tls = _tls(found) if found.host.startswith("https") else None
    except Exception as error:  # noqa: BLE001 - files, YAML, certificates, logins: the client lets all errors through
        is_partial = isinstance(error, (AttributeError, KeyError, TypeError))
        problem = "is not a complete kubeconfig" if is_partial else "cannot be used"
        raise SettingError("KUBECONFIG", paths, f"{problem}: {_first_line(error)}") from None
    return KubeConfig(found.host.rstrip("/"), tls, lambda: _token(found), paths)


def _token(configuration: Any) -> str | None:
    """Of a login; the client asks again for one that has expired."""
    found = configuration.auth_settings().get("BearerToken")
    return str(found["value"]).removeprefix("Bearer ") if found else None


def _tls(configuration: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _first_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
