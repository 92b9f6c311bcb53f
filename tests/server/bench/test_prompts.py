"""`pagetide bench`: prompts that are made."""

from __future__ import annotations

import json

import pytest

from pagetide_server.bench.prompts import Prompts, Ruler, ruler
from pagetide_server.bench.shapes import Shape


@pytest.mark.parametrize("tokens", [1, 5, 8, 9, 1000, 200_000])
def test_prompts_of_ids_have_the_wanted_length(tokens):
    ids = json.loads(bytes(Prompts(0, vocab_size=2000).make(Shape(0, (("", tokens),), 1))))
    assert len(ids) == tokens
    assert all(256 <= i < 2000 for i in ids)


def test_prompts_differ_from_the_start_unless_they_are_to_share_it():
    prompts = Prompts(0, vocab_size=50_000)
    shape = Shape(0, (("prefix-0", 40), ("block-7", 40), ("", 20)), 1)
    made = [json.loads(bytes(prompts.make(shape))) for _ in range(200)]
    assert len({tuple(m[:80]) for m in made}) == 1
    assert len({tuple(m[80:84]) for m in made}) == 200
    again = Prompts(0, vocab_size=50_000)
    assert [json.loads(bytes(again.make(shape))) for _ in range(200)] == made
    assert json.loads(bytes(Prompts(1, vocab_size=50_000).make(shape)))[:80] != made[0][:80]


def test_prompts_of_words_have_the_length_that_the_server_measures():
    measure = ruler((64, 105), (512, 777))
    assert measure == Ruler(9.0, 1.5)
    prompts = Prompts(0, measure=measure)
    text = prompts.make(Shape(0, (("prefix-0", 150), ("", 159)), 1))
    assert len(text.split()) == 200
    with pytest.raises(ValueError):
        ruler((64, 10), (512, 10))
