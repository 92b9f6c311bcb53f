"""A chat completion, whole and streamed."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("API_KEY", "none")
)
model = os.environ.get("MODEL") or client.models.list().data[0].id
messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Name a city on a coast."}]

answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
print(answer.choices[0].finish_reason, answer.choices[0].message.content)

stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    if chunk.usage:
        cached = chunk.usage.prompt_tokens_details.cached_tokens
        print(f"\n{chunk.usage.prompt_tokens} prompt tokens, {cached} of them cached")
