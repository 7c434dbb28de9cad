"""The playground in a real browser: reading, colours, writing, forks, memory files, and every kind of wrong input.

`pytest tests/serving/studio/test_playground_browser.py --pictures docs/pictures` also writes the pictures of the
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.browser import DESKTOP, LONGEST_WAIT, PHONE, launched, overflow, save_part, save_picture, violations
from helpers.http_server import RunningServer, running, serial, wait_for
from helpers.sessions import random_run
from helpers.studio_server import studio_server
from playwright.sync_api import Browser, expect

from mnemo.data.tokenizers import ByteTokenizer
from mnemo.recipes.recipe import TrainConfig
from mnemo.serving.session_model import RunSessions
from mnemo.serving.settings import Settings
from mnemo.serving.store import SessionStore
from mnemo.serving.studio import StudioSettings, studio_routes
from mnemo.session.session import Session
from mnemo.session.text_run import OpenedRun

pytestmark = pytest.mark.slow

TEXT = "The keeper of the lighthouse wrote it down. The keeper of the lighthouse wrote it down again. – Yes.\n"
LONG = TEXT * 4000
SEGMENT = 32


def visible_run(seed: int = 0) -> OpenedRun:
    """A random run of bytes with longer segments and larger weights: its memory has an influence that is visible."""
    opened = random_run(ByteTokenizer(), vocab_size=256, seed=seed)
    with torch.no_grad():
        for weight in opened.run.model.parameters():
            weight.mul_(3)
    recipe = replace(opened.run.recipe, train=TrainConfig(segment=SEGMENT))
    return opened._replace(run=replace(opened.run, recipe=recipe))


OPENED = visible_run()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


class Studio:
    """A server that can be restarted on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(max_upload_bytes=12_000_000)

    def serve(self) -> Any:
        model = serial(OPENED)
        self.store = SessionStore(self.folder, [RunSessions("tiny", OPENED, model.engine)])
        routes = studio_routes(StudioSettings(transcripts=self.folder / "transcripts"))
        return running([model], self.store, self.settings, routes=routes)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Studio, RunningServer]]:
    made = Studio(tmp_path_factory.mktemp("store"))
    with made.serve() as server:
        yield made, server


