"""The hidden Markov chain, step by step."""

from __future__ import annotations

import math

import numpy as np

from iet.native.arrays import Float32s, Float64s, Int64s
from tests.oracle import twin

# Both a hand-over and a stay keep a positive probability, so that the ratio of two states stays bounded.
_LOWEST_CHANCE, _LOWEST_SHARE = 1e-12, 1e-8

# α and β are scaled only if a sum leaves this range.
_LOW, _HIGH = 2.0**-20, 2.0**20


@twin
def fill_priors(shares: Float64s, null_rates: Float64s, repeats: int, priors: Float64s) -> None:
    """Fill `priors` [N·repeats, A + 1] from shares [A] and null rates [N], each used `repeats` times."""
    agents, assigned = len(shares), 0.0
    for i in range(agents):
        assigned += shares[i]
    for r in range(len(priors)):
        null = null_rates[r // repeats]
        total = priors[r, agents] = max(null, _LOWEST_SHARE) if null > 0 else null
        for i in range(agents):
            priors[r, i] = max(shares[i] * ((1 - null) / assigned), _LOWEST_SHARE)
            total += priors[r, i]
        for i in range(agents + 1):
            priors[r, i] /= total


@twin
def posteriors(
    ratios: Float32s,
    cuts: Int64s,
    interval: int,
    prior: Float64s,
    stages: int,
    mean_segment: float,
    null_segment: float,
    posterior: Float32s,
    null_posterior: Float32s,
    log_ratios: Float64s,
) -> None:
    # If the null state alternates with agents it has a mean length, else NaN.
    states = len(prior)
    null, last = states - 1, stages - 1
    alternates, null_rate_ratio = 0.0, 1.0  # rate of the null state's stages over that of agents
    if not math.isnan(null_segment):
        alternates, null_rate_ratio = 1.0, max(mean_segment, stages) / max(null_segment, stages)
    rate = stages / max(mean_segment, stages)
    leave, initial = np.empty(states), np.empty(states)  # 1 / (1 - π), and the share of the tokens each holds
    largest = total_occupancy = 0.0
    for i in range(states):
        complement = max(1 - prior[i], 1e-9)
        leave[i] = 1 / complement if i < null or alternates > 0 else 1.0
        initial[i] = prior[i] * complement if alternates > 0 else prior[i]
        if i == null:
            initial[i] /= null_rate_ratio
        total_occupancy += initial[i]
        largest = max(largest, prior[i])
    lowest = highest = 0.0  # without a state to hand over to
    if largest <= 1 - 1e-9:
        lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
    if prior[null] == 0:
        for t in range(len(null_posterior)):
            ratios[t, null] = 0.0  # else β of the null state grows on unmarked text, until 0·inf
    longest = 1
    for d in range(len(cuts) - 1):
        longest = max(longest, cuts[d + 1] - cuts[d])
    alpha = np.empty((min(interval, longest), stages, states), np.float32)
    saved = np.empty((-(-longest // interval), stages, states))
    state, beta = np.empty((stages, states)), np.empty((stages, states))
    onward, occupancy, weights = np.empty(states), np.empty(states), np.empty(states)
    for d in range(len(cuts) - 1):
        for m in range(stages):
            for i in range(states):
                state[m, i], beta[m, i] = initial[i] / total_occupancy / stages, 1.0
        final = -(-(cuts[d + 1] - cuts[d]) // interval) - 1
        # To the last part and back: the α of one of them are kept at a time.
        for step in range(2 * final + 1):
            keep = step >= final
            p = 2 * final - step if keep else step
            begin = cuts[d] + p * interval
            end = min(begin + interval, cuts[d + 1])
            for m in range(stages):
                for i in range(states):
                    if not keep:
                        saved[p, m, i] = state[m, i]
                    elif p < final:
                        state[m, i] = saved[p, m, i]
            log_ratio = 0.0
            for t in range(begin, end):  # each row of `alpha` becomes α of a token, up to a factor
                row = t - begin if keep else 0
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                null_rates = min(max(rate * null_rate_ratio, lowest), highest) if t > cuts[d] else 0.0
                arriving = 0.0
                for i in range(states):
                    onward[i] = state[last, i] * leave[i] * (advance if i < null else null_rates)
                    arriving += onward[i]
                onward[null] *= alternates
                total = 0.0
                for i in range(states):
                    q, ratio = advance if i < null else null_rates, ratios[t, i]
                    previous = state[0, i]
                    current = ((1 - q) * previous + prior[i] * (arriving - onward[i])) * ratio
                    state[0, i] = alpha[row, 0, i] = current
                    together = current
                    for m in range(1, stages):
                        self_transition = state[m, i]
                        current = ((1 - q) * self_transition + q * previous) * ratio
                        state[m, i] = alpha[row, m, i] = current
                        together += current
                        previous = self_transition
                    total += together
                if t == end - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    for m in range(stages):
                        for i in range(states):
                            state[m, i] /= total
            if p == final or not keep:
                log_ratios[d] += log_ratio
            if not keep:
                continue
            # β_t(m, i) ∝ P(scores after t | i in stage m at t): stay, or the next stage, or from the last one
            # a segment of somebody else. γ is α·β divided by its sum: neither needs any scale but a safe one.
            for t in range(end - 1, begin - 1, -1):
                total = 0.0
                for i in range(states):
                    occupancy[i] = alpha[t - begin, 0, i] * beta[0, i]
                    for m in range(1, stages):
                        occupancy[i] += alpha[t - begin, m, i] * beta[m, i]
                    total += occupancy[i]
                scale = 1 / total
                null_posterior[t] = occupancy[null] * scale
                for i in range(null):
                    posterior[t, i] = occupancy[i] * scale
                factor, entering = (1.0 if _LOW < total < _HIGH else scale), 0.0
                for i in range(states):
                    weights[i] = factor * ratios[t, i]
                    occupancy[i] = prior[i] * beta[0, i] * weights[i]
                    entering += occupancy[i]
                occupancy[null] *= alternates
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                null_rates = min(max(rate * null_rate_ratio, lowest), highest) if t > cuts[d] else 0.0
                for i in range(states):
                    q = advance if i < null else null_rates
                    for m in range(last):
                        beta[m, i] = ((1 - q) * beta[m, i] + q * beta[m + 1, i]) * weights[i]
                    complement = entering - occupancy[i]
                    beta[last, i] = (1 - q) * weights[i] * beta[last, i] + q * leave[i] * complement


@twin
def log_likelihoods(
    ratios: Float32s,
    tokens: int,
    mean_segments: Float64s,
    null_segments: Float64s,
    priors: Float64s,
    log_ratios: Float64s,
) -> None:
    # As `posteriors`, without posteriors, for chains of three stages.
    null = priors.shape[1] - 1
    leave, first = np.empty(null + 1), np.empty(null + 1)
    second, third = np.empty(null + 1), np.empty(null + 1)
    for s in range(len(ratios)):
        for r in range(len(mean_segments)):
            mean, alternates, null_rate_ratio = max(mean_segments[r], 3.0), 0.0, 1.0
            if not math.isnan(null_segments[r]):
                alternates, null_rate_ratio = 1.0, mean / max(null_segments[r], 3.0)
            rate = min(3 / mean, 1.0)
            largest = total_occupancy = 0.0
            for i in range(null + 1):
                complement = max(1 - priors[r, i], 1e-9)
                leave[i] = 1 / complement if i < null or alternates > 0 else 1.0
                first[i] = priors[r, i] * complement if alternates > 0 else priors[r, i]
                if i == null:
                    first[i] /= null_rate_ratio
                total_occupancy += first[i]
                largest = max(largest, priors[r, i])
            for i in range(null + 1):
                first[i] = second[i] = third[i] = first[i] / total_occupancy / 3
            lowest = highest = 0.0
            if largest <= 1 - 1e-9:
                lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
            log_ratio = 0.0
            for t in range(tokens):
                advance = min(max(rate, lowest), highest) if t > 0 else 0.0
                null_rates = min(max(rate * null_rate_ratio, lowest), highest) if t > 0 else 0.0
                arriving = total = 0.0
                for i in range(null + 1):
                    arriving += third[i] * leave[i] * (advance if i < null else null_rates)
                for i in range(null + 1):
                    q, ratio = advance if i < null else null_rates, ratios[s, t, i]
                    self_transition = third[i] * leave[i] * q * (1.0 if i < null else alternates)
                    current = ((1 - q) * first[i] + priors[r, i] * (arriving - self_transition)) * ratio
                    then = ((1 - q) * second[i] + q * first[i]) * ratio
                    at_last = ((1 - q) * third[i] + q * second[i]) * ratio
                    first[i], second[i], third[i] = current, then, at_last
                    total += current + then + at_last
                if t == tokens - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    scale = 1 / total
                    for i in range(null + 1):
                        first[i] *= scale
                        second[i] *= scale
                        third[i] *= scale
            log_ratios[s, r] = log_ratio
