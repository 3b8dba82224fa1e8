"""A model folder for measurements of what surrounds the model: a real tokenizer, a tiny shape, random weights."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_VOCABULARY_SIZE = 8000
_END = "<|end|>"
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_model(directory: Path) -> int:
    """Write the folder: a byte-level BPE tokenizer trained on this checkout's text; return its vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    patterns = ("*.md", "services/**/*.py", "bench/**/*.py")
    texts = [str(path) for pattern in patterns for path in sorted(_ROOT.glob(pattern))]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[_END],
        show_progress=False,
    )
    tokenizer.train(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END)
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=fast.eos_token_id,
        eos_token_id=fast.eos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return len(fast)
