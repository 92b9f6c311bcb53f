"""`pagetide crd`: print the CustomResourceDefinition, to be piped into `kubectl apply -f -`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pagetide_spec.command_line import Parser
from pagetide_spec.crd import crd_yaml


def main(argv: Sequence[str]) -> int:
    """Print the CRD; returns 0."""
    parser = Parser("pagetide crd", description=__doc__)
    parser.add_argument("--no-rules", action="store_true", help="leave out CEL rules, for Kubernetes before 1.25")
    sys.stdout.write(crd_yaml(rules=not parser.parse_args(argv).no_rules))
    return 0
