"""The base text models of exo's cards, and what Baton does with each: the table of docs/models.md.

`PYTHONPATH=services:tests python -m engine.checkpoint.exo_cards` writes the table anew from the families of the code.
Source: exo-explore/exo, resources/inference_model_cards, commit b5375f8c of 2026-06-22: 123 cards of 47 base models.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from baton.engine.checkpoint.families import ENGINES, FAMILIES, NOT_SERVED, WRAPPERS

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- exo's cards: written by tests/engine/checkpoint/exo_cards.py -->\n", "<!-- end of the cards -->\n"


class Cards(NamedTuple):
    """Models of one `model_type`."""

    models: tuple[str, ...]
    """Base models, as exo calls them."""
    formats: tuple[str, ...]
    """Of exo's cards; "bf16" stands for 16 bits of any kind, "4" for MLX's 4 bits, and so on."""
    text: str = ""
    """Family of the text within, where `model_type` is that of a folder with towers besides."""


CARDS: dict[str, Cards] = {
    "deepseek_v3": Cards(("DeepSeek V3.1",), ("4", "8")),
    "deepseek_v32": Cards(("DeepSeek V3.2",), ("4", "8")),
    "deepseek_v4": Cards(("DeepSeek V4 Flash", "DeepSeek V4 Pro"), ("8",)),
    "gemma4": Cards(
        ("Gemma 4 E2B", "Gemma 4 E4B", "Gemma 4 26B A4B", "Gemma 4 31B"), ("4", "6", "8", "bf16"), "gemma4_text"
    ),
    "glm4_moe": Cards(("GLM 4.5 Air", "GLM 4.7"), ("4", "6", "8", "bf16")),
    "glm4_moe_lite": Cards(("GLM 4.7 Flash",), ("4", "5", "6", "8")),
    "glm_moe_dsa": Cards(("GLM-5", "GLM-5.1"), ("8", "mxfp4", "mxfp8", "bf16")),
    "gpt_oss": Cards(("GPT-OSS 20B", "GPT-OSS 120B"), ("mxfp4",)),
    "kimi_k2": Cards(("Kimi K2",), ("4", "int4")),
    "kimi_k25": Cards(("Kimi K2.5", "Kimi K2.6", "Kimi K2.7 Code"), ("3", "int4"), "kimi_k2"),
    "llama": Cards(
        (
            "Llama 3.1 8B",
            "Llama 3.1 70B",
            "Llama 3.2 1B",
            "Llama 3.2 3B",
            "Llama 3.3 70B",
            "NVIDIA Llama-3.1-Nemotron-70B-Instruct",
            "NVIDIA Llama-3.1-Nemotron-Nano-4B-v1.1",
        ),
        ("4", "8", "bf16"),
    ),
    "minimax_m2": Cards(("MiniMax M2.1", "MiniMax M2.5", "MiniMax M2.7"), ("3", "4", "5", "6", "8", "mxfp4", "bf16")),
    "nemotron_h": Cards(
        ("NVIDIA Nemotron-3-Nano-30B-A3B", "NVIDIA Nemotron-Nano-9B-v2"), ("4", "5", "6", "8", "mxfp4", "nvfp4", "bf16")
    ),
    "qwen3": Cards(("Qwen3 0.6B",), ("4", "8")),
    "qwen3_5": Cards(("Qwen3.5 2B", "Qwen3.5 9B", "Qwen3.5 27B", "Qwen3.6 27B"), ("4", "8", "bf16"), "qwen3_5_text"),
    "qwen3_5_moe": Cards(
        ("Qwen3.5 35B A3B", "Qwen3.5 122B A10B", "Qwen3.5 397B A17B", "Qwen3.6 35B A3B"),
        ("4", "5", "6", "8", "bf16"),
        "qwen3_5_moe_text",
    ),
    "qwen3_moe": Cards(("Qwen3 30B", "Qwen3 235B", "Qwen3 Coder 480B"), ("4", "8")),
    "qwen3_next": Cards(("Qwen3 Next 80B", "Qwen3 Coder Next"), ("4", "5", "6", "8", "bf16")),
    "qwen3_vl": Cards(("Qwen3-VL 4B",), ("4",), "qwen3"),
    "step3p5": Cards(("Step 3.5 Flash",), ("4", "6", "8")),
}
"""By `model_type` of config.json."""


def served(model_type: str) -> str:
    """Return what Baton does with a model."""
    is_known = model_type in FAMILIES or model_type in WRAPPERS
    engines = FAMILIES.get(CARDS[model_type].text or model_type, ()) if is_known else ()
    if engines == ENGINES:
        return "torch → MLX"
    if engines:
        return f"{engines[0]} alone"
    return f"refused: {NOT_SERVED.get(model_type, 'its state is not carried yet')}"


def count(outcome: str) -> int:
    """Return the models that come to an end that begins so."""
    return sum(len(cards.models) for model_type, cards in CARDS.items() if served(model_type).startswith(outcome))


def table() -> str:
    """Return the table, with a line of sums before it."""
    num_pairs, num_alone, num_refused = (
        count("torch → MLX"),
        count("torch alone") + count("mlx alone"),
        count("refused"),
    )
    sums = (
        f"Of the {count('')} base text models of exo's cards (June 2026) **{num_pairs}** are served as a pair, torch →"
    )
    sums += f" MLX, and the other\nway round, **{num_alone}** by one engine, **{num_refused}** are refused."
    rows = [
        f"| {', '.join(cards.models)} | `{model_type}` | {', '.join(cards.formats)} | {served(model_type)} |"
        for model_type, cards in CARDS.items()
    ]
    head = ["| exo's cards | `model_type` | formats | Baton |", "|---|---|---|---|"]
    return "\n".join([sums, "", *head, *rows, ""])


def document() -> str:
    """Return the document with the table of today's families."""
    text = DOCUMENT.read_text()
    return f"{text[: text.index(BEGIN) + len(BEGIN)]}\n{table()}\n{text[text.index(END) :]}"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
