"""The studio's shell and its pages Memory, Runs and Papers in a real browser.

`pytest tests/serving/studio/test_browser.py --pictures docs/pictures` also writes the pictures of the documentation.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import PHONE, Watched, launched, overflow, save_picture, violations, watched
from helpers.http_server import RunningServer
from helpers.marks import few
from helpers.run_folders import make_run, recipe, score, write_result
from helpers.studio_server import studio_server
from helpers.tiny_runs import sample_text
from playwright.sync_api import Browser, Page, expect

from mnemo.data.prepare import prepare
from mnemo.memory import XL, Plan
from mnemo.model import ModelConfig
from mnemo.recipes.recipe import DataConfig, EvalConfig, OptimizerConfig, Recipe, TrainConfig
from mnemo.serving.settings import Settings
from mnemo.serving.studio import StudioSettings, memory_pages
from mnemo.storage.run_folder import locked
from mnemo.training import create_run, train

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
LONGER = re.compile(r"^mnemo train --resume with-memory --train\.steps \d+$")
NASTY = "<b onclick=alert(1)>bold"
PAGES = {
    "runs": "/studio/runs",
    "run": "/studio/runs?run=with-memory",
    "memory": "/studio/memory",
    "papers": "/studio/papers",
    "experiment": "/studio/papers?experiment=xl-context-length&budget=small",
}
READY = {
    "runs": ".uplot",
    "run": ".uplot",
    "memory": ".uplot",
    "papers": "section[aria-label='Main claims'] img[src^=blob]",
    "experiment": "figure img[src^=blob]",
}
"""An element of each page that is there when its data are."""
HEIGHTS = {
    "runs": 900,
    "run": 1000,
    "memory": 1320,
    "memory-dark": 1320,
    "papers": 1150,
    "experiment": 1150,
    "runs-phone": 1100,
}
"""Pictures of the documentation, and their heights."""


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with runs and results; paths in the pages are short, as a user sees them."""
    folder = tmp_path_factory.mktemp("studio")
    runs = folder / "runs"
    make_run(runs / NASTY, recipe(), corpus="other")
    make_run(runs / "damaged", recipe(), corpus="other")
    (runs / "damaged" / "recipe.json").write_text("{")
    steps = 40 if request.config.getoption("--pictures") is None else 320
    trained(runs / "without-memory", memory=0, steps=steps)
    trained(runs / "with-memory", memory=32, steps=steps)
    sweep = [score(memory, 1.16 - 0.02 * math.log2(1 + memory)) for memory in (0, 4, 8, 16, 24, 32)]
    write_result(runs / "with-memory", "sweep", kind="sweep", scores=sweep)
    write_result(runs / "with-memory", "score", kind="score", score=score(32, 1.06))
    for name in (
        "xl-context-length",
        "xl-evaluation-speed",
        "long-wikitext103",
        "rmt-copy",
        "lamemo-ablation",
        "rmt-passkey",
    ):
        shutil.copytree(ROOT / "results" / name, folder / "results" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def trained(folder: Path, memory: int, steps: int) -> None:
    """A run that was really trained, for seconds."""
    text = folder.parent.parent / "cats.txt"
    text.write_text(sample_text(200), encoding="utf-8")
    data, scoring = DataConfig(corpus=prepare("cats", text, "bytes").name), EvalConfig(batch=4)
    plan = Plan(long=XL(length=memory))
    model = ModelConfig(num_layers=2, dim=32, num_heads=2, head_dim=16, inner_dim=64, norm="pre", memory=plan)
    settings = TrainConfig(
        steps=steps,
        batch=16,
        segment=4,
        eval_every=steps // 2,
        log_every=4,
        checkpoint_every=steps,
        optimizer=OptimizerConfig(lr=5e-3),
        device="cpu",
    )
    train(create_run(Recipe(model=model, data=data, train=settings, evaluation=scoring, test=scoring), folder))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with studio_server(folder, StudioSettings(results=(Path("results"),))) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def desktop(browser: Browser, server: RunningServer) -> Iterator[Watched]:
    with watched(browser, server.url) as page:
        yield page


def opened(watched: Watched, name: str) -> Page:
    page = watched.open(PAGES[name])
    page.locator(READY[name]).first.wait_for()
    return page


@pytest.mark.parametrize("name", few(PAGES, lambda name: name == "runs"))
def test_pages_in_light_and_dark_and_on_a_phone(
    browser: Browser, server: RunningServer, name: str, pictures: Path | None
) -> None:
    def picture(kind: str) -> None:
        if pictures is not None and name + kind in HEIGHTS:
            save_picture(page, pictures / f"studio-{name}{kind}.png", HEIGHTS[name + kind])

    with watched(browser, server.url, reduced_motion="reduce") as watch:
        page = opened(watch, name)
        expect(page).to_have_title(f"{PAGES[name].split('/')[2].partition('?')[0].title()} · Mnemo studio")
        assert violations(page) == []
        picture("")
        page.emulate_media(color_scheme="dark")
        picture("-dark")
        page.set_viewport_size(PHONE)
        page.wait_for_timeout(300)  # charts follow the width of the window
        assert overflow(page) == 0
        assert violations(page) == []
        picture("-phone")


@pytest.mark.thorough
def test_curves_grow_while_a_run_trains(desktop: Watched, folder: Path) -> None:
    run = make_run(folder / "runs" / "live", recipe(), corpus="live", steps=100)
    try:
        with locked(run):  # as training does
            page = desktop.open("/studio/runs")
            row = page.locator("tr", has=page.get_by_role("link", name="live", exact=True))
            expect(row.locator(".badge")).to_have_text("being trained")
            chart = page.locator(".plot")
            expect(chart).to_have_attribute("data-points", "10")
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": 110, "split": "train", "loss": 1.5, "lr": 1e-3, "tokens": 1}) + "\n")
            expect(chart).to_have_attribute("data-points", "11")
            expect(page.locator(".u-legend")).to_contain_text("2.164")  # 1.5 nats in bits
            page.evaluate("window.same = true")
        expect(row.locator(".badge")).not_to_have_text("being trained")
        assert page.evaluate("window.same")  # without a reload
    finally:
        shutil.rmtree(run)
    expect(row).to_have_count(0)


@pytest.mark.thorough
def test_runs_are_compared_and_opened(desktop: Watched) -> None:
    page = opened(desktop, "runs")
    page.get_by_label("Compare novels-small").check()
    expect(page.locator(".plot")).to_have_count(2)  # of another corpus: a chart of its own
    assert page.url.count("compare=") == 3
    page.reload()
    expect(page.get_by_label("Compare novels-small")).to_be_checked()
    page.get_by_role("link", name="with-memory", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("with-memory")
    expect(page.locator(".command code").first).to_have_text(LONGER)
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_names_are_text(desktop: Watched) -> None:
    page = opened(desktop, "runs")
    link = page.get_by_role("link", name=NASTY, exact=True)
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NASTY)
    assert page.locator("b[onclick]").count() == 0


@pytest.mark.thorough
def test_commands_are_copied(browser: Browser, server: RunningServer) -> None:
    with watched(browser, server.url, permissions=["clipboard-read", "clipboard-write"]) as watch:
        page = opened(watch, "run")
        page.get_by_role("button", name="Copy: mnemo train --config").click()
        expect(page.get_by_role("button", name="Copy: mnemo train --config")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()").startswith("mnemo train --config ")


def test_the_studio_works_by_keyboard(desktop: Watched) -> None:
    page = opened(desktop, "runs")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.locator("nav a", has_text="Papers").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Papers")
    expect(page.locator("main")).to_be_focused()
    opened(desktop, "runs")
    page.locator(".plot").focus()
    page.keyboard.press("Home")
    expect(page.locator(".u-legend .u-value").first).to_have_text("4")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".u-legend .u-value").first).to_have_text("8")


