"""Names that more than one package uses: API group, ports, labels, annotations, HTTP headers and paths."""

from __future__ import annotations

# The custom resource
GROUP = "pagetide.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
SINGULAR = "inferenceservice"
SHORT_NAME = "pgt"
FIELD_MANAGER = "pagetide-operator"

# Ports
SERVER_PORT = 8000
GATEWAY_PORT = 8080
OPERATOR_METRICS_PORT = 9090
PORT_NAME = "http"

# Labels and annotations of children
LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_SERVICE = f"{GROUP}/inferenceservice"
LABEL_SCRAPED = f"{GROUP}/scraped"
# Instead of LABEL_SERVICE on the pod that fills a service's model cache: it is no replica, and nobody takes it for one.
LABEL_PREFETCH = f"{GROUP}/prefetch"
ANNOTATION_PAUSED = f"{GROUP}/paused"
# On a child: what it was last applied from. On a Deployment, too: the fingerprint of the spec that its pods were made
# for, and their template. On a pod: which template it was made from.
ANNOTATION_APPLIED = f"{GROUP}/applied"
ANNOTATION_FINGERPRINT = f"{GROUP}/fingerprint"
ANNOTATION_TEMPLATE = f"{GROUP}/template"
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
# On a Deployment: hash of the model that was in the cache before its pods were made.
ANNOTATION_PREFETCHED = f"{GROUP}/prefetched"
# On a pod that is to leave: since when. The gateway sends it nothing new; the operator removes it once its streams
# ended.
ANNOTATION_DRAINING = f"{GROUP}/draining"
# On a service: when a gateway last held a request without a ready replica. It wakes a service that sleeps at zero.
ANNOTATION_WAKE = f"{GROUP}/wake-requested"
# Kubernetes' own: of the pods of a ReplicaSet, the one with the least cost is deleted first.
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
APP_NAME = "pagetide"

# A Service's name is a DNS label (RFC 1123).
MAX_NAME_LENGTH = 63

# HTTP
PATH_LIVE = "/livez"
PATH_READY = "/readyz"
PATH_HEALTH = "/health"
PATH_METRICS = "/metrics"
# The gateway's figures as JSON: for its page, and for `pagetide top`.
PATH_SUMMARY = "/summary"
HEADER_REQUEST_ID = "x-request-id"
HEADER_REPLICA = "x-pagetide-replica"
HEADER_SESSION = "x-session-id"

# Environment variables are the field's name in capitals behind this prefix.
ENV_PREFIX = "PAGETIDE_"


# A server that fetches its model into the hub's cache and ends.
FLAG_DOWNLOAD_ONLY = "--download-only"
# Values of LABEL_COMPONENT on the pods of a service: those that answer, and the one that fills the model cache.
COMPONENT_SERVER = "server"
COMPONENT_PREFETCH = "prefetch"


def selector_labels(service: str) -> dict[str, str]:
    """Labels that select the server pods of one InferenceService; they never change once a Deployment exists."""
    return {LABEL_NAME: APP_NAME, LABEL_COMPONENT: COMPONENT_SERVER, LABEL_SERVICE: service}


def headless_name(service: str) -> str:
    """Name of the headless Service beside the Service `service`."""
    return f"{service}-replicas"


# What is appended to a service's name for its longest-named child limits the name itself.
MAX_SERVICE_NAME_LENGTH = MAX_NAME_LENGTH - len(headless_name(""))

# With this code every program exits whose settings are wrong: starting it again cannot help.
EXIT_SETTING = 2
# Of the container in which the server runs.
CONTAINER_SERVER = "server"
