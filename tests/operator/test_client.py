"""What becomes of requests to an API server that is not as it should be."""

import kubernetes.client
import pytest

from pagetide_operator.client import ApiError, Client
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
