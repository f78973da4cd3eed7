"""Variants of a key: their known answers, their files and digests, and how a request draws one."""

from __future__ import annotations

import collections
import hashlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError, RegistryError
from iet.marks.commitment import Opening
from iet.marks.derivation import derive_subkey, draw_of_seed
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from tests.support import teams
from tests.support.known_answers import from_bits, vectors
from tests.support.registries import V, rewrite
from tests.support.teams import secret
from tests.vectors import make

VECTORS = vectors("variants_v1")


def crowd(path: Any = None, **scheme: Any) -> Registry:
    """Three agents, of which the first and the last have variants."""
    registry = teams.team([], path, vocab_size=V, **scheme)
    for number, (name, variants) in enumerate({"planner": 4, "critic": 1, "writer": 3}.items()):
        registry.add(name, secret=secret(number), variants=variants)
    return registry


# ---------------------------------------------------------------- known answers


def test_vectors_are_those_that_the_reference_makes() -> None:
    assert json.loads(json.dumps(make.make_variants())) == VECTORS


@pytest.mark.parametrize("entry", VECTORS["derive"])
def test_vectors_derive(entry: dict[str, Any]) -> None:
    key = bytes.fromhex(entry["secret"])
    assert derive_subkey(key) == derive_subkey(key, 0)
    for variant, expected in entry["subkeys"].items():
        label = f"iet/v1/variant/{variant}" if int(variant) else "iet/v1/permutation"
        assert hashlib.blake2b(label.encode(), key=key, digest_size=16).hexdigest() == expected
        assert derive_subkey(key, int(variant)).hex() == expected


def test_vectors_of_draws() -> None:
    for entry in VECTORS["draws"]:
        assert draw_of_seed(entry["seed"], entry["index"]) == int(entry["draw"], 16)


@pytest.mark.parametrize("entry", VECTORS["ops"], ids=lambda entry: entry["family"])
def test_vectors_of_the_ops(entry: dict[str, Any], isa: str) -> None:
    scheme = Scheme(**{name: entry[name] for name in ("family", "n_gram", "k_p")})
    registry = Registry.create(
        None, vocab_size=entry["vocab_size"], unmarked_ids=entry["unmarked_ids"], scheme=scheme
    )
    registry.add("planner", secret=make.SECRETS[0], variants=16)
    table, variants = registry.marking_keys(), np.array(VECTORS["variants"])
    assert [row.tobytes().hex() for row in table.subkeys[variants]] == entry["subkeys"]
    scores = iet.score_tokens(entry["token_ids"], registry)[:, variants]
    assert np.array_equal(scores, np.array([from_bits(row) for row in entry["scores"]]))
    marked = entry["embed"]["float32"]
    logits = from_bits(marked["logits"]).reshape(4, -1).copy()
    slots = [int(variants[slot]) if slot >= 0 else -1 for slot in entry["slots"]]
    kappas = from_bits(entry["kappas"])
    iet.embed_(logits, entry["contexts"], slots, table, temperature=kappas / np.float32(scheme.kappa))
    expected = from_bits(marked["marked"]).reshape(4, -1)
    assert np.array_equal(logits[:3], expected[:3], equal_nan=True)


# ---------------------------------------------------------------- tables


def test_an_agents_slot_is_its_row_and_other_variants_stand_behind() -> None:
    registry = crowd()
    table = registry.marking_keys()
    assert table.owners.tolist() == [0, 1, 2, 0, 0, 0, 2, 2]
    assert table.variants.tolist() == [0, 0, 0, 1, 2, 3, 1, 2]
    for name in registry:
        assert bytes(table.subkeys[registry.slot(name)]) == derive_subkey(registry.keys(name)[-1].secret)
    assert [bytes(row) for row in table.subkeys[3:6]] == [derive_subkey(secret(0), v) for v in (1, 2, 3)]
    assert len({bytes(row) for row in table.subkeys}) == 8


def test_scoring_keys_are_all_variants_of_all_epochs() -> None:
    registry = crowd()
    assert registry.rotate("critic", secret=secret(10), variants=2) == 1
    assert registry.rotate("writer", secret=secret(11)) == 1
    table = registry.scoring_keys()
    assert table.owners.tolist() == [0] * 4 + [1] * 3 + [2] * 6
    assert table.epochs.tolist() == [0] * 4 + [0, 1, 1] + [0] * 3 + [1] * 3
    assert table.variants.tolist() == [0, 1, 2, 3, 0, 0, 1, 0, 1, 2, 0, 1, 2]
    assert [key.variants for key in registry.keys("critic")] == [1, 2]
    assert bytes(table.subkeys[6]) == derive_subkey(secret(10), 1)
    assert table.subset(np.array([3, 6])).variants.tolist() == [3, 1]


