"""What a person sees and does in the console: every page, signing in, a cut, a move, a failover."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from tests.console.browser import Browser
from tests.console.conftest import AXE, PICTURES, ConsoleMesh, sign_in

PAGES: Final = (
    "",
    "topics",
    "topics/orders",
    "records/orders/0",
    "groups/us",
    "groups/us/bills",
    "queues/us",
    "queues/us/jobs",
    "brokers/us",
    "homes",
    "clients",
    "security",
    "log/us",
    "audit",
    "api",
)
SEEN_S_MAX: Final = 3.0  # from a cut to its cause on the screen
BYTES_MAX: Final = 60_000  # of everything that the page loads, compressed
FIRST_PICTURE_S_MAX: Final = 3.0
HELD_MS_MAX: Final = 500  # by one piece of work, while a long list is shown
# Answers for a topic and groups that the mesh does not have, and how long the page is held by one piece of work.
MANY: Final = """
const states = Array.from({length: 1000}, (_, partition) => ({
  partition, home: 1, epoch: 1, leader: 1001, replicas: [1001], log_start: 0, high_watermark: 1000000, size_bytes: 1e9,
  is_settled: true}));
const topic = {name: 'huge', topic_id: '0', partitions: 1000, homes: 'every', home: 0, replication_factor: 1,
  retention_ms: -1, retention_bytes: -1, settings: {}, partition_states: states};
const groups = Array.from({length: 10000}, (_, number) => ({
  group: `group-${number}`, state: 'Stable', members: 1, lag: 12345, coordinator: 1001}));
const real = window.fetch;
window.looks = 0;
window.fetch = (path, options) => {
  if (path.startsWith('/v1/overview')) window.looks += 1;
  const made = path === '/v1/topics/huge' ? topic : path === '/v1/groups?region=us' ? {groups} : null;
  return made === null ? real(path, options) : Promise.resolve(new Response(JSON.stringify(made)));
};
window.held = 0;
new PerformanceObserver((list) => {
  for (const row of list.getEntries()) window.held = Math.max(window.held, row.duration);
}).observe({type: 'longtask'});
"""

LATE_FAREWELL: Final = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options);
  if (options.method === 'DELETE') await new Promise((go) => setTimeout(go, 3000));
  return answer;
};
"""


def go(browser: Browser, page: str) -> None:
    browser.js("location.hash = '#/' + arguments[0]", page)
    place = json.dumps(f"#/{page}")
    browser.until(
        f"location.hash === {place} && document.querySelector('main h1') && !/Loading…/.test(document.body.innerText)"
    )
    browser.until(f"document.querySelector('main').dataset.page === {place}.split('?')[0]")


def faults_of(browser: Browser) -> list[str]:
    """Return what axe finds that is serious: rule and where."""
    if not AXE.exists():
        pytest.fail(f"{AXE} is missing. Run: make console")
    if not browser.js("return Boolean(window.axe)"):
        browser.cdp("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = browser.js_later(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then(done, (error) => done({error: String(error)}))"
    )
    assert "error" not in found, found
    return [
        f"{row['id']} ({row['impact']}): {node['target']} {node.get('failureSummary', '')}"
        for row in found["violations"]
        if row["impact"] in ("serious", "critical")
        for node in row["nodes"][:3]
    ]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_every_page_fits_can_be_used_by_everybody_and_breaks_no_rule_of_its_policy(
    browser: Browser, width: int, dark: bool
) -> None:
    browser.look(width=width, dark=dark)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        go(browser, page)
        assert browser.js("return document.documentElement.scrollWidth") <= width, page
        assert browser.js("return document.querySelector('main [role=alert]')?.textContent ?? ''") == "", page
        assert faults_of(browser) == [], page
        browser.shoot(PICTURES / f"{page.replace('/', '-') or 'overview'}-{width}-{'dark' if dark else 'light'}.png")


def test_the_sign_in_page_can_be_used_by_everybody_and_says_what_is_wrong(browser: Browser) -> None:
    browser.click("Sign out")
    assert faults_of(browser) == []
    browser.type("input[name=user]", "ann")
    browser.type("input[name=password]", "no")
    browser.click("Sign in", "form.sign-in")
    browser.until("/Wrong user or password/.test(document.body.innerText)")
    assert [line for line in browser.complaints() if "401" not in line] == []


def test_a_session_outlives_a_reload_and_scripts_cannot_read_its_cookie(browser: Browser, mesh: ConsoleMesh) -> None:
    browser.open(f"{mesh.gateway}/console/#/topics/orders")
    browser.until("/one region orders each partition/.test(document.body.innerText)")
    assert browser.js("return document.cookie") == ""
    browser.click("Sign out")
    browser.until("document.querySelector('form.sign-in')")


def test_signing_out_leaves_no_request_behind_that_is_refused(browser: Browser) -> None:
    """The answer to signing out is held back here for longer than the page waits between two questions."""
    browser.js(LATE_FAREWELL)
    browser.click("Sign out")
    browser.until("document.querySelector('form.sign-in')")
    assert browser.complaints() == []


