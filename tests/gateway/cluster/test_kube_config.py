"""Where the API server is and who we are."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(KUBECONFIG.replace("token: tok", "exec: {command: x}"), "helper program", id="a login helper"),
        pytest.param(KUBECONFIG.replace("current-context: x", "current-context: y"), "y in contexts", id="no context"),
        pytest.param("{", "cannot be used", id="no YAML"),
        pytest.param(
            KUBECONFIG.replace("{server:", "{proxy-url: http://p, server:"), "proxy-url is not supported", id="a proxy"
        ),
        pytest.param("[]", "not a complete", id="a list"),
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
