"""The library as its users see it, on a tiny real model."""

from __future__ import annotations

import concurrent.futures
import io
import json
import logging
import math
import os
import shutil
import signal
import sys
import time
from statistics import fmean

import numpy as np
import pytest

from pagetide_server import LLM, SamplingParams, requests
from pagetide_server.engine.core import EngineCore
from pagetide_server.engine.scheduler import Scheduler
from pagetide_server.engine.tables import BlockTables
from pagetide_server.results import GenerationError
from pagetide_server.text.chat import ChatTemplateError, configured, render
from pagetide_server.wire.checks import check_params
from pagetide_server.wire.messages import AbortRequest, AddRequest, Structure
from pagetide_spec.errors import PagetideError, SettingError

SETTINGS = {"dtype": "float32", "kv_cache_memory_gib": 0.01, "max_num_seqs": 16}
USER = {"role": "user", "content": "Hi"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def regex(value) -> Structure:
    return Structure(kind="regex", value=value)


def greedy(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **changes})


@pytest.fixture(scope="module")
def shared(tiny_model):
    with LLM(str(tiny_model("llama")), **SETTINGS) as made:
        yield made


@pytest.fixture
def llm(shared):
    """The model; whatever a test did with it, nothing may be left in the engine."""
    yield shared
    stats = shared.stats
    assert (stats.running, stats.waiting, stats.swapped, stats.blocks_used, stats.blocks_swapped) == (0, 0, 0, 0, 0)


# ---- prompts and results


def test_results_come_in_the_order_of_the_prompts_whatever_their_length(llm):
    prompts = [[5] * n for n in (40, 3, 90, 1, 17)]
    params = [greedy(max_tokens=n) for n in (9, 1, 3, 12, 2)]
    results = llm.generate(prompts, params)
    assert [r.prompt_token_ids for r in results] == prompts
    assert [len(r.outputs[0].token_ids) for r in results] == [9, 1, 3, 12, 2]
    assert {r.outputs[0].finish_reason for r in results} == {"length"}
    for result in results:
        times = result.metrics
        assert 0 < times.arrival <= times.scheduled <= times.first_token <= times.finished


def test_text_and_ids_may_be_mixed(llm):
    text = "The quick brown fox"
    ids = llm._tokenizer.encode(text)
    by_text, by_ids, one, alone = (
        *llm.generate([text, ids], GREEDY),
        *llm.generate(text, GREEDY),
        *llm.generate(ids, GREEDY),
    )
    assert (by_text.prompt, by_ids.prompt) == (text, None)
    answers = {tuple(r.outputs[0].token_ids) for r in (by_text, by_ids, one, alone)}
    assert len(answers) == 1
    assert by_text.outputs[0].text == by_ids.outputs[0].text


def test_prompts_under_vllms_names_are_the_same_prompts(llm):
    text = "The quick brown fox"
    ids = llm._tokenizer.encode(text)
    named = llm.generate([{"prompt": text}, {"prompt_token_ids": ids}], GREEDY) + llm.generate({"prompt": text}, GREEDY)
    plain = llm.generate(text, GREEDY)[0].outputs[0].token_ids
    assert [r.outputs[0].token_ids for r in named] == [plain] * 3


@pytest.mark.parametrize("prompt", [{}, {"text": "a"}, {"prompt": "a", "prompt_token_ids": [5]}])
def test_other_names_are_refused(llm, prompt):
    with pytest.raises(SettingError, match="prompt or prompt_token_ids"):
        llm.generate([prompt])


def test_ids_of_numpy_and_tuples_are_ids(llm):
    numpy = pytest.importorskip("numpy")
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    assert llm.generate(numpy.array([5, 6, 7]), GREEDY)[0].outputs == expected
    assert llm.generate([(5, 6, 7)], greedy(temperature=numpy.float64(0)))[0].outputs == expected


def test_no_prompts_no_results(llm):
    assert llm.generate([]) == []


def test_a_second_call_finds_the_first_ones_prompt(llm):
    prompt = list(range(10, 80))
    llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].metrics.cached_tokens == 64


