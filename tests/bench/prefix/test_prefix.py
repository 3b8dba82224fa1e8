"""`bench.prefix.__main__` from its options to its files; Baton's part is the real `baton simulate`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.prefix.__main__ import main
from bench.prefix.conversations import Request
from bench.prefix.simulated_baton import BatonFailedError, BatonLoad

_SMALL = ("--train", "60", "--count", "6", "--batch-sizes", "2", "--batch-size", "2", "--cache-sizes", "0,200,4000",
          "--cache-size", "200", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the JSON of a small run; its picture lies beside it."""
    folder = tmp_path_factory.mktemp("prefix")
    status = main([*_SMALL, "--timings", "roofline", "--out", str(folder / "a.json"), "--plot", str(folder / "a.png")])
    assert status == 0
    assert (folder / "a_roofline.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "a.json").read_text())


def _numbers(result: Any, system: str, cache_tokens: int) -> dict[str, float]:
    (row,) = (row for row in result["rows"] if (row["system"], row["cache_tokens"]) == (system, cache_tokens))
    return dict(row["numbers"])


def test_a_trie_of_size_0_is_no_cache(result: Any) -> None:
    """The first point of the sweep is the engine without the idea."""
    assert _numbers(result, "trie", 0) == _numbers(result, "slot", 0)


def test_more_cache_matches_more(result: Any) -> None:
    """Of the static trie and of the block cache; Baton keeps answers too, which no trie of others knows."""
    trie = [_numbers(result, "trie", size)["matched_tokens"] for size in (0, 200, 4000)]
    baton = [_numbers(result, "baton-cache", size)["matched_tokens"] for size in (0, 200, 4000)]

    assert trie == sorted(trie)
    assert trie[0] == 0 < trie[-1]
    assert baton == sorted(baton)


def test_the_file_keeps_samples_settings_and_machine(result: Any) -> None:
    """Every number can be computed again."""
    assert result["format"] == "baton-bench-prefix/1"
    assert result["settings"]["seed"] == 1
    assert "commit" in result["machine"]
    for row in result["rows"]:
        assert len(row["ttft_seconds"]) == len(row["matched_tokens"]) == result["load"]["requests"]
        mean = sum(row["matched_tokens"]) / len(row["matched_tokens"])
        assert row["numbers"]["matched_tokens"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--dataset", "sharegpt"], "--path"),
        (["--timings", "guess"], "guess"),
        (["--cache-sizes", "-1"], "--cache-sizes"),
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--count", "0"], "--count"),
        (["--load", "0"], "--load"),
    ],
)
def test_wrong_options_are_named(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2."""
    with pytest.raises(SystemExit) as leaving:
        main(options)

    assert leaving.value.code == 2
    assert word in capsys.readouterr().err


def test_what_baton_refuses_is_told() -> None:
    """A prompt that does not fit the memory."""
    load = BatonLoad([Request(0.0, (1,) * 100, (2,))])
    with pytest.raises(BatonFailedError, match="KV blocks"):
        load.run("note", batch_size=1, memory_tokens=16, has_prefix_cache=True)
    load.close()