@pytest.mark.thorough
def test_the_theme_follows_the_system_and_the_switch(browser: Browser, server: RunningServer) -> None:
    def ground(page: Page) -> str:
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light, dark = "rgb(247, 246, 243)", "rgb(17, 20, 27)"
    with watched(browser, server.url, color_scheme="dark") as watch:
        page = opened(watch, "runs")
        assert ground(page) == dark
        page.get_by_role("button", name="Colours: system").click()
        assert ground(page) == light
        page.reload()
        page.get_by_role("button", name="Colours: light").click()
        assert ground(page) == dark
        page.get_by_role("button", name="Colours: dark").click()
        page.emulate_media(color_scheme="light")
        assert ground(page) == light


def test_memory_shows_what_fills_the_slots(desktop: Watched) -> None:
    page = opened(desktop, "memory")
    tracks = page.locator(".timeline [role=img]")
    expect(tracks).to_have_count(6)
    long = page.get_by_role("img", name="Layer 3")
    expect(long).to_have_accessible_name("Layer 3, XL: 1024 of 1024 slots filled, with tokens 2560 to 3583")
    slider = page.get_by_label("Token to look at")
    slider.fill("2700")
    expect(page.locator(".token-words")).to_contain_text("Token 2,701")
    expect(page.locator(".token-words")).to_contain_text("in memory in layers 3, 6")
    slider.fill("2400")
    expect(page.locator(".token-words")).to_contain_text("in no slot any more")
    box = tracks.nth(0).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 5)
    expect(page.locator(".token-words")).to_contain_text("in the open segment")
    page.locator(".level.l2").first.hover()
    expect(page.locator(".level.chosen")).to_have_count(1)
    page.get_by_label("Slots of long-range layers").fill("256")
    page.get_by_role("button", name="Read the text").click()
    expect(long).to_have_accessible_name("Layer 3, XL: 256 of 256 slots filled, with tokens 3328 to 3583")


