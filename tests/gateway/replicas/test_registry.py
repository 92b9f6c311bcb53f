"""Which services and replicas there are, whatever comes and goes."""

from __future__ import annotations

from pagetide_gateway.replicas.registry import Health, Registry

READY = Health(ready=True, reason="")


def test_put_keeps_what_is_known_of_those_that_stay():
    registry = Registry()
    registry.put("m", {"a": "http://1", "b": "http://2"})
    kept, moved = registry.find("m").replicas.values()
    kept.health = moved.health = READY
    registry.put("m", {"a": "http://1/", "b": "http://3", "c": "http://4"})
    now = registry.find("m").replicas
    assert now["a"] is kept
    assert not now["b"].health.ready, "another address is another process"
    assert registry.find("m").available() == [kept]


def test_a_long_name_always_means_its_own_service():
    registry = Registry()
    ours = registry.put("team-a/m", {"p": "http://1"}, served="m")
    theirs = registry.put("team-b/x", {"q": "http://2"}, served="team-a/m")
    assert registry.find("team-a/m") is ours
    assert registry.find("team-b/x") is theirs
    assert sorted(registry.models()) == ["m", "team-b/x"]


def test_one_that_is_gone_is_looked_after_as_long_as_it_has_requests():
    registry = Registry()
    (gone,) = registry.put("m", {"a": "http://1"}).replicas.values()
    gone.in_flight = 1
    registry.put("m", {"b": "http://2"})
    assert {r.name for _, r in registry.replicas()} == {"a", "b"}
    assert not gone.is_available
    (b,) = registry.find("m").replicas.values()
    b.in_flight = 1
    registry.remove("m")
    assert {r.name for _, r in registry.replicas()} == {"a", "b"}
    gone.in_flight = b.in_flight = 0
    assert not list(registry.replicas())


def test_a_service_that_gets_another_model_is_another_service():
    registry = Registry()

    async def wake():
        raise AssertionError("nobody asks")

    before = registry.put("ns/a", {"p": "http://1"}, served="old", wake=wake)
    after = registry.put("ns/a", {"p": "http://1"}, served="new", wake=wake)
    assert registry.find("old") is None
    assert registry.find("new") is after is not before
    assert before.wake is None, "those who wait for the old model are told"


def test_draining_replicas_are_not_available():
    registry = Registry()
    service = registry.put("m", {"a": "http://1"})
    service.replicas["a"].health = READY
    service.replicas["a"].draining = True
    assert service.available() == []
