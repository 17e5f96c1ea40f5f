"""The report in a browser: every chart is drawn, and what can be clicked does what it says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bifl.report.page import write
from bifl.report.summary import settings
from tests.report.test_report import result

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 300_000  # ms: a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with driver.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=PATIENCE)
        except driver.Error:
            pytest.skip("no browser is installed: apt-get install chromium, or python -m playwright install chromium")
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    algorithms = {"fedavg": 0.98, "full": 0.97, "biml": 0.96, "up_only": 0.9, "up_down": 0.88}
    runs = [
        result(
            f"algorithm={name}", f"seed={seed}", f"partition={split}", level=level - seed / 100, votes=name in ("biml", "up_only")
        )
        for name, level in algorithms.items()
        for seed in (0, 1)
        for split in ("iid", "by_class")
    ]
    write(settings(runs), path)
    return path


@contextmanager
def opened(browser: Browser, report: Path, width: int = 1200, **options: Any) -> Iterator[Page]:
    """The report in a browser that has no network, and that has nothing to complain about."""
    page = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options).new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    yield page
    page.context.close()
    assert complaints == []


def lines(page: Page, chart: str) -> int:
    return page.locator(f"[data-figure={chart}] .scatterlayer path.js-line[style*='stroke-width: 2px']").count()


def test_every_chart_is_drawn(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        charts = page.locator(".chart:not([hidden])")
        assert charts.count() == 13
        for number in range(charts.count()):
            box = charts.nth(number).locator(".main-svg").first.bounding_box()
            assert box
            assert box["width"] > 300
            assert box["height"] > 200
        assert lines(page, "s0-rounds") == lines(page, "s0-uploaded") == 5


def test_a_click_on_the_legend_hides_a_line_in_all_charts_of_the_setting(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        page.locator("[data-figure=s0-rounds] .legendtoggle").first.click()
        for chart in ("s0-rounds", "s0-uploaded", "s0-downloaded"):
            page.wait_for_function(
                "name => document.querySelector(`[data-figure=${name}]`).data.filter(t => t.visible !== true).length === 2",
                arg=chart,
            )
            assert lines(page, chart) == 4
        assert lines(page, "s1-rounds") == 5


def test_another_run_can_be_looked_into(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        section = page.locator("#s0")
        assert section.locator("[data-figure=s0-votes-2] .bars").count() == 4
        section.locator("select").select_option(label="fedavg, seed 0")
        assert section.locator("[data-figure=s0-flips-0] .scatterlayer").count() == 1
        assert section.locator(".missing").is_visible()
        section.locator("select").select_option(label="up_only, seed 0")
        assert section.locator(".missing").is_hidden()


def test_air_time_follows_what_is_typed(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        upload = page.locator("tr.air [data-time=up]").first
        page.fill("#up-rate", "80")
        assert upload.inner_text() == "10 s"  # 100 kB
        page.fill("#up-rate", "8")
        assert upload.inner_text() == "100 s"
        page.fill("#up-rate", "")
        assert upload.inner_text() == "–"
        page.get_by_role("button", name="LTE-M").click()
        assert page.input_value("#up-rate") == "375.0"
        assert upload.inner_text() == "2.13 s"
        assert "half duplex" in page.inner_text("#link-note")


def test_it_fits_a_phone(browser: Browser, report: Path) -> None:
    with opened(browser, report, width=390, is_mobile=True, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert (
            page.evaluate("Math.max(...[...document.querySelectorAll('.chart')].map(c => c.getBoundingClientRect().right))") <= 390
        )


def test_dark_light_and_paper(browser: Browser, report: Path) -> None:
    with opened(browser, report, color_scheme="dark") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        line = "document.querySelector('[data-figure=s0-rounds]').data.at(-1).line.color"
        dark = page.evaluate(ground), page.evaluate(line)
        page.emulate_media(color_scheme="light")
        page.wait_for_function(f"{line} !== '{dark[1]}'")
        light = page.evaluate(ground), page.evaluate(line)
        assert light[0] == "rgb(255, 255, 255)" != dark[0]
        page.emulate_media(color_scheme="dark", media="print")
        page.wait_for_function(f"{line} === '{light[1]}'")
        assert page.evaluate(ground) == light[0]
        assert not page.locator("nav").is_visible()
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
