"""The web console: who gets in, what a page may do, and that every text on it is text (S-35, S-17, S-44)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from api.console import session as sessions
from api.console.app import ACTIONS
from api.console.pages import PAGES
from store.token import Role
from tests.api.conftest import World

HOSTILE = "<script>alert(1)</script>{{7*7}}\x1b[31m\u202e"


class Visitor:
    """A browser without scripts: it follows redirects, keeps cookies, fills in forms."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.page = ""

    async def open(self, path: str, status: int = 200) -> str:
        return self._take(await self.client.get(path, follow_redirects=True), status)

    async def send(self, path: str, status: int = 200, **fields: str) -> str:
        return self._take(await self.client.post(path, data=fields, follow_redirects=True), status)

    async def log_in(self, token: str, status: int = 200) -> str:
        return await self.send("/console/login", status, token=token)

    async def press(self, path: str, status: int = 200) -> str:
        """Send the form of the page that was opened last."""
        assert f'action="{path}"' in self.page, self.page
        return await self.send(path, status, csrf=self.csrf)

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.page)
        assert found is not None
        return found[1]

    def _take(self, answer: httpx2.Response, status: int) -> str:
        assert answer.status_code == status, answer.text
        self.page = answer.text
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert "no-store" in answer.headers["cache-control"]
        return answer.text


@pytest.fixture
async def visitor(world: World) -> AsyncIterator[Visitor]:
    transport = world.client._transport  # pyright: ignore[reportPrivateUsage]
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8460") as client:
        yield Visitor(client)


async def enter(world: World, visitor: Visitor, role: Role = "operator", project: str | None = None) -> None:
    await visitor.log_in(await world.token(role, project))


async def test_nobody_gets_in_without_a_token_that_counts(world: World, visitor: Visitor) -> None:
    """S-35, S-30: every page leads to the login; a wrong token is told so, and gives no session."""
    for page in ("/", "/console/quarantine", "/console/audit", "/console/vms/x", "/console/hosts/x"):
        assert 'name="token"' in await visitor.open(page)
    assert "unknown or has ended" in await visitor.log_in("hst_wrong", 401)
    assert not visitor.client.cookies
    assert "<h1>Fleet</h1>" in await visitor.log_in(await world.token("viewer"))


async def test_the_session_is_the_visitors_alone(world: World, visitor: Visitor) -> None:
    """S-35, S-42: HttpOnly, SameSite=Strict, sealed, over after 12 hours or 30 idle minutes, or when the token ends."""
    answer = await visitor.client.post("/console/login", data={"token": await world.token("operator")})
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie.lower() for word in ("httponly", "samesite=strict", "max-age=43200"))
    assert (await world.token("operator")) not in cookie
    assert "<h1>Fleet</h1>" in await visitor.open("/")
    await world.pool.execute("update tokens set revoked_at = now()")
    assert 'name="token"' in await visitor.open("/")


@pytest.mark.parametrize(("later", "is_in"), [(29 * 60, True), (31 * 60, False)])
async def test_an_idle_session_ends(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, later: int, is_in: bool
) -> None:
    """S-35: 30 idle minutes; whoever goes on stays in until the twelfth hour."""
    await enter(world, visitor)
    began = time.time()
    clock = [began + later]
    monkeypatch.setattr(sessions.time, "time", lambda: clock[0])
    assert ("<h1>Fleet</h1>" in await visitor.open("/")) is is_in
    if is_in:
        for _ in range(25):
            clock[0] += 28 * 60
            await visitor.open("/")
        assert clock[0] - began > sessions.LONGEST_SECONDS
        assert 'name="token"' in visitor.page


async def test_a_forged_or_foreign_session_is_none(world: World, visitor: Visitor) -> None:
    """S-35."""
    await enter(world, visitor)
    (value,) = visitor.client.cookies.values()
    for forged in ("x", value[:-8] + "AAAAAAAA", value[:40], ""):
        visitor.client.cookies.clear()
        visitor.client.cookies.set(sessions.COOKIE, forged)
        assert 'name="token"' in await visitor.open("/")


async def test_no_form_works_without_its_sessions_word(world: World, visitor: Visitor) -> None:
    """S-35: a page of elsewhere knows no session's word, and is refused by its origin before that (S-34)."""
    vm = await world.create(name="web")
    await enter(world, visitor)
    for action in ACTIONS:
        kind, verb = action.split("/")
        answer = await visitor.client.post(f"/console/{kind}/{vm['id']}/{verb}", data={"csrf": "guessed"})
        assert (answer.status_code, "another session" in answer.text) == (403, True)
    foreign = {"origin": "http://elsewhere.test"}
    await visitor.open(f"/console/vms/{vm['id']}")
    data = {"csrf": visitor.csrf}
    answer = await visitor.client.post(f"/console/vms/{vm['id']}/delete", data=data, headers=foreign)
    assert answer.status_code == 403
    assert (await world.call("GET", f"/v1/vms/{vm['id']}")).json()["quarantine"] is None


