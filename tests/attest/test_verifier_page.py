"""The verifier's page in a real browser: what it shows, in both schemes, at a phone's width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from httpx import Client

from excise.evidence.base64text import decode_base64
from test_browser import Browser, browser  # noqa: F401  a fixture
from token_builders import claims_2, component, corim, store, token
from verifier_runner import running

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
HEADERS = {"Content-Type": "application/psa-attestation-token"}
NEW = "/challenge-response/v1/newSession"


@dataclass(frozen=True)
class Address:
    """Where a page is, in the place of the file that the browser's helper opens."""

    url: str

    def as_uri(self) -> str:
        return self.url


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Run a verifier that has seen good, changed, hostile and stale evidence."""
    known = store(**{"qemu": corim(), HOSTILE: corim(build="hostile")})
    with running(tmp_path_factory.mktemp("page"), known=known, page=True) as client:
        for changes in (
            {},
            {"k2399": [component(value=b"\xee" * 32)]},
            {"k2399": [component(HOSTILE, b"\xdd" * 32)]},
            {"k10": bytes(32)},
        ):
            path, nonce = _open(client)
            evidence = token(claims_2(**{"k10": nonce, **changes}))
            assert client.post(path, content=evidence, headers=HEADERS).status_code == 200
        _open(client)
        yield client


def _open(client: Client) -> tuple[str, bytes]:
    answer = client.post(NEW)
    nonce = decode_base64(answer.json()["nonce"], field="nonce")
    return f"/challenge-response/v1/{answer.headers['location']}", nonce


def _show(browser: Browser, client: Client, path: str = "/", **options: object) -> None:  # noqa: F811
    browser.open(Address(f"{client.base_url}{path}"), **options)  # type: ignore[arg-type]


def test_the_overview_shows_each_session_with_verdict_and_reason(
    browser: Browser,  # noqa: F811
    client: Client,
) -> None:
    _show(browser, client)
    rows = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map((r) => [...r.cells].map("
        "(c) => c.textContent))"
    )
    assert [row[1] for row in rows] == [
        "waiting", "contraindicated", "warning", "warning", "affirming",
    ]  # fmt: skip
    assert rows[4][3] == "every claim made is affirming"
    assert rows[4][2] == "qemu"
    assert "freshness: psa-nonce" in rows[1][3]
    assert "no reference value of it" in rows[3][3]
    assert "5 sessions. Policy: strict." in browser.run("return document.body.textContent")
    assert browser.complaints() == []


def test_a_session_shows_the_reason_of_every_claim_and_the_failed_checks(
    browser: Browser,  # noqa: F811
    client: Client,
) -> None:
    _show(browser, client)
    browser.click("tbody tr:nth-child(4) a")
    rows = browser.run(
        "return [...document.querySelectorAll('table')][0].innerText.split('\\n').filter(Boolean)"
    )
    text = " ".join(rows)
    for claim in ("instance-identity", "executables", "hardware", "sourced-data"):
        assert claim in text
    assert "the security lifecycle is secured" in text
    assert "no reference value of it" in text
    assert "some software is not recognised" in text
    _show(browser, client)
    browser.click("tbody tr:nth-child(2) a")
    text = browser.run("return document.body.innerText")
    assert "token.freshness" in text
    assert "RFC 9334 section 10.2" in text
    assert browser.complaints() == []


def test_hostile_names_do_nothing(browser: Browser, client: Client) -> None:  # noqa: F811
    _show(browser, client)
    assert HOSTILE in browser.run("return document.body.textContent")
    browser.click("tbody tr:nth-child(3) a")
    assert HOSTILE in browser.run("return document.body.textContent")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []


@pytest.mark.parametrize("row", [0, 2, 4, 5], ids=["overview", "stale", "changed", "affirming"])
def test_a_phone_never_scrolls_sideways(browser: Browser, client: Client, row: int) -> None:  # noqa: F811
    _show(browser, client, width=360, height=640)
    if row:
        browser.click(f"tbody tr:nth-child({row}) a")
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    outside = browser.run(
        "return [...document.querySelectorAll('body *')].filter((n) => "
        "n.getBoundingClientRect().right > 360.5).map((n) => n.outerHTML.slice(0, 80))"
    )
    assert outside == []
    assert float(browser.run("return parseFloat(getComputedStyle(document.body).fontSize)")) >= 15


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(browser: Browser, client: Client, scheme: str) -> None:  # noqa: F811
    _show(browser, client, scheme=scheme)
    browser.click("tbody tr:nth-child(4) a")
    paper = "rgb(20, 24, 30)" if scheme == "dark" else "rgb(255, 255, 255)"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == paper
    colours = browser.run(
        "return [...new Set([...document.querySelectorAll('td, th, dt, p, .status, code')].map("
        "(n) => getComputedStyle(n).color))]"
    )
    assert len(colours) >= 4
    for colour in colours:
        assert _contrast(colour, paper) >= 4.5, colour


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours: WCAG 2.2, relative luminance."""

    def luminance(text: str) -> float:
        parts = [int(part) / 255 for part in text[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_page_runs_no_script_and_asks_nobody(browser: Browser, client: Client) -> None:  # noqa: F811
    _show(browser, client)
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), "
        "{textContent: 'window.injected = true'}));"
    )
    assert browser.run("return window.injected") is None
    # Nobody else is asked; the browser itself asks for an icon.
    assert {url.rpartition("/")[0] for url in browser.requests()} == {str(client.base_url)}


def test_a_session_that_is_unknown_says_so(client: Client) -> None:
    answer = client.get("/sessions/none")
    assert answer.status_code == 404
    assert "No such session" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_deleted_session_is_still_shown(tmp_path: Path) -> None:
    with running(tmp_path, page=True) as client:
        path, _ = _open(client)
        assert client.delete(path).status_code == 204
        assert "deleted" in client.get("/").text
        assert client.get(f"/sessions/{path.rpartition('/')[2]}").status_code == 200
        assert client.get("/?from=50").text.count("newer") == 1