@pytest.fixture
def tab(browser: Any, studio: tuple[Studio, RunningServer]) -> Iterator[Any]:
    """An empty playground; errors of its scripts fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(LONGEST_WAIT)
    tab, problems = open_tab(context, studio[1].url)
    yield tab
    context.close()
    assert not problems


def open_tab(context: Any, url: str, path: str = "/studio/playground") -> tuple[Any, list[str]]:
    expect.set_options(timeout=LONGEST_WAIT)
    tab, problems = context.new_page(), []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    refused = re.compile("Content Security Policy")
    tab.on("console", lambda said: problems.append(said.text) if refused.search(said.text) else None)
    tab.goto(url + path)
    expect(tab.get_by_role("heading", name="Playground")).to_be_visible()
    expect(tab.locator("#reading")).to_be_visible()
    return tab, problems


def read(tab: Any, text: str = TEXT) -> None:
    tab.locator("#reading").fill(text)
    tab.get_by_role("button", name="Read", exact=True).click()
    finished(tab)


def finished(tab: Any) -> None:
    """Wait until all work is done."""
    expect(tab.get_by_role("button", name="Write", exact=True)).to_be_enabled()
    expect(tab.get_by_role("button", name="Choose a file")).to_be_enabled()


def memory(tab: Any, name: str = "Memory A") -> Any:
    return tab.get_by_role("region", name=name)


def shown(tab: Any, name: str = "Memory A") -> str:
    return memory(tab, name).locator(".tokens").text_content()


def num_tokens(tab: Any, name: str = "Memory A") -> int:
    words = memory(tab, name).get_by_text("tokens so far").text_content()
    return int(words.split(" tokens")[0].strip().replace(",", ""))


def choose(tab: Any, file: Any) -> None:
    tab.get_by_label("Text file").set_input_files(file)


def file(name: str, data: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": data}


def test_a_pasted_text_is_coloured_and_explained(tab: Any) -> None:
    read(tab)
    assert shown(tab) == TEXT
    expect(tab.locator(".tokens .s3, .tokens .s4, .tokens .s5").first).to_be_visible()
    tab.get_by_label("Saved by memory").check()
    expect(tab.locator(".tokens .p1, .tokens .n1").first).to_be_visible()
    assert not tab.locator(".tokens [class*=' s']").count()
    assert num_tokens(tab) == len(TEXT.encode())
    expect(tab.get_by_text("bits/byte").first).to_be_visible()
    point_at_tokens(tab)
    use_arrow_keys(tab)


def point_at_tokens(tab: Any) -> None:
    again = TEXT.index("lighthouse wrote it down again") + 6
    tab.locator(f".tokens [data-at='{again}']").hover()
    details = tab.locator(".details")
    expect(details).to_contain_text("With memory")
    expect(details).to_contain_text("Without memory")
    expect(details).to_contain_text("44 tokens back")
    expect(details).to_contain_text("The keeper of the lighth")
    expect(details).to_contain_text("% to memory")
    assert tab.locator(".tokens .source").count() == 16
    tab.locator(".tokens .t", has_text="–").hover()  # a character of several bytes is one piece
    expect(details).to_contain_text("(3 tokens)")


def use_arrow_keys(tab: Any) -> None:
    tab.locator(".tokens").focus()
    tab.keyboard.press("Home")
    expect(tab.locator(".details")).to_contain_text("“T”")
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    expect(tab.get_by_role("status").filter(has_text="With memory")).to_contain_text("“e”")
    tab.keyboard.press("End")
    expect(tab.locator(".details")).to_contain_text("line end")


@pytest.mark.thorough
def test_a_dropped_file_is_read(tab: Any) -> None:
    transfer = tab.evaluate_handle(
        "text => { const data = new DataTransfer(); data.items.add(new File([text], 'story.txt')); return data; }", TEXT
    )
    for event in ("dragenter", "dragover", "drop"):
        tab.dispatch_event(".drop", event, {"dataTransfer": transfer})
    finished(tab)
    expect(tab.locator(".tokens .t").first).to_be_visible()
    assert shown(tab) == TEXT


def test_text_is_never_html(tab: Any) -> None:
    wild = '<img src=x onerror="document.title=1"><b>bold</b>&amp;<script>document.title=2</script>\x00\x07'
    read(tab, wild[:-2])
    assert shown(tab) == wild[:-2]
    assert not tab.locator(".tokens img, .tokens b, .tokens script").count()
    assert tab.title().startswith("Playground")


def test_writing_streams_and_depends_on_the_seed_only(tab: Any) -> None:
    texts = []
    for _ in range(2):
        read(tab)
        write(tab, 40)
        assert num_tokens(tab) == len(TEXT.encode()) + 40
        assert tab.locator(".tokens .written").count() > 10
        texts.append(shown(tab))
        tab.get_by_role("button", name="Start again").click()
        expect(tab.get_by_text("Nothing has been read yet")).to_be_visible()
    assert texts[0] == texts[1]


def write(tab: Any, tokens: int) -> None:
    tab.locator("#set-tokens").fill(str(tokens))
    tab.get_by_role("button", name="Write", exact=True).click()
    finished(tab)


@pytest.mark.thorough
def test_stop_ends_writing_and_keeps_it(tab: Any) -> None:
    read(tab)
    tab.locator("#set-tokens").fill("16000")
    tab.get_by_role("button", name="Write", exact=True).click()
    expect(tab.locator(".tokens .written").nth(5)).to_be_attached()
    stop(tab)
    expect(tab.get_by_text("Writing stopped after")).to_be_visible()
    finished(tab)
    written = num_tokens(tab) - len(TEXT.encode())
    assert 5 < written < 16000


def stop(tab: Any) -> None:
    """Press Stop, which the page ignores for a moment after the start: it may be the second click of a double click."""
    tab.wait_for_timeout(500)
    tab.get_by_role("button", name="Stop").click()


@pytest.mark.thorough
def test_a_double_click_reads_once_and_to_the_end(tab: Any) -> None:
    tab.locator("#reading").fill(TEXT * 10)
    tab.get_by_role("button", name="Read", exact=True).dblclick()
    finished(tab)
    expect(memory(tab).get_by_text("tokens so far")).to_be_visible()
    assert num_tokens(tab) == len((TEXT * 10).encode())


@pytest.mark.thorough
def test_stop_ends_reading_and_keeps_it(tab: Any) -> None:
    choose(tab, file("long.txt", LONG.encode()))
    expect(tab.get_by_text(re.compile("Reading: [1-9]"))).to_be_visible()
    stop(tab)
    expect(tab.get_by_text("Reading stopped after")).to_be_visible()
    finished(tab)
    assert 0 < num_tokens(tab) < len(LONG.encode())
    write(tab, 10)


@pytest.mark.thorough
def test_long_texts_are_shown_in_pages(tab: Any) -> None:
    read(tab, TEXT * 60)
    pages = tab.get_by_role("navigation", name="Pages of the text")
    expect(pages).to_contain_text("of 6,180")
    assert "0, 0, 0" not in tab.locator(".overview rect").first.evaluate("part => getComputedStyle(part).fill")
    assert tab.locator(".tokens .t").count() <= 4096
    tab.get_by_role("button", name="Last page").click()
    expect(pages).to_contain_text("4,097–6,180")
    assert shown(tab) == (TEXT * 60).encode()[4096:].decode()
    tab.get_by_role("button", name="Back").click()
    expect(pages).to_contain_text("1–4,096")


@pytest.mark.thorough
def test_two_memories_side_by_side(tab: Any) -> None:
    read(tab)
    tab.get_by_role("button", name="Fork").click()
    expect(memory(tab, "Memory B")).to_be_visible()
    assert shown(tab, "Memory B") == TEXT
    tab.get_by_role("radio", name="memory B").check()
    read(tab, "Only B reads this.")
    assert (shown(tab), shown(tab, "Memory B")) == (TEXT, TEXT + "Only B reads this.")
    tab.get_by_role("radio", name="both memories").check()
    tab.locator("#set-tokens").fill("20")
    tab.get_by_role("button", name="Write", exact=True).click()
    finished(tab)
    assert (num_tokens(tab), num_tokens(tab, "Memory B")) == (len(TEXT.encode()) + 20, len(TEXT.encode()) + 38)
    tab.locator("#comparing").fill("Only B reads this.")
    tab.get_by_role("button", name="Measure").click()
    expect(tab.locator(".result")).to_contain_text("After memory A")
    expect(tab.get_by_role("alert")).to_have_count(0)
    assert tab.locator(".result .tokens").text_content() == "Only B reads this."
    assert num_tokens(tab) == len(TEXT.encode()) + 20
    tab.get_by_role("button", name="Close", exact=True).click()
    expect(memory(tab, "Memory B")).to_have_count(0)


@pytest.mark.thorough
def test_the_slider_changes_the_memory_length(tab: Any) -> None:
    read(tab)
    slider = tab.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuetext", "5 slots, as in training")
    slider.focus()
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "20 slots")
    slots = memory(tab).get_by_role("listitem").filter(has_text="long-range")
    expect(slots).to_contain_text("/ 20")
    for _ in range(3):
        tab.keyboard.press("ArrowLeft")
    # Writing waits for the change.
    tab.get_by_role("button", name="Write", exact=True).click()
    finished(tab)
    expect(slots).to_contain_text("/ 2")
    expect(tab.get_by_role("alert")).to_have_count(0)


@pytest.mark.thorough
def test_a_saved_memory_is_loaded_again(tab: Any) -> None:
    read(tab)
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save memory").click()
    saved = Path(waiting.value.path()).read_bytes()
    tab.get_by_role("button", name="Start again").click()
    tab.get_by_label("Memory file for memory A").set_input_files(file("night.memory", saved))
    expect(tab.get_by_text("Loaded night.memory")).to_be_visible()
    assert num_tokens(tab) == len(TEXT.encode())
    tab.get_by_role("button", name="Write", exact=True).click()
    finished(tab)
    expect(tab.locator(".gap")).to_contain_text(f"{len(TEXT.encode())} tokens that are not shown")


WRONG_FILES = {
    "picture.png": (b"\x89PNG\r\n\x1a\n\x00\xff" * 50, "picture.png is not UTF-8 text"),
    "zeros.bin": (bytes(2000), "zeros.bin is not text"),
    "wide.txt": ("abc".encode("utf-16"), "wide.txt is UTF-16 text"),
    "empty.txt": (b"", "empty.txt is empty"),
}


@pytest.mark.thorough
def test_files_that_are_no_text_lose_nothing(tab: Any) -> None:
    read(tab)
    for name, (data, message) in WRONG_FILES.items():
        choose(tab, file(name, data))
        expect(tab.get_by_role("alert")).to_contain_text(message)
        assert shown(tab) == TEXT and tab.locator("#reading").input_value() == TEXT
    write(tab, 20)
    assert num_tokens(tab) == len(TEXT.encode()) + 20


@pytest.mark.thorough
def test_a_text_that_is_too_long_to_show_is_read_if_wanted(tab: Any, tmp_path: Path) -> None:
    choose(tab, file("book.txt", b"a" * 9_000_000))
    expect(tab.get_by_text("book.txt has 9.0 MB")).to_be_visible()
    tab.get_by_role("button", name="Read without showing it").click()
    expect(tab.get_by_text(re.compile("Reading: .* of 9.0 MB"))).to_be_visible()
    stop(tab)
    expect(tab.get_by_text("Nothing of this text is kept")).to_be_visible()
    finished(tab)
    assert num_tokens(tab) == 0


@pytest.mark.thorough
def test_a_text_beyond_the_servers_limit_is_refused(tab: Any, tmp_path: Path) -> None:
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as sparse:
        sparse.truncate(1 << 30)
    choose(tab, huge)
    expect(tab.get_by_text("huge.txt has 1.1 GB")).to_be_visible()
    expect(tab.get_by_text("this server accepts files of up to 12.0 MB")).to_be_visible()
    expect(tab.get_by_role("button", name="Read without showing it")).to_have_count(0)


@pytest.mark.thorough
def test_wrong_memory_files_lose_nothing(tab: Any, tmp_path: Path) -> None:
    read(tab)
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save memory").click()
    good = Path(waiting.value.path()).read_bytes()
    other = Session(visible_run(seed=9))
    other.read(TEXT)
    other.save(tmp_path / "other.memory")
    damaged = bytearray(good)
    damaged[-100] ^= 1
    wrong = {
        "cut.memory": good[: len(good) // 2],
        "damaged.memory": bytes(damaged),
        "text.memory": TEXT.encode(),
        "other.memory": (tmp_path / "other.memory").read_bytes(),
    }
    for name, data in wrong.items():
        tab.get_by_label("Memory file for memory A").set_input_files(file(name, data))
        expect(tab.get_by_role("alert")).to_be_visible()
        assert shown(tab) == TEXT and num_tokens(tab) == len(TEXT.encode())
        tab.get_by_role("button", name="Close this message").click()
        expect(tab.get_by_role("alert")).to_have_count(0)


@pytest.mark.thorough
def test_a_second_tab_waits_for_the_first(tab: Any, studio: tuple[Studio, RunningServer]) -> None:
    read(tab)
    address = tab.url
    choose(tab, file("long.txt", LONG.encode()))
    expect(tab.get_by_text(re.compile("Reading: [1-9]"))).to_be_visible()
    second, problems = open_tab(tab.context, "", address)
    second.get_by_role("button", name="Write", exact=True).click()
    expect(second.get_by_role("alert")).to_contain_text("Another tab or program is using this session")
    tab.get_by_role("button", name="Stop").click()
    finished(tab)
    before = num_tokens(tab)
    second.get_by_role("button", name="Write", exact=True).click()
    finished(second)
    assert num_tokens(second) == before + 200
    assert not problems


@pytest.mark.thorough
def test_a_page_closed_in_the_middle_keeps_what_was_read(tab: Any, studio: tuple[Studio, RunningServer]) -> None:
    read(tab)
    address = tab.url
    second, _ = open_tab(tab.context, "", address)
    expect(second.locator(".tokens .t").first).to_be_visible()
    choose(second, file("long.txt", LONG.encode()))
    expect(second.get_by_text(re.compile("Reading: [1-9]"))).to_be_visible()
    second.close()
    session = address.partition("a=")[2]
    wait_for(lambda: not tab.request.get(f"{studio[1].url}/studio/api/playground/sessions/{session}").json()["busy"])
    tab.reload()
    expect(tab.get_by_text("stopped when its page was closed")).to_be_visible()
    finished(tab)
    assert len(TEXT.encode()) < num_tokens(tab) < len((TEXT + LONG).encode())


@pytest.mark.thorough
def test_a_restarted_server_goes_on(browser: Any, tmp_path: Path) -> None:
    made = Studio(tmp_path)
    context = browser.new_context()
    context.set_default_timeout(LONGEST_WAIT)
    with made.serve() as server:
        tab, problems = open_tab(context, server.url)
        read(tab)
        address = tab.url
    tab.get_by_role("button", name="Write", exact=True).click()
    expect(tab.get_by_role("alert")).to_contain_text("The server does not answer")
    assert shown(tab) == TEXT
    with made.serve() as server:
        tab.goto(server.url + address[address.index("/studio") :])
        expect(tab.locator(".tokens .t").first).to_be_visible()
        assert shown(tab) == TEXT
        tab.get_by_role("button", name="Write", exact=True).click()
        wait_for(lambda: num_tokens(tab) == len(TEXT.encode()) + 200)
        finished(tab)
    context.close()
    assert not problems


@pytest.mark.thorough
def test_a_session_that_is_gone_is_explained(tab: Any, studio: tuple[Studio, RunningServer]) -> None:
    tab.goto(studio[1].url + "/studio/playground?a=session-0000000000000000")
    expect(tab.get_by_text("The server no longer has this session")).to_be_visible()
    read(tab)
    assert shown(tab) == TEXT


@pytest.mark.thorough
def test_coming_back_to_the_page_finds_the_session(tab: Any) -> None:
    read(tab)
    address = tab.url
    tab.get_by_role("link", name="Papers").click()
    tab.get_by_role("link", name="Playground").click()
    expect(tab.locator(".tokens .t").first).to_be_visible()
    assert shown(tab) == TEXT
    tab.get_by_role("link", name="See which tokens each layer holds").click()
    expect(tab).to_have_url(re.compile(r"/studio/memory\?session=" + address.partition("a=")[2]))
    tab.go_back()
    expect(tab.locator(".tokens .t").first).to_be_visible()
    assert shown(tab) == TEXT and tab.url == address


@pytest.mark.thorough
def test_a_phone_shows_everything_in_light_and_dark(browser: Any, studio: tuple[Studio, RunningServer]) -> None:
    context = browser.new_context(viewport=PHONE)
    tab, problems = open_tab(context, studio[1].url)
    assert violations(tab) == []
    read(tab)
    tab.get_by_role("button", name="Fork").click()
    expect(memory(tab, "Memory B")).to_be_visible()
    tab.locator("#comparing").fill("The keeper")
    tab.get_by_role("button", name="Measure").click()
    tab.locator(".result .t").nth(2).hover()
    expect(tab.locator(".result")).to_contain_text("“e”: ")
    tab.locator(".memory .t").nth(60).hover()
    expect(tab.locator(".details").first).to_contain_text("% to memory")
    assert overflow(tab) <= 0
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        assert violations(tab) == []
        contrasts = contrasts_of_shades(tab)
        assert len(contrasts) == 13 and min(contrasts.values()) >= 4.5, contrasts
    context.close()
    assert not problems


def contrasts_of_shades(tab: Any) -> dict[str, float]:
    """The contrast of text on the colours of both scales."""
    measured = {}
    for scale, name in (("Surprise", "surprise"), ("Saved by memory", "saved")):
        tab.get_by_label(scale).check()
        measured |= tab.evaluate(CONTRASTS, name)
    return measured


CONTRASTS = """
name => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = color => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const part = value => value <= 10.3 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const token = document.querySelector(".tokens .t");
  const before = token.className;
  const found = {};
  const shades = {surprise: "s1 s2 s3 s4 s5", saved: "p1 p2 p3 p4 n1 n2 n3 n4"}[name].split(" ");
  for (const shade of shades) {
    token.className = `t ${shade}`;
    const style = getComputedStyle(token);
    const [ground, ink] = [light(rgb(style.backgroundColor)), light(rgb(style.color))].sort((a, b) => a - b);
    found[shade] = (ink + 0.05) / (ground + 0.05);
  }
  token.className = before;
  return found;
}
"""


def test_pictures(browser: Any, tmp_path: Path, pictures: Path | None) -> None:
    """Pictures with the model that comes with the package; only on demand, because it takes longer."""
    if pictures is None:
        pytest.skip("needs --pictures")
    with studio_server(tmp_path) as server:
        context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
        tab, _ = open_tab(context, server.url)
        tab.get_by_role("button", name="Read the example").click()
        expect(tab.locator("#reading")).not_to_be_empty()
        finished(tab)
        tab.get_by_label("Saved by memory").check()
        example = tab.locator("#reading").input_value()
        tab.locator(".tokens").evaluate("box => box.scrollTop = box.scrollHeight")
        point(tab, example.rindex("Brannoc") + 4)
        save_part(tab.locator(".memory"), pictures / "studio-playground.png")
        tab.get_by_label("Surprise").check()
        point(tab, example.rindex("Merry Magpie") + 6)
        tab.evaluate("scrollTo(0, 0)")
        save_picture(tab, pictures / "studio-playground-details.png", 1240)
        tab.get_by_label("Saved by memory").check()
        tab.locator("#set-tokens").fill("120")
        compare(tab)
        tab.evaluate("scrollTo(0, 0)")
        save_picture(tab, pictures / "studio-playground-compare.png", 2130)
        context.close()


def point(tab: Any, place: int) -> None:
    tab.locator(f".memory [data-at='{place}']").hover()
    expect(tab.locator(".details")).to_contain_text("% to memory")


def compare(tab: Any) -> None:
    """Fork, shorten the second memory, write with both and measure both on a sentence."""
    tab.get_by_role("button", name="Fork").click()
    slider = memory(tab, "Memory B").get_by_role("slider")
    slider.focus()
    for _ in range(4):
        tab.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "64 slots")
    tab.get_by_role("button", name="Write", exact=True).click()
    finished(tab)
    tab.locator("#comparing").fill(
        "The Merry Magpie is home. The Saint Brannoc is home. Wilfrid Oake carries the milk."
    )
    tab.get_by_role("button", name="Measure").click()
    expect(tab.locator(".result")).to_contain_text("After memory A")
    expect(tab.get_by_role("alert")).to_have_count(0)
