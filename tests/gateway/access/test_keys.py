"""API keys: reading them, telling them apart, and holding them to their limits."""

from __future__ import annotations

import asyncio
import os

import pytest

from pagetide_gateway.access import key_file
from pagetide_gateway.access.key_file import keep_fresh, read_keys
from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.web.errors import ApiError
from pagetide_spec.errors import SettingError

SECRET = "sk-0123456789"


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    ("header", "name"),
    [
        pytest.param(f"Bearer {SECRET}", "a", id="a key"),
        pytest.param(f"bearer  {SECRET} ", "a", id="however it is written"),
        pytest.param(None, None, id="nothing"),
        pytest.param("Bearer ", None, id="an empty key"),
        pytest.param(f"Basic {SECRET}", None, id="another scheme"),
        pytest.param(f"Bearer {SECRET}x", None, id="a longer one"),
        pytest.param("Bearer sk-\xff", None, id="no ASCII"),
        pytest.param("Bearer " + "sk-voilà".encode().decode("latin-1"), "c", id="one that ends in a letter of UTF-8"),
    ],
)
def test_identify(header, name):
    ring = KeyRing([make_key("a", SECRET), make_key("b", "sk-another-key"), make_key("c", "sk-voilà")])
    if name:
        assert ring.identify(header).name == name
    else:
        with pytest.raises(ApiError) as error:
            ring.identify(header)
        assert error.value.status == 401
        assert SECRET not in str(error.value)


def test_a_key_may_have_so_many_requests_at_once():
    key = make_key("a", SECRET, max_concurrent=2)
    ring = KeyRing([key])
    with ring.use(key, 0.0), ring.use(key, 0.0):
        with pytest.raises(ApiError) as error, ring.use(key, 0.0):
            pass
        assert (error.value.status, error.value.code) == (429, "concurrency_limit_exceeded")
    with ring.use(key, 0.0):
        pass


def test_a_key_may_send_so_many_a_minute():
    key = make_key("a", SECRET, requests_per_minute=60)
    ring, refusals = KeyRing([key]), set()

    def sent(count: int, now: float) -> int:
        done = 0
        for _ in range(count):
            try:
                with ring.use(key, now):
                    done += 1
            except ApiError as error:
                refusals.add((error.status, *error.headers.items()))
        return done

    assert [sent(50, 0.0), sent(50, 0.5), sent(50, 5.5), sent(50, 600.0)] == [10, 0, 5, 10]
    assert refusals == {(429, ("retry-after", "1"))}


def test_limits_hold_across_a_reload():
    key = make_key("a", SECRET, max_concurrent=1)
    ring = KeyRing([key])
    with ring.use(key, 0.0):
        ring.replace([key])
        with pytest.raises(ApiError), ring.use(key, 0.0):
            pass


def test_salts_differ_by_key_and_can_be_shared():
    a, b = make_key("a", SECRET), make_key("b", "sk-another-key")
    assert a.cache_salt != b.cache_salt
    assert a == make_key("a", SECRET)
    assert SECRET not in repr(a)
    assert make_key("a", SECRET, cache_salt="team").cache_salt == "team"


LIST = f"""
- {{name: a, key: {SECRET}, maxConcurrent: 3, requestsPerMinute: 90}}
- {{name: b, key: sk-another-key, cacheSalt: ""}}
"""


def test_keys_of_a_file(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(LIST)
    a, b = read_keys(path)
    assert (a.name, a.max_concurrent, a.requests_per_minute) == ("a", 3, 90)
    assert (b.name, b.max_concurrent, b.cache_salt) == ("b", None, "")


def test_keys_of_a_secrets_folder(tmp_path):
    real = tmp_path / "..2026"
    real.mkdir()
    (real / "team-a").write_text(SECRET + "\n")
    (real / "team-b").write_text("key: sk-another-key\nmaxConcurrent: 2\n")
    (tmp_path / "..data").symlink_to(real)
    for name in ("team-a", "team-b"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert [(key.name, key.max_concurrent) for key in read_keys(tmp_path)] == [("team-a", None), ("team-b", 2)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SECRET, id="a bare key"),
        pytest.param(f"key: {SECRET}\nmaxConcurrent: 2\n", id="an entry"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_key(text, tmp_path):
    (tmp_path / "a").write_text(text, encoding="utf-8-sig")
    assert KeyRing(read_keys(tmp_path)).identify(f"Bearer {SECRET}").name == "a"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "must be a YAML list", id="nothing"),
        pytest.param("[]", "no keys", id="an empty list"),
        pytest.param(f"- {SECRET}", "`name` and a `key`", id="bare keys"),
        pytest.param(f"- {{name: a, key: {SECRET}, rpm: 3}}", "unknown fields: rpm", id="a misspelt field"),
        pytest.param(f"- {{name: a, key: {SECRET}, maxConcurrent: 0}}", "above 0", id="a limit of nothing"),
        pytest.param(f"- {{name: a, key: {SECRET}, requestsPerMinute: .nan}}", "above 0", id="no number"),
        pytest.param("- {name: a, key: short}", "at least 8", id="a key that can be guessed"),
        pytest.param(LIST.replace("name: b", "name: a"), "same name", id="a name twice"),
        pytest.param(LIST.replace("sk-another-key", SECRET), "same key", id="a key twice"),
        pytest.param(f"- {{name: a, key: {SECRET}", "not YAML", id="half a file"),
        pytest.param(f"- {{name: 2026-13-45, key: {SECRET}}}", "not YAML", id="a day that there is not"),
        pytest.param(f'- {{name: a, key: "{SECRET}\\ud800"}}', "can be printed", id="half a character"),
        pytest.param("[" * 5000, "not YAML", id="too deep"),
    ],
)
def test_a_wrong_file_is_named_and_shows_no_key(text, problem, tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=problem) as error:
        read_keys(path)
    assert SECRET not in str(error.value)
    assert "--api-keys" in str(error.value)


