def bytes_per_token(loaded):
    return sum(l.kv_heads*(l.key_dim+l.value_dim) for l in loaded.layers)*loaded.dtype.itemsize
def kv_blocks(config, loaded):
    b=int((config.kv_cache_memory_gib or 1)*2**30); per=bytes_per_token(loaded)*config.block_size
    return b//per, int(config.swap_space_gib*2**30)//per
