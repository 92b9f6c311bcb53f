"""EngineConfig and what is generated from it: flags, environment variables, resource fields."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from pagetide_spec.config import EngineConfig, type_of
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import (
    add_flags,
    camel_of,
    camel_to_snake,
    config_from,
    env_of,
    flag_of,
    resource_fields,
    to_arguments,
)
from pagetide_spec.setting import setting_of

FIELDS = {f.name: f for f in dataclasses.fields(EngineConfig)}


def parsed(*argv: str) -> dict[str, str | None]:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    add_flags(parser)
    return vars(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        pytest.param({"max_num_seqs": 0}, "max_num_seqs: 0: must be at least 1", id="below the limit"),
        pytest.param({"port": 70000}, "port: 70000: must be at most 65535", id="above the limit"),
        pytest.param(
            {"tensor_parallel_size": 2},
            "tensor_parallel_size: 2: must be at most 1; a replica uses one GPU so far: take a smaller or quantized "
            "model, or more replicas",
            id="not built: the way out",
        ),
        pytest.param(
            {"speculative_method": "ngram"},
            "speculative_method: 'ngram': must be one of none; speculative decoding is not supported yet",
            id="a choice that is not built",
        ),
        pytest.param(
            {"gpu_memory_utilization": 0.0}, "gpu_memory_utilization: 0.0: must be above 0", id="on an open limit"
        ),
        pytest.param(
            {"gpu_memory_utilization": float("nan")},
            "gpu_memory_utilization: nan: must be a finite number",
            id="not a number",
        ),
        pytest.param(
            {"swap_space_gib": 10**400},
            f"swap_space_gib: 1{'0' * 76}...: is too large a number",
            id="more than a fraction can hold",
        ),
        pytest.param({"block_size": 17}, "block_size: 17: must be one of 8, 16, 32", id="not among the choices"),
        pytest.param({"dtype": "fp8"}, "dtype: 'fp8': must be one of auto, float32, float16, bfloat16", id="a word"),
        pytest.param({"max_num_seqs": "8"}, "max_num_seqs: '8': must be a whole number", id="text for a number"),
        pytest.param({"max_num_seqs": True}, "max_num_seqs: True: must be a whole number", id="a bool is no number"),
        pytest.param({"log_blocks": 1}, "log_blocks: 1: must be true or false", id="a number is no bool"),
        pytest.param({"max_num_seq": 8}, "max_num_seq: 8: no such setting; did you mean max_num_seqs?", id="misspelt"),
        pytest.param({"xyzzy": 8}, "xyzzy: 8: no such setting", id="unlike any setting"),
        pytest.param(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 64, "max_model_len": 65},
            "max_num_batched_tokens: 64: a step holds whole prompts, since enable_chunked_prefill is off; set it to at "
            "least 65, max_model_len to at most 64, or enable_chunked_prefill to true",
            id="steps too small for whole prompts",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(values, problem):
    with pytest.raises(SettingError) as caught:
        EngineConfig.from_mapping(values)
    assert str(caught.value) == problem


def test_whole_numbers_are_accepted_where_fractions_are():
    assert EngineConfig(swap_space_gib=2).swap_space_gib == 2.0


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        pytest.param(["--max-num-seqs", "8"], {}, ("max_num_seqs", 8), id="flag"),
        pytest.param([], {"PAGETIDE_MAX_NUM_SEQS": "8"}, ("max_num_seqs", 8), id="environment"),
        pytest.param(
            ["--max-num-seqs=8"], {"PAGETIDE_MAX_NUM_SEQS": "9"}, ("max_num_seqs", 8), id="flag over environment"
        ),
        pytest.param(["--no-enable-prefix-caching"], {}, ("enable_prefix_caching", False), id="switched off"),
        pytest.param(["--enable-prefix-caching=no"], {}, ("enable_prefix_caching", False), id="given as a word"),
        pytest.param(["--log-blocks"], {}, ("log_blocks", True), id="switched on"),
        pytest.param([], {"PAGETIDE_LOG_BLOCKS": "1"}, ("log_blocks", True), id="switched on by environment"),
        pytest.param(["org/name"], {"PAGETIDE_MODEL": "other"}, ("model", "org/name"), id="the model"),
    ],
)
def test_flags_and_environment(argv, environ, expected):
    config = config_from(parsed(*argv), environ)
    assert getattr(config, expected[0]) == expected[1]


@pytest.mark.parametrize(
    ("argv", "environ", "start"),
    [
        pytest.param(["--max-num-seqs=x"], {}, "--max-num-seqs: 'x': must be a whole number", id="flag"),
        pytest.param([], {"PAGETIDE_PORT": "-1"}, "PAGETIDE_PORT: -1: must be at least 0", id="environment"),
        pytest.param(
            [], {"PAGETIDE_LOG_BLOCKS": "maybe"}, "PAGETIDE_LOG_BLOCKS: 'maybe': must be true or false", id="bool"
        ),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(argv, environ, start):
    with pytest.raises(SettingError) as caught:
        config_from(parsed(*argv), environ)
    assert str(caught.value) == start


def test_every_field_has_flag_variable_help_and_a_default_inside_its_limits():
    for name, field in FIELDS.items():
        assert setting_of(field).help.endswith("."), name
        assert flag_of(name).startswith("--")
        assert env_of(name).startswith("PAGETIDE_")
        type_of(field)
    EngineConfig()  # the defaults pass their own checks


def test_arguments_lead_back_to_the_same_configuration():
    values = {"max_num_seqs": 8, "enable_prefix_caching": False, "swap_space_gib": 0.5, "dtype": "float32"}
    again = config_from(parsed("m", *to_arguments(values)), {})
    assert again == EngineConfig(model="m", **values)


def test_the_resource_has_every_field_but_those_of_the_process_and_the_model():
    names = {f.name for f in resource_fields()}
    assert set(FIELDS) - names == {"model", "served_model_name", "revision", "host", "port", "api_key", "api_key_file"}
    assert camel_to_snake({camel_of(n): 1 for n in names}) == dict.fromkeys(names, 1)


def test_an_unknown_resource_field_is_named_with_the_nearest():
    with pytest.raises(SettingError, match=r"spec.engine.maxNumSeq: 8: no such setting; did you mean maxNumSeqs\?"):
        camel_to_snake({"maxNumSeq": 8})
