"""What `pagetide_server` gives to those who import from it."""

from __future__ import annotations

import importlib

import pagetide_server
from pagetide_server import LLM, GenerationError, PagetideError, SamplingParams, SettingError, Structure

from .calls import GREEDY


def test_all_names_can_be_imported():
    found = {name: getattr(pagetide_server, name) for name in pagetide_server.__all__}
    assert {name: kind.__name__ for name, kind in found.items()} == {name: name for name in pagetide_server.__all__}


def test_its_errors_are_those_that_are_raised():
    assert issubclass(GenerationError, PagetideError)
    assert issubclass(SettingError, PagetideError)
    assert importlib.import_module("pagetide_spec.errors").SettingError is SettingError


def test_a_structure_shapes_the_answer(llm: LLM):
    structure = Structure(kind="choice", value='["yes", "no"]')
    params = SamplingParams(temperature=0.0, max_tokens=16, structure=structure)
    (result,) = llm.generate("Is it?", params)
    assert result.outputs[0].text in ("yes", "no")
    assert result.outputs[0].text != llm.generate("Is it?", GREEDY)[0].outputs[0].text
