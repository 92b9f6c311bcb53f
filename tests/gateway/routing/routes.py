"""Prompts in one line, and requests that go and end."""

from __future__ import annotations

from pagetide_gateway.routing.routers import Prompt, RoundRobin, Ticket

ABC = ("a", "b", "c")


def prompt(*blocks: int, block_tokens: float = 100, **more) -> Prompt:
    return Prompt(blocks, len(blocks) * block_tokens, block_tokens, **more)


def go(router, what: Prompt, now: float = 0.0, candidates=ABC) -> Ticket:
    return router.send(what, router.choose(what, candidates, now), now)


def done(router, ticket: Ticket, now: float) -> None:
    router.first_token(ticket, now)
    router.end(ticket, now)


def turns(*candidates, router=None) -> str:
    router = router or RoundRobin()
    return "".join(go(router, Prompt(), candidates=c).replica for c in candidates)
