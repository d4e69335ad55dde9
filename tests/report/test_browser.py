"""The HTML page in a real browser: Debian's Chromium, headless, from a file, without a network."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ended import wait_until
from excise.report.html import render_html
from report_example import HOSTILE, build_example
from skips import skip

pytestmark = pytest.mark.browser

_RECORDER = """
window.recorded = [];
document.addEventListener("securitypolicyviolation",
  (e) => window.recorded.push("policy: " + e.violatedDirective + " " + e.blockedURI));
window.addEventListener("error", (e) => window.recorded.push("error: " + e.message));
window.addEventListener("unhandledrejection", (e) => window.recorded.push("rejected: " + e.reason));
window.alert = (words) => window.recorded.push("alert: " + words);
"""


class Browser:
    """A Chromium with what a test asks of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.command("Page.addScriptToEvaluateOnNewDocument", source=_RECORDER)
        self.command("Network.enable")

    def command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str) -> Any:
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [self.run(f"return ({script})")]
            return bool(found[0])

        wait_until(holds, what=script)
        return found[0]

    def open(
        self, path: Path, *, width: int = 1200, height: int = 900, scheme: str = "light"
    ) -> None:
        phone = width < 500
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.colours(scheme)
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def colours(self, scheme: str) -> None:
        self.command(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def click(self, selector: str, *, number: int = 0) -> Any:
        element = self.driver.find_elements("css selector", selector)[number]
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()
        return element

    def all_drawn(self) -> None:
        self.wait("[...document.querySelectorAll('.chart')].every((n) => n.dataset.drawn)")

    def requests(self) -> list[str]:
        messages = [json.loads(m["message"])["message"] for m in self.driver.get_log("performance")]
        return [
            str(m["params"]["request"]["url"])
            for m in messages
            if m["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        console = [str(entry["message"]) for entry in self.driver.get_log("browser")]
        return console + list(self.run("return window.recorded"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        skip("needs Debian's chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(chromium)
    for switch in (
        "headless=new",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1200,1000",
    ):
        options.add_argument(f"--{switch}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(chromedriver)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Path] = {}

    def page(task: str = "stat", *, points: int = 60) -> Path:
        key = f"{task}{points}"
        if key not in made:
            made[key] = folder / f"page{len(made)}.html"
            report = build_example(task=task, points=points)
            made[key].write_text(render_html(report), encoding="utf-8")
        return made[key]

    return page


def test_every_chart_is_drawn_without_a_complaint_or_a_request(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    path = page_of()
    browser.open(path)
    browser.all_drawn()
    drawn = browser.run(
        "return [...document.querySelectorAll('.chart')].map((n) => [n.dataset.chart, "
        "n.dataset.drawn, n.querySelectorAll('svg .mark-symbol path, svg .mark-rect path').length])"
    )
    assert [name for name, _, _ in drawn] == [
        "ratios", "distribution-stat", "order-stat", "attribution-open-close",
    ]  # fmt: skip
    assert all(state == "yes" for _, state, _ in drawn)
    marks = {name: count for name, _, count in drawn}
    assert marks["ratios"] >= 12
    assert marks["distribution-stat"] >= 180
    assert marks["order-stat"] >= 180
    assert marks["attribution-open-close"] >= 5
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_the_policy_stops_a_script_that_would_phone_home(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    browser.run(
        "window.fetched = null; fetch('http://127.0.0.1:9/').then(() => window.fetched = 'sent',"
        "(e) => window.fetched = String(e)); document.body.append(Object.assign("
        "document.createElement('script'), {textContent: 'window.injected = true'}));"
    )
    assert "TypeError" in browser.wait("window.fetched")
    browser.wait("window.recorded.length >= 2")
    recorded = " ".join(browser.run("return window.recorded"))
    assert "policy: connect-src" in recorded
    assert "policy: script-src-elem inline" in recorded
    assert browser.run("return window.injected") is None


def test_hostile_names_do_nothing_in_the_browser(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    path = page_of(HOSTILE)
    browser.open(path)
    browser.all_drawn()
    for number in range(len(browser.run("return document.querySelectorAll('summary')"))):
        browser.click("details[data-of] > summary", number=number)
    browser.wait("document.querySelectorAll('details td').length > 100")
    text = browser.run("return document.body.textContent")
    assert "onerror=alert(1)>|`_" in text
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


@pytest.mark.parametrize("task", ["stat", HOSTILE], ids=["plain", "hostile"])
def test_a_phone_never_scrolls_sideways(
    browser: Browser, page_of: Callable[..., Path], task: str
) -> None:
    browser.open(page_of(task), width=360, height=640)
    browser.all_drawn()
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    outside = browser.run(
        "return [...document.querySelectorAll('body *')].filter((n) => !n.closest('.scroll, pre')"
        " && !n.classList.contains('skip') && n.getBoundingClientRect().right > 360.5"
        " ).map((n) => n.outerHTML.slice(0, 80))"
    )
    assert outside == []
    boxes = browser.run(
        "return [...document.querySelectorAll('.scroll table')].map((t) => ["
        "t.scrollWidth > 360, getComputedStyle(t.parentNode).overflowX])"
    )
    assert [True, "auto"] in boxes
    assert float(browser.run("return parseFloat(getComputedStyle(document.body).fontSize)")) >= 15


def test_charts_follow_the_width_of_the_page(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    wide = browser.run("return document.querySelector('.chart svg').getBoundingClientRect().width")
    browser.command(
        "Emulation.setDeviceMetricsOverride",
        width=700, height=900, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    browser.wait("document.querySelector('.chart svg').getBoundingClientRect().width < 690")
    assert wide > 1000


def test_a_dark_page_has_dark_charts_and_changes_when_the_system_does(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of(), scheme="dark")
    browser.all_drawn()
    paper = "getComputedStyle(document.body).backgroundColor"
    labels = "[...document.querySelectorAll('.chart .role-axis-label text')]"
    inks = f"[...new Set({labels}.map((n) => n.getAttribute('fill')))].sort().join()"
    assert browser.run(f"return {paper}") == "rgb(20, 24, 30)"
    assert browser.run(f"return {inks}") == "#a3abb8,#e6e9ee"
    browser.colours("light")
    browser.wait(f"{paper} === 'rgb(255, 255, 255)'")
    browser.wait(f"{inks} === '#1b2330,#5a6472'")


def test_a_heading_sorts_by_the_unrounded_value_and_a_field_filters(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    table = "#table-comparison"
    rows = f"[...document.querySelectorAll('{table} tbody tr')]"
    medians = (
        f"[...document.querySelectorAll('{table} tbody tr')].map((r) => +r.cells[6].dataset.v)"
    )
    before = browser.run(f"return {medians}")
    button = browser.click(f"{table} thead button", number=6)
    assert browser.run(f"return {medians}") == sorted(before) != before
    button.click()
    assert browser.run(f"return {medians}") == sorted(before, reverse=True)
    head = browser.driver.find_elements("css selector", f"{table} thead th")[6]
    assert head.get_attribute("aria-sort") == "descending"
    browser.driver.find_element("css selector", f"{table} input").send_keys("LANDLOCK null")
    shown = f"{rows}.filter((r) => !r.hidden).length"
    assert browser.run(f"return {shown}") == 1
    assert browser.run(f"return document.querySelector('{table} output').value") == "1 of 12 rows"


def test_a_click_on_the_legend_picks_one_configuration(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    chart = "document.querySelector('[data-chart=order-stat]')"
    faint = f"{chart}.querySelectorAll('.mark-symbol path[opacity=\"0.06\"]').length"
    assert browser.run(f"return {faint}") == 0
    browser.click("[data-chart=order-stat] .role-legend-label text")
    assert browser.wait(faint) == 118
    assert browser.complaints() == []


def test_control_and_wheel_zoom_a_run_order_chart_and_shift_and_drag_move_it(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    chart = "document.querySelector('[data-chart=order-stat]')"
    browser.run(f"{chart}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = browser.run(f"const b = {chart}.getBoundingClientRect(); return [b.x, b.y, b.width]")
    last = f"[...{chart}.querySelectorAll('.role-axis-label')][0].lastChild.textContent"
    before = browser.run(f"return {last}")

    def turn(*, modifiers: int) -> None:
        browser.command(
            "Input.dispatchMouseEvent", type="mouseWheel", modifiers=modifiers,
            x=box[0] + 200, y=box[1] + 150, deltaX=0, deltaY=-500,
        )  # fmt: skip

    turn(modifiers=2)
    browser.wait(f"{last} !== '{before}'")
    zoomed, top = browser.run(f"return [{last}, scrollY]")
    assert int(zoomed) < int(before)
    y = box[1] + 150
    for kind, x in (("mousePressed", 500), ("mouseMoved", 400), ("mouseReleased", 300)):
        browser.command(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1,
            modifiers=8, clickCount=1,
        )  # fmt: skip
    browser.wait(f"{last} !== '{zoomed}'")
    moved = browser.run(f"return {last}")
    assert int(zoomed) < int(moved)
    turn(modifiers=0)
    browser.wait(f"scrollY < {top}")
    assert browser.run(f"return {last}") == moved
    assert browser.complaints() == []


def test_data_tables_show_every_row_of_their_chart(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of())
    browser.all_drawn()
    summary = browser.click("[data-of=distribution-stat] > summary")
    assert summary.text == "Data table, 180 rows"
    rows = "document.querySelectorAll('[data-of=distribution-stat] tbody tr').length"
    assert browser.wait(rows) == 180


def test_a_chart_of_five_thousand_points_is_drawn_on_a_canvas(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of(points=1666))
    browser.all_drawn()
    canvas = "document.querySelector('[data-chart=order-stat] canvas')"
    inked = browser.run(
        f"const c = {canvas}; const d = c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data; let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n += 1; return n;"
    )
    assert inked > 5000
    assert browser.complaints() == []


def test_pictures_are_saved_from_the_page(
    browser: Browser, page_of: Callable[..., Path], tmp_path: Path
) -> None:
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.open(page_of())
    browser.all_drawn()
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        browser.click(f"[data-name=ratios][data-as={kind}]")
        path = tmp_path / f"ratios.{kind}"
        wait_until(lambda: path.exists() and path.read_bytes().startswith(start))  # noqa: B023
    assert browser.complaints() == []


def test_without_javascript_tables_are_whole_and_the_page_says_what_is_missing(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page_of())
        text = browser.driver.find_element("css selector", "body").text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert "Charts, sorting and filtering need JavaScript" in text
    assert "518,548.8" in text
    assert "Filter rows" not in text


def test_the_page_prints_its_charts_and_tables(
    browser: Browser, page_of: Callable[..., Path]
) -> None:
    browser.open(page_of(), scheme="dark")
    browser.all_drawn()
    browser.command("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        hidden = browser.run(
            "return ['nav', '.tools', '.save', 'details'].map((s) => "
            "getComputedStyle(document.querySelector(s)).display)"
        )
        paper = browser.run("return getComputedStyle(document.body).backgroundColor")
        width = browser.run("return getComputedStyle(document.querySelector('.scroll')).overflowX")
    finally:
        browser.command("Emulation.setEmulatedMedia", media="", features=[])
    assert hidden == ["none"] * 4
    assert paper == "rgb(255, 255, 255)"
    assert width == "visible"
    printed = base64.b64decode(browser.command("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF-")
