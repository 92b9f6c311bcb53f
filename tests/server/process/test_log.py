"""What the real engine process writes to its log, over the real sockets."""

from __future__ import annotations

import re

from pagetide_server.process.client import EngineClient, Prompt
from pagetide_server.wire.messages import SamplingParams
from pagetide_spec.config import EngineConfig

LINE = re.compile(r"INFO engine (allocate|release) blocks \[([\d, ]+)\] of request (\S+), answer (\d+)")


async def test_every_allocation_and_release_of_a_block(tiny_model, capfd):
    engine = EngineClient()
    settings = {"log_blocks": True, "kv_cache_memory_gib": 0.01, "dtype": "float32"}
    await engine.start(EngineConfig(model=str(tiny_model("llama")), **settings))
    try:
        params = SamplingParams(n=2, max_tokens=20, ignore_eos=True, seed=1)
        with engine.open([Prompt(list(range(10, 50)), params)], name="my-request") as box:
            left = 2
            while left:
                left -= sum(o.finish_reason is not None for o in await box.take())
    finally:
        await engine.close()
    written = capfd.readouterr().err
    held: dict[str, list[int]] = {"0": [], "1": []}
    for event, blocks, request_id, index in LINE.findall(written):
        assert "my-request" in request_id
        for block in map(int, blocks.split(",")):
            (held[index].append if event == "allocate" else held[index].remove)(block)
    # 59 of the 60 tokens are computed: each answer had four blocks of 16 at its end, and gave them back.
    assert LINE.findall(written)[0][:2] == ("allocate", "0, 1, 2")
    assert len(LINE.findall(written)) >= 6
    assert held == {"0": [], "1": []}
    assert "block_size: 1 prompts of 40 tokens" in written
