"""What one reconcile of a service does, against an API server that answers as told."""

import pytest

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.cluster.store import Store
from pagetide_operator.desired.children import Platform
from pagetide_operator.reconcile import CROSSED_RETRY_SECONDS, Reconciler
from pagetide_operator.verdicts.capacity import Meter
from pagetide_spec.names import API_VERSION, KIND

NAME = ("team", "llm")
# Invalid, so that all there is to do is to say so.
RESOURCE = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "llm", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 1},
    "spec": {"model": {"uri": "nowhere"}},
}


class Server:
    """Holds one service; a write of its status fails as told."""

    def __init__(self, error):
        self._error = error

    async def request(self, method, path, *_):
        if method == "PATCH":
            raise self._error
        return RESOURCE


def reconciler(error):
    store = Store()
    store.put(KIND, RESOURCE)
    return Reconciler(Server(error), store, Platform("image"), Meter(None, None))


async def test_a_status_that_somebody_else_has_just_written_is_decided_anew():
    assert await reconciler(ApiError(409, "Conflict", "stale")).reconcile(NAME) == CROSSED_RETRY_SECONDS


async def test_a_status_that_cannot_be_written_is_an_error():
    with pytest.raises(ApiError, match="no room"):
        await reconciler(ApiError(500, "InternalError", "no room")).reconcile(NAME)
