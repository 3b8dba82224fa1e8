"""Fitting a profile to timings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.cost import NodeProfile
from baton.capacity.profile_fit import DecodeSample, PrefillSample, fit_profile
from baton.capacity.reference_models import LLAMA_3_1_8B

TRUTH = NodeProfile(50e12, 0.02, 40e12, 500e9, 0.002)


def prefill_samples(truth: NodeProfile) -> list[PrefillSample]:
    """Return exact timings."""
    lengths = (16, 64, 256, 1024, 2048)
    return [PrefillSample(n, cost.prefill_seconds(LLAMA_3_1_8B, truth, 0, n)) for n in lengths]


def decode_samples(truth: NodeProfile) -> list[DecodeSample]:
    """Return exact timings of memory-bound and compute-bound steps."""
    points = [(1, 128), (1, 2048), (4, 512), (8, 2048), (256, 64), (512, 64)]
    return [DecodeSample(b, c, cost.step_seconds(LLAMA_3_1_8B, truth, b, c)) for b, c in points]


def test_exact_timings_give_the_profile_back() -> None:
    """Both sides of the roofline and both overheads are recovered."""
    fitted = fit_profile(LLAMA_3_1_8B, prefill_samples(TRUTH), decode_samples(TRUTH))

    assert fitted.prefill_flops == pytest.approx(TRUTH.prefill_flops, rel=1e-6)
    assert fitted.prefill_overhead_seconds == pytest.approx(TRUTH.prefill_overhead_seconds, rel=1e-6)
    assert fitted.decode_bytes_per_second == pytest.approx(TRUTH.decode_bytes_per_second, rel=1e-6)
    assert fitted.decode_flops == pytest.approx(TRUTH.decode_flops, rel=1e-6)
    assert fitted.step_overhead_seconds == pytest.approx(TRUTH.step_overhead_seconds, rel=1e-6)


def test_one_outlier_hardly_moves_the_rates() -> None:
    """A hiccup that makes one prefill five times as long moves the predictions of the others by less than a third."""
    samples = prefill_samples(TRUTH)
    samples[2] = PrefillSample(samples[2].num_tokens, 5 * samples[2].seconds)

    fitted = fit_profile(LLAMA_3_1_8B, samples, decode_samples(TRUTH))

    for sample in (samples[0], samples[3], samples[4]):
        assert cost.prefill_seconds(LLAMA_3_1_8B, fitted, 0, sample.num_tokens) == pytest.approx(
            sample.seconds, rel=0.34
        )


def test_noise_of_five_percent_stays_five_percent() -> None:
    """Predictions from noisy timings are within 10 % of the truth."""
    noise = random.Random(7)
    prefills = [PrefillSample(n, s * noise.uniform(0.95, 1.05)) for n, s in prefill_samples(TRUTH)]
    decodes = [DecodeSample(b, c, s * noise.uniform(0.95, 1.05)) for b, c, s in decode_samples(TRUTH)]

    fitted = fit_profile(LLAMA_3_1_8B, prefills, decodes)

    assert cost.prefill_seconds(LLAMA_3_1_8B, fitted, 0, 2048) == pytest.approx(prefill_samples(TRUTH)[-1][1], rel=0.1)
    assert cost.step_seconds(LLAMA_3_1_8B, fitted, 4, 512) == pytest.approx(decode_samples(TRUTH)[2].seconds, rel=0.1)


@given(st.lists(st.floats(1e-5, 10), min_size=2, max_size=6), st.lists(st.floats(1e-5, 10), min_size=2, max_size=6))
def test_any_timings_give_a_usable_profile(prefills: list[float], decodes: list[float]) -> None:
    """Whatever was measured, rates are positive and finite and overheads are not negative."""
    fitted = fit_profile(
        LLAMA_3_1_8B,
        [PrefillSample(16 << index, seconds) for index, seconds in enumerate(prefills)],
        [DecodeSample(1 << index, 64, seconds) for index, seconds in enumerate(decodes)],
    )

    assert 0 < fitted.prefill_flops < float("inf")
    assert 0 < fitted.decode_flops < float("inf")
    assert 0 < fitted.decode_bytes_per_second < float("inf")
    assert fitted.prefill_overhead_seconds >= 0
    assert fitted.step_overhead_seconds >= 0


def test_too_few_timings_are_refused() -> None:
    """One timing cannot tell rate from overhead."""
    with pytest.raises(ValueError, match="2 samples"):
        fit_profile(LLAMA_3_1_8B, prefill_samples(TRUTH)[:1], decode_samples(TRUTH))


def test_a_corrected_profile_takes_its_factor_longer() -> None:
    """A factor of 2 doubles the prefill and leaves decode alone."""
    slowed = TRUTH.slowed(2.0, 1.0)

    ratio = cost.prefill_seconds(LLAMA_3_1_8B, slowed, 0, 500) / cost.prefill_seconds(LLAMA_3_1_8B, TRUTH, 0, 500)
    assert ratio == pytest.approx(2.0)
    assert slowed.decode_bytes_per_second == TRUTH.decode_bytes_per_second
