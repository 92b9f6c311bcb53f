"""Compilers of structures, one for each family of tokenizers."""

from collections.abc import Iterator

import pytest

from pagetide_server.engine.sampling.compiler import StructureCompiler
from pagetide_server.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def compilers(tokenizers: dict[str, Tokenizer]) -> Iterator[dict[str, StructureCompiler]]:
    made = {name: StructureCompiler(tokenizer) for name, tokenizer in tokenizers.items()}
    yield made
    for compiler in made.values():
        compiler.close()


@pytest.fixture(params=["byte_level", "gemma_like", "llama2_like"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def compiler(compilers: dict[str, StructureCompiler]) -> StructureCompiler:
    return compilers["byte_level"]