# ---- what is refused, by name


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        pytest.param([[5, 384]], None, "prompt: 384: is no token id of this model; they go from 0 to 383", id="no id"),
        pytest.param([[5, -1]], None, "prompt: -1: is no token id", id="a negative id"),
        pytest.param([[5, True]], None, "prompt: True: is no token id", id="a bool among ids"),
        pytest.param([[5], [5.0]], None, "prompt: 5.0: is no token id", id="a float among ids"),
        pytest.param([[]], None, "prompt: []: is empty", id="an empty prompt"),
        pytest.param([None], None, "prompt: None: must be text or a list of token ids", id="no prompt"),
        pytest.param(
            [[5] * 512], None, "the model's window is 512 tokens (max_model_len), the prompt has 512", id="long"
        ),
        pytest.param(
            [[5] * 513], greedy(max_tokens=0), "512 tokens (max_model_len), the prompt has 513", id="too long to score"
        ),
        pytest.param("\ud800", None, "prompt: '\\ud800': is no Unicode text", id="half a surrogate pair"),
        pytest.param(5, None, "prompts: 5: must be text, a list of token ids, or a list of these", id="a number"),
        pytest.param(None, None, "prompts: None: must be text, a list", id="None for the prompts"),
        pytest.param([[5]], [GREEDY] * 2, "params: '2 entries': must be one, or 1: one a prompt", id="too many params"),
        pytest.param([[5], [6]], [GREEDY], "params: '1 entries': must be one, or 2", id="too few params"),
        pytest.param([[5]], {"n": 3}, "params: {'n': 3}: must be SamplingParams", id="a mapping for params"),
    ],
)
def test_wrong_prompts_and_counts(llm, prompts, params, said):
    with pytest.raises(SettingError) as caught:
        llm.generate(prompts, params)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        pytest.param({"temperature": math.nan}, "temperature: nan: must be a finite number", id="NaN"),
        pytest.param({"temperature": math.inf}, "temperature: inf: must be a finite number", id="infinite"),
        pytest.param({"temperature": -0.1}, "temperature: -0.1: must lie between 0", id="negative"),
        pytest.param({"temperature": "hot"}, "temperature: 'hot': must be a number", id="text for a number"),
        pytest.param({"n": 10**9}, "n: 1000000000: must lie between 1 and 16", id="huge n"),
        pytest.param({"n": 0}, "n: 0: must lie between 1 and 16", id="no answer"),
        pytest.param({"n": 1.5}, "n: 1.5: must be a whole number", id="half an answer"),
        pytest.param({"n": True}, "n: True: must be a whole number", id="a bool for a number"),
        pytest.param({"n": 3, "best_of": 2}, "best_of: 2: must lie between 3 and 16", id="fewer than wanted"),
        pytest.param({"top_p": 0.0}, "top_p: 0.0: must be above 0", id="no probability at all"),
        pytest.param({"repetition_penalty": 0}, "repetition_penalty: 0.0: must lie between 1e-06", id="a penalty of 0"),
        pytest.param({"repetition_penalty": 1e-30}, "repetition_penalty: 1e-30: must lie", id="a penalty of no size"),
        pytest.param({"top_k": -2}, "top_k: -2: must lie between -1", id="top_k below -1"),
        pytest.param({"max_tokens": -1}, "max_tokens: -1: must lie between 0", id="a negative length"),
        pytest.param({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9: must lie between 0 and 8", id="min over max"),
        pytest.param({"logprobs": 21}, "logprobs: 21: must lie between 0 and 20", id="too many alternatives"),
        pytest.param({"seed": 2**63}, "seed: 9223372036854775808: must lie between", id="a seed beyond 64 bits"),
        pytest.param({"seed": "7"}, "seed: '7': must be a whole number or None", id="text for a seed"),
        pytest.param({"stop": [1]}, "stop: [1]: its entries must be text", id="a number to stop at"),
        pytest.param({"stop": ""}, "stop: '': an empty string is in every text", id="an empty stop"),
        pytest.param({"stop_token_ids": [999]}, "stop_token_ids: 999: is no token id", id="a stop outside"),
        pytest.param({"logit_bias": {"5": 1.0}}, "logit_bias: {'5': 1.0}: its keys must be a whole number", id="key"),
        pytest.param({"logit_bias": {5: 101.0}}, "logit_bias[5]: 101.0: must lie between -100", id="a bias too strong"),
        pytest.param({"logit_bias": {5: 10**400}}, "logit_bias: {5: 1000", id="a bias beyond a double"),
        pytest.param({"temperature": 10**400}, "must hold in a number of double precision", id="beyond a double"),
        pytest.param({"seed": 10**400}, "must lie between", id="a seed of 400 digits"),
        pytest.param({"temperature": np.array([1, 2])}, "temperature: array([1, 2]): must be a number", id="an array"),
        pytest.param({"stop": np.array([1, 2])}, "stop: array([1, 2]): must be a list", id="an array to stop at"),
        pytest.param(
            {"logit_bias": np.array([1])}, "logit_bias: array([1]): must be a mapping", id="an array of biases"
        ),
        pytest.param({"allowed_token_ids": [384]}, "allowed_token_ids: 384: is no token id", id="allowed outside"),
        pytest.param({"stop_token_ids": [10**30]}, "stop_token_ids: 1" + "0" * 30, id="a stop far outside"),
        pytest.param(
            {"bad_words_token_ids": [[]]}, "bad_words_token_ids: (): an empty sequence is in", id="empty word"
        ),
        pytest.param({"temperature": "\ud800"}, "temperature: '\\ud800': is no Unicode text", id="a torn character"),
        pytest.param({"stop": ["a", "\ud800"]}, "stop: '\\ud800': is no Unicode text", id="a torn stop"),
        pytest.param({"structure": "\ud800"}, "structure: '\\ud800': is no Unicode text", id="a torn structure"),
        pytest.param({"structure": regex("\ud800")}, "structure: '\\ud800': is no Unicode text", id="a torn regex"),
        pytest.param({"structure": {}}, "structure: {}: must be a Structure: its kind one of json, ", id="no kind"),
        pytest.param({"structure": regex({"type": "object"})}, "its value text", id="a structure of no text"),
        pytest.param({"structure": Structure(kind="bogus")}, "must be a Structure: its kind", id="an unknown kind"),
        pytest.param({"ignore_eos": 1}, "ignore_eos: 1: must be true or false", id="a number for a bool"),
    ],
)
def test_wrong_parameters(llm, params, said):
    with pytest.raises(SettingError) as caught:
        llm.generate([5, 6], SamplingParams(**params))
    assert said in str(caught.value)


