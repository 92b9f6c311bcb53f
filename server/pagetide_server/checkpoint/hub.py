"""Models on the Hugging Face hub: which names can be ids, and fetching one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import NamedError, SettingError, UnavailableError, first_line
from pagetide_spec.logs import is_set_up

# What a server reads of a repository; weights in other formats stay there.
PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "tokenizer*", "*.txt"]


def is_hub_id(text: str) -> bool:
    """Whether the hub could have a model `text`, such as org/name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1 and not text.lower().endswith(".gguf")


def fetch(config: EngineConfig, patterns: list[str], progress: Callable[[str, float], None]) -> Path:
    """The folder of the hub's `config.model` on this machine; only the files of `patterns` are downloaded.

    Raises:
        SettingError: the hub has no such model or revision, or does not show it to this account.
        UnavailableError: the hub cannot be reached or refuses, or the files cannot be kept.
    """
    from huggingface_hub import snapshot_download

    if is_set_up():
        # What it has to say goes to our log; its own handler would print it once more, in no form of ours.
        logging.getLogger("huggingface_hub").handlers.clear()
    progress("downloading the model", 0.0)
    try:
        folder = snapshot_download(config.model, revision=config.revision, allow_patterns=patterns)
    except Exception as error:  # of the hub's client, of the HTTP library below it, of the file system
        raise _described(error, config) from error
    progress("downloading the model", 1.0)
    return Path(folder)


def _described(error: Exception, config: EngineConfig) -> NamedError:
    from huggingface_hub import errors as hub

    model, said = config.model, first_line(error)
    if isinstance(error, hub.RevisionNotFoundError):
        return SettingError("revision", config.revision, f"the hub's {model} has no such revision")
    # (It is a RepositoryNotFoundError, too.)
    if isinstance(error, hub.GatedRepoError):
        problem = "the hub shows it only after its licence is accepted: do so on its page there, then set HF_TOKEN"
        return SettingError("model", model, problem)
    if isinstance(error, hub.RepositoryNotFoundError):
        problem = "no such folder here and no such model on the hub (a private one needs HF_TOKEN)"
        return SettingError("model", model, problem)
    if isinstance(error, hub.HfHubHTTPError):
        return UnavailableError("model", model, f"the hub refused it ({said}); try again, or give a local folder")
    if isinstance(error, OSError) and not isinstance(error, hub.LocalEntryNotFoundError | ConnectionError):
        problem = f"cannot be kept in the hub's cache ({said}); set HF_HOME to a folder with room"
        return UnavailableError("model", model, problem)
    way_out = "give a local folder, or put the model into the hub's cache first"
    return UnavailableError("model", model, f"no such folder here, and the hub cannot be reached ({said}); {way_out}")
