"""`iet serve` from the outside: its answers are those of an `Auditor`, for clients with a token."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import iet
from iet.report.html import page
from iet.service.credentials import add_token
from iet.service.requests import readable_documents
from iet.service.server import listen
from tests.support.conditions import posix
from tests.support.registries import spellings
from tests.support.service import JSON, LINES, Client, Running, registry_file, serving
from tests.support.teams import secret
from tests.support.texts import IDS, TEXT, spell, write

pytestmark = posix
SECRET_WORD = "w599"  # of the texts: in no path, log or metric


@pytest.fixture(scope="module")
def service(folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    with serving(folder, registry, "--limit", "body_bytes=200000", workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def auditor(registry: pathlib.Path) -> iet.Auditor:
    return iet.Auditor(iet.Registry.load(registry))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"decoder": "cusum", "level": 0.05},
        {"decoder": "window", "allow_unattributed": False},
        {"known_agents": ["planner", "critic"], "decoys": 400},
        {"as_copied": True},
        {"decoder_options": {"mean_segment": 100.0, "min_segment": 4}},
    ],
)
def test_a_report_is_that_of_an_auditor(
    service: Running, registry: pathlib.Path, fields: dict[str, Any]
) -> None:
    reply = service.audit(text=TEXT, **fields)
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    options = fields.get("decoder_options", {})
    direct = {name: value for name, value in fields.items() if name != "decoder_options"}
    expected = iet.Auditor(iet.Registry.load(registry), **direct, **options).audit(TEXT)
    assert reply.json == json.loads(expected.to_json())
    jsonschema.validate(
        reply.json, json.loads((pathlib.Path(iet.__file__).parent / "report/schema.json").read_text())
    )
    assert [segment["agent"] for segment in reply.json["segments"]] != [None]


def test_parts_and_token_ids(service: Running, auditor: iet.Auditor) -> None:
    parts = {"spans": [[0, 2000]], "skip": [[100, 140]], "boundaries": [703]}
    reply = service.audit(text=TEXT, include_text=False, **parts)
    assert reply.json == json.loads(auditor.audit(TEXT, **parts).to_json(text=False))
    assert reply.json["text"] is None
    assert service.audit(token_ids=IDS).json == json.loads(auditor.audit(token_ids=IDS).to_json())


def test_messages_are_pieces(service: Running, auditor: iet.Auditor) -> None:
    texts = [spell(IDS[:150]), spell(IDS[150:301]), spell(IDS[501:])]
    messages = [
        {"role": "user", "content": texts[0], "name": "somebody"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": texts[1]}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": texts[2]},
    ]
    answer = service.audit(messages=messages).json
    offsets = [len(texts[0]) + 2, len(texts[0]) + len(texts[1]) + 4]
    assert answer == json.loads(auditor.audit("\n\n".join(texts), boundaries=offsets).to_json())
    assert [segment["agent"] for segment in answer["segments"]] == ["planner", "critic", "writer"]
    assert [segment["char_start"] for segment in answer["segments"]] == [0, *offsets]


def test_claims_of_a_conversation_are_checked(service: Running, auditor: iet.Auditor) -> None:
    texts = [spell(IDS[:150]), spell(IDS[150:301]), "What now?", spell(IDS[501:])]
    names = ["Anna", "writer", None, "writer"]
    roles = ["assistant", "assistant", "user", "assistant"]
    messages = [
        {"role": role, "name": name, "content": text}
        for role, name, text in zip(roles, names, texts, strict=True)
    ]
    fields = {"messages": messages, "agents": {"Anna": "planner"}, "level": 0.001}
    reply = service.ask("/v1/check", fields)
    expected = iet.Auditor(auditor._registry, level=0.001).check(
        texts, ["planner", "writer", None, "writer"], skip={2: "user message"}
    )
    assert (reply.status, reply.json) == (200, expected.to_dict())
    verdicts = [(piece["verdict"], piece["agent"]) for piece in reply.json["pieces"]]
    assert verdicts == [
        ("confirmed", "planner"),
        ("contradicted", "critic"),
        ("skipped", None),
        ("confirmed", "writer"),
    ]
    html = service.ask("/v1/check", fields, Accept="text/html")
    assert html.body.decode() == expected.to_html()
    for wrong, (value, why) in {
        "agents": ({"Anna": "nobody"}, "agents: got 'nobody'"),
        "messages": ([{"a": 1}], "messages: item 1: got an object with 'a'"),
        "level": (7, "level: got 7.0"),
        "decoder": ("cusum", "decoder: unknown field"),
        "id": (1, "id: unknown field"),
    }.items():
        refused = service.ask("/v1/check", {**fields, wrong: value})
        assert (refused.status, why in refused.json["error"]) == (422, True), refused.body
    assert service.ask("/v1/check", b"{").status == 400


def test_the_page_is_given_to_who_prefers_it(service: Running, auditor: iet.Auditor) -> None:
    for accept, media in {
        "text/html": "text/html",
        "text/html,application/xhtml+xml,*/*;q=0.8": "text/html",
        "application/json;q=0.5, text/html;q=0.9": "text/html",
        "text/html;q=0.5, application/json": JSON,
        "*/*": JSON,
    }.items():
        reply = service.ask("/v1/audit", {"text": TEXT}, Accept=accept)
        assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (200, media)
        if media == "text/html":
            assert reply.body.decode() == page(auditor.audit(TEXT))


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 422, "expected one of text, token_ids and messages"),
        ({"text": "a", "token_ids": [1]}, 422, "expected one of"),
        ({"text": 7}, 422, "text: Input should be a valid string"),
        ({"text": "a", "levl": 0.1}, 422, "levl: unknown field, expected"),
        ({"text": "a", "level": 2}, 422, "level: got 2.0, expected a number between 0 and 1"),
        ({"text": "a", "decoder": "oracle"}, 422, "decoder: Input should be"),
        ({"text": "a", "decoys": 10**9}, 422, "decoys: Input should be less than or equal to"),
        ({"text": "a", "known_agents": ["nobody"]}, 422, "known_agents: got 'nobody'"),
        ({"text": "a", "profile": "x"}, 422, "profile"),
        ({"text": "a", "spans": [[0, 9]]}, 422, "spans: got (0, 9)"),
        ({"text": "a", "decoder_options": {"model": "/etc/passwd"}}, 422, "options: got 'model'"),
        ({"text": "a", "decoder_options": {"tokenizer": "/etc/passwd"}}, 422, "options: got 'tokenizer'"),
        (
            {"text": "a", "decoder_options": {"level": 0.5}, "decoder": "cusum"},
            422,
            "decoder_options: got 'level'",
        ),
        ({"text": "a", "decoder_options": {"mean_segment": "x"}}, 422, "mean_segment: got 'x'"),
        ({"token_ids": [2**70]}, 422, "token_ids"),
        ({"messages": []}, 422, "messages: got a list of 0, expected the record"),
        ({"messages": [{"role": 7, "content": "a"}]}, 422, "messages: item 1: got an object with 'role', "),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 422, "messages: got no text"),
        ({"messages": [{"role": "user", "content": "a"}], "boundaries": [1]}, 422, "boundaries: got some"),
    ],
)
def test_invalid_requests_are_refused(
    service: Running, fields: dict[str, Any], status: int, message: str
) -> None:
    reply = service.audit(**fields)
    assert reply.status == status, reply.body
    assert message in reply.json["error"]


def test_a_body_that_is_no_object_is_called_the_request(service: Running) -> None:
    reply = service.ask("/v1/audit", b"[]")
    assert (reply.status, reply.json["error"]) == (422, "request: Input should be an object")


def test_a_batch_continues_after_a_bad_line(service: Running, auditor: iet.Auditor) -> None:
    lines = [
        json.dumps({"text": TEXT, "id": "first", "include_text": False}),
        "",
        json.dumps({"text": 7, "id": "second"}),
        "no JSON",
        json.dumps({"text": "x" * 300_000}),
        json.dumps({"token_ids": IDS, "id": 2}),
        '{"text": "a", "id": true}',
        '{"text": "a", "id": 1.0}',
    ]
    reply = service.ask("/v1/audit/batch", "\n".join(lines).encode(), Content_Type=LINES)
    assert (reply.status, reply.headers["content-type"]) == (200, LINES)
    first, second, third, fourth, last, *unnamed = reply.lines
    assert first == {
        "line": 0,
        "status": 200,
        "id": "first",
        "report": json.loads(auditor.audit(TEXT).to_json(text=False)),
    }
    assert (second["line"], second["status"], second["id"]) == (2, 422, "second")
    assert (third["line"], third["status"]) == (3, 400)
    assert "id" not in third
    assert fourth == {"line": 4, "status": 413, "error": "line: got more than 200000 bytes"}
    assert (last["line"], last["id"], last["report"]["evidence"]) == (5, 2, auditor.audit(TEXT).evidence)
    assert [(line["line"], line["status"], "id" in line) for line in unnamed] == [
        (6, 422, False),
        (7, 422, False),
    ]


def test_a_batch_is_answered_while_it_arrives_and_by_clients_that_read_last(service: Running) -> None:
    line = json.dumps({"text": TEXT}).encode() + b"\n"
    with service.connect() as connection:
        connection.sendall(
            service.head("/v1/audit/batch", f"Content-Type: {LINES}", "Transfer-Encoding: chunked")
        )
        connection.sendall(b"%x\r\n%b\r\n" % (len(line), line))
        received = b""
        while not received.endswith(b"}\n\r\n"):  # nothing of the rest has been sent
            received += connection.recv(1 << 16)
        assert b'"line": 0, "status": 200' in received
        connection.sendall(b"0\r\n\r\n")
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(1 << 16)
    assert received.count(b'"line"') == 1
    many = 400  # answers fill every buffer between the two while the client still sends
    reply = service.ask("/v1/audit/batch", line * many, Content_Type=LINES)
    assert [entry["line"] for entry in reply.lines] == list(range(many))
    assert {entry["status"] for entry in reply.lines} == {200}


def test_only_clients_with_a_token_are_served(service: Running) -> None:
    stranger = Client(service.port)
    for path, body in (("/v1/audit", {"text": "a"}), ("/v1/audit/batch", b"{}"), ("/metrics", None)):
        for token in (None, "iet_wrong", "", "\xff" * 40, service.token + "x"):  # type: ignore[operator]
            reply = Client(service.port, token).ask(path, body, Content_Type=JSON)
            assert (reply.status, reply.headers.get("www-authenticate")) == (401, "Bearer")
    assert stranger.ask("/healthz").json == {"status": "ok"}
    assert stranger.ask("/").status == 200
    assert stranger.ask("/docs").status == stranger.ask("/nothing").status == 404
    assert stranger.ask("/v1/audit", method="PUT").status == 405


def test_other_content_types_are_refused(service: Running) -> None:
    # Types that a page of another origin can send without a CORS preflight.
    for media in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert service.ask("/v1/audit", b'{"text": "a"}', Content_Type=media).status == 415
    page = {"Content_Type": "text/plain", "Origin": "https://example.org"}
    reply = service.ask("/v1/audit", b"a", **page)
    assert (reply.status, "from a browser's page" in reply.json["error"]) == (415, True)
    assert service.ask("/v1/check", b"a", Content_Type="text/plain").status == 415
    assert (
        service.ask("/v1/audit", b'{"text": "a"}', Content_Type="application/json; charset=utf-8").status
        == 200
    )


def test_plain_text_is_audited(service: Running, auditor: iet.Auditor) -> None:
    expected = auditor.audit(TEXT).evidence
    for data, media in (
        (TEXT.encode(), "text/plain"),
        (TEXT.encode("utf-8-sig"), "text/plain"),
        (TEXT.encode("utf-8-sig"), "text/plain; charset=utf-8"),
        (TEXT.encode("utf-16"), "text/plain; charset=utf-16"),
    ):
        reply = service.ask("/v1/audit?level=0.05", data, Content_Type=media)
        assert (reply.status, reply.json["evidence"]) == (200, expected)
    reply = service.ask("/v1/audit", b"caf\xe9", Content_Type="text/plain")
    assert (reply.status, "byte 3 is no UTF-8" in reply.json["error"]) == (422, True)
    reply = service.ask("/v1/audit", b"a +2AA- b", Content_Type="text/plain; charset=utf-7")  # half a pair
    assert (reply.status, "is no utf-7; expected text" in reply.json["error"]) == (422, True)


def test_a_wrong_method_names_the_right_ones(service: Running) -> None:
    for path, method, expected in (("/", "POST", "GET"), ("/v1/audit", "PUT", "POST")):
        reply = service.ask(path, b"{}", method=method)
        assert (reply.status, reply.json["error"]) == (
            405,
            f"method: got {method}, expected {expected} for this path",
        )
    assert "/openapi.json lists the paths" in service.ask("/v1/audits", b"{}", method="POST").json["error"]


def test_documents_are_accepted_if_a_package_reads_them(service: Running, auditor: iet.Auditor) -> None:
    notebook = json.dumps({"cells": [{"source": TEXT}]}).encode()  # takes no package
    reply = service.ask("/v1/audit?level=0.05", notebook, Content_Type="application/x-ipynb+json")
    assert (reply.status, reply.json["evidence"]) == (200, auditor.audit(TEXT).evidence)
    reply = service.ask("/v1/audit", b"%PDF-", Content_Type="application/pdf")
    if readable_documents() == ("application/x-ipynb+json",):
        message = "content-type: expected application/json or text/plain or application/x-ipynb+json; the ext"
        assert (reply.status, reply.json["error"].startswith(message)) == (415, True)
    else:
        assert (reply.status, "cannot be read as .pdf" in reply.json["error"]) == (422, True)


def test_options_in_a_query_beside_json_are_refused(service: Running) -> None:
    claim = {"messages": [{"role": "assistant", "name": "planner", "content": "w1 w2"}]}
    for path, body, media in (
        ("/v1/audit", {"text": "w1"}, "application/json"),
        ("/v1/check", claim, "application/json"),
        ("/v1/audit/batch", b'{"text": "w1"}\n', LINES),
    ):
        assert service.ask(path, body, Content_Type=media).status == 200
        for query in ("level=0.5", "level=abc", "x"):
            reply = service.ask(f"{path}?{query}", body, Content_Type=media)
            assert (reply.status, reply.json["error"].partition(":")[0]) == (422, "query"), path


def test_a_trailing_slash_is_not_redirected(service: Running) -> None:
    for path, body in (("/v1/audit/", {"text": "w1"}), ("/healthz/", None), ("/metrics/", None)):
        reply = service.ask(path, body, Host="evil.example")
        assert (reply.status, reply.headers.get("location")) == (404, None)


def test_a_body_with_two_lengths_closes_the_connection(service: Running) -> None:
    inner = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    head = service.head(
        "/v1/audit", "Content-Type: application/json", "Content-Length: 17", "Transfer-Encoding: chunked"
    )
    with service.connect() as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n\r\n" + inner)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 400")
    assert b"content-length: got one beside transfer-encoding" in received
    assert received.count(b"HTTP/1.1") == 1


def test_openapi_describes_requests_and_answers(service: Running) -> None:
    described = service.ask("/openapi.json").json
    assert set(described["paths"]) == {"/v1/audit", "/v1/audit/batch", "/v1/check", "/healthz", "/metrics"}
    schemas = described["components"]["schemas"]
    assert described["paths"]["/v1/audit"]["post"]["security"] == [{"HTTPBearer": []}]
    schema = {"$ref": "#/components/schemas/AuditRequest", "components": described["components"]}
    jsonschema.validate({"text": "a", "spans": [[0, 1]], "decoder_options": {"block": 3}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"text": "a", "levl": 1}, schema)
    jsonschema.validate(service.audit(text=TEXT).json, schemas["Report"])
    assert "https://cdn" not in json.dumps(described)
    statuses = {
        path: set(next(iter(methods.values()))["responses"]) for path, methods in described["paths"].items()
    }
    assert statuses["/healthz"] == {"200", "503"}
    assert statuses["/metrics"] == {"200", "401", "403", "503"}
    assert all("403" in statuses[path] for path in statuses if path.startswith("/v1/"))


def test_metrics_count_and_hold_nothing_of_clients(service: Running) -> None:
    def metrics() -> dict[str, float]:
        answer = re.findall(r"^([^#]\S*) (\S+)$", service.ask("/metrics").body.decode(), re.MULTILINE)
        return {name: float(value) for name, value in answer}

    first = metrics()
    service.audit(text=f"{SECRET_WORD} w1")
    service.ask(f"/{SECRET_WORD}?{SECRET_WORD}")
    after = metrics()
    read, path = 'iet_audits_total{outcome="read"}', 'iet_requests_total{path="/v1/audit",status="200"}'
    assert after[read] == first.get(read, 0) + 1
    assert after[path] == first.get(path, 0) + 1
    assert after['iet_requests_total{path="other",status="404"}'] >= 1
    assert (after["iet_workers"], after["iet_requests_at_work"]) == (2, 0)
    assert SECRET_WORD not in service.ask("/metrics").body.decode()


def test_the_log_holds_no_text_and_no_secret(service: Running) -> None:
    service.audit(text=f"{SECRET_WORD} w1", levl=SECRET_WORD)
    service.audit(text=SECRET_WORD * 9, known_agents=[SECRET_WORD])
    service.ask(f"/v1/audit/{SECRET_WORD}?text={SECRET_WORD}", X_Secret=SECRET_WORD)
    with service.connect() as raw:
        raw.sendall(f"GARBAGE {SECRET_WORD}\r\n\r\n".encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")
    log = service.log_text
    assert re.search(r"INFO POST /v1/audit 200 \d+\.\d{3}s alice$", log, re.MULTILINE)
    assert "Invalid HTTP request received." in log
    assert SECRET_WORD not in log
    assert service.token not in log
    assert hashlib.sha256((service.token or "").encode()).hexdigest() not in log
    for name in ("planner", "critic", "writer"):
        assert not any(spelled in log for spelled in spellings(secret(name)))


def test_a_changed_registry_is_read(tmp_path: pathlib.Path) -> None:
    path = registry_file(tmp_path, "planner", "critic")
    with serving(tmp_path, path, workers=2) as service:
        assert service.audit(text=TEXT).json["agents"] == ["planner", "critic"]
        registry = iet.Registry.load(path)
        registry.add("writer", secret=secret("writer"))
        for _ in range(6):  # each worker looks for itself
            answer = service.audit(text=TEXT).json
            assert answer["agents"] == ["planner", "critic", "writer"]
            assert answer["registry_digest"] == registry.digest


def test_published_text_is_no_evidence_as_soon_as_it_is_in_the_index(tmp_path: pathlib.Path) -> None:
    path = registry_file(tmp_path)
    index = iet.PublishedIndex(tmp_path / "out.idx", iet.Registry.load(path), create=True)
    with serving(tmp_path, path, "--published", tmp_path / "out.idx", workers=2) as service:
        ids = write(iet.Registry.load(path), [("planner", 300)], 1)
        quoted = "w1 " + spell(ids)
        for _ in range(4):  # each worker looks for itself
            assert [*service.audit(text=quoted).json["evidence"]][:1] == ["planner"]
            assert service.audit(text=quoted).json["published"] == 0
        index.add("planner", spell(ids))
        line = json.dumps({"text": quoted}).encode() + b"\n"
        batch = service.ask("/v1/audit/batch", line * 4, Content_Type=LINES).lines
        for answer in [
            *(service.audit(text=quoted).json for _ in range(4)),
            *(line["report"] for line in batch),
        ]:
            assert answer["published"] > 290
            assert {segment["agent"] for segment in answer["segments"]} == {None}
        assert {s["agent"] for s in service.audit(text=spell(ids)).json["segments"]} == {"planner"}


def test_the_last_good_version_stays_in_use_if_files_are_damaged(tmp_path: pathlib.Path) -> None:
    path = registry_file(tmp_path)
    index = iet.PublishedIndex(tmp_path / "out.idx", iet.Registry.load(path), create=True)
    # One worker: of two, one may be asked for the first time when the files are damaged already.
    with serving(tmp_path, path, "--published", tmp_path / "out.idx") as service:
        registry = iet.Registry.load(path)
        registry.add("late")
        ids = write(registry, [("planner", 300)], 1)
        index.add("planner", spell(ids))
        quoted = {"text": "w1 " + spell(ids)}

        def as_changed() -> bool:
            answer = service.audit(**quoted).json
            return answer["registry_digest"] == registry.digest and answer["published"] > 290

        assert as_changed()
        for file, message in (
            (path, "the registry was changed and cannot be read, the one before is in use"),
            (index.path / "index.json", "the index of published text was changed and cannot be read"),
        ):
            content = file.read_bytes()
            for times in (1, 2):
                file.write_bytes(content[:100])
                for _ in range(3):
                    assert as_changed()
                assert service.log_text.count(message) == times  # once for each damage
                file.write_bytes(content)
                assert as_changed()
        registry = iet.Registry.load(path)
        registry.add("later")
        assert as_changed()


def test_changed_tokens_apply_at_once_and_a_damaged_file_refuses_all(
    tmp_path: pathlib.Path, registry: pathlib.Path
) -> None:
    with serving(tmp_path, registry) as service:
        tokens = tmp_path / "tokens"
        second = add_token(tokens, "bob")
        assert Client(service.port, second).audit(text="w1").status == 200
        lines = tokens.read_text().splitlines()
        tokens.write_text(lines[1] + "\n")  # alice's is withdrawn
        assert service.audit(text="w1").status == 401
        assert Client(service.port, second).audit(text="w1").status == 200
        for times in (1, 2):
            tokens.write_text("what is this\n")
            for _ in range(3):
                reply = Client(service.port, second).audit(text="w1")
                assert (reply.status, reply.json["error"]) == (503, "the service cannot read its tokens")
            assert service.log_text.count("line 1 is not a SHA-256 in hexadecimal and a name") == times
            tokens.write_text(lines[1] + "\n")
            assert Client(service.port, second).audit(text="w1").status == 200


def test_without_tokens_only_names_of_this_machine_are_served(
    tmp_path: pathlib.Path, registry: pathlib.Path
) -> None:
    with serving(tmp_path, registry, token=False) as service:
        assert service.audit(text="w1").status == 200
        for host in (f"127.0.0.1:{service.port}", f"localhost:{service.port}", "[::1]:80", "localhost"):
            assert service.ask("/v1/audit", {"text": "w1"}, Host=host).status == 200
        for host in ("evil.example", "127.0.0.1.evil.example:80", f"evil.example:{service.port}", ""):
            assert service.ask("/v1/audit", {"text": "w1"}, Host=host).status == 403


def test_bodies_of_answers_do_not_wait_for_the_client() -> None:
    with (
        listen("127.0.0.1", 0, loopback=True) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
