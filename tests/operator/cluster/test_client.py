"""What becomes of requests to an API server that is not as it should be."""

import kubernetes.client
import pytest

from pagetide_operator.act import server_version
from pagetide_operator.cluster.client import ApiError, Client, Fenced
from pagetide_spec.errors import SettingError


def configuration(**more):
    out = kubernetes.client.Configuration()
    out.host = "https://127.0.0.1:1"
    for name, value in more.items():
        setattr(out, name, value)
    return out


@pytest.mark.parametrize(
    ("field", "attribute", "content"),
    [
        pytest.param("certificate-authority", "ssl_ca_cert", None, id="no such file"),
        pytest.param("certificate-authority", "ssl_ca_cert", "no certificate", id="a CA that is none"),
        pytest.param("client-certificate", "cert_file", "no certificate", id="a client certificate that is none"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(field, attribute, content, tmp_path):
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=f"^{field}: '{path}': cannot be used: "):
        Client(configuration(**{attribute: str(path)}))


async def test_who_does_not_answer_is_told_with_the_reason():
    client = Client(configuration())
    with pytest.raises(ApiError, match=r"127\.0\.0\.1:1") as caught:
        await client.request("GET", "/api/v1")
    await client.close()
    assert caught.value.is_temporary


class Server:
    """Answers everything, and remembers it."""

    def __init__(self):
        self.asked = []

    async def request(self, method, path, *_):
        self.asked.append((method, path))
        return {"is": "answered"}


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
async def test_a_fenced_client_reads_always_and_writes_with_the_right_to_it(method):
    server, rights = Server(), [True]
    client = Fenced(server, lambda: rights[0])
    assert await client.request(method, "/one") == {"is": "answered"}
    rights[0] = False
    assert await client.request("GET", "/two") == {"is": "answered"}
    with pytest.raises(ApiError, match="not the leader") as caught:
        await client.request(method, "/three")
    assert caught.value.is_temporary  # no word of it gets into a status
    assert server.asked == [(method, "/one"), ("GET", "/two")]


@pytest.mark.parametrize(
    ("major", "minor", "version"),
    [
        pytest.param("1", "20", (1, 20), id="plain"),
        pytest.param("1", "27+", (1, 27), id="of a managed cluster"),
        pytest.param("1", "31-eks", (1, 31), id="with words behind it"),
        pytest.param("1", "", (1, 0), id="nothing to read: as old as can be"),
    ],
)
async def test_a_servers_version_is_read_whatever_stands_behind_it(major, minor, version):
    class Versioned:
        async def request(self, method, path, *_):
            return {"major": major, "minor": minor}

    assert await server_version(Versioned()) == version