def test_unknown_names(tiny_model):
    with pytest.raises(TypeError, match="'tempratur'"):
        SamplingParams(tempratur=0.5)
    with pytest.raises(SettingError, match="max_num_seq: 4: no such setting; did you mean max_num_seqs"):
        LLM(str(tiny_model("llama")), max_num_seq=4)
    with pytest.raises(SettingError, match="block_size: 12: must be one of 8, 16, 32"):
        LLM(str(tiny_model("llama")), block_size=12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 1), ("host", "0.0.0.0"), ("api_key", "x"), ("shutdown_timeout_s", 3.0), ("max_body_mib", 1.0),
        ("tool_call_parser", "hermes"), ("max_queue_len", 5), ("served_model_name", "m"),
    ],
)  # fmt: skip
def test_settings_that_only_a_server_could_follow_are_refused_by_name(tiny_model, name, value):
    with pytest.raises(SettingError, match=f"^{name}: .* is a setting of a server, which LLM is not; leave it out"):
        LLM(str(tiny_model("llama")), **{name: value})


# ---- what parameters do


def words(llm) -> list[int]:
    """Tokens of two or more letters: a random model says nothing that can be read by itself."""
    texts = {i: llm._tokenizer.decode([i]) for i in range(llm.vocab_size)}
    return [i for i, text in texts.items() if len(text) > 1 and text.isascii() and text.isalpha()]


