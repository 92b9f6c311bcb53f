"""Where the API server is and who we are: the pod's service account, else a kubeconfig.

Reads the files itself, so that the gateway needs nothing beyond the base install. A kubeconfig may name a token, a
client certificate or a token's file; helper programs (`exec`) and password logins are not supported.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagetide_spec.errors import SettingError

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
    paths = [p for p in environment.get("KUBECONFIG", "").split(os.pathsep) if p]
    path = Path(paths[0]) if paths else Path(environment.get("HOME", "/")) / ".kube" / "config"
    if not paths and not path.exists():
        problem = "no cluster: this is no pod, and there is no kubeconfig; give --service to name replicas by hand"
        raise SettingError("KUBECONFIG", str(path), problem)
    return _from_file(path)


def _file_token(path: Path) -> Callable[[], str | None]:
    return lambda: path.read_text().strip()


def _from_file(path: Path) -> KubeConfig:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        if found := {"proxy-url", "tls-server-name"} & set(cluster):
            raise ValueError(f"{min(found)} is not supported")
        user = _named(document, "users", context["user"])["user"] or {}
        server = str(cluster["server"]).rstrip("/")
        tls = _tls(cluster, user, path.parent) if server.startswith("https") else None
        return KubeConfig(server, tls, _token(user, path.parent), str(path))
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: also wrong base64 and wrong UTF-8
        raise SettingError("KUBECONFIG", str(path), f"cannot be used: {_first_line(error)}") from None
    except (KeyError, TypeError) as error:
        raise SettingError("KUBECONFIG", str(path), f"is not a complete kubeconfig: {error} is missing") from None


def _named(document: Any, kind: str, name: str) -> Any:
    for entry in document[kind]:
        if entry["name"] == name:
            return entry
    raise KeyError(f"{name} in {kind}")


def _token(user: Mapping[str, Any], folder: Path) -> Callable[[], str | None]:
    if "exec" in user or "auth-provider" in user:
        raise ValueError("a login by a helper program is not supported; use a token or a client certificate")
    if "tokenFile" in user:
        return _file_token(folder / user["tokenFile"])
    token = user.get("token")
    return lambda: token


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    data = cluster.get("certificate-authority-data")
    file = cluster.get("certificate-authority")
    context = ssl.create_default_context(
        cafile=str(folder / file) if file else None,
        cadata=base64.b64decode(data).decode() if data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as scratch:
        certificate = _on_disk(user, "client-certificate", folder, Path(scratch))
        if certificate:
            context.load_cert_chain(certificate, _on_disk(user, "client-key", folder, Path(scratch)))
    return context


def _on_disk(user: Mapping[str, Any], field: str, folder: Path, scratch: Path) -> str | None:
    """The field's file; `ssl` reads nothing else."""
    if field in user:
        return str(folder / user[field])
    if f"{field}-data" not in user:
        return None
    path = scratch / field
    path.touch(mode=0o600)
    path.write_bytes(base64.b64decode(user[f"{field}-data"]))
    return str(path)


def _first_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
