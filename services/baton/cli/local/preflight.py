"""What `baton up` checks before it starts anything: a mistake costs a second and one line, not a cluster's start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from baton.cli.local.launch import LocalCluster, settings_of
from baton.cli.local.topology import NodeSpec, node_ids
from baton.config.container_limits import usable_memory
from baton.engine.checkpoint.model_folder import Checkpoint, read_checkpoint
from baton.errors import ConfigurationError
from baton.installation import install_line, lacking
from baton.node.preflight import NodeNeeds, check_main_memory, check_node
from baton.text.tokenizer import check_tokenizer_files


def check_site(
    site: LocalCluster, nodes: Sequence[NodeSpec], say: Callable[[str, str], None]
) -> Mapping[str, NodeNeeds]:
    """Check the model, its tokenizer, engine, device and adapters of each node, and memory; return what nodes take.

    `site`: what is common to all. `nodes`: their kinds. `say`: takes what is as it should be, in a word, and what was
    found. Raises ConfigurationError if something is not; the message names the key, and the remedy.
    """
    _check_installed(nodes)
    checkpoint = read_checkpoint(site.model_dir)
    say("model", f"{site.model_name}: {_described(checkpoint)}")
    check_tokenizer_files(site.model_dir)
    say("tokenizer", "its files are there")
    needs: dict[str, NodeNeeds] = {}
    for node_id, spec in node_ids(nodes):
        needs[node_id] = check_node(settings_of(site, spec), checkpoint)
        say(node_id, f"{needs[node_id].where}, {needs[node_id].dtype}")
    for part in filter(None, site.lora.split(",")):
        say("adapter", f"{part.replace('=', ' in ', 1)} fits the model")
    say("memory", check_main_memory(needs, usable_memory()))
    return needs


def _check_installed(nodes: Sequence[NodeSpec]) -> None:
    """Name all that is missing at once, with one line that installs it."""
    extras = ("gateway", *sorted({spec.engine for spec in nodes} - {"mock"}))
    if missing := lacking(*extras):
        raise ConfigurationError(f"`baton up` needs {', '.join(missing)} here: {install_line(*extras)}")


def _described(checkpoint: Checkpoint) -> str:
    millions = checkpoint.num_parameters / 1e6
    parameters = f"{millions / 1e3:.3g} billion" if millions >= 1e3 else f"{millions:.3g} million"
    return f"{checkpoint.family}, {parameters} parameters, context {checkpoint.config['max_position_embeddings']}"
