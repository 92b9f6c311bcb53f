"""`pagetide serve MODEL`: from the command line to a running server, and its exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

import uvloop

from pagetide_spec.command_line import Parser
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import add_flags, config_from, env_of, in_flags, misspelt
from pagetide_spec.logs import set_up_logging
from pagetide_spec.names import EXIT_SETTING, FLAG_DOWNLOAD_ONLY

from .api.keys import read_keys
from .api.sockets import listen
from .before_fastapi import prepare_environment
from .checkpoint.files import locate, read_json
from .download import download
from .text.tokenizer import Tokenizer
from .vllm_flags import VLLM_FLAGS
from .wire.launch import DEFAULT_CORE

log = logging.getLogger("pagetide")

EPILOG = """\
Every flag can also be set by an environment variable: PAGETIDE_MAX_NUM_SEQS for --max-num-seqs. A flag wins.

exit codes:
  0    after SIGTERM or Ctrl-C; running requests were finished, or cut after --shutdown-timeout-s
  1    the HTTP server failed; the log says why
  2    a setting is wrong (also: the port is taken, the model does not exist)
  3    the model could not be loaded
  4    the engine failed or got stuck while serving
  130  a second Ctrl-C (143: a second SIGTERM) aborted the running requests
"""


def main(
    argv: Sequence[str] | None = None,
    core: str = DEFAULT_CORE,
    load_tokenizer: Callable[[EngineConfig], Tokenizer] = Tokenizer.load,
) -> int:
    """Serve one model until a signal or the engine's end; the exit code. `core`, `load_tokenizer`: as of `Server`."""
    try:
        config, is_download = _config(sys.argv[1:] if argv is None else argv)
        keys = read_keys(config)
        listener = None if is_download else listen(config.host, config.port)
    except SettingError as error:
        print(f"pagetide serve: {in_flags(str(error))}", file=sys.stderr)
        return EXIT_SETTING
    set_up_logging(config.log_level, config.log_format)
    for hint in (*misspelt(os.environ), *prepare_environment()):
        log.warning("%s", hint)
    if listener is None:
        return download(config)
    from .api.server import Server  # only now: it imports FastAPI

    return uvloop.run(Server(config, keys, core, load_tokenizer).run(listener))


def _config(argv: Sequence[str]) -> tuple[EngineConfig, bool]:
    """The settings, and whether to fetch the model only."""
    parser = Parser("pagetide serve", VLLM_FLAGS, description="Serve one model over HTTP.", epilog=EPILOG)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="local folder, GGUF file, or id on the hub")
    parser.add_argument(FLAG_DOWNLOAD_ONLY, action="store_true", help="download the model to the hub's cache, and exit")
    add_flags(parser)
    args = vars(parser.parse_args(argv))
    is_download = args.pop("download_only")
    config = config_from(args, os.environ)
    if not config.model:
        raise SettingError("MODEL", "", f"is required; give it as an argument or in {env_of('model')}")
    try:
        path = locate(config.model)
        if path is not None and path.is_dir():
            read_json(path / "config.json", config.model)
    except SettingError as error:
        raise error.renamed("MODEL") from None
    return config, is_download


if __name__ == "__main__":
    sys.exit(main())
