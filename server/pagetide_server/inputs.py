"""What `LLM` is given, in all the forms in which its users write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.errors import SettingError

from .wire.checks import plain_number
from .wire.messages import SamplingParams

# Text, token ids, or either under vLLM's names: {"prompt": text} or {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


def one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """The parameters of each of `count` prompts.

    Raises:
        SettingError: a list of them has another length.
    """
    if params is None or not isinstance(params, Sequence):
        return [SamplingParams() if params is None else params] * count
    if len(params) != count:
        raise SettingError("params", f"{len(params)} entries", f"must be one, or {count}: one a prompt")
    return list(params)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list; one alone is a list of one.

    Raises:
        SettingError: they are nothing that can be listed.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    try:
        each = list(prompts)
    except TypeError:
        raise SettingError("prompts", prompts, "must be text, a list of token ids, or a list of these") from None
    # Of an iterator nothing is left but `each`.
    return [each] if each and all(isinstance(plain_number(p), int) for p in each) else each  # type: ignore


def plain(prompt: Prompt) -> str | Sequence[int]:
    """The text or the ids of a prompt, also where they stand under a name.

    Raises:
        SettingError: it has other names.
    """
    if not isinstance(prompt, Mapping):
        return prompt
    known = [name for name in ("prompt_token_ids", "prompt") if name in prompt]
    if len(known) != 1 or len(prompt) != 1:
        raise SettingError("prompt", dict(prompt), "must have one entry, prompt or prompt_token_ids")
    return prompt[known[0]]  # type: ignore[no-any-return]


def as_ids(prompt: Any) -> list[int]:
    """Ids as plain numbers, of an array too; whether they are ids is not checked.

    Raises:
        SettingError: they cannot be listed.
    """
    try:
        return [plain_number(token_id) for token_id in prompt]
    except TypeError:
        raise SettingError("prompt", prompt, "must be text or a list of token ids") from None


def as_conversations(given: Any) -> list[list[Message]]:
    """Conversations as lists of messages; one alone, or one message, is a list of one.

    Raises:
        SettingError: they are something else; what a message holds is for the template to judge.
    """
    try:
        each = [given] if isinstance(given, Mapping) else list(given)
        found = [each] if not each or isinstance(each[0], Mapping) else [list(messages) for messages in each]
    except TypeError:
        raise SettingError("messages", given, _CONVERSATIONS) from None
    if not all(isinstance(message, Mapping) for messages in found for message in messages):
        raise SettingError("messages", given, _CONVERSATIONS)
    return found


_CONVERSATIONS = "must be a list of messages such as {'role': 'user', 'content': ...}, or a list of such lists"
