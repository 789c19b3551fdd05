"""A schedule that a RunSchedule of a cluster owns: over HTTP it is read and fired, and nothing
else, as long as an operator says that the object is there."""

from collections.abc import Iterator

import httpx
import pytest
from tests.conftest import Servers
from tests.services.api_server import Stage, problem
from tests.services.schedules_api import make, path, scheduling_stage

from researchcopilot.core.ids import new_id
from researchcopilot.core.schedules import Schedule
from researchcopilot.storage import objects, owned_schedules
from researchcopilot.storage.db import Database
from researchcopilot.storage.objects import Owner
from researchcopilot.storage.owned_schedules import HOLDS_S


@pytest.fixture(scope="module")
def here(servers: Servers) -> Iterator[Stage]:
    with scheduling_stage(servers) as made:
        yield made


@pytest.fixture(scope="module")
def client(here: Stage) -> Iterator[httpx.Client]:
    with here.start().client() as opened:
        yield opened


def own(here: Stage, name: str) -> str:
    """A schedule of an object of that name; its id."""
    uid = new_id()

    async def work(db: Database) -> None:
        wanted = Schedule(
            uid, 1, f"research/{name}", "echo", "why?", session_id=new_id(), interval_s=3600.0
        )
        owner = Owner(uid, "RunSchedule", "default", "research", name, 1)
        await owned_schedules.apply(db, owner, wanted, generation=1, asked="a", suspend=False)

    here.run(work)
    return uid


CHANGES = [("PATCH", ""), ("DELETE", ""), ("POST", ":pause"), ("POST", ":resume")]


def send(client: httpx.Client, method: str, schedule_id: str, more: str) -> httpx.Response:
    body = {"input": "how?"} if method == "PATCH" else None
    return client.request(method, f"/v1/schedules/{schedule_id}{more}", json=body)


@pytest.mark.parametrize(("method", "more"), CHANGES)
def test_what_would_be_put_right_again_is_refused_with_its_owner(
    here: Stage, client: httpx.Client, method: str, more: str
) -> None:
    uid = own(here, f"nightly-{method.lower()}{more.strip(':')}")
    before = client.get(f"/v1/schedules/{uid}").json()
    refused = problem(send(client, method, uid, more), 409, "conflict")
    assert (
        f"RunSchedule {before['name'].split('/')[1]} of the namespace research" in refused["detail"]
    )
    assert "kubectl edit rsched" in refused["detail"]
    assert client.get(f"/v1/schedules/{uid}").json() == before


def test_it_can_be_read_and_fired(here: Stage, client: httpx.Client) -> None:
    uid = own(here, "fired")
    assert client.post(f"/v1/schedules/{uid}:trigger").status_code == 202
    assert client.get(f"/v1/schedules/{uid}:preview").status_code == 200


@pytest.mark.parametrize(("method", "more"), CHANGES)
def test_an_operator_that_is_gone_owns_nothing(
    here: Stage, client: httpx.Client, method: str, more: str
) -> None:
    """Else nobody could ever be rid of the schedules of an operator that was taken away; nor does
    an object that was deleted own what it has left."""
    for what in ("silent", "deleted"):
        uid = own(here, f"{what}-{method.lower()}{more.strip(':')}")

        async def work(db: Database, uid: str = uid, what: str = what) -> None:
            if what == "deleted":
                await objects.gone(db, [uid])
            else:
                await db.execute(
                    b"UPDATE objects SET seen_at = seen_at - make_interval(secs => %(s)s)"
                    b" WHERE uid = %(u)s::uuid",
                    {"s": HOLDS_S + 1, "u": uid},
                )

        here.run(work)
        assert send(client, method, uid, more).status_code in (200, 204)


def test_a_schedule_of_nobody_is_changed_as_before(client: httpx.Client) -> None:
    made = make(client)
    for method, more in CHANGES[2:] + CHANGES[:2]:
        assert client.request(
            method, path(made, more), json={"input": "how?"} if method == "PATCH" else None
        ).status_code in (200, 204)


def test_another_workspace_is_not_told_who_owns_what(here: Stage, client: httpx.Client) -> None:
    uid = own(here, "secret")
    headers = {"Authorization": f"Bearer {here.new_key('other')}"}
    answer = client.delete(f"/v1/schedules/{uid}", headers=headers)
    assert "secret" not in answer.text
    problem(answer, 404, "not_found")