def test_text_stops_across_tokens(llm):
    likely = {"logit_bias": dict.fromkeys(words(llm), 100.0), "max_tokens": 40}
    (whole,) = llm.generate([9, 8, 7], greedy(**likely))
    text, ids = whole.outputs[0].text, whole.outputs[0].token_ids
    # A stop string that begins inside one token and ends inside the next.
    border = len(llm._tokenizer.decode(ids[:6]))
    stop = text[border - 1 : border + 1]
    cut = text.index(stop)
    for given in ((stop,), stop, [stop, "never"]):
        (result,) = llm.generate([9, 8, 7], greedy(**likely, stop=given))
        assert (result.outputs[0].text, result.outputs[0].finish_reason) == (text[:cut], "stop")
        assert len(result.outputs[0].token_ids) <= 7
    (included,) = llm.generate([9, 8, 7], greedy(**likely, stop=stop, include_stop_str_in_output=True))
    assert included.outputs[0].text == text[: cut + len(stop)]


def test_best_of_returns_the_likeliest(llm):
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 5, "ignore_eos": True}
    (every,) = llm.generate([5, 6], SamplingParams(n=6, logprobs=0, **drawn))
    (best,) = llm.generate([5, 6], SamplingParams(n=2, best_of=6, **drawn))
    ranked = sorted(every.outputs, key=lambda o: -fmean(entry.logprob for entry in o.logprobs))
    assert [o.token_ids for o in best.outputs] == [o.token_ids for o in ranked[:2]]
    assert [(o.index, o.logprobs) for o in best.outputs] == [(0, None), (1, None)]


def test_bad_words_do_not_come(llm):
    likely = {"logit_bias": dict.fromkeys(words(llm), 100.0), "max_tokens": 8}
    (plain,) = llm.generate([5, 6, 7], greedy(**likely))
    word = llm._tokenizer.decode(plain.outputs[0].token_ids[2:3])
    assert word in plain.outputs[0].text
    (without,) = llm.generate([5, 6, 7], greedy(**likely, bad_words=[word]))
    assert word not in without.outputs[0].text


def test_a_prompt_may_only_be_scored(llm):
    (result,) = llm.generate([5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=2))
    none, *scores = result.prompt_logprobs
    assert none is None
    assert [s.token_id for s in scores] == [6, 7]
    assert all(len(s.top_ids) == 2 for s in scores)
    assert (result.outputs[0].token_ids, result.outputs[0].finish_reason) == ([], "length")


def test_a_prompt_that_fills_the_window_may_only_be_scored(llm):
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    assert len(llm.generate([[5] * 512], params)[0].prompt_logprobs) == 512


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param(lambda: iter([5, 6]), id="an iterator of ids"),
        pytest.param(lambda: iter([[5, 6]]), id="an iterator of prompts"),
        pytest.param(lambda: [iter([5, 6])], id="a list of iterators"),
    ],
)
def test_iterators_are_read_once(llm, prompts):
    assert [r.prompt_token_ids for r in llm.generate(prompts(), GREEDY)] == [[5, 6]]


def test_rows_of_an_array_are_prompts(llm):
    results = llm.generate(np.array([[5, 6], [7, 8]]), GREEDY)
    assert [r.prompt_token_ids for r in results] == [[5, 6], [7, 8]]


def test_a_structured_answer(llm):
    wanted = SamplingParams(structure=Structure(kind="choice", value='["yes", "no"]'), max_tokens=20, seed=1)
    results = llm.generate([[5], [6], [7]], wanted)
    assert {r.outputs[0].text for r in results} <= {"yes", "no"}
    assert {r.outputs[0].finish_reason for r in results} == {"stop"}
    with pytest.raises(GenerationError, match="json"):
        llm.generate([5], SamplingParams(structure=Structure(kind="json", value='{"type": "nothing"}')))


