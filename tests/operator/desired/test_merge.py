"""Strategic merge as pods need it."""

import pytest

from pagetide_operator.desired.merge import merged


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="maps are merged deeply"),
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="a plain value is replaced"),
        pytest.param({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}, id="a plain list is replaced"),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
            {"env": [{"name": "B", "value": "2"}, {"name": "C", "value": "2"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "2"}]},
            id="named entries are merged by name, in the order of the base",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"x": 1}}]},
            {"env": [{"name": "A", "valueFrom": {"x": 1}}]},
            id="a value from elsewhere takes the place of a plain one",
        ),
        pytest.param(
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]},
            {"env": [{"name": "A", "$patch": "delete"}, {"name": "C", "$patch": "delete"}]},
            {"env": [{"name": "B", "value": "1"}]},
            id="an entry that is told to go",
        ),
        pytest.param(
            {"securityContext": {"runAsUser": 1, "runAsNonRoot": True}},
            {"securityContext": {"$patch": "replace", "runAsUser": 2}},
            {"securityContext": {"runAsUser": 2}},
            id="a map that is told to take the place of the base's",
        ),
        pytest.param(
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "cache", "hostPath": {"path": "/x"}}]},
            id="another source of a volume takes the place of the default",
        ),
        pytest.param(
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "cephfs": {"monitors": ["x"]}}]},
            {"volumes": [{"name": "cache", "cephfs": {"monitors": ["x"]}}]},
            id="also a source that nobody here has heard of",
        ),
        pytest.param(
            {"volumes": [{"name": "cache", "emptyDir": {}}]},
            {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}]},
            id="the same source is merged",
        ),
        pytest.param(
            {"lifecycle": {"preStop": {"exec": {"command": ["sleep"]}}}},
            {"lifecycle": {"preStop": {"httpGet": {"path": "/"}}}},
            {"lifecycle": {"preStop": {"httpGet": {"path": "/"}}}},
            id="another handler takes the place of the default",
        ),
        pytest.param(
            {"livenessProbe": {"httpGet": {"path": "/"}, "periodSeconds": 3}},
            {"livenessProbe": {"tcpSocket": {"port": 1}}},
            {"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 3}},
            id="another probe keeps its times",
        ),
        pytest.param(
            {"ports": [{"containerPort": 53, "protocol": "TCP", "name": "a"}]},
            {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "name": "b"}]},
            {
                "ports": [
                    {"containerPort": 53, "protocol": "TCP", "name": "b"},
                    {"containerPort": 53, "protocol": "UDP"},
                ]
            },
            id="a port is a number and a protocol",
        ),
        pytest.param(
            {"volumeMounts": [{"name": "a", "mountPath": "/x"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/x"}]},
            {"volumeMounts": [{"name": "b", "mountPath": "/x"}]},
            id="mounts are merged by path",
        ),
    ],
)
def test_merged(base, patch, expected):
    kept = [repr(base), repr(patch)]
    assert merged(base, patch) == expected
    assert [repr(base), repr(patch)] == kept, "an argument was changed"
