"""What the server reports before and after a run: its model, the length of words, its metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

import aiohttp

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.names import PATH_METRICS

from .prompts import Prompts, Ruler, ruler

# Lengths, in words, by which a word is measured.
SHORT, LONG = 64, 512
TIMEOUT = aiohttp.ClientTimeout(total=60)


class TargetError(PagetideError):
    """The server cannot be measured: it does not answer, or not as an OpenAI server does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """The model under load; what the server does not report is None."""

    name: str
    vocab_size: int | None = None
    max_model_len: int | None = None


class Target:
    """One server. A context manager that closes its connections.

    Args:
        url: without `/v1`.
        headers: for every request.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._session = aiohttp.ClientSession(headers=headers, timeout=TIMEOUT)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def model(self, wanted: str | None) -> Model:
        """The model of that name, or the only one.

        Raises:
            SettingError: the server has several, or not this one.
            TargetError: no answer, or the server has no list of models and none was named.
        """
        status, answer = await self._call("GET", "/v1/models")
        if status == 401:
            raise TargetError(f"{self._url} wants an API key: --api-key KEY")
        if status != 200 and wanted is None:
            raise TargetError(f"{self._url}/v1/models answers {status}; name the model: --model NAME")
        found = answer.get("data") if status == 200 and isinstance(answer, dict) else None
        cards = {c["id"]: c for c in found or [] if isinstance(c, dict) and isinstance(c.get("id"), str)}
        return chosen(cards, wanted)

    async def measure(self, model: str, prompts: Prompts, chat: bool) -> Ruler:
        """How long words are: by /tokenize, or where there is none by the `usage` of two small requests.

        Raises:
            TargetError: neither reports it.
        """
        points = []
        for words in (SHORT, LONG):
            text = prompts.words(words)
            count = await self._tokenized(model, text, chat) or await self._used(model, text, chat)
            points.append((words, count))
        try:
            return ruler(*points)
        except ValueError as error:
            raise TargetError(f"{self._url} counts tokens strangely: {error}") from None

    async def metrics(self) -> str:
        """The text of /metrics; empty where there is none."""
        try:
            async with self._session.get(self._url + PATH_METRICS) as response:
                return await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
            return ""

    async def _tokenized(self, model: str, text: str, chat: bool) -> int | None:
        what = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        status, answer = await self._call("POST", "/tokenize", {"model": model, **what})
        count = answer.get("count") if isinstance(answer, dict) else None
        return count if status == 200 and isinstance(count, int) else None

    async def _used(self, model: str, text: str, chat: bool) -> int:
        what = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        status, answer = await self._call("POST", path, {"model": model, **what, "max_tokens": 1})
        usage = answer.get("usage") if isinstance(answer, dict) else None
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if status != 200 or not isinstance(count, int):
            raise TargetError(f"{self._url}{path} answers {status} without usage: {str(answer)[:300]}")
        return count

    async def _call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                is_json = response.content_type == "application/json"
                return response.status, await (response.json() if is_json else response.text())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise TargetError(f"{self._url}{path} does not answer: {describe_failed_call(error)}") from None


def chosen(cards: dict[str, dict[str, Any]], wanted: str | None) -> Model:
    """The model that is meant, out of the server's list; an empty list has nothing against any name.

    Raises:
        SettingError: it is not clear which one, or not in the list.
        TargetError: there is none.
    """
    if not cards:
        if wanted is None:
            raise TargetError("the server lists no model; name it: --model NAME")
        return Model(wanted)
    if wanted is None and len(cards) > 1:
        raise SettingError("--model", None, f"the server has several, choose one of {', '.join(cards)}")
    name = next(iter(cards)) if wanted is None else wanted
    if name not in cards:
        raise SettingError("--model", name, f"the server has only {', '.join(cards)}")
    numbers = (cards[name].get(key) for key in ("vocab_size", "max_model_len"))
    return Model(name, *(n if isinstance(n, int) else None for n in numbers))