@pytest.mark.thorough
def test_memory_of_files(desktop: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pages, "MOST_TOKENS", 500)
    page = desktop.open("/studio/memory?run=with-memory")
    page.locator(READY["memory"]).wait_for()
    chooser = page.get_by_label("Text file")
    (tmp_path / "picture.png").write_bytes(bytes(range(256)) * 10)
    chooser.set_input_files(tmp_path / "picture.png")
    expect(page.get_by_role("alert")).to_have_text("picture.png is not text in UTF-8.")
    (tmp_path / "long.txt").write_text("ä" * 300_000 + "the end", encoding="utf-8")
    chooser.set_input_files(tmp_path / "long.txt")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("summary").first).to_contain_text("200,00")
    page.get_by_label("Text file").set_input_files([])


@pytest.mark.thorough
def test_memory_of_an_unusable_run_says_why(desktop: Watched) -> None:
    page = desktop.open("/studio/memory?run=damaged")
    expect(page.get_by_role("alert").first).to_contain_text("recipe.json")
    desktop.problems.clear()  # the browser's own note about the answer 400
    page.get_by_label("Run", exact=True).select_option("with-memory")
    page.locator(".uplot").wait_for()


@pytest.mark.thorough
def test_experiments_are_found_and_opened(desktop: Watched) -> None:
    page = opened(desktop, "papers")
    expect(page.locator(".experiment")).to_have_count(6)
    page.locator("section[aria-label='Main claims'] img[src^=blob]").first.wait_for()
    expect(page.get_by_role("heading", name="Main numbers")).to_be_visible()
    page.get_by_label("Find an experiment").fill("copy symbols")
    expect(page.locator(".experiment")).to_have_count(1)
    page.get_by_role("link", name="Copy 24 symbols twice").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Copy 24 symbols twice")
    page.locator("figure img[src^=blob]").first.wait_for()
    assert page.locator("figure img").first.evaluate("image => image.complete && image.naturalWidth") > 100
    expect(page.locator(".verdicts tbody tr").first).to_contain_text("holds")


@pytest.mark.thorough
def test_a_lost_server_is_reported_and_found_again(browser: Browser, folder: Path, tmp_path: Path) -> None:
    studio = StudioSettings(results=())
    with studio_server(tmp_path, studio) as server, watched(browser, server.url) as watch:
        page = opened(watch, "runs")
        page.route("**/studio/api/**", lambda route: route.abort())
        page.get_by_label("Compare novels-small").check()
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        page.unroute("**/studio/api/**")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator(".plot")).to_have_count(2)
        watch.problems.clear()


def test_a_server_with_a_key_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    with studio_server(tmp_path, settings=Settings(api_key="secret")) as server, watched(browser, server.url) as watch:
        watch.page.on("dialog", lambda dialog: dialog.accept("secret"))
        page = watch.open("/studio/runs")
        expect(page.get_by_role("link", name="novels-small")).to_be_visible()
        expect(page.get_by_text("Train a model and watch it here.")).to_be_visible()
        watch.problems.clear()  # the browser's note about the answer 401


@pytest.mark.thorough
def test_no_results_and_no_such_page(browser: Browser, tmp_path: Path) -> None:
    with (
        studio_server(tmp_path, StudioSettings(runs=tmp_path, results=(tmp_path,))) as server,
        watched(browser, server.url) as watch,
    ):
        page = watch.open("/studio/papers")
        expect(page.locator(".command code")).to_have_text("mnemo reproduce laptop-xl --budget laptop")
        watch.open("/studio/nosuch")
        expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
        watch.problems.clear()  # the browser's note about the answer 404


def test_the_playground_reads_the_example(desktop: Watched) -> None:
    page = desktop.open("/studio/playground")
    page.get_by_role("button", name="Read the example").click()
    expect(page.locator(".tokens")).not_to_be_empty()
    expect(page.locator("#reading")).not_to_be_empty()
    assert overflow(page) == 0