def test_who_may_only_look_finds_no_button_that_changes_anything(browser: Browser, mesh: ConsoleMesh) -> None:
    sign_in(browser, mesh, only_look=True)
    assert "read-only" in browser.text()
    for page in ("topics/orders", "homes", "security", "groups/us/bills", "queues/us/jobs", "brokers/us"):
        go(browser, page)
        enabled = browser.js(
            "const all = [...document.querySelectorAll('main button')];"
            "return all.filter((one) => !one.disabled).map((one) => one.textContent)"
        )
        assert not [text for text in enabled if text.endswith("…")], page


def test_the_page_can_be_walked_by_keyboard(browser: Browser) -> None:
    go(browser, "topics/orders")
    browser.js("document.activeElement.blur(); document.body.focus()")
    browser.js("document.querySelector('.skip').focus()")
    browser.keys("Enter")
    browser.until("document.activeElement.id === 'main' || location.hash === '#main'")
    go(browser, "topics/orders")
    browser.js(
        "[...document.querySelectorAll('main button')].find((one) => /Delete topic/.test(one.textContent)).focus()"
    )
    browser.keys("Enter")
    browser.until("document.querySelector('dialog[open]') && document.activeElement.name === 'typed'")
    assert faults_of(browser) == []
    assert "curl" in browser.text()
    browser.keys("Escape")
    browser.until("!document.querySelector('dialog') && /Delete topic/.test(document.activeElement.textContent)")


def test_a_record_is_published_and_the_live_tail_shows_it(browser: Browser, mesh: ConsoleMesh) -> None:
    go(browser, "records/orders/0")
    browser.choose("select[name=by]", "end")
    browser.click("Show")
    browser.until("/following the end/.test(document.body.innerText)")
    mesh.ask("POST", "/v1/topics/orders/records", [{"value": "from beside", "partition": 0}])
    browser.until("/from beside/.test(document.body.innerText)")
    browser.click("Publish a record")
    browser.type("input[name=value]", "from the page")
    browser.type("input[name=to]", "0")
    browser.click("Publish…")
    browser.until("/curl .*topics\\/orders\\/records/.test(document.querySelector('dialog').innerText)")
    browser.click("Publish", "dialog")
    browser.until("/from the page/.test(document.querySelector('main table').innerText)")
    browser.click("Stop")


def test_the_console_explains_where_a_client_goes(browser: Browser) -> None:
    go(browser, "clients")
    browser.type("input[name=client]", "till-7")
    browser.click("Explain")
    browser.until("/Goes to (us|eu|ap): /.test(document.body.innerText)")
    assert faults_of(browser) == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.shoot(PICTURES / "explain-1280-light.png")


def test_a_client_is_pinned_by_a_form_and_the_pin_is_taken_back(browser: Browser, mesh: ConsoleMesh) -> None:
    go(browser, "clients")
    browser.type("input[name=subject]", "10.1.2.0/24")
    browser.choose("select[name=region]", "eu")
    browser.click("Pin…")
    browser.until("/curl .*routes\\/pin/.test(document.querySelector('dialog').innerText)")
    browser.click("Pin", "dialog")
    browser.until("/10\\.1\\.2\\.0\\/24/.test(document.querySelector('main table').innerText)")
    rules = mesh.ask("GET", "/v1/routes")["rules"]
    assert [(rule["kind"], rule["subject"], rule["value"]) for rule in rules] == [("pin", "10.1.2.0/24", "eu")]
    browser.click("Take back…")
    browser.click("Take back", "dialog")
    browser.until("/nothing was decided/.test(document.body.innerText)")


def test_a_topic_says_whose_leaders_it_names_and_homes_are_counted_alike_on_all_pages(browser: Browser) -> None:
    go(browser, "topics/orders")
    browser.until("/leader in (us|eu|ap)/i.test(document.body.innerText)")
    go(browser, "")
    told = "[...document.querySelectorAll('.map .under')].map((one) => parseInt(one.textContent)).sort().join()"
    browser.until(f"/[0-9]/.test({told})")
    over_all = browser.js(f"return {told}")
    go(browser, "homes")
    on_page = "[...document.querySelectorAll('.card .answer')].map((one) => parseInt(one.textContent)).sort().join()"
    browser.until(f"{on_page} === {over_all!r}")


def test_a_dead_letter_is_sent_back_by_a_button(browser: Browser, mesh: ConsoleMesh) -> None:
    mesh.ask("POST", "/v1/queues?region=us", {"name": "tries", "topic": "orders", "max_deliveries": 1})
    asked = "region=us&consumer=till-7&max=1&wait_ms=10000"
    row = mesh.ask("POST", f"/v1/queues/tries/records?{asked}", {})["records"][0]
    given_up = {"action": "reject", "consumer": "till-7", "leases": [row["lease"]], "then": "dead_letter"}
    mesh.ask("POST", "/v1/queues/tries/leases?region=us", given_up | {"delay_ms": 0, "reason": "no such customer"})
    go(browser, "queues/us/tries")
    browser.until("/no such customer/.test(document.body.innerText)", 30)
    assert faults_of(browser) == []
    browser.shoot(PICTURES / "dead-letters-1280-light.png")
    browser.click("Send back…")
    browser.until("/curl .*topics\\/orders\\/records/.test(document.querySelector('dialog').innerText)")
    browser.click("Send back", "dialog")
    browser.until("/1 record sent back/.test(document.body.innerText)")


