"""Request bodies of the HTTP API: a field's type and limits, for decoding and for the OpenAPI document.

Unknown fields are refused. Null means the same as leaving a field out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..wire.checks import RANGES


def _within(name: str) -> Meta:
    """The limits of a parameter."""
    low, high, above = RANGES[name]
    return Meta(gt=low, le=high) if above else Meta(ge=low, le=high)


Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Bias = Annotated[float, _within("logit_bias")]
Text = Annotated[str, Meta(max_length=4096)]
# Fit for a header.
RequestId = Annotated[str, Meta(pattern="^[!-~]{1,128}$")]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream has beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's way to ask for a form; exactly one of the first five."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    # How white space between the parts of JSON may look: a regular expression, or none at all.
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    # Refused when true.
    disable_additional_properties: bool | None = None
    # Accepted for clients' sake; it changes nothing here.
    disable_fallback: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What completions and chat completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    temperature: Annotated[float, _within("temperature")] | None = None
    top_p: Annotated[float, _within("top_p")] | None = None
    top_k: Annotated[int, _within("top_k")] | None = None
    min_p: Annotated[float, _within("min_p")] | None = None
    presence_penalty: Annotated[float, _within("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _within("frequency_penalty")] | None = None
    repetition_penalty: Annotated[float, _within("repetition_penalty")] | None = None
    seed: Annotated[int, _within("seed")] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    min_tokens: Natural | None = None
    logit_bias: dict[str, Bias] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: Annotated[int, _within("prompt_logprobs")] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Count | None = None
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Text | None = None
    request_id: RequestId | None = None
    # Accepted for clients' sake; they change nothing here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    guided_decoding_backend: str | None = None
    spaces_between_special_tokens: bool | None = None


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Natural | None = None
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, _within("logprobs")] | None = None
    suffix: str | None = None


class ChatRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    best_of: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, _within("logprobs")] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    # Accepted for clients' sake; they change nothing here.
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    # Refused as not supported; some clients write null for all that is not set.
    audio: None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    web_search_options: None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /tokenize: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int]
