"""Leader election against a fake server and a fake clock."""

import asyncio

import pytest

from pagetide_operator.cluster.client import ApiError
from pagetide_operator.running import leader
from pagetide_operator.running.leader import DURATION, Leader, Observed


class Leases:
    """A server that holds one Lease and refuses stale writes."""

    def __init__(self):
        self.lease, self.version, self.is_down, self.is_silent = None, 0, False, False

    async def request(self, method, path, query=None, body=None, content_type=""):
        if self.is_silent:
            await asyncio.sleep(60)
        if self.is_down:
            raise ApiError(0, "Unreachable", "no answer")
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, "NotFound", "no lease")
            return self.lease
        if method == "POST" and self.lease is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        if method == "PUT" and body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "Conflict", "stale")
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


async def test_one_of_two_is_elected(clock):
    leases = Leases()
    one, two = (Leader(leases, "ns", name, clock) for name in "12")
    assert await one._try()
    assert not await two._try()


async def test_another_takes_over_when_the_holder_is_silent(clock):
    leases = Leases()
    one, two = (Leader(leases, "ns", name, clock) for name in "12")
    await one._try()
    await two._try()
    clock.now += DURATION - 1
    assert not await two._try()
    clock.now += 2
    assert await two._try()
    assert not await one._try()


async def test_a_holder_that_renews_keeps_it(clock):
    leases = Leases()
    one, two = (Leader(leases, "ns", name, clock) for name in "12")
    for _ in range(10):
        assert await one._try()
        assert not await two._try()
        clock.now += DURATION - 1


async def test_what_was_given_back_is_free_at_once(clock):
    leases = Leases()
    one, two = (Leader(leases, "ns", name, clock) for name in "12")
    await one._try()
    await one.release()
    assert not one.holds(), "what is still under way must write nothing"
    assert await two._try()


async def test_an_empty_lease_is_taken(clock):
    leases = Leases()
    leases.lease, leases.version = {"metadata": {"name": leader.NAME, "resourceVersion": "1"}}, 1
    one = Leader(leases, "ns", "1", clock)
    assert await one._try()
    assert leases.lease["spec"]["holderIdentity"] == "1"


async def test_an_unreachable_server_elects_nobody(clock):
    leases = Leases()
    one = Leader(leases, "ns", "1", clock)
    leases.is_down = True
    assert not await one._try()


async def test_a_holder_whose_renewal_gets_no_answer_gives_up_in_time(monkeypatch):
    monkeypatch.setattr(leader, "RENEW_DEADLINE", 0.2)
    monkeypatch.setattr(leader, "RETRY", 0.01)
    leases = Leases()
    one = Leader(leases, "ns", "1")
    await one.elected()
    leases.is_silent = True
    await asyncio.wait_for(one.lost(), 2)


async def test_a_candidate_asks_again_when_it_gets_no_answer(monkeypatch):
    monkeypatch.setattr(leader, "RENEW_DEADLINE", 0.05)
    monkeypatch.setattr(leader, "RETRY", 0.01)
    leases = Leases()
    leases.is_silent = True
    electing = asyncio.create_task(Leader(leases, "ns", "1").elected())
    await asyncio.sleep(0.1)
    leases.is_silent = False
    await asyncio.wait_for(electing, 2)


async def test_of_two_that_write_at_once_one_wins(clock):
    leases = Leases()
    one, two = (Leader(leases, "ns", name, clock) for name in "12")
    await one._try()
    await one.release()
    stale = dict(leases.lease)
    assert await one._try()
    with pytest.raises(ApiError):
        await two._write(stale, "2")


def test_a_lease_is_free_when_its_own_time_is_over():
    observed = Observed()
    lease = {"spec": {"holderIdentity": "other", "renewTime": "x", "leaseDurationSeconds": 60}}
    assert not observed.is_free(lease, "me", 1000.0)
    assert not observed.is_free(lease, "me", 1000.0 + 59)
    assert observed.is_free(lease, "me", 1000.0 + 61)


def test_time_is_measured_by_our_own_clock():
    observed = Observed()
    lease = {"spec": {"holderIdentity": "other", "renewTime": "1970-01-01T00:00:00Z"}}
    assert not observed.is_free(lease, "me", 1000.0)
    assert observed.is_free(lease, "me", 1000.0 + DURATION + 1)


async def test_a_holder_that_stood_still_knows_that_it_may_hold_no_longer(clock):
    leases = Leases()
    one = Leader(leases, "ns", "1", clock)
    assert not one.holds()
    await one._try()
    clock.now += leader.RENEW_DEADLINE - 0.1
    assert one.holds()
    clock.now += 0.2  # as after SIGSTOP and SIGCONT: no renewal, no timer, and no doubt
    assert not one.holds()
    await one._try()
    assert one.holds()
