"""Compiling structures beside the step loop."""

import concurrent.futures
import threading

import pytest

from pagetide_server.engine.faults import Busy
from pagetide_server.engine.sampling import compiler as structure
from pagetide_server.engine.sampling.compiler import Compilation, StructureCompiler, StructureError
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import Structure


class Blocked:
    """A tokenizer that lets nobody use it until told."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner, self.open, self.asked = inner, threading.Event(), 0
        self.vocab_size, self.special_ids, self.eos_token_ids = inner.vocab_size, inner.special_ids, inner.eos_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._inner.encode(text, add_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        assert self.open.wait(30)
        self.asked += 1
        return self._inner.token_bytes(token_id)


def test_compiling_holds_nobody_up_and_is_done_once(byte_level: Tokenizer) -> None:
    tokenizer = Blocked(byte_level)
    compiler = StructureCompiler(tokenizer)
    same = [compiler.compile(Structure(kind="regex", value="a+")) for _ in range(2)]
    assert same[0] is same[1]
    assert not same[0].done()
    tokenizer.open.set()
    assert same[0].result() is same[1].result()
    assert same[0].done()
    assert compiler.compile(Structure(kind="regex", value="b+")).result()
    assert tokenizer.asked == byte_level.vocab_size
    compiler.close()


def test_a_compilation_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 0.05)
    end = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = Compilation(pool, lambda: end.wait(30))
        with pytest.raises(StructureError, match=r"more than 0\.05 s to compile"):
            slow.result()
        assert slow.done()
        # Its thread goes on: to start it again would only take one more.
        assert not slow.failed()
        slow.renew()
        assert slow.done()
        end.set()


def test_a_compilation_whose_turn_does_not_come_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 0.05)
    end = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        Compilation(pool, lambda: end.wait(30))
        behind = Compilation(pool, lambda: "a grammar")
        with pytest.raises(Busy, match="try again later"):
            behind.result()
        monkeypatch.setattr(structure, "MAX_COMPILE_SECONDS", 30.0)
        behind.renew()
        assert not behind.done()
        end.set()
        assert behind.result() == "a grammar"


def test_old_structures_are_forgotten(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "_KEPT_GRAMMARS", 2)
    compiler = StructureCompiler(byte_level)
    first = compiler.compile(Structure(kind="regex", value="a"))
    for value in "bc":
        compiler.compile(Structure(kind="regex", value=value))
    assert compiler.compile(Structure(kind="regex", value="a")) is not first
    compiler.close()


def test_a_model_without_an_end_token_has_no_structured_answers(byte_level: Tokenizer) -> None:
    tokenizer = Blocked(byte_level)
    tokenizer.eos_token_ids = frozenset()
    compiler = StructureCompiler(tokenizer)
    with pytest.raises(StructureError, match="no end token"):
        compiler.compile(Structure(kind="json_object")).result()
    compiler.close()
