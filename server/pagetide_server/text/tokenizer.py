"""Tokenizer: text to token ids and back, on the `tokenizers` library alone, so that the API process needs no torch."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import NamedError, SettingError

from ..checkpoint.files import Progress, eos_token_ids, read_json, resolve, silent
from ..process_memory import return_freed
from . import convert
from .tokenizer_config import NAMED_TOKENS, read_settings, templates
from .vocabulary import Vocabulary

# In how many forms a bad word is looked for: as written, bare, and behind a space.
FORMS = 3


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads.

    Attributes:
        vocab_size: token ids lie in `range(vocab_size)`; a model's logits may be wider.
        eos_token_ids: tokens that end an answer.
        special_ids: tokens that are no part of a text.
        special_tokens: texts of the named tokens (`bos_token`, `eos_token`, ...) as chat templates expect them.
        chat_templates: the model's own templates by name; the usual one is `default`.
    """

    def __init__(self, backend: Backend, settings: Mapping[str, Any], eos_token_ids: Iterable[int] = ()) -> None:
        """Wrap a tokenizer of the `tokenizers` library.

        Args:
            backend: the tokenizer; what `settings` demand of it is added to it.
            settings: content of tokenizer_config.json, with `chat_template` as found.
            eos_token_ids: further tokens that end an answer, beside the tokenizer's own.
        """
        self._backend = backend
        self.special_tokens = {name: _content(settings[name]) for name in NAMED_TOKENS if settings.get(name)}
        _complete(backend, settings, self.special_tokens)
        backend.no_padding()
        backend.no_truncation()
        self._vocabulary = Vocabulary(backend)
        own = backend.token_to_id(self.special_tokens.get("eos_token", ""))
        self.vocab_size = self._vocabulary.size
        ends = [*eos_token_ids] if own is None else [*eos_token_ids, own]
        self.eos_token_ids = frozenset(i for i in ends if 0 <= i < self.vocab_size)
        self.special_ids = self._vocabulary.special_ids
        self.chat_templates = templates(settings.get("chat_template"))

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress = silent) -> Tokenizer:
        """The tokenizer of `config.model`, or of `config.tokenizer` where that is set; either may be fetched first.

        Raises:
            SettingError: no tokenizer is available; names the setting and the folder.
        """
        if config.tokenizer is None:
            return cls.from_folder(resolve(config, progress), "model", config.trust_remote_code)
        # The revision is the model's.
        other = dataclasses.replace(config, model=config.tokenizer, tokenizer=None, revision=None)
        try:
            folder = resolve(other, progress)
        except NamedError as error:
            raise error.renamed("tokenizer") from error
        return cls.from_folder(folder, "tokenizer", config.trust_remote_code)

    @classmethod
    def from_folder(cls, folder: Path, field: str = "model", trust_remote_code: bool = False) -> Tokenizer:
        """The tokenizer whose files lie in `folder`.

        Raises:
            SettingError: the files are missing or broken; `field` is the setting to name.
        """
        try:
            names = ("generation_config.json", "config.json")
            generation, model = (read_json(folder / name, str(folder), missing_ok=True) for name in names)
            eos = eos_token_ids(generation, model, str(folder))
            tokenizer = cls(_backend(folder, field, trust_remote_code), read_settings(folder), eos)
        except SettingError as error:
            raise error.renamed(field) from error
        return_freed()
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; `add_special_tokens` puts the model's begin token (or what it wants) around it."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of several texts at once, on as many cores as there are."""
        return [list(e.ids) for e in self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 become replacement characters, unknown ids nothing."""
        text = self.decode_bytes(token_ids, skip_special_tokens).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def decode_bytes(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> bytes:
        """The concatenated bytes of `token_ids`, with the leading space that some tokenizers put before a text."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        return b"".join(self._vocabulary.token_bytes(i) for i in token_ids if i not in skipped)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds inside a text: exact also for a part of a character. Unknown id: empty."""
        return self._vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        r"""Readable text of one token; never fails and always is valid Unicode.

        A token that is not whole characters is written as its bytes, as OpenAI's API does: `bytes:\xf0\x93`.
        """
        data = self._vocabulary.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in data)

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text of this tokenizer loses the space with which its first token begins."""
        return self._vocabulary.strips_leading_space

    def bad_word_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Token sequences of words that must not come, each as written and behind a space (both begin words)."""
        forms = dict.fromkeys(form for word in words for form in (word, word.lstrip(" "), " " + word.lstrip(" ")))
        found = self.encode_batch(list(forms), add_special_tokens=False) if forms else []
        return tuple(dict.fromkeys(tuple(ids) for ids in found if ids))


def _backend(folder: Path, field: str, trust_remote_code: bool) -> Backend:
    """The tokenizer in `folder`, converted from older files where there is no tokenizer.json."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return _read(path)
    if not convert.has_older_files(folder):
        raise SettingError(field, str(folder), "has no tokenizer.json; set --tokenizer to a folder that has one")
    with tempfile.TemporaryDirectory() as made:
        convert.convert(folder, Path(made), field, trust_remote_code)
        return _read(Path(made) / "tokenizer.json")


def _read(path: Path) -> Backend:
    try:
        return Backend.from_file(str(path))
    except Exception as error:
        raise SettingError("model", str(path.parent), f"{path.name} is no readable tokenizer: {error}") from error


def _content(token: Any) -> str:
    """Text of a named token, which files write as a string or as an object."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _complete(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Add to the tokenizer what only tokenizer_config.json knows: tokens, and begin and end of a text."""
    have = {t.content for t in backend.get_added_tokens_decoder().values()}
    listed = [token for _, token in sorted(_by_id(settings.get("added_tokens_decoder")).items())]
    wanted = [AddedToken(**_token_arguments(token)) for token in listed if token["content"] not in have]
    have |= {token.content for token in wanted}
    wanted += [AddedToken(text, special=True, normalized=False) for text in named.values() if text not in have]
    if wanted:
        backend.add_tokens(wanted)
    if backend.post_processor is None or "add_bos_token" in settings or "add_eos_token" in settings:
        _frame(backend, settings, named)


def _by_id(tokens: Mapping[str, Any] | None) -> dict[int, Any]:
    return {int(i): token for i, token in (tokens or {}).items()}


def _token_arguments(token: Mapping[str, Any]) -> dict[str, Any]:
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {name: token[name] for name in known if name in token}


def _frame(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Put begin and end token around texts as add_bos_token and add_eos_token say."""
    begin = named.get("bos_token") if settings.get("add_bos_token") else None
    end = named.get("eos_token") if settings.get("add_eos_token") else None
    if begin is None and end is None and backend.post_processor is None:
        return
    # The name is written as a list: a template in one string would split a token that has a space.
    single = [part for part in (begin, "$A", end) if part]
    special = [(token, backend.token_to_id(token)) for token in (begin, end) if token]
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, *("$B:1" if part == "$A" else f"{part}:1" for part in single)],
        special_tokens=special,
    )  # fmt: skip
