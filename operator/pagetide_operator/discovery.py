"""What a cluster has: which version of each kind, and what of Kubernetes' newer fields it knows."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pagetide_spec.errors import PagetideError

from . import act
from .cluster.client import ApiError, Client
from .cluster.kinds import CHILDREN, MONITOR, OPTIONAL, POOL, RESOURCE, Kind
from .desired.children import Platform

T = TypeVar("T")
logger = logging.getLogger(__name__)

EVICTION_POLICY_SINCE = (1, 27)
RETRY_SECONDS = 1.0


class OperatorError(PagetideError):
    """The operator cannot run, or cannot go on; a restart may help."""


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a request, tried again every RETRY_SECONDS while the server does not answer.

    Raises:
        OperatorError: the server refuses it, and will again.
    """
    while True:
        try:
            return await call()
        except ApiError as error:
            if not error.is_temporary and error.code < 500:
                raise OperatorError(f"API server: {error}") from error
            logger.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_SECONDS)


class Discovery:
    """`versions`: the apiVersion of each kind that this cluster has, by kind."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.versions: dict[str, str] = {}

    async def platform(self, image: str, surge_patience: float) -> Platform:
        """Find out everything; waits for the API server as long as it takes.

        Raises:
            OperatorError: the CRD is not installed.
        """
        await self._look_for((RESOURCE, *CHILDREN, *OPTIONAL))
        if RESOURCE.name not in self.versions:
            raise OperatorError("the CustomResourceDefinition is not installed: pagetide crd | kubectl apply -f -")
        version = await patiently(functools.partial(act.server_version, self._client))
        return Platform(
            image=image,
            budget_version=self.versions["PodDisruptionBudget"],
            has_eviction_policy=version >= EVICTION_POLICY_SINCE,
            **self._options(),
            surge_patience=surge_patience,
        )

    async def options(self) -> dict[str, bool]:
        """Look again for what may come and go while the operator runs: fields of Platform."""
        await self._look_for(OPTIONAL)
        return self._options()

    def _options(self) -> dict[str, bool]:
        return {
            "has_service_monitors": MONITOR.name in self.versions,
            "has_inference_pools": POOL.name in self.versions,
        }

    async def _look_for(self, kinds: Iterable[Kind]) -> None:
        for kind in kinds:
            version = await patiently(functools.partial(act.discover, self._client, kind))
            self.versions.pop(kind.name, None)
            if version is not None:
                self.versions[kind.name] = version
