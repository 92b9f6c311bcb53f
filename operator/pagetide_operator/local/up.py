"""`pagetide up FILE...`: InferenceServices as processes of this machine, behind one OpenAI address."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import uvloop

from pagetide_spec.command_line import Parser
from pagetide_spec.documents import load_documents
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.logs import add_log_flags
from pagetide_spec.names import GATEWAY_PORT
from pagetide_spec.resource import parse
from pagetide_spec.web import check_port, listen

from ..autoscaling.windows import SCRAPE_S
from .query import fetch_status
from .service import LocalService, localize, replica_command, with_log_format
from .show import Screen, log_handler, print_table
from .supervisor import ReplicaCommand

STATE_FOLDER = Path(".pagetide")


def main(argv: Sequence[str], command: ReplicaCommand = replica_command, scrape_s: float = SCRAPE_S) -> int:
    """Run until Ctrl-C or SIGTERM; 0 after a clean end, 2 for bad input or when no service can ever be ready."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.status == bool(args.files):
        parser.error("give at least one FILE, or --status alone")
    logging.basicConfig(level=args.log_level.upper(), handlers=[log_handler(args.log_format)])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # Replicas that start do not answer yet; what becomes of them is told by the runner itself.
    logging.getLogger("pagetide_gateway.polling.health").setLevel(logging.ERROR)
    screen = Screen(args.log_format)
    try:
        if args.status:
            check_port(args.port)
            print_table(fetch_status(args.host, args.port)["services"])
            return 0
        services = [with_log_format(s, args.log_format) for s in load(args.files, args.volumes, args.max_replicas)]
        _check_folder("--logs", args.logs)
        listener = listen(args.host, args.port)
    except PagetideError as error:
        screen.note(f"pagetide up: {error}", logging.ERROR)
        return 2
    for service in services:
        if service.notes:
            screen.note(f"{service.name}: has no effect on one machine: {', '.join(service.notes)}")
    # Only now: what is wrong with the input is reported before the servers' code is loaded.
    from .runner import Runner

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Runner(services, listener, args.logs, command, args.max_replicas, screen, scrape_s).run())


def load(files: Sequence[Path], volumes: Path, max_replicas: int) -> list[LocalService]:
    """The services of all files, which together have at most `max_replicas` replicas.

    Raises:
        SettingError, ResourceError: the first thing that is wrong, with its file and field.
    """
    services: list[LocalService] = []
    for file in files:
        for service in _load_one(file, volumes):
            _check_unique(service, services, file)
            services.append(service)
            _check_count(services, max_replicas, file)
    return services


def _load_one(file: Path, volumes: Path) -> list[LocalService]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError("FILE", str(file), error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise SettingError("FILE", str(file), "is not UTF-8 text") from None
    manifests = load_documents(text, str(file))
    try:
        return [localize(parse(manifest, str(file)), volumes) for manifest in manifests]
    except SettingError as error:
        raise error.renamed(f"{file}: {error.field}") from None


def _check_unique(service: LocalService, others: Sequence[LocalService], file: Path) -> None:
    for other in others:
        if other.name == service.name:
            raise SettingError(f"{file}: metadata.name", service.name, "is given twice; names must differ")
        if other.model_name == service.model_name:
            problem = f"is also what {other.name} is called by clients; names must differ"
            raise SettingError(f"{file}: spec.model.servedName", service.model_name, problem)


def _check_count(services: Sequence[LocalService], most: int, file: Path) -> None:
    """Each replica loads a model of its own: too many take the machine down before anybody can say stop."""
    total, last = sum(s.replicas for s in services), services[-1]
    if total > most:
        problem = f"makes {total} replicas on one machine, and --max-replicas allows {most}; change one of them"
        raise SettingError(f"{file}: {last.replicas_field}", last.replicas, problem)


def _check_folder(field: str, folder: Path) -> None:
    """Make a folder that is needed later, or say that it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(field, str(folder), error.strerror or str(error)) from None


def _parser() -> Parser:
    parser = Parser("pagetide up", description="Run InferenceService files on this machine.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="YAML with one or more InferenceServices")
    parser.add_argument("--host", default="127.0.0.1", help="address of the gateway (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=GATEWAY_PORT, help="port of the gateway; 0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--volumes",
        type=Path,
        default=STATE_FOLDER / "volumes",
        metavar="DIR",
        help="where pvc://CLAIM/PATH is DIR/CLAIM/PATH (default: %(default)s)",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        default=STATE_FOLDER / "logs",
        metavar="DIR",
        help="replicas' logs (default: %(default)s)",
    )
    parser.add_argument(
        "--max-replicas", type=int, default=8, metavar="N", help="never run more than this (default: %(default)s)"
    )
    parser.add_argument("--status", action="store_true", help="print the table of the `up` that runs on --port")
    add_log_flags(parser, level="warning")
    return parser
