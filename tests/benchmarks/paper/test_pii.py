"""What identifies a person, by rules and by the record."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms.pii import RULES, by_rules, redacted
from iet.errors import InputError
from tests.support import paper_logs


def log_of(turns: list[tuple[int, str]], joiner: str = " ") -> Log:
    return paper_logs.log_of(turns, 3, joiner=joiner)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to a.b-c@mail.example.org.", "Write to [EMAIL]."),
        ("See http://www.example.com/x?y=1, please", "See [URL], please"),
        ("from 149.99.82.5.", "from [IP]."),
        ("at 1a98:54ed:573:c8b9:1a09:80ca:448:12a6", "at [IP]"),
        ("SSN 819-46-1268", "SSN [SSN]"),
        ("SIN 647 710 268,", "SIN [SSN],"),
        ("NI ZZ 998152 T", "NI [SSN]"),
        ("card 3713 8592 9681 359", "card [CARD]"),
        ("card 2241029721212003.", "card [CARD]."),
        ("born 2015-07-26, died 26/07/2015", "born [DATE], died [DATE]"),
        ("on March 3rd, 2020 and 15 Dec 2014", "on [DATE] and [DATE]"),
        ("on 2021-11-04T01:01:20.868853", "on [DATE]"),
        ("on Tuesday, June 29, 1999 at 1926-02-20T00:00:00Z", "on [DATE] at [DATE]"),
        ("at 11:54:08 AM", "at [TIME]"),
        ("call 975-322-8034 or (0151) 496 0597", "call [PHONE] or [PHONE]"),
        ("call (282)567-1447 or +4915112345678 or 04780086642", "call [PHONE] or [PHONE] or [PHONE]"),
        ("call +1-975-322-8034.", "call [PHONE]."),
        ("call +1-229-239-6062x16754, 1 (158) 201-9853", "call [PHONE], [PHONE]"),
        ("call 0113 4960187 or +44(0)141 496 0355", "call [PHONE] or [PHONE]"),
        ("Dr. Ann O'Hara met Ms Lee", "[NAME] met [NAME]"),
        ("at 12 Old Mill Road today", "at [ADDRESS] today"),
        ("record MRN-419498, MED59692151, P2622342", "record [ID], [ID], [ID]"),
    ],
)
def test_rules(text, expected):
    assert redacted(log_of([(0, text)]), rng()).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "Version 3.5 of 2020 costs 1,000,000 dollars in 12 months.",
        "The ratio is 3:2, 10-20 people, pages 100-120, 50% of 1/3.",
        "Doctor who? Mr. nobody. I may 2 go. Use COVID-19 and HTTP 404.",
        "x = a@b; 192.168 and 1 2 3 4 5 6 7 8 9",
        "",
    ],
)
def test_rules_leave_other_numbers_and_words_alone(text):
    assert redacted(log_of([(0, text)]), rng()).text == text


def test_entities_of_the_record():
    entities = [
        {"entity": " Ann ", "types": ["first_name"]},
        {"entity": "Ann Lee", "types": ["name"]},
        {"entity": "(0151) 9", "types": ["phone_number"]},
        {"entity": "x.y", "types": ["never_heard_of"]},
        {"entity": "2015-07", "types": ["name"]},
    ]
    text = "Ann Lee, Annie and Ann: Ann's (0151) 9, x.y or xzy; 2015-07-26"
    assert by_rules(text, entities) == [
        (0, 7, "NAME"),
        (19, 22, "NAME"),
        (24, 27, "NAME"),
        (30, 38, "PHONE"),
        (40, 43, "ID"),
        (52, 62, "DATE"),
    ]
    overlapping = [{"entity": "Lee Hill", "types": ["city"]}, {"entity": "Ann Lee", "types": ["name"]}]
    assert by_rules("Dr. Ann Lee Hill; Ann Lee Hill", overlapping) == [(0, 16, "NAME"), (18, 30, "NAME")]
    assert by_rules("Ann, x@y.org", ["Ann ", "x@y.org"]) == [(0, 3, "PII"), (5, 12, "EMAIL")]
    for wrong in ("", {"entity": "a"}, {"entity": " ", "types": ["x"]}, {"entity": "a", "types": "name"}, {}):
        with pytest.raises(InputError, match="entities: got"):
            by_rules("a", [wrong])


def test_every_placeholder_of_the_rules_is_upper_case():
    assert all(re.fullmatch("[A-Z]+", name) for name in RULES)
