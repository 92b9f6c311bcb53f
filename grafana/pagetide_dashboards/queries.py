"""PromQL with our short metric names: `@requests_total{finish_reason="abort"}` becomes the full name with the scope's
matchers. A name or label that the contract does not have is an error, so that no panel can query what is not exported.
"""

from __future__ import annotations

import re

from pagetide_spec.metrics import DCGM_METRICS, GATEWAY_METRICS, OPERATOR_METRICS, SERVER_METRICS, Metric

# Matchers that narrow a query to what the dashboard's variables name; a rule covers everything.
SERVICE = 'namespace=~"$namespace",service=~"$service"'
MODEL = 'namespace=~"$namespace",model_name=~"$model"'
PLACE = 'namespace=~"$namespace"'
EVERYTHING = ""

# What Prometheus adds to every series of a target, through ServiceMonitors or as docs/observability.md describes.
TARGET_LABELS = frozenset(("namespace", "service", "pod", "instance", "job"))

METRICS: dict[str, Metric] = SERVER_METRICS | GATEWAY_METRICS | OPERATOR_METRICS
_PARTS = ("_bucket", "_sum", "_count")
_USE = re.compile(r"@(\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')


def expand(text: str, scope: str) -> str:
    """The PromQL of `text`, each `@name{...}` narrowed to `scope`.

    Raises:
        ValueError: there is no such metric, or it has no such label.
    """

    def full(found: re.Match[str]) -> str:
        name, own = found[1], found[2] or ""
        check(name, own)
        prometheus_name = name if name in DCGM_METRICS else _metric(name).full_name + _part(name)
        # The `service` of NVIDIA's exporter is its own.
        around = PLACE if scope and name in DCGM_METRICS else scope
        matchers = ",".join(part for part in (around, own) if part)
        return prometheus_name + (f"{{{matchers}}}" if matchers else "")

    return " ".join(_USE.sub(full, text).split())


def check(name: str, matchers: str) -> None:
    """Raise ValueError where the contract has no such metric, or `matchers` names labels that it does not carry."""
    if name in DCGM_METRICS:
        return
    metric = _metric(name)
    common = TARGET_LABELS if metric.name in OPERATOR_METRICS else TARGET_LABELS | {"model_name"}
    known = common | set(metric.labels) | ({"le"} if _part(name) == "_bucket" else set())
    if wrong := set(_MATCHER.findall(matchers)) - known:
        raise ValueError(f"{name} has no label {', '.join(sorted(wrong))}")


def _metric(name: str) -> Metric:
    metric = METRICS.get(name.removesuffix(_part(name)))
    if metric is None or bool(metric.buckets) != bool(_part(name)):
        raise ValueError(f"{name} is no metric of pagetide_spec (a histogram needs one of {', '.join(_PARTS)})")
    return metric


def _part(name: str) -> str:
    return "" if name in METRICS else next((part for part in _PARTS if name.endswith(part)), "")


# ---- forms that come again and again

# A service; its legend is NAMED. Of one replica: EACH and REPLICA.
WHO = "namespace, service"
NAMED = "{{namespace}}/{{service}}"
EACH = "namespace, service, pod"
REPLICA = "{{namespace}}/{{pod}}"
# A model as one namespace's gateways serve it: those of another may have one of the same name.
SERVED = "namespace, model_name"
RATE = "$__rate_interval"


def rate(metric: str, by: str = WHO, window: str = RATE) -> str:
    """Per second, summed by labels."""
    return f"sum by ({by}) (rate({metric}[{window}]))"


def quantile(share: float, histogram: str, by: str = WHO, window: str = RATE) -> str:
    """A quantile of a histogram over all replicas; interpolated within its bucket."""
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({histogram}_bucket[{window}])))"


def ratio(part: str, whole: str, by: str = WHO, window: str = RATE) -> str:
    """The rate of one counter over that of another; nothing where the second does not move."""
    return f"{rate(part, by, window)} / ({rate(whole, by, window)} > 0)"
