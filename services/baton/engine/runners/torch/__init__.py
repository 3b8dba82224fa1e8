"""The torch engine: Hugging Face folders through Baton's or transformers' own model code, with Baton's paged KV cache.

`loader` makes a `runner`; `runner` packs spans into one `batch` and has a model compute it: `llama`, Baton's own code,
or `transformers_model`. `ops` is what a device does for a model; `cuda_graph` decodes by replaying graphs;
`tensor_parallel` shares a model out over several devices.
"""

from __future__ import annotations

from baton.errors import ConfigurationError
from baton.installation import install_line

try:
    import torch  # noqa: F401 (imported only to name the extra where it is missing)
    import transformers
except ImportError as error:
    raise ConfigurationError(f"the torch engine needs torch and transformers: {install_line('torch')}") from error
if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 17):  # whose caches and attention it was tried with
    cause = f"the torch engine needs transformers 5.17 or later, not {transformers.__version__}"
    raise ConfigurationError(f"{cause}: {install_line('torch')}")

from baton.engine.runners.torch.loader import LoadOptions, load_alone, load_torch_runner
from baton.engine.runners.torch.runner import TorchRunner
from baton.engine.runners.torch.tensor_parallel.runner import load_parallel_runner

__all__ = ["LoadOptions", "TorchRunner", "load_alone", "load_parallel_runner", "load_torch_runner"]
