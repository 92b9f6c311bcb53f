"""Flags of `vllm serve` that have no namesake here, and what to do instead: many come with such a command line."""

_FOUND = "not needed: it is found out"
_REPLICAS = "a replica uses one GPU; `pagetide up` runs several replicas"

VLLM_FLAGS = {
    "--model": "the model is an argument: pagetide serve MODEL",
    "--device": f"{_FOUND}; the GPU is used where there is one",
    "--enable-auto-tool-choice": f"{_FOUND} from the chat template how the model calls tools",
    "--load-format": f"{_FOUND} from the model's files",
    "--tokenizer-mode": f"{_FOUND} from the model's files",
    "--kv-cache-dtype": "the KV cache has the type that --dtype sets",
    "--pipeline-parallel-size": _REPLICAS,
    "--data-parallel-size": _REPLICAS,
    "--enable-lora": "adapters are not supported; merge them into the model's weights",
    "--speculative-config": "speculative decoding is not supported yet",
    "--hf-token": "set the environment variable HF_TOKEN",
    "--download-dir": "set the environment variable HF_HOME",
    "--cpu-offload-gb": "not supported; take a smaller or quantized model",
    "--disable-log-requests": "a request is one line at level info; see --log-level",
    "--allowed-origins": "see --cors-origins",
}
