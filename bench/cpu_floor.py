"""What this CPU could do at best on the workloads of cpu_peers.py: `python bench/cpu_floor.py MODEL [threads]`.

Two speeds are measured: reading memory, and the best matrix product that torch or our own ops reach. From them and the
shape in MODEL/config.json follow bounds that no engine of that precision can pass on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# Set before torch starts its threads, as the engine does.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import torch
from peers.floor import Shape, first_token, one_stream, throughput
from peers.workloads import requests_of

from pagetide_kernels.packed_linear import linear, pack

READ_BYTES = 1 << 29
ROWS, INNER, OUTER = 512, 640, 4096
ROUNDS = 30


def best_seconds(work: Callable[[], object]) -> float:
    """The quickest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def bandwidth() -> float:
    """Bytes per second that all threads read."""
    values = torch.ones(READ_BYTES // 4)
    return values.nbytes / best_seconds(values.sum)


def products() -> dict[str, float]:
    """Operations a second of float32 matrix products: torch's, and our own."""
    rows, weight = torch.randn(ROWS, INNER), torch.randn(OUTER, INNER)
    work = 2.0 * ROWS * INNER * OUTER
    torchs = work / best_seconds(lambda: torch.nn.functional.linear(rows, weight))
    packed = pack(weight.clone())
    return {"torch": torchs, "own": work / best_seconds(lambda: linear(rows, packed))}


def positive(text: str) -> int:
    """A count of threads.

    Raises:
        ValueError: it is none.
    """
    if (count := int(text)) < 1:
        raise ValueError
    return count


def shape_in(folder: str) -> Shape:
    """The shape of the model in a folder.

    Raises:
        argparse.ArgumentTypeError: there is no such model.
    """
    path = Path(folder) / "config.json"
    try:
        return Shape.of(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}; name a model's folder") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{path} is of no dense decoder that this script knows: {error}") from None


@torch.inference_mode()
def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", metavar="MODEL", type=shape_in, help="folder with a config.json")
    parser.add_argument("threads", nargs="?", type=positive, default=os.cpu_count() or 1, help="default: all cores")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape: Shape = args.shape
    read, found = bandwidth(), products()
    flops = max(found.values())
    floors = {
        "read_gb_per_second": read / 1e9,
        **{f"{name}_product_gflops": value / 1e9 for name, value in found.items()},
        "W1_tokens_per_second": throughput(shape, requests_of("W1"), flops),
        **{f"W3_tokens_per_second_{8 * size}_bit": one_stream(shape, size, read) for size in (4, 2, 1)},
        "W4_first_token_seconds": first_token(shape, requests_of("W4")[0], flops),
    }
    print(json.dumps({name: round(value, 2) for name, value in floors.items()}, indent=1))


if __name__ == "__main__":
    main()
