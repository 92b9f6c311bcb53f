#!/usr/bin/env bash
# Models, a completion, a streamed completion and tokens, by curl.
set -euo pipefail
base=${BASE_URL:-http://127.0.0.1:8000/v1}
call=(curl --silent --show-error --fail-with-body -H "Authorization: Bearer ${API_KEY:-none}" -H "Content-Type: application/json")

"${call[@]}" "$base/models"
echo
first='import json, sys; print(json.load(sys.stdin)["data"][0]["id"])'
model=${MODEL:-$("${call[@]}" "$base/models" | python3 -c "$first")}

"${call[@]}" "$base/completions" -d '{"model": "'"$model"'", "prompt": "The tide", "max_tokens": 8, "temperature": 0}'
echo

# Server-sent events; the last one is `data: [DONE]`.
"${call[@]}" --no-buffer "$base/completions" \
    -d '{"model": "'"$model"'", "prompt": "The tide", "max_tokens": 4, "temperature": 0, "stream": true}'

"${call[@]}" "${base%/v1}/tokenize" -d '{"model": "'"$model"'", "prompt": "The tide"}'
echo
