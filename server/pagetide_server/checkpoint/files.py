"""Find a model: a folder, a GGUF file or a hub id becomes a plain folder on this machine, or one clear error.

Imports no torch, so that the API process can use it for the tokenizer.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError, first_line, shorten

from . import hub

Progress = Callable[[str, float], None]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def silent(stage: str, fraction: float) -> None:
    """Progress that nobody looks at."""


def resolve(config: EngineConfig, progress: Progress = silent) -> Path:
    """The plain folder (config.json, safetensors, tokenizer files) of `config.model`.

    Downloads from the hub and converts a GGUF file where that was not done yet; two processes may do so at once.

    Raises:
        SettingError: there is no such model, or something is missing in it.
        PagetideError: the hub cannot be reached, or the file cannot be converted.
    """
    path = locate(config.model)
    if path is None:
        return hub.fetch(config, hub.PATTERNS, progress)
    if path.is_dir():
        return path
    from .gguf_cache import converted

    return converted(path, progress)


def locate(model: str) -> Path | None:
    """The folder or GGUF file on this machine that `model` names; None: it is an id on the hub.

    Raises:
        SettingError: it is none of them.
    """
    if not model:
        raise SettingError("model", model, "must name a folder, a GGUF file or a hub id")
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            of_a_service = "; `pagetide up` takes resource files" if path.suffix in (".yaml", ".yml") else ""
            problem = f"is a file but no GGUF file; give the folder that holds config.json{of_a_service}"
            raise SettingError("model", model, problem)
        return path
    if not hub.is_hub_id(model):
        raise SettingError("model", model, "no such folder or file, and no hub id such as org/name")
    return None


def resolve_config(config: EngineConfig) -> Path:
    """As `resolve` for a folder or hub id, but of a hub's model only the small JSON files are fetched."""
    return locate(config.model) or hub.fetch(config, ["*.json"], silent)


def read_json(path: Path, model: str, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object of a model's folder; `missing_ok`: an empty one where there is no such file.

    Raises:
        SettingError: the file is missing or holds no JSON object; names the setting `model` with that value.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise SettingError("model", model, f"the folder has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError("model", model, f"{path.name} cannot be read: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise SettingError("model", model, f"{path.name} must hold a JSON object")
    return found


def eos_token_ids(generation: Mapping[str, Any], model: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Tokens that end an answer, from generation_config.json, else from config.json, or its part for text.

    Raises:
        SettingError: what stands there are no token ids; `name` is the model to name.
    """
    part = model.get("text_config")
    for source in (generation, model, part if isinstance(part, Mapping) else {}):
        found = source.get("eos_token_id")
        if found is not None:
            ids = found if isinstance(found, list | tuple) else [found]
            if not all(type(i) is int for i in ids):
                file = "generation_config.json" if source is generation else "config.json"
                raise SettingError("model", name, f"the eos_token_id in {file} must be token ids, not {shorten(found)}")
            return tuple(ids)
    return ()


def weight_files(folder: Path, config: EngineConfig) -> list[Path]:
    """The safetensors files of a folder, all of them present.

    Raises:
        SettingError: there are none, or a shard that the index names is missing.
    """
    if (folder / INDEX).is_file():
        mapping = read_json(folder / INDEX, config.model).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise SettingError("model", config.model, f"{INDEX} has no weight_map")
        if strange := [n for n in mapping.values() if not isinstance(n, str)]:
            raise SettingError("model", config.model, f"{INDEX} must name files, not {shorten(strange[0])}")
        names = sorted(set(mapping.values()))
        missing = [n for n in names if not (folder / n).is_file()]
        if missing:
            some = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
            raise SettingError(
                "model", config.model, f"{len(missing)} of {len(names)} weight files are missing: {some}"
            )
        return [folder / n for n in names]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    others = [p.name for p in sorted(folder.glob("*")) if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors")]
    hint = f" (it has {others[0]}: convert it, or give a .gguf file by its own path)" if others else ""
    raise SettingError("model", config.model, f"the folder has no weights: neither {SINGLE} nor {INDEX}{hint}")


def check_whole(path: Path, config: EngineConfig) -> None:
    """Refuse a safetensors file that is not as long as its header says.

    Raises:
        SettingError: the file is cut short or is no safetensors file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8:
            raise SettingError("model", config.model, f"{path.name} is cut short or no safetensors file ({size} bytes)")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = 8 + length + max((int(t["data_offsets"][1]) for t in header.values()), default=0)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise SettingError("model", config.model, f"{path.name} is no safetensors file") from None
    if end != size:
        raise SettingError("model", config.model, f"{path.name} has {size} bytes instead of {end}: it is cut short")


def cache_folder() -> Path:
    """Where converted models are kept: $PAGETIDE_CACHE, or ~/.cache/pagetide."""
    return Path(os.environ.get("PAGETIDE_CACHE") or Path.home() / ".cache" / "pagetide")
