"""The page of `iet serve` in a browser: by pointer, by keyboard, on a phone, with nothing from elsewhere."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import chromium, tab_of
from tests.support.conditions import posix
from tests.support.service import Running, serving
from tests.support.texts import TEXT

pytestmark = posix
SIZES = [(390, 844), (500, 844), (1280, 900)]
LOADED = "() => document.readyState === 'complete' || new Promise(done => addEventListener('load', done))"
HOSTILE = "<script>document.title = 'taken'</script><img src=http://127.0.0.1:9/x onerror=alert(1)> "


@pytest.fixture(scope="module")
def service(browser: Any, folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    with serving(folder, registry) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as launched:
        yield launched


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}")
def page(request: pytest.FixtureRequest, browser: Any, service: Running) -> Iterator[Any]:
    """The page; at the end nothing was logged, and nothing was asked for anywhere else."""
    width, height = request.param
    tab = tab_of(browser, viewport={"width": width, "height": height}, has_touch=width < 500)
    trouble: list[str] = []
    urls: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("request", lambda request: urls.append(request.url))
    tab.goto(f"http://127.0.0.1:{service.port}/")
    yield tab
    # The browser itself logs refused requests.
    assert [line for line in trouble if "status of 4" not in line] == []
    home = f"http://127.0.0.1:{service.port}/"
    assert {url for url in urls if not url.startswith("blob:")} <= {
        home,
        f"{home}v1/audit",
        f"{home}v1/audit?decoder=posterior",
        "about:srcdoc",
    }
    tab.close()


def in_report(page: Any) -> Any:
    page.locator("#found").wait_for(state="visible")
    frame = page.frame_locator("#report")
    frame.locator("#text .segment").first.wait_for()
    frame.locator("body").evaluate(LOADED)  # its script has run
    return frame


def fits(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_a_text_is_pasted_and_its_report_appears_by_keyboard(page: Any, service: Running) -> None:
    assert fits(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.insert_text(TEXT)
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "token"
    page.keyboard.type(service.token or "")
    page.keyboard.press("Enter")
    frame = in_report(page)
    assert page.evaluate("document.activeElement.id") == "name"
    named = frame.locator("#text .segment .name").all_inner_texts()
    assert {"planner", "critic", "writer"} <= set(named)
    frame.locator("#segments tbody a").nth(1).focus()
    page.keyboard.press("Enter")
    assert frame.locator("#card h3").inner_text().startswith("2. ")  # its script runs in the frame
    assert fits(page)
    page.locator("#again").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "text"
    assert page.locator("#text").input_value() == TEXT


def test_a_file_is_chosen_or_dropped(page: Any, service: Running) -> None:
    page.locator("#token").fill(service.token)
    page.locator("#file").set_input_files(
        {"name": "final.txt", "mimeType": "text/plain", "buffer": TEXT.encode()}
    )
    page.locator("#said", has_text=f"{len(TEXT)} characters").wait_for()
    page.locator("#text").fill("")
    page.evaluate(
        """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "dropped.txt", { type: "text/plain" }));
            const how = { dataTransfer: data, bubbles: true, cancelable: true };
            for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(kind, how));
        }""",
        TEXT,
    )
    page.locator("#said", has_text="dropped.txt").wait_for()
    page.locator("#send").click()
    assert in_report(page).locator("h1").inner_text() != ""
    assert page.locator("#name").inner_text() == "Report on dropped.txt"
    with page.expect_download() as saved:
        page.locator("#save").click()
    assert saved.value.suggested_filename == "dropped.txt.html"
    assert pathlib.Path(saved.value.path()).read_text().startswith("<!doctype html>")


def test_what_is_dropped_while_a_text_is_read_takes_nothing_of_its_report(
    page: Any, service: Running
) -> None:
    page.locator("#token").fill(service.token)
    page.locator("#file").set_input_files(
        {"name": "alice.txt", "mimeType": "text/plain", "buffer": TEXT.encode()}
    )
    page.locator("#said", has_text="alice.txt").wait_for()
    page.evaluate(
        """() => {
            const data = new DataTransfer(), asked = window.fetch;
            data.items.add(new File(["another text"], "bob.txt", { type: "text/plain" }));
            const how = { dataTransfer: data, bubbles: true, cancelable: true };
            window.fetch = async (...given) => {
                document.body.dispatchEvent(new DragEvent("drop", how));
                await new Promise((done) => setTimeout(done, 50));
                return asked(...given);
            };
        }"""
    )
    page.locator("#send").click()
    in_report(page)
    assert page.locator("#name").inner_text() == "Report on alice.txt"
    with page.expect_download() as saved:
        page.locator("#save").click()
    assert saved.value.suggested_filename == "alice.txt.html"


def test_a_document_is_sent_as_it_is(page: Any, service: Running) -> None:
    notebook = {"cells": [{"cell_type": "markdown", "source": TEXT}]}
    file = {"name": "Notes.IPYNB", "mimeType": "", "buffer": json.dumps(notebook).encode()}
    page.locator("#token").fill(service.token)
    page.locator("#text").fill("something else")
    page.locator("#file").set_input_files(file)
    page.locator("#said", has_text="Notes.IPYNB: ").wait_for()
    assert page.locator("#text").input_value() == ""
    assert page.locator("#text").get_attribute("placeholder") == "Notes.IPYNB is sent as it is"
    page.locator("#send").click()
    named = in_report(page).locator("#text .segment .name").all_inner_texts()
    assert {"planner", "critic", "writer"} <= set(named)
    assert page.locator("#name").inner_text() == "Report on Notes.IPYNB"
    page.locator("#again").click()
    page.locator("#text").fill("w1 w2")  # in its place
    page.locator("#send").click()
    assert in_report(page).locator("#text .segment .name").all_inner_texts() == ["unattributed"]
    page.locator("#again").click()
    page.locator("#file").set_input_files({**file, "name": "x.ipynb", "buffer": b"no notebook"})
    page.locator("#send").click()
    page.locator("#said", has_text="422: cannot be read as .ipynb").wait_for()


def test_a_conversation_is_read_in_pieces(page: Any, service: Running) -> None:
    words = TEXT.split()
    messages = [{"role": "assistant", "content": " ".join(part)} for part in (words[:150], words[150:300])]
    page.locator("#token").fill(service.token)
    page.locator("#text").fill(json.dumps({"messages": messages}))
    page.locator("#send").click()
    assert in_report(page).locator("#text .segment").count() == 2


def test_what_is_refused_is_said_and_what_is_hostile_stays_text(page: Any, service: Running) -> None:
    page.locator("#text").fill(HOSTILE + TEXT)
    page.locator("#send").click()
    page.locator("#said", has_text="401: authorization").wait_for()
    page.locator("#token").fill(service.token)
    page.locator("#send").click()
    frame = in_report(page)
    assert HOSTILE.strip() in frame.locator("#text").inner_text()
    assert page.title() == "iet: who wrote what"
    page.locator("#again").click()
    page.locator("#file").set_input_files(
        {"name": "x.bin", "mimeType": "text/plain", "buffer": b"\xff\xfe\x00"}
    )
    page.locator("#said", has_text="x.bin: not a text in UTF-8").wait_for()