@pytest.mark.parametrize(
    ("stated", "ends"),
    [
        pytest.param([5, -1, 10**9], [5], id="those without a logit are left out"),
        pytest.param([], [2], id="none: the tokenizer's own"),
        pytest.param(5, [5], id="another one than the tokenizer's own"),
    ],
)
def test_end_tokens_of_the_model(tiny_model, tmp_path, stated, ends):
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "m")
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": stated}))
    with LLM(str(folder), **SETTINGS) as llm:
        (structured,) = llm.generate([[5, 6]], SamplingParams(structure=regex("[a-z]{3}"), max_tokens=9, seed=1))
        assert structured.outputs[0].finish_reason == "stop"
        assert [structured.outputs[0].token_ids[-1]] == ends
        likely = greedy(logit_bias={ends[0]: 100.0}, ignore_eos=False)
        assert len(llm.generate([[5, 6]], likely)[0].outputs[0].token_ids) == 1
        held_off = greedy(logit_bias={ends[0]: 100.0}, ignore_eos=False, min_tokens=3)
        assert all(len(r.outputs[0].token_ids) == 4 for r in llm.generate([[5], [6]], held_off))


def test_the_end_of_a_structure_is_not_repeated_for_min_tokens(llm):
    choice = Structure(kind="choice", value='["a"]')
    (result,) = llm.generate([[5, 6]], SamplingParams(structure=choice, min_tokens=5, max_tokens=9))
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("a", "stop")
    assert len(result.outputs[0].token_ids) == 2


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "user", "content": "Hi"}]
    (result,) = llm.chat(messages, GREEDY)
    assert result.prompt == render(llm._tokenizer, messages, configured(None, llm._tokenizer))
    assert result.prompt_token_ids == llm._tokenizer.encode(result.prompt, add_special_tokens=False)
    pair = llm.chat([messages, [{"role": "user", "content": "Bye"}]], GREEDY)
    assert pair[0].outputs[0].token_ids == result.outputs[0].token_ids
    assert "Bye" in pair[1].prompt


@pytest.mark.parametrize(
    ("conversations", "options", "said"),
    [
        pytest.param([], {}, "messages: is empty", id="no message"),
        pytest.param([[]], {}, "messages: is empty", id="an empty conversation"),
        pytest.param([{"content": "nobody says this"}], {}, "messages[0].role: must be a text", id="no role"),
        pytest.param([{**USER, "tool_calls": 5}], {}, "messages[0].tool_calls: must be a list", id="a number of calls"),
        pytest.param(
            [{**USER, "tool_calls": {"a": 1}}], {}, "messages[0].tool_calls: must be", id="an object of calls"
        ),
        pytest.param([USER], {"tools": 5}, "tools: must be a list of objects, not 5", id="a number of tools"),
    ],
)
def test_wrong_conversations(llm, conversations, options, said):
    with pytest.raises(ChatTemplateError) as caught:
        llm.chat(conversations, GREEDY, **options)
    assert said in str(caught.value)


# ---- life and failures


@pytest.mark.parametrize(
    "conversations",
    [
        pytest.param("hello", id="a text"),
        pytest.param(["hello"], id="a list of texts"),
        pytest.param(None, id="None"),
        pytest.param([{"role": "user", "content": "hello"}, "and"], id="a text behind a message"),
    ],
)
def test_what_is_no_conversation_is_refused(llm, conversations):
    with pytest.raises(SettingError, match=r"messages: .*must be a list of messages such as"):
        llm.chat(conversations, GREEDY)


def test_variables_go_to_the_template(tiny_model):
    template = "{% if loud %}LOUD {% endif %}{{ messages[0]['content'] }}"
    with LLM(str(tiny_model("llama")), chat_template=template, **SETTINGS) as made:
        messages = [{"role": "user", "content": "hi"}]
        assert made.chat(messages, GREEDY, loud=True)[0].prompt == "LOUD hi"
        assert made.chat(messages, GREEDY)[0].prompt == "hi"


