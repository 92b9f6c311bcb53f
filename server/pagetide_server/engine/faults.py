"""What may go wrong in a step, as types: whether the request, or the whole engine, has to end."""

from __future__ import annotations

from pagetide_spec.errors import PagetideError

from ..wire.messages import ErrorKind


class DeviceLost(PagetideError):
    """The device computes nothing any more: no later step can succeed, and the process should end."""


class Busy(PagetideError):
    """There is no room for a request now; it may be sent again later."""


class RequestFault(PagetideError):
    """What a request asks for cannot be done, as only its answer shows: the client must change it."""

    kind: ErrorKind = "invalid"


class StructureFault(RequestFault):
    """The structure of an answer cannot be followed to its end."""

    kind: ErrorKind = "structure"
