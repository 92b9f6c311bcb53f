"""Whether decode steps are captured as CUDA graphs (graphs.py), what memory that takes, and doing it at start."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Sequence

import torch

from pagetide_spec.config import EngineConfig

from .graphs import CudaRecorder, Recorder, graph_contexts, graph_sizes
from .loader import LoadedModel
from .runner import Runner

log = logging.getLogger(__name__)


def recorder_for(config: EngineConfig, loaded: LoadedModel) -> Callable[[], Recorder] | None:
    """What makes recorders of a model's decode steps, or None where these run eagerly.

    Torch's attention looks at lengths on the host, and cannot be captured.
    """
    if config.enforce_eager or loaded.device.type != "cuda" or loaded.attention_name != "paged-triton":
        return None
    return CudaRecorder


def recorded_bytes(
    config: EngineConfig,
    loaded: LoadedModel,
    max_num_seqs: int,
    recorder: Recorder,
    free_bytes: Callable[[], int] = lambda: torch.cuda.mem_get_info()[0],
) -> int | None:
    """Bytes that all captures will take, found out by making the two largest sizes; None if they cannot be made.

    The first capture brings the memory that the others share, which take a little more each.

    Args:
        config: the engine's settings.
        loaded: the model.
        max_num_seqs: of the largest capture.
        recorder: what makes them; it must be another one than that of the engine's own captures.
        free_bytes: what the device has left.
    """
    sizes = graph_sizes(max_num_seqs)
    runner = Runner(loaded, 0, 0, config.block_size)
    left = [free_bytes()]
    try:
        runner.record(max_num_seqs, loaded.max_model_len, recorder, lambda _: left.append(free_bytes()), sizes[-2:])
    except RuntimeError as error:
        log.warning("no CUDA graphs can be captured, so that decode steps are launched piece by piece: %s", error)
        return None
    finally:
        # It and its captures refer to each other.
        del runner
        gc.collect()
    return total_bytes(left, len(sizes) * len(graph_contexts(loaded.max_model_len)))


def total_bytes(left: Sequence[int], recordings: int) -> int:
    """What `recordings` take if after the first few of them, and before the first, so many bytes were `left`."""
    taken = [max(0, before - after) for before, after in itertools.pairwise(left)]
    return taken[0] + (recordings - 1) * max(taken[1:], default=0)


def record(
    runner: Runner,
    max_num_seqs: int,
    max_model_len: int,
    recorder: Recorder,
    progress: Callable[[str, float], None],
) -> None:
    """Let `runner` replay its decode steps from now on."""
    runner.record(max_num_seqs, max_model_len, recorder, lambda fraction: progress("capturing CUDA graphs", fraction))
    log.info("CUDA graphs were captured for decode steps of up to %d sequences", max_num_seqs)