def test_a_stop_token_is_written_where_that_is_asked_for(llm):
    (plain,) = llm.generate("The quick", greedy(max_tokens=4))
    last = plain.outputs[0].token_ids[2]
    stops = {"max_tokens": 4, "stop_token_ids": (last,)}
    (without,) = llm.generate("The quick", greedy(**stops))
    (written,) = llm.generate("The quick", greedy(**stops, include_stop_str_in_output=True, skip_special_tokens=False))
    assert without.outputs[0].token_ids == written.outputs[0].token_ids
    assert written.outputs[0].text.startswith(without.outputs[0].text)
    assert len(written.outputs[0].text) > len(without.outputs[0].text)


def test_an_exception_in_the_middle_leaves_the_engine_usable(llm, monkeypatch):
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    runner, steps = llm._core._runner, []

    def interrupted(step):
        steps.append(step)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return type(runner).execute(runner, step)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5] * 30, [6] * 50], GREEDY)
    assert llm.stats.running == 0
    assert llm.generate([5, 6, 7], GREEDY)[0].outputs == expected


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        pytest.param(EngineCore, "add", id="while requests are taken in"),
        pytest.param(BlockTables, "_log", id="while blocks are handed out"),
        pytest.param(Scheduler, "settle", id="while tokens are taken down"),
    ],
)
def test_ctrl_c_waits_for_the_end_of_a_step(llm, monkeypatch, interruptible, owner, method):
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    plain, ended = getattr(owner, method), []

    def interrupted(*args, **kwargs):
        if not ended:
            os.kill(os.getpid(), signal.SIGINT)
        result = plain(*args, **kwargs)
        ended.append(method)
        return result

    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5] * 30, [6] * 50], greedy(max_tokens=400))
    assert ended
    assert signal.getsignal(signal.SIGINT) is handler
    assert (llm.stats.blocks_used, llm._core._open) == (0, {})
    assert llm.generate([5, 6, 7], GREEDY)[0].outputs == expected


def test_a_second_ctrl_c_breaks_a_step_that_hangs(tiny_model, monkeypatch, interruptible):
    def hangs(step):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    llm = LLM(str(tiny_model("llama")), **SETTINGS)
    monkeypatch.setattr(llm._core._runner, "execute", hangs)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([5, 6, 7], GREEDY)
    with pytest.raises(PagetideError, match="this LLM is closed"):
        llm.generate([5, 6, 7], GREEDY)


def test_an_exception_while_blocks_are_told_of_loses_none(llm, monkeypatch):
    def broken(tables, event, sequence, blocks):
        if blocks:
            raise KeyboardInterrupt

    llm._core.add(AddRequest(request_id="a", prompt_token_ids=[5, 6, 7], params=GREEDY, arrival=0.0))
    with monkeypatch.context() as patch:
        patch.setattr(BlockTables, "_log", broken)
        with pytest.raises(KeyboardInterrupt):
            llm._core.step()
    assert llm.stats.blocks_used == 1
    llm._core.abort(AbortRequest("a"))
    assert (llm.stats.blocks_used, llm._core._open) == (0, {})


def test_callers_in_several_threads_wait_for_each_other(llm):
    prompts = [[5 + i, 6, 7] for i in range(6)]
    expected = [llm.generate(p, GREEDY)[0].outputs for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda p: llm.generate(p, GREEDY)[0].outputs, prompts))
    assert found == expected


def test_a_thread_of_the_callers_may_generate(llm):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(llm.generate, [5, 6, 7], GREEDY).result()
    assert found[0].outputs == llm.generate([5, 6, 7], GREEDY)[0].outputs


def test_a_failing_forward_is_told_and_leaves_the_engine_usable(llm, monkeypatch):
    def broken(step):
        raise RuntimeError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(llm._core._runner, "execute", broken)
        with pytest.raises(GenerationError, match=r"llm-\d+: no memory left"):
            llm.generate([[5], [6]], GREEDY)
    assert len(llm.generate([[5], [6]], GREEDY)) == 2


