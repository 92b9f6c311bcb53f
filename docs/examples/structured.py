"""Structured output: JSON by a schema, a choice, and a regular expression."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("BASE_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("API_KEY", "none")
)
model = os.environ.get("MODEL") or client.models.list().data[0].id

schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
answer = client.completions.create(
    model=model,
    prompt="A city and its people as JSON: ",
    max_tokens=100,
    extra_body={"structured_outputs": {"json": schema}},
)
if answer.choices[0].finish_reason != "stop":
    raise SystemExit("the JSON is truncated: raise max_tokens")
print(json.loads(answer.choices[0].text))

for prompt, form in (
    ("The capital of Italy is ", {"choice": ["Paris", "Rome"]}),
    ("Date: ", {"regex": "[0-9]{4}-[0-9]{2}"}),
):
    body = {"structured_outputs": form}
    print(client.completions.create(model=model, prompt=prompt, max_tokens=20, extra_body=body).choices[0].text)
