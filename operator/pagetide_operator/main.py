"""`pagetide operator`: run the Kubernetes operator until it is asked to stop."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import kubernetes.client
import kubernetes.config

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import seconds
from pagetide_spec.logs import add_log_flags, set_up_logging
from pagetide_spec.names import OPERATOR_METRICS_PORT

from .cluster.client import load_configuration
from .discovery import OperatorError
from .running.process import Operator, Options

DEFAULT_IMAGE = "pagetide/server:0.1.0"


def main(argv: Sequence[str]) -> int:
    """Run; returns 0 after SIGTERM or Ctrl-C, 1 when it cannot go on, 2 for a wrong call."""
    args = parser().parse_args(argv)
    set_up_logging(args.log_level, args.log_format)
    logging.getLogger("kopf").setLevel(max(logging.ERROR, logging.getLogger().level))
    try:
        configuration = load_configuration()
    except kubernetes.config.ConfigException as error:
        print(f"pagetide operator: no cluster: {error}; set KUBECONFIG, or run it in a pod", file=sys.stderr)
        return 2
    try:
        asyncio.run(_run(configuration, options_from(args)))
    except OperatorError as error:
        print(f"pagetide operator: {error}", file=sys.stderr)
        return 1
    except SettingError as error:
        print(f"pagetide operator: {error}", file=sys.stderr)
        return 2
    return 0


async def _run(configuration: kubernetes.client.Configuration, options: Options) -> None:
    await Operator(configuration, options).run()


def parser() -> Parser:
    """The command's flags."""
    out = Parser("pagetide operator", description=__doc__)
    out.add_argument("--namespace", action="append", default=[], help="watch this namespace only; may be repeated")
    out.add_argument("--image", default=DEFAULT_IMAGE, help="server image where a resource names none (%(default)s)")
    add_log_flags(out)
    out.add_argument(
        "--metrics-port",
        type=int,
        default=OPERATOR_METRICS_PORT,
        help="metrics and health (%(default)s; 0: a free one)",
    )
    out.add_argument("--no-leader-election", action="store_true", help="act at once; for a single process")
    out.add_argument("--lease-namespace", help="where the Lease lies (default: the pod's own namespace)")
    out.add_argument(
        "--resync-seconds",
        type=functools.partial(seconds, least=1.0),
        default=Options.resync_seconds,
        help="between two full lists (%(default)s)",
    )
    out.add_argument(
        "--surge-patience-seconds",
        type=seconds,
        default=Options.surge_patience,
        help="how long a surge pod may wait for a GPU before pods are replaced one at a time (%(default)s)",
    )
    return out


def options_from(args: argparse.Namespace) -> Options:
    """Options from the command line."""
    lease = None if args.no_leader_election else args.lease_namespace or own_namespace() or "default"
    return Options(
        image=args.image,
        namespaces=tuple(args.namespace),
        lease_namespace=lease,
        metrics_port=args.metrics_port,
        resync_seconds=args.resync_seconds,
        surge_patience=args.surge_patience_seconds,
    )


def own_namespace() -> str | None:
    """The namespace of the pod that this process runs in, or None outside of a cluster."""
    path = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return path.read_text().strip() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
