"""The torch engine: Hugging Face folders through transformers' own model code, with Baton's paged KV cache.

`loader` makes a `runner`; `runner` packs spans into one `batch` and calls the model; `attention` is what the model
calls back per layer; `last_layer` keeps all but the wanted positions out of the last layer; `pool` holds the blocks.
"""

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError("the torch engine needs torch and transformers: pip install 'baton[torch]'") from error
