"""Write the tokenizer that a GGUF file describes as tokenizer.json and tokenizer_config.json.

How llama.cpp's kinds of vocabulary become a model of the tokenizers library is transformers' knowledge and called from
there; what takes its own loader a minute is only the reading of the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from .file import GgufError, GgufFile

# tokenizer_config.json's name -> GGUF's
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def write_tokenizer(file: GgufFile, folder: Path) -> None:
    """Write the file's tokenizer into a folder.

    Raises:
        GgufError: it is of an unknown kind.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    metadata = file.metadata
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    stated = {new: metadata[f"tokenizer.{old}"] for old, new in names.items() if f"tokenizer.{old}" in metadata}
    try:
        tokenizer, _ = convert_gguf_tokenizer(file.architecture, stated)
    except ValueError as error:
        raise GgufError(f"has a tokenizer that transformers does not know: {error}") from error
    special = _special_tokens(metadata)
    _add_begin_and_end(tokenizer, metadata, special)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", "utf-8")


def _special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    ids = {name: metadata.get(f"tokenizer.ggml.{old}_token_id") for name, old in SPECIAL.items()}
    return {name: metadata["tokenizer.ggml.tokens"][i] for name, i in ids.items() if i is not None}


def _add_begin_and_end(tokenizer: Tokenizer, metadata: dict[str, Any], special: dict[str, str]) -> None:
    """Let the tokenizer put the begin and end tokens around a text where the file says so."""
    # llama.cpp's rule: a sentencepiece vocabulary that says nothing wants the begin token.
    begin = metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.model") == "llama")
    end = metadata.get("tokenizer.ggml.add_eos_token", False)
    before = [special["bos_token"]] if begin and "bos_token" in special else []
    after = [special["eos_token"]] if end and "eos_token" in special else []
    if before or after:
        tokenizer.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(t + ":1" for t in before), "$B:1", *(t + ":1" for t in after)],
            special_tokens=[(t, tokenizer.token_to_id(t)) for t in {*before, *after}],
        )
