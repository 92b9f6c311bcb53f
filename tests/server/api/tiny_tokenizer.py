"""A real tokenizer of 400 tokens, trained in a moment."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SIZE = 400
TEXT = [
    "The old harbour town lies at the mouth of a slow river, and every morning the fishermen leave.",
    "They carry bread, salt and coffee, and they talk about the weather because it decides everything.",
    "In the market the women sell herring, apples and wool; the capital of France is Paris.",
]
TEMPLATE = """{%- for m in messages -%}
{%- if m.content == '!raise' -%}{{ raise_exception('the template was told to raise') }}{%- endif -%}
{{ m.role }}: {{ m.content }}
{% endfor -%}
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if add_generation_prompt -%}assistant:{%- endif -%}"""


def build(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Write tokenizer.json and tokenizer_config.json into a folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<bos>", "<eos>", "<pad>", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special[:3], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT * 20, trainer)
    tokenizer.add_tokens([AddedToken(t, special=False) for t in special[3:]][: SIZE - tokenizer.get_vocab_size()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