async def test_a_vms_life_on_its_page(world: World, visitor: Visitor) -> None:
    """Stop, start, delete, undelete: each form is a call of the API, under the visitor's name."""
    vm = await world.create(name="web")
    page = f"/console/vms/{vm['id']}"
    await enter(world, visitor)
    assert "web" in await visitor.open("/")
    await visitor.open(page)
    assert "wanted stopped" in await visitor.press(f"{page}/stop")
    assert "wanted running" in await visitor.press(f"{page}/start")
    assert "Deleted; destroyed in" in await visitor.press(f"{page}/delete")
    assert "web" in await visitor.open("/console/quarantine")
    assert "wanted running" in await visitor.press(f"{page}/undelete")
    assert "vm.undelete" in await visitor.open("/console/audit")


async def test_a_refusal_is_shown_whole(world: World, visitor: Visitor) -> None:
    """A-1: the sentence of the API, on the page that it belongs to."""
    vm = await world.create(name="web", termination_protection=True)
    page = f"/console/vms/{vm['id']}"
    await enter(world, visitor)
    await visitor.open(page)
    detail = (await world.call("DELETE", f"/v1/vms/{vm['id']}")).json()["detail"]
    assert detail in await visitor.press(f"{page}/delete", 409)
    assert "there is no VM nobody" in await visitor.open("/console/vms/nobody", 404)


async def test_hosts_and_what_is_wrong(world: World, visitor: Visitor) -> None:
    """H-P7, A-10: bars of what is held; conditions with what to do; a host is cordoned by its form."""
    await world.create(name="web", memory_mib=700)
    await enter(world, visitor)
    assert "Temporal does not answer" in await visitor.open("/")
    host = await world.pool.fetchval("select id from hosts")
    told = await visitor.open(f"/console/hosts/{host}")
    assert "700 of an unknown size" in told
    assert ">cordoned<" in await visitor.press(f"/console/hosts/{host}/cordon")
    assert ">ready<" in await visitor.press(f"/console/hosts/{host}/uncordon")


async def test_a_projects_visitor_sees_its_own(world: World, visitor: Visitor) -> None:
    """S-31, S-32: as by every other way in."""
    mine, theirs = await world.create("blue", name="mine"), await world.create("red", name="theirs")
    await enter(world, visitor, project="blue")
    page = await visitor.open("/")
    assert "mine" in page
    assert "theirs" not in page
    assert "h1" not in re.sub("<h1|h1>", "", page)
    await visitor.open(f"/console/vms/{mine['id']}")
    await visitor.open(f"/console/vms/{theirs['id']}", 404)
    host = await world.pool.fetchval("select id from hosts")
    assert "belongs to no project" in await visitor.open(f"/console/hosts/{host}", 403)


@pytest.mark.parametrize("page", PAGES)
async def test_every_text_is_text(world: World, visitor: Visitor, page: str) -> None:
    """S-17: what users, guests and hosts wrote is neither markup nor a template, and holds no control character."""
    vm = await world.create(name="web", labels={"x": "<b>"})
    await world.pool.execute(
        """update vms set phase = 'failed', last_error = $1, status_detail = $1, first_ready_at = now(),
        last_exit = jsonb_build_object('at', now(), 'by', 'guest', 'reason', $1::text)""",
        HOSTILE,
    )
    await world.pool.execute("update hosts set state_lost_at = now(), worker_version = $1", HOSTILE)
    await world.call("DELETE", f"/v1/vms/{vm['id']}") if page == "quarantine" else None
    await enter(world, visitor)
    host = await world.pool.fetchval("select id from hosts")
    path = {"fleet": "/", "vms": f"/console/vms/{vm['id']}", "hosts": f"/console/hosts/{host}"}
    text = await visitor.open(path.get(page, f"/console/{page}"))
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "alert(1)" in text or page in ("quarantine", "audit")


async def test_attempts_to_log_in_are_paced(world: World, visitor: Visitor) -> None:
    """S-44: ten at once from one address, then one in six seconds."""
    answers: list[Any] = [await visitor.client.post("/console/login", data={"token": "x"}) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert answers[-1].headers["retry-after"] == "6"


async def test_logging_out_ends_the_session(world: World, visitor: Visitor) -> None:
    """S-35."""
    await enter(world, visitor)
    assert 'name="token"' in await visitor.press("/console/logout")
    assert 'name="token"' in await visitor.open("/")


async def test_its_files_are_ours(visitor: Visitor) -> None:
    """S-34, S-35: the pages load nothing of others, and have no script or style within."""
    for name in ("htmx.min.js", "console.css"):
        assert (await visitor.client.get(f"/console/static/{name}")).status_code == 200
    assert (await visitor.client.get("/console/static/../app.py")).status_code == 404
    page = await visitor.open("/console/login")
    assert not re.search(r"(?:src|href)=\"(?!/)|<style|<script>| on[a-z]+=| style=", page)