def test_variants_of_a_key_have_one_frequency() -> None:
    k_p = crowd(k_p="per-agent").marking_keys().k_p
    assert len(set(k_p[[0, 3, 4, 5]].tolist())) == 1
    assert k_p.tolist()[:3] == crowd(k_p="per-agent").scoring_keys().k_p[[0, 4, 5]].tolist()
    assert len(set(k_p.tolist())) == 3


def test_one_variant_is_what_a_key_was() -> None:
    plain = teams.team({"planner": 0, "critic": 1}, vocab_size=V)
    named = teams.team([], vocab_size=V)
    for number, name in enumerate(("planner", "critic")):
        named.add(name, secret=secret(number), variants=1)
    assert named.digest == plain.digest
    for ours, theirs in zip(
        (named.marking_keys(), named.scoring_keys()),
        (plain.marking_keys(), plain.scoring_keys()),
        strict=True,
    ):
        assert np.array_equal(ours.subkeys, theirs.subkeys)
        assert np.array_equal(ours.decoys(3).subkeys, theirs.decoys(3).subkeys)
    assert '"variants"' not in named.dumps()
    assert '"iet.registry/1"' in named.dumps()


# ---------------------------------------------------------------- drawing


def test_a_seed_draws_the_same_row_every_time() -> None:
    registry = crowd()
    table = registry.marking_keys()
    slot = registry.slot("planner")
    rows = (0, 3, 4, 5)
    for entry in VECTORS["draws"]:
        if entry["index"] == 0:
            assert table.row_of(slot, entry["seed"]) == rows[int(entry["draw"], 16) % 4]
    assert table.row_of(slot, np.int64(42)) == table.row_of(slot, seed=42)  # type: ignore[arg-type]
    seeded = table.rows_of([slot, -1, 1, slot, 2], seed=7).tolist()
    assert seeded == table.rows_of(np.array([slot, -1, 1, slot, 2]), seed=7).tolist()
    assert seeded[:3] == [table.row_of(slot, 7), -1, 1]
    assert [table.owners[row] for row in seeded if row >= 0] == [slot, 1, slot, 2]


def test_every_variant_is_drawn_alike() -> None:
    registry = crowd()
    table, slot = registry.marking_keys(), registry.slot("writer")
    drawn = (
        [table.row_of(slot) for _ in range(3000)],
        table.rows_of([slot] * 3000).tolist(),
        table.rows_of([slot] * 3000, seed=1).tolist(),
        [table.row_of(slot, seed) for seed in range(3000)],
    )
    for rows in drawn:
        counts = collections.Counter(rows)
        assert set(counts) == {2, 6, 7}
        assert max(abs(count - 1000) for count in counts.values()) < 155  # six deviations


def test_bits_of_the_callers_are_taken_as_they_are() -> None:
    registry = crowd()
    table = registry.marking_keys()
    assert [table.row_of(2, bits=bits) for bits in (0, 1, 2, 3, (1 << 64) - 1)] == [2, 6, 7, 2, 2]
    assert table.row_of(-1, bits=5) == -1
    assert table.row_of(1, bits=5) == table.row_of(1) == table.row_of(1, seed=5) == 1


def test_the_table_of_all_epochs_draws_from_the_latest() -> None:
    registry = crowd()
    registry.rotate("writer", secret=secret(11), variants=2)
    table = registry.scoring_keys()
    assert {table.row_of(2, seed) for seed in range(50)} == {8, 9}
    assert table.epochs[[8, 9]].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slot": 3}, "row 0 holds 3, expected -1 or an agent's slot, 0 to 2"),
        ({"slot": -2}, "row 0 holds -2"),
        ({"slot": True}, "row 0 holds True"),
        ({"slot": "planner"}, "row 0 holds 'planner'"),
        ({"slot": 0, "seed": 1.5}, r"seed: got 1\.5, expected an int or None"),
        ({"slot": 0, "seed": True}, "seed: got True"),
        ({"slot": 0, "bits": 1 << 64}, "bits: got 18446744073709551616, expected an int from 0"),
        ({"slot": 0, "bits": -1}, "bits: got -1"),
        ({"slot": 3, "bits": 1}, "row 0 holds 3"),
        ({"slot": 0, "seed": 1, "bits": 1}, "bits: got 1 and seed 1, expected one of them"),
    ],
)
def test_what_draws_no_row_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        crowd().marking_keys().row_of(**arguments)


def test_agents_without_a_key_in_the_table_draw_nothing() -> None:
    table = crowd().scoring_keys().subset(slice(0, 4))
    with pytest.raises(InputError, match="row 1 holds 2"):
        table.rows_of([0, 2])


# ---------------------------------------------------------------- files, exports, digests


