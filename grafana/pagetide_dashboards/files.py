"""Where the generated files lie, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from .control import OPERATOR
from .fleet import FLEET
from .gateway import GATEWAY
from .grafana_json import dashboard_json
from .model import Dashboard
from .rules import prometheus_rule, rules
from .scaling import SCALING
from .service import SERVICE_BOARD

ROOT = Path(__file__).parents[2]
DASHBOARDS: tuple[Dashboard, ...] = (FLEET, SERVICE_BOARD, SCALING, GATEWAY, OPERATOR)
_NOTE = "# Written by `make generate` from grafana/pagetide_dashboards; edit there.\n"


def generated() -> dict[Path, str]:
    """Every generated file's content; the chart has copies, since it can read nothing outside of itself."""
    out = {}
    for board in DASHBOARDS:
        text = json.dumps(dashboard_json(board), indent=2, ensure_ascii=False) + "\n"
        name = f"{board.uid.removeprefix('pagetide-')}.json"
        out[ROOT / "grafana/dashboards" / name] = out[ROOT / "charts/pagetide/files/dashboards" / name] = text
    plain = _NOTE + yaml.safe_dump(rules(), sort_keys=False, width=120)
    out[ROOT / "grafana/rules.yaml"] = out[ROOT / "charts/pagetide/files/rules.yaml"] = plain
    out[ROOT / "grafana/prometheusrule.yaml"] = _NOTE + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=120)
    return out


def write() -> None:
    """Write them all."""
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
