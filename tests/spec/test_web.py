"""What the servers share about HTTP."""

import pytest

from pagetide_spec.errors import SettingError
from pagetide_spec.web import listen, request_id_of


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        pytest.param("a" * 128, True, id="the longest"),
        pytest.param("a" * 129, False, id="too long"),
        pytest.param("a b", False, id="with a space"),
        pytest.param("a\nb", False, id="with a line break"),
        pytest.param("\xe9", False, id="not ASCII"),
        pytest.param("", False, id="empty"),
        pytest.param(None, False, id="none"),
    ],
)
def test_the_id_of_a_request_is_kept_where_it_can_be(given, is_kept):
    found = request_id_of(given)
    assert (found == given) == is_kept
    assert is_kept or len(found) == 32


def test_a_free_port_is_taken_for_0_and_is_then_busy():
    with listen("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        with pytest.raises(SettingError, match=f"^--port: {port}: .*in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_number_that_is_no_port_is_refused(port):
    with pytest.raises(SettingError, match="must be from 0 to 65535"):
        listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_told_by_the_host():
    # TEST-NET-1 of RFC 5737: nobody's.
    with pytest.raises(SettingError, match=r"^--host: '192\.0\.2\.1': cannot listen on 192\.0\.2\.1:0: "):
        listen("192.0.2.1", 0)