async def test_keys_are_read_again_when_they_change(tmp_path, monkeypatch, until, caplog):
    monkeypatch.setattr(key_file, "RELOAD_S", 0.02)
    path = tmp_path / "keys.yaml"
    path.write_text(LIST)
    ring = KeyRing(keys := read_keys(path))
    keeping = asyncio.create_task(keep_fresh(ring, path, keys))
    path.write_text("half a {file")
    await until(lambda: caplog.records)
    assert len(ring) == 2, "keys that cannot be read leave those of before"
    caplog.clear()
    path.write_text(f"- {{name: 2026-13-45, key: {SECRET}}}")
    await until(lambda: caplog.records)
    assert not keeping.done()
    new = tmp_path / "new"
    new.write_text("- {name: c, key: sk-a-new-key}")
    os.replace(new, path)
    await until(lambda: len(ring) == 1)
    assert ring.identify("Bearer sk-a-new-key").name == "c"
    keeping.cancel()


@pytest.fixture
def access():
    return Access(KeyRing([make_key("a", SECRET, max_concurrent=1)]))


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_without_a_key_nobody_is_answered(path, access, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica, access=access)
    for headers in ({}, bearer("sk-wrong-wrong")):
        async with front.post({"model": "m"}, path, headers=headers) as response:
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
            assert (await response.json())["error"]["code"] == "invalid_api_key"
    async with front.get("/v1/models") as response:
        assert response.status == 401
    for open_path in ("/livez", "/readyz", "/metrics"):
        async with front.get(open_path) as response:
            assert response.status == 200
    assert not replica.requests


async def test_the_clients_key_stays_here_and_salts_its_cache(access, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica, access=Access(access.keys, "sk-upstream"))
    for salt in ({}, {"cache_salt": "mine"}, {"cache_salt": ""}, {"cache_salt": None}):
        async with front.post({"model": "m", **salt}, headers=bearer()) as response:
            assert response.status == 200
    assert [r.headers["authorization"] for r in replica.requests] == ["Bearer sk-upstream"] * 4
    salts = [await r.json() for r in replica.requests]
    ours = make_key("a", SECRET).cache_salt
    assert [s["cache_salt"] for s in salts] == [ours, f"{ours}/mine", ours, ours], "nobody gets at another's cache"


@pytest.mark.parametrize(
    ("path", "is_salted"),
    [("/v1/completions", True), ("/v1/chat/completions", True), ("/v1/responses", True), ("/tokenize", False)],
)
async def test_what_is_cached_is_salted(path, is_salted, access, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica, access=access)
    async with front.post({"model": "m"}, path, headers=bearer()) as response:
        assert response.status == 200
    assert ("cache_salt" in await replica.requests[0].json()) is is_salted


async def test_a_request_too_many_is_429_and_the_place_is_free_again(access, start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    plain, may_go_on = replica.answer, asyncio.Event()

    async def wait(request):
        await may_go_on.wait()
        return await plain(request)

    replica.answer = wait
    front = await start_gateway(replica, access=access)
    first = asyncio.create_task(front.client.post(front.url + "/v1/completions", json={"model": "m"}, headers=bearer()))
    await until(lambda: len(replica.requests) == 1)
    async with front.post({"model": "m"}, headers=bearer()) as response:
        assert response.status == 429
        assert int(response.headers["retry-after"]) > 0
        assert (await response.json())["error"]["type"] == "rate_limit_error"
    may_go_on.set()
    assert (await first).status == 200
    async with front.post({"model": "m"}, headers=bearer()) as response:
        assert response.status == 200
    assert await front.metric('pagetide_gateway_limited_total{limit="concurrency_limit_exceeded"') == 1
