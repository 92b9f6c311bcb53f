"""A tool call, its result, and the model's answer to it."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("API_KEY", "none")
)
model = os.environ.get("MODEL") or client.models.list().data[0].id


def weather(city: str) -> dict[str, object]:
    """What a real program would look up."""
    return {"city": city, "celsius": 18}


city = {"type": "string", "enum": ["Paris", "Rome"]}
parameters = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
messages = [{"role": "user", "content": "How warm is it in Rome?"}]

# "auto" leaves the decision to the model; "required" constrains any model to call a tool.
answer = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=tools,
    tool_choice="required",
    parallel_tool_calls=False,
    max_tokens=200,
    temperature=0,
)
if not answer.choices[0].message.tool_calls:
    raise SystemExit("the call is truncated: raise max_tokens")
call = answer.choices[0].message.tool_calls[0]
print(call.function.name, call.function.arguments)

result = weather(**json.loads(call.function.arguments))
messages += [
    answer.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
]
answer = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="none", max_tokens=32)
print(answer.choices[0].message.content)