def test_a_context_manager_closes_and_a_closed_one_says_so(tiny_model):
    with LLM(str(tiny_model("llama")), **SETTINGS) as llm:
        assert llm.vocab_size == 384
    llm.close()
    for use in (lambda: llm.generate([5]), lambda: llm.vocab_size, lambda: llm.stats):
        with pytest.raises(PagetideError, match="this LLM is closed"):
            use()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _be_a_terminal(monkeypatch, stream):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_the_form_that_was_asked_for(tiny_model, capsys, monkeypatch, form):
    # As in a program that has set up no logging.
    logger = logging.getLogger("pagetide_server")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    LLM(str(tiny_model("llama")), log_format=form, **SETTINGS).close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "KV cache" in line]
    assert len(lines) == 1
    assert lines[0].startswith("{") == (form == "json")
    if form == "json":
        assert json.loads(lines[0])["level"] == "info"


def test_many_prompts_are_encoded_together_and_their_parameters_checked_once(llm, monkeypatch):
    _be_a_terminal(monkeypatch, Terminal)
    encoded, checked = [], []
    encode_batch = llm._tokenizer.encode_batch

    def encode(texts, **options):
        encoded.append((list(texts), "prompts" in sys.stderr.getvalue()))
        return encode_batch(texts, **options)

    def check(params, ready):
        checked.append(params)
        return check_params(params, ready)

    monkeypatch.setattr(llm._tokenizer, "encode_batch", encode)
    monkeypatch.setattr(requests, "check_params", check)
    other = greedy(max_tokens=2)
    results = llm.generate(["a", [5], "b", "c"], [GREEDY, GREEDY, other, GREEDY])
    assert [r.prompt for r in results] == ["a", None, "b", "c"]
    # The bar is there before the work begins.
    assert encoded == [(["a", "b", "c"], True)]
    assert checked == [GREEDY, other]


@pytest.mark.parametrize(
    ("stream", "prompts", "wanted", "shown"),
    [
        pytest.param(Terminal, 3, None, True, id="many prompts on a terminal"),
        pytest.param(Terminal, 1, None, False, id="one prompt on a terminal"),
        pytest.param(io.StringIO, 3, None, False, id="many prompts elsewhere"),
        pytest.param(Terminal, 3, False, False, id="not wanted"),
    ],
)
def test_the_progress_bar(llm, monkeypatch, stream, prompts, wanted, shown):
    _be_a_terminal(monkeypatch, stream)
    llm.generate([[5 + i] for i in range(prompts)], GREEDY, progress=wanted)
    written = sys.stderr.getvalue()
    assert (f"{prompts}/{prompts}" in written) == shown
    assert bool(written) == shown


def test_loading_shows_a_bar_on_a_terminal(tiny_model, monkeypatch):
    _be_a_terminal(monkeypatch, Terminal)
    LLM(str(tiny_model("llama")), **SETTINGS).close()
    assert "loading weights" in sys.stderr.getvalue()


def test_loading_is_logged_elsewhere(tiny_model, caplog):
    LLM(str(tiny_model("llama")), **SETTINGS).close()
    stages = [r.getMessage() for r in caplog.records if r.getMessage().startswith("loading: ")]
    assert "loading: loading weights 0%" in stages
    assert stages[-1] == "loading: loading weights 100%"


def test_blocks_are_logged_if_asked_for(tiny_model, caplog):
    with LLM(str(tiny_model("llama")), log_blocks=True, **SETTINGS) as llm:
        llm.generate([list(range(10, 50))], greedy(n=2, max_tokens=10))
    lines = [r for r in caplog.records if getattr(r, "blocks", None) is not None]
    assert all(r.levelno == logging.INFO for r in lines)
    assert lines[0].getMessage() == "allocate blocks [0, 1, 2] of request llm-0, answer 0"
    held: dict[int, list[int]] = {0: [], 1: []}
    for line in lines:
        for block in line.blocks:
            (held[line.index].append if line.getMessage().startswith("allocate") else held[line.index].remove)(block)
    assert held == {0: [], 1: []}
    assert {r.request_id for r in lines} == {"llm-0"}


def test_blocks_are_not_logged_otherwise(tiny_model, caplog):
    with LLM(str(tiny_model("llama")), **SETTINGS) as llm:
        llm.generate([[5] * 40], GREEDY)
    assert not [r for r in caplog.records if hasattr(r, "blocks")]