def test_long_lists_are_turned_page_by_page_and_freeze_nothing(browser: Browser) -> None:
    """The answers are made up here, as large as a mesh may make them; the page asks and shows as ever."""
    browser.js(MANY)
    for page, kind, count in (("topics/huge", "partition", 1_000), ("groups/us", "group", 10_000)):
        go(browser, page)
        browser.until(f"/{count:,} {kind}s/.test(document.body.innerText)")
        rows = "[...document.querySelectorAll('main table')].at(-1).querySelectorAll('tbody tr')"
        shown = browser.js(f"return {rows}.length")
        first = browser.js(f"return {rows}[0].innerText")
        browser.click("Next")
        browser.until(f"{rows}[0].innerText !== {json.dumps(first)}")
        assert 0 < shown <= 100
        browser.js("window.held = 0")
        browser.until("window.looks > 3 && (window.looks = 0, true)")
        print(f"{page}: {shown} of {count} shown, the page was held for {browser.js('return window.held'):.0f} ms")
        assert browser.js("return window.held") < HELD_MS_MAX


def test_a_table_that_is_cut_on_a_phone_scrolls_in_its_own_box_and_shows_a_shadow(browser: Browser) -> None:
    browser.look(width=390)
    go(browser, "topics/orders")
    box = "document.querySelector('main .scroll')"
    assert browser.js(f"return {box}.scrollWidth > {box}.clientWidth")
    assert browser.js(f"return getComputedStyle({box}).backgroundImage").count("gradient") == 4


def test_the_page_is_small_and_quick(browser: Browser, mesh: ConsoleMesh) -> None:
    browser.cdp("Network.clearBrowserCache")
    browser.open(f"{mesh.gateway}/console/")
    browser.until("document.querySelector('svg.map .region')")
    loaded, first_ms = browser.js(
        "const all = [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')];"
        "const files = all.filter((one) => one.name.includes('/console/') && !one.name.endsWith('/session'));"
        "return [files.reduce((sum, one) => sum + one.transferSize, 0),"
        " performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null]"
    )
    print(f"page: {loaded} bytes, first picture after {first_ms:.0f} ms")
    assert 0 < loaded < BYTES_MAX
    assert first_ms < FIRST_PICTURE_S_MAX * 1000


def test_a_cut_is_seen_with_its_cause_and_heals(browser: Browser, mesh: ConsoleMesh) -> None:
    browser.until("document.querySelectorAll('.pair.ok').length === 6")
    mesh.wan("cut", "us", "eu")
    try:
        seen_s = browser.until("document.querySelectorAll('.pair.cut').length === 2", 30)
        print(f"a cut was seen after {seen_s:.1f} s")
        text = browser.text()
        assert re.search(r"eu cannot reach us: .+", text) and re.search(r"us cannot reach eu: .+", text)
        assert "What to do:" in text
        PICTURES.mkdir(parents=True, exist_ok=True)
        browser.shoot(PICTURES / "cut-1280-light.png")
    finally:
        mesh.wan("heal")
    browser.until("document.querySelectorAll('.pair.ok').length === 6 && /All well/.test(document.body.innerText)", 60)
    assert seen_s < SEEN_S_MAX


def test_a_planned_move_is_clicked_through_and_followed(browser: Browser, mesh: ConsoleMesh) -> None:
    go(browser, "homes?topic=orders")
    browser.choose("select[name=to]", "eu")
    browser.click("Move…")
    browser.until("/curl .*homes\\/move/.test(document.querySelector('dialog').innerText)")
    browser.click("Move", "dialog")
    browser.until("/3 of 3 moved/.test(document.body.innerText)", 60)
    assert {row["home"] for row in mesh.ask("GET", "/v1/homes?topic=orders")["homes"]} == {"eu"}


def test_a_failover_says_first_what_is_lost_and_needs_the_regions_name(browser: Browser, mesh: ConsoleMesh) -> None:
    browser.until("/All well/.test(document.body.innerText)", 60)
    mesh.kill("eu-1")
    browser.until(
        "document.querySelector('.region.silent') && /region eu does not answer/.test(document.body.innerText)", 30
    )
    go(browser, "homes")
    browser.choose("select[name=region]", "eu")
    browser.click("Take its homes away…")
    browser.until("/Every record of eu is in another region/.test(document.querySelector('dialog').innerText)")
    assert browser.js("return document.querySelector('dialog button[type=submit]').disabled")
    browser.type("dialog input[name=typed]", "eu")
    browser.click("Take them away", "dialog")
    browser.until("/ moved/.test(document.querySelector('main .banner')?.innerText ?? '')", 60)
    browser.until("document.querySelector('main .banner.pass')", 60)
    assert "eu" not in {row["home"] for row in mesh.ask("GET", "/v1/homes?topic=orders")["homes"]}
