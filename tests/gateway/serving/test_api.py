"""What the gateway answers by itself."""

from __future__ import annotations

import asyncio

import pytest

from pagetide_gateway.proxy.forward import Access


async def error_of(response) -> dict:
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_unknown_model_is_404_and_named(start_replicas, start_gateway):
    front = await start_gateway(*await start_replicas(1))
    async with front.post({"model": "nope"}) as response:
        assert response.status == 404
        error = await error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "nope" in error["message"]


async def test_a_service_without_ready_replica_is_503_and_says_why(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    replica.ready = 503
    front = await start_gateway(replica)
    await until(lambda: "loading" in front.registry.find("m").replicas["m-0"].health.reason)
    async with front.post({"model": "m"}) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        error = await error_of(response)
    assert error["code"] == "no_ready_replica"
    assert "loading" in error["message"]
    assert not replica.requests


async def test_a_replica_that_serves_another_model_is_not_used(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    replica.models = ["other"]
    front = await start_gateway(replica)
    await until(lambda: "other" in front.registry.find("m").replicas["m-0"].health.reason)
    async with front.post({"model": "m"}) as response:
        assert response.status == 503
        assert "serves other, not m" in (await error_of(response))["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        pytest.param(b"", "not JSON", id="an empty body"),
        pytest.param(b'{"model": "m"', "not JSON", id="half an object"),
        pytest.param(b"[1]", "JSON object", id="a list"),
        pytest.param(b'"m"', "JSON object", id="a string"),
        pytest.param(b'{"model": 3}', "must be text", id="a model that is a number"),
        pytest.param(b'{"model": ["m"]}', "must be text", id="a model that is a list"),
        pytest.param(b'{"model": "\xff"}', "not JSON", id="bytes that are not UTF-8"),
    ],
)
async def test_a_body_that_cannot_be_routed_is_400(body, word, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    async with front.client.post(front.url + "/v1/completions", data=body) as response:
        assert response.status == 400
        assert word in (await error_of(response))["message"]
    assert not replica.requests


async def test_a_missing_model_is_400_where_there_are_several(start_replicas, start_gateway):
    front = await start_gateway(*await start_replicas(1, "a"), *await start_replicas(1, "b"))
    async with front.post({"prompt": "x"}) as response:
        assert response.status == 400
        assert (await error_of(response))["param"] == "model"


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "in chunks"])
async def test_a_body_over_the_limit_is_413(chunked, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica, max_body=1000)

    async def chunks():
        for _ in range(4):
            yield b'{"model": "m"}' + b" " * 300

    data = chunks() if chunked else b'{"model": "m"}' + b" " * 1000
    async with front.client.post(front.url + "/v1/completions", data=data) as response:
        assert response.status == 413
        assert "1000" in (await error_of(response))["message"]
    assert not replica.requests


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("POST", "/nope", 404),
        ("GET", "/v1/completions", 404),
        ("POST", "/livez", 405),
        ("GET", "/v1/models/nope", 404),
    ],
)
async def test_wrong_routes_are_error_objects(method, path, status, start_gateway):
    front = await start_gateway()
    async with front.client.request(method, front.url + path) as response:
        assert response.status == status
        await error_of(response)


async def test_models_lists_every_service_as_its_replicas_describe_it(start_replicas, start_gateway):
    (ready,), (loading,) = await start_replicas(1, "org/a"), await start_replicas(1, "b")
    loading.ready = 503
    front = await start_gateway(ready, loading)
    async with front.get("/v1/models") as response:
        answer = await response.json()
    models = {m["id"]: m for m in answer["data"]}
    assert answer["object"] == "list"
    assert set(models) == {"org/a", "b"}
    assert all(m["object"] == "model" and m["created"] > 0 and m["owned_by"] for m in models.values())
    assert models["org/a"]["max_model_len"] == 77
    async with front.get("/v1/models/org/a") as response:
        assert await response.json() == models["org/a"]


async def statuses(front) -> dict[str, int]:
    found = {}
    for path in ("/livez", "/readyz", "/health", "/v1/models"):
        async with front.get(path) as response:
            found[path] = response.status
    return found


async def test_health_says_200_until_the_gateway_drains(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    may_go_on = asyncio.Event()
    plain = replica.answer

    async def answer(request):
        await may_go_on.wait()
        return await plain(request)

    replica.answer = answer
    front = await start_gateway(replica)
    assert set((await statuses(front)).values()) == {200}
    under_way = asyncio.create_task(front.client.post(front.url + "/v1/completions", json={"model": "m"}))
    await until(lambda: len(replica.requests) == 1)
    front.server.stop()
    assert await statuses(front) == {"/livez": 200, "/readyz": 503, "/health": 503, "/v1/models": 503}
    async with front.post({"model": "m"}) as response:
        assert (response.status, (await error_of(response))["code"]) == (503, "draining")
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["x-request-id"]
    may_go_on.set()
    assert (await under_way).status == 200
    await asyncio.wait_for(front.serving, 5)
    with pytest.raises(OSError, match=r"refused|onnect"):
        await asyncio.open_connection("127.0.0.1", front.port)


async def test_a_drain_cuts_what_takes_too_long(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)

    async def answer(request):
        await asyncio.sleep(60)

    replica.answer = answer
    front = await start_gateway(replica, drain_s=0.2)
    under_way = asyncio.create_task(front.client.post(front.url + "/v1/completions", json={"model": "m"}))
    await until(lambda: len(replica.requests) == 1)
    front.server.stop()
    await asyncio.wait_for(front.serving, 5)
    response = await under_way
    assert response.status == 502
    assert "shutting down" in (await error_of(response))["message"]


async def test_metrics_have_the_names_of_the_contract(start_replicas, start_gateway):
    from pagetide_spec.metrics import GATEWAY_METRICS

    front = await start_gateway(*await start_replicas(1))
    async with front.post({"model": "m"}):
        pass
    async with front.get("/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=")
        text = await response.text()
    for metric in GATEWAY_METRICS.values():
        assert f"# TYPE {metric.full_name} {metric.kind}" in text
    assert 'pagetide_gateway_replicas{model_name="m",state="ready"} 1.0' in text
    # A name that a client made up must not become a series.
    async with front.post({"model": "made-up"}):
        pass
    async with front.get("/metrics") as response:
        assert "made-up" not in await response.text()


async def test_the_version_is_told_like_a_servers(start_gateway):
    front = await start_gateway()
    async with front.get("/version") as response:
        assert response.status == 200
        assert list(await response.json()) == ["version"]
        assert response.headers["x-request-id"]


async def test_the_model_list_is_asked_for_with_the_replicas_key(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    asked = []
    replica.on_models = lambda request: asked.append(request.headers.get("authorization"))
    await start_gateway(replica, access=Access(None, "sk-upstream"))
    assert asked == ["Bearer sk-upstream"]
