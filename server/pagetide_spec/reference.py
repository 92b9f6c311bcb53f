"""The tables of the documentation that follow from the contract: `python -m pagetide_spec.reference FILE...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .metrics import GATEWAY_METRICS, OPERATOR_METRICS, SERVER_METRICS, VLLM_METRICS, Metric
from .resource_table import rules_table, spec_table, status_table
from .settings_table import settings_table

_SECTION = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def metrics_table(metrics: Iterable[Metric]) -> str:
    """One row a metric: name with labels, kind, help."""
    rows = [f"| `{_name(metric)}` | {metric.kind} | {metric.help} |" for metric in metrics]
    return "\n".join(["| name | kind | |", "|---|---|---|", *rows])


def vllm_table() -> str:
    """vLLM's names beside ours, with the labels that it has there."""
    rows = []
    for name, (ours, renamed) in VLLM_METRICS.items():
        metric = SERVER_METRICS[ours]
        labels = [f"`{label}`" for own in metric.labels if (label := renamed.get(own, own))]
        rows.append(f"| `{name}` | `{metric.full_name}` | {', '.join(labels)} |")
    return "\n".join(["| vLLM's name | ours | labels beside `model_name` and `engine` |", "|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "server-metrics": lambda: metrics_table(SERVER_METRICS.values()),
    "gateway-metrics": lambda: metrics_table(GATEWAY_METRICS.values()),
    "operator-metrics": lambda: metrics_table(OPERATOR_METRICS.values()),
    "vllm-metrics": vllm_table,
    "settings": settings_table,
    "spec": spec_table,
    "rules": rules_table,
    "status": status_table,
}


def renewed(text: str) -> str:
    """A document with its generated sections regenerated.

    Raises:
        KeyError: a section names no table.
    """
    return _SECTION.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def main(argv: Sequence[str]) -> int:
    """Write the files' generated sections again."""
    for name in argv:
        path = Path(name)
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
    return 0


def _name(metric: Metric) -> str:
    return metric.full_name + ("{" + ",".join(metric.labels) + "}" if metric.labels else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
