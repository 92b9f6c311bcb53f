"""Where the API server is and who we are."""

from __future__ import annotations

import datetime
import os
import sys

import pytest

from pagetide_gateway.cluster.kube_config import load
from pagetide_spec.errors import SettingError

KUBECONFIG = """
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1/"}}]
users: [{name: u, user: {token: tok}}]
"""


def test_a_kubeconfig_is_read(tmp_path):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    config = load({"KUBECONFIG": str(path)}, tmp_path)
    assert (config.server, config.tls, config.token()) == ("http://127.0.0.1:1", None, "tok")


def test_a_login_by_a_program_is_renewed_when_it_expires(tmp_path):
    """As the kubeconfigs of EKS, GKE and AKS name one."""
    program, path = tmp_path / "login", tmp_path / "config"
    past = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    program.write_text(f"""#!{sys.executable}
import json, pathlib
count = pathlib.Path({str(tmp_path / "count")!r})
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
status = {{"token": f"tok{{number}}", "expirationTimestamp": {past!r}}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
""")
    program.chmod(0o755)
    login = f'exec: {{apiVersion: "client.authentication.k8s.io/v1", command: "{program}"}}'
    path.write_text(KUBECONFIG.replace("token: tok", login))
    config = load({"KUBECONFIG": str(path)}, tmp_path)
    first, second = config.token(), config.token()
    assert first.startswith("tok")
    assert second.startswith("tok")
    assert first != second


def test_a_proxy_of_the_environment_is_not_one_of_the_kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    assert load({"KUBECONFIG": str(path)}, tmp_path).token() == "tok"


def test_several_files_are_merged(tmp_path):
    (tmp_path / "users").write_text("users: [{name: u, user: {token: merged}}]\n")
    (tmp_path / "rest").write_text(KUBECONFIG.replace("users: [{name: u, user: {token: tok}}]", "users: []"))
    paths = os.pathsep.join((str(tmp_path / "rest"), str(tmp_path / "users")))
    assert load({"KUBECONFIG": paths}, tmp_path).token() == "merged"


def test_without_the_official_client_the_way_out_is_said(tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(SettingError, match="operator"):
        load({"KUBECONFIG": str(path)}, tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(KUBECONFIG.replace("current-context: x", "current-context: y"), "name y in", id="no context"),
        pytest.param("{", "cannot be used", id="no YAML"),
        pytest.param(
            KUBECONFIG.replace("{server:", "{proxy-url: http://p, server:"), "proxy-url .* not supported", id="a proxy"
        ),
        pytest.param("[]", "not a complete", id="a list"),
        pytest.param(
            KUBECONFIG.replace('server: "http', 'certificate-authority: nowhere, server: "https'),
            "nowhere",
            id="no certificate",
        ),
    ],
)
def test_a_wrong_kubeconfig_is_named(text, problem, tmp_path):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingError, match=problem):
        load({"KUBECONFIG": str(path)}, tmp_path)


def test_no_cluster_at_all_says_the_way_out(tmp_path):
    with pytest.raises(SettingError, match="--service"):
        load({"HOME": str(tmp_path)}, tmp_path)


def test_a_service_accounts_token_is_read_anew(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("one\n")
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: cafile)
    config = load({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert config.server == "https://[fd00::1]:6443"
    assert config.token() == "one"
    (tmp_path / "token").write_text("two\n")
    assert config.token() == "two"


def test_a_service_account_without_a_certificate_is_named(tmp_path):
    (tmp_path / "token").write_text("one\n")
    with pytest.raises(SettingError, match=r"ca\.crt"):
        load({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