@pytest.mark.parametrize("variants", [0, 257, -1, True, 1.0, "4", None])
def test_numbers_of_variants_out_of_range_are_refused(variants: Any) -> None:
    registry = crowd()
    with pytest.raises(InputError, match=f"variants: got {variants!r}, expected an int from 1 to 256"):
        registry.add("editor", variants=variants)
    assert "editor" not in registry
    if variants is not None:  # as before
        with pytest.raises(InputError, match="variants: got"):
            registry.rotate("planner", variants=variants)


def test_files_keep_variants_and_say_so_in_their_format(tmp_path: pathlib.Path) -> None:
    registry = crowd(tmp_path / "team.json")
    content = json.loads((tmp_path / "team.json").read_text())
    assert content["format"] == "iet.registry/2"
    assert [agent["keys"][0].get("variants") for agent in content["agents"].values()] == [4, None, 3]
    for read in (Registry.load(tmp_path / "team.json"), Registry.loads(registry.dumps())):
        assert read.digest == registry.digest
        assert [read.keys(name)[0].variants for name in read] == [4, 1, 3]
        assert np.array_equal(read.marking_keys().subkeys, registry.marking_keys().subkeys)
        assert read.dumps() == registry.dumps()


def test_a_file_without_variants_is_saved_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "team.json"
    teams.team({"planner": 0, "critic": 1}, path, vocab_size=V)
    before = path.read_bytes()
    assert b'"iet.registry/1"' in before
    read = Registry.load(path)
    assert [read.keys(name)[0].variants for name in read] == [1, 1]
    read.save()
    assert path.read_bytes() == before
    rewrite(path, lambda content: content.update(format="iet.registry/2"))
    assert Registry.load(path).dumps().encode() == before


@pytest.mark.parametrize("variants", [0, 257, True, 4.0, "4", None, []])
def test_files_with_a_wrong_number_of_variants_are_refused(tmp_path: pathlib.Path, variants: Any) -> None:
    crowd(tmp_path / "team.json")
    rewrite(
        tmp_path / "team.json",
        lambda content: content["agents"]["planner"]["keys"][0].update(variants=variants),
    )
    with pytest.raises(RegistryError, match="not as a registry file has them"):
        Registry.load(tmp_path / "team.json")


def test_rotation_keeps_the_number_of_variants() -> None:
    registry = crowd()
    registry.rotate("planner")
    registry.rotate("critic", variants=256)
    registry.rotate("writer", variants=1)
    assert [[key.variants for key in registry.keys(name)] for name in registry] == [[4, 4], [1, 256], [3, 1]]


def test_exports_and_merges_keep_variants() -> None:
    registry = crowd()
    exported = registry.export(None, ["writer"])
    assert np.array_equal(exported.marking_keys().subkeys, registry.marking_keys().subkeys[[2, 6, 7]])
    merged = Registry()
    for part in (registry.export(None, ["planner", "critic"]), exported, registry):
        merged.merge(part)
    assert merged.digest == registry.digest
    fewer = teams.team([], vocab_size=V)
    fewer.add("planner", secret=secret(0), variants=2)
    with pytest.raises(RegistryError, match="has 4 variants in epoch 0 here and 2 there; nothing was merged"):
        registry.merge(fewer)


def test_digests_and_openings_tell_variants_apart() -> None:
    registry, other = crowd(), teams.team([], vocab_size=V)
    for number, (name, variants) in enumerate({"planner": 4, "critic": 1, "writer": 2}.items()):
        other.add(name, secret=secret(number), variants=variants)
    assert registry.digest != other.digest
    opening = registry.open_key("writer")
    assert opening.digest == registry.digest
    assert opening.to_dict()["leaf"]["variants"] == 3
    assert "variants" not in registry.open_key("critic").to_dict()["leaf"]
    assert Opening.from_dict(json.loads(json.dumps(opening.to_dict()))) == opening
    assert registry.has_key(opening)
    assert not other.has_key(opening)
    shown = opening.to_dict()
    for variants in (0, 257, True, "3"):
        with pytest.raises(InputError, match="variants is"):
            Opening.from_dict({**shown, "leaf": {**shown["leaf"], "variants": variants}})


def test_engines_keys_know_no_variants() -> None:
    registry = crowd()
    registry.rotate("planner", secret=secret(10))
    plain = teams.team({"planner": 0, "critic": 1, "writer": 2}, vocab_size=V)
    plain.rotate("planner", secret=secret(10))
    assert registry.engine_keys("sglang") == plain.engine_keys("sglang")
    assert len(registry.engine_keys("sglang")) == 4


def test_no_sub_key_is_shown() -> None:
    table: KeyTable = crowd().marking_keys()
    for row in table.subkeys:
        assert row.tobytes().hex() not in repr(table)
        assert repr(row.tobytes())[2:-1] not in repr(table)
